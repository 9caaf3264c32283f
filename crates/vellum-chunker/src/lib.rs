//! Chunk boundaries: content-defined ones for most files, fixed ones for files that are overwritten in place.
//!
//! Invariant: boundaries depend only on the content, the parameters and the key, and not on how the bytes are split
//! into buffers; the chunks in their order are the content. Deliberately absent: I/O, hashing of chunks, and the choice
//! of the kind of boundaries for a file.

mod chunker;
mod fixed;
mod in_place;
mod params;
mod secrets;

pub use chunker::Chunker;
pub use fixed::find_block_end;
pub use in_place::{HEAD_LEN, is_in_place_format};
pub use params::ChunkSizes;

//! Bytes to chunk boundaries: content-defined ones for most files, fixed ones for files overwritten in place.
//!
//! Invariant: boundaries depend on the content, the parameters and the key only, never on how the bytes arrive in
//! buffers; chunks in order are the content. Deliberately absent: I/O, hashing of chunks, and the choice of when a
//! file changes from one kind of boundary to the other.

mod chunker;
mod fixed;
mod in_place;
mod params;
mod secrets;

pub use chunker::Chunker;
pub use fixed::find_block_end;
pub use in_place::{HEAD_LEN, is_in_place_format};
pub use params::ChunkSizes;

//! Floor 7: the shapes of docs/json.md, as types with `Serialize`.
//!
//! The command line and the windows into a volume answer programs with these. docs/json.md describes all of them; a field
//! is never removed or given another meaning without a new version.
//!
//! Invariant: nothing here reads a store or knows where an answer goes. Deliberately absent: the shapes of single commands
//! that no window shows.

pub mod change;
pub mod failure;
pub mod file;
pub mod name;
pub mod snapshot;
pub mod version;

pub use change::{ChangeCounts, ChangeJson, aspect_words, serialize_changes};
pub use failure::{FailureJson, error_code};
pub use file::{FileDetailsJson, FileJson, count_chunks, count_hole_bytes, file_kind_name};
pub use name::NameJson;
pub use snapshot::{SnapshotJson, format_json_time, origin_name};
pub use version::VersionedJson;

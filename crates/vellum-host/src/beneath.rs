//! The only caller of path system calls: each of them uses a single component below an open directory.
//!
//! Invariant: no call follows a symlink, and none leaves the directory of [`HeldDir::open_root`], whatever other
//! processes rename or replace meanwhile. Exceptions are the reading calls in `follow`, whose names contain it, and
//! paths that the user typed (`trusted` follows the symlinks of trusted owners only). FIFOs, sockets and devices are
//! never opened for their content. Deliberately absent: policy. The caller handles errors.

#![expect(clippy::disallowed_methods, reason = "this is the one module that may make these calls")]

mod create;
mod dir;
mod error;
mod exclusive;
mod file;
mod follow;
mod hidden;
mod limit;
mod list;
mod node;
mod notice;
mod stale;
mod trusted;
mod xattr;

pub use create::{
    ReplacePolicy, StagedFile, StagingMethod, TEMP_PREFIX, is_temp_name, new_temp_name, remove_temp_entries,
};
pub use dir::{HeldDir, SpecialFile};
pub use error::BeneathError;
use error::Result;
pub use file::{OpenedFile, stat_file};
pub use hidden::{HiddenDir, remove_stale_hidden_dir};
pub use limit::{raise_open_files_limit, reserve_descriptor_table};
pub use list::{DirNames, ListedName};
pub use node::HeldNode;
pub use stale::remove_stale_entry;
pub use trusted::{append_to_trusted_file, open_trusted_file};
pub use xattr::ExtendedAttribute;

#[cfg(test)]
mod tests;

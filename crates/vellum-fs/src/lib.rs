//! POSIX semantics on a live worktree: a base tree in the store, and layers of what changed since.
//!
//! No FUSE type is known here, and no kernel is needed: all of it can be tested, and used, as a library.

pub mod attributes;
pub mod content;
pub mod error;
pub mod fs;
pub mod history;
pub mod lease;
mod lock_holders;
pub mod log;
pub mod metrics;
pub mod names;
mod number_map;
mod operation_marks;
pub mod publish;
mod reader;
pub mod trash;
pub mod tree;

pub use attributes::statfs::FilesystemStatistics;
pub use attributes::xattr::XattrFlags;
pub use attributes::{AttributeChanges, TimeChange};
pub use content::{AllocateMode, ChunkUploader, StoredChunk, StoredWriteTarget, names_stored_chunks};
pub use error::{FsError, Result};
pub use fs::{BareInode, InodeAttributes, LiveFilesystem, LiveOptions, RequestCaller};
pub use history::past::{EPOCHS_MAX, Epoch, EpochGuard};
pub use history::view::LiveView;
pub use lock_holders::LockHolderId;
pub use log::WriteLog;
pub use names::RenameFlags;
pub use operation_marks::{OperationMark, OperationMarkGuard};
pub use vellum_volume::tree::{DirectoryEntry, SeekTarget, StateReader};

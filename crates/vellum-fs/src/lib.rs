//! POSIX semantics on a live worktree: a base tree in the store, and layers of what changed since.
//!
//! No FUSE type is known here, and no kernel is needed: all of it can be tested, and used, as a library.

mod acl;
pub mod attr;
pub mod cache;
pub mod clock;
pub mod content;
pub mod error;
pub mod fork;
pub mod frozen;
pub mod fs;
pub mod head;
pub mod lease;
mod retained_roots;
pub mod log;
mod memory;
pub mod metrics;
pub mod names;
mod numbers;
pub mod opened;
pub mod partial;
pub mod past;
pub mod pending;
pub mod publish;
pub mod publisher;
mod selected;
pub mod snapshot;
mod statfs;
pub mod tree;
pub mod view;
pub mod xattr;

pub use attr::{AttributeChanges, TimeChange};
pub use content::{AllocateMode, SeekTarget};
pub use error::{FsError, Result};
pub use fs::{InodeAttributes, LiveFilesystem, LiveOptions, RequestCaller};
pub use log::WriteLog;
pub use names::{DirEntry, RenameFlags};
pub use opened::{FileHandle, OpenFlags};
pub use past::{EPOCHS_MAX, Epoch, EpochGuard};
pub use statfs::FilesystemStatistics;
pub use view::LiveView;
pub use xattr::XattrFlags;

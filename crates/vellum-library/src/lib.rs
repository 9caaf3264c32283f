//! Floor 6: volumes for programs, without FUSE.
//!
//! A [`Volume`] is in a directory of this machine, or has its store elsewhere. Its live worktrees are used like
//! `std::fs`, by path: [`Worktree`] and the directories below it are a [`Dir`]. Snapshots and views are cheap;
//! snapshots are durable, views exist in memory only. Both are read like the worktree itself, since all of them
//! implement [`Tree`].
//!
//! ```
//! use vellum_library::{Tree, Volume};
//!
//! # fn main() -> vellum_library::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let created = Volume::create(dir.path())?;
//! // Shown once: what opens the volume when the directory is lost and the store is not.
//! let _code = created.recovery_code;
//! let work = created.volume.create_worktree("work", None)?;
//!
//! work.mkdir_all("project/src")?;
//! work.write("project/src/main.rs", "fn main() {}")?;
//! let id = work.create_snapshot("first")?;
//!
//! let view = work.open_view()?;
//! work.rename("project", "renamed")?;
//! assert!(!work.exists("project")?);
//! assert!(view.exists("project/src/main.rs")?);
//!
//! let snapshot = work.open_snapshot(&id.to_string())?;
//! work.copy_from(&snapshot, "project", "project")?;
//! assert_eq!(work.read("project/src/main.rs")?, b"fn main() {}");
//! # Ok(())
//! # }
//! ```
//!
//! Files are read and written as in the standard library, sequentially or at any offset:
//!
//! ```
//! use std::io::{Read, Seek, SeekFrom, Write};
//! use vellum_library::{OpenOptions, Tree, Volume};
//!
//! # fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let work = Volume::create(dir.path())?.volume.create_worktree("work", None)?;
//! let mut file = work.create("notes")?;
//! file.write_all(b"hello")?;
//! file.write_at(b"J", 0)?;
//! file.seek(SeekFrom::Start(0))?;
//! let mut text = String::new();
//! file.read_to_string(&mut text)?;
//! assert_eq!(text, "Jello");
//!
//! let mut log = work.open_with("log", OpenOptions::new().append(true).create(true))?;
//! log.write_all(b"one line\n")?;
//! log.sync()?;
//! # Ok(())
//! # }
//! ```
//!
//! Plain files in a directory are a [`Checkout`], as the command line has it.
//!
//! One process at a time has a live worktree open, either a mount or a program. Any process can open published
//! snapshots ([`Volume::open_snapshot`]). docs/semantics.md lists what survives a crash or a power cut.
//!
//! Invariant: nothing here depends on a kernel interface or prints.

pub mod address;
pub mod approval;
pub mod checkout;
pub mod compare;
pub mod content_id;
pub mod dir;
pub mod error;
pub mod facts;
pub mod file;
pub mod history;
pub mod inodes;
pub mod lanes;
pub mod live;
pub mod metadata;
pub mod options;
pub mod path_versions;
mod paths;
pub mod plans;
pub mod snapshot;
pub mod snapshot_hold;
mod source;
pub mod state_token;
pub mod tree;
#[cfg(feature = "vfs")]
pub mod vfs;
pub mod volume;
pub mod walk;
pub mod worktree;

pub use address::VolumeAddress;
pub use approval::{ApprovalAnswer, ApprovalFolder, ApprovalRequest, ApprovalStep};
pub use checkout::{Checkout, CheckoutChanges, CheckoutRestore, CheckoutSnapshot};
pub use compare::SnapshotComparison;
pub use content_id::ContentId;
pub use dir::Dir;
pub use error::{Error, Result};
pub use facts::{VolumeFacts, WorktreeFacts};
pub use file::File;
pub use history::{HistoryPage, HistoryQuery, HistoryRow, SnapshotLabels};
pub use inodes::{EntryOwner, EntryPlace, NodeKind, TreeInodes};
pub use lanes::{HistoryLanes, LaneEdge, LaneFork, LaneStep};
pub use live::{LiveLimits, LiveStateClaim, OpenError};
pub use metadata::{DirEntry, DirPage, Metadata, PageEntry, WalkEntry};
pub use options::OpenOptions;
pub use path_versions::{PathRecord, PathVersion, PathVersions};
pub use plans::{CheckoutForkPlan, CheckoutRestorePlan, NotePlan, PinPlan, PlannedStep, TagPlan};
pub use snapshot::{Snapshot, SnapshotInfo, WorktreeView};
pub use snapshot_hold::TreeHold;
pub use state_token::{StateToken, VolumeState};
pub use tree::Tree;
pub use vellum_fs::tree::cache::CacheStatistics;
pub use vellum_fs::{AttributeChanges, FilesystemStatistics, TimeChange};
pub use vellum_types::{FileKind, SnapshotId};
pub use vellum_volume::annotation::AnnotationChange;
pub use volume::{CollectedGarbage, CreatedVolume, Volume, VolumeOptions};
pub use walk::TreeWalk;
pub use worktree::Worktree;

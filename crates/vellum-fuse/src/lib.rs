//! Floor 6: the kernel adapter. It decodes FUSE requests, has `vellum-fs` (or a snapshot's tree) carry them out, and
//! answers them. What a request means is decided in those crates.
//!
//! - [`wire`] decodes requests and encodes answers.
//! - [`transport`] moves both between the kernel and a service.
//! - [`adapter`] is the service of a mount: it answers each request.
//! - [`virt`] is the virtual directory `.vellum`.
//! - [`metrics`] counts requests, and writes the access log.
//! - [`mount`] creates a mount of these.
//!
//! Invariants: a thread that answers requests sends the kernel nothing but its answers; each request is answered
//! exactly once, whatever it contains; nothing here prints.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test that cannot go on has failed"))]

pub mod adapter;
pub mod error;
mod followed;
mod locks;
pub mod metrics;
pub mod mount;
mod node;
mod posture;
mod references;
pub mod transport;
pub mod virt;
pub mod wire;

pub use adapter::PathPolicies;
pub use adapter::invalidation::CacheInvalidator;
pub use error::{MountError, Result};
pub use followed::FollowedTree;
pub use locks::{DeferredLock, FileLocks, LockDecision};
pub use mount::{MountOptions, MountSource, ServedFilesystem, mount_filesystem};
pub use node::{NodePlace, SnapshotSlot};
pub use posture::MountPosture;
pub use references::{NodeReferences, visit_named_nodes};
pub use transport::mounting::{detach_mount, unmount_filesystem};
pub use virt::MountFile;

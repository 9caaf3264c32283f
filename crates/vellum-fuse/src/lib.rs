//! Floor 6: the kernel adapter. It decodes FUSE requests, has `vellum-fs` (or a snapshot's tree) carry them out, and
//! answers; semantics are elsewhere.
//!
//! Invariants: a request thread sends the kernel nothing but its own answers; every request is answered exactly once,
//! whatever it contains; nothing here prints.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test that cannot go on has failed"))]

pub mod adapter;
pub mod attr;
pub mod connection;
pub mod dirs;
pub mod error;
pub mod forget;
pub mod mount;
pub mod mounting;
pub mod node;
mod orphans;
pub mod tally;
pub mod virt;
pub mod wire;

pub use error::{MountError, Result};
pub use forget::CacheInvalidator;
pub use mount::{MountOptions, MountSource, ServedFilesystem, mount_filesystem};
pub use virt::MountFile;

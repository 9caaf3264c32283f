//! Floor 7: one worktree on many machines. One process serves the worktree; the mounts of other machines are its
//! clients, and forward their kernels' requests to it.
//!
//! - [`protocol`] is what client and server send each other: the kernel's own requests and answers, in frames.
//! - [`connection`] encrypts the frames, and proves to each side that the other has the volume's key.
//! - [`server`] answers the requests of all clients.
//! - [`client`] forwards the requests of one mount, through lost connections.
//! - [`locks`] is the table of the locks that programs on all machines have.
//!
//! Invariants: a change is carried out once, however often its request is sent; what a client holds is let go when its
//! session ends; received bytes are decoded or refused, and no peer makes this process take more memory than the named
//! limits. Deliberately absent: the log that makes a server replaceable (`vellum-shared-log`), terminals.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test that cannot go on has failed"))]

pub mod client;
pub mod connection;
mod error;
mod file_locks;
pub mod locks;
pub mod protocol;
pub mod server;

pub use error::{ClusterError, Result};
pub use file_locks::{LockHolderRecorder, SessionFileLocks};

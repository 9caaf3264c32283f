//! Floor 8: windows into a volume: over HTTP for the browser of the person at this machine, and tools for coding agents.
//!
//! [`web`] answers requests on a loopback address: the files of the page, which everybody on this machine may read, and the
//! API, which asks for a token. docs/web.md describes both. What is shown is read from snapshots; what is changed is changed by
//! the command line, after a preview of it was shown.
//!
//! [`mcp`] answers one agent over standard input and output (docs/agents.md).
//!
//! [`webdav`], [`s3`] and [`nfs`] are gateways: programs that know nothing of volumes read a snapshot, or read and write a live worktree
//! (docs/gateways.md).
//!
//! Invariant: no request leaves the tree of a snapshot, and none over HTTP is answered before its `Host`, its origin and, beyond the
//! page's own files, its token were checked. Deliberately absent: the command line, which executes this program.

mod command_line;
mod content_blocks;
pub mod credentials;
pub mod end_signal;
pub mod error;
mod gateway_listener;
mod http_gateway;
pub mod mcp;
pub mod nfs;
pub mod open;
mod plan_folder;
mod planned_restore;
mod private_file;
mod received_file;
mod request_body;
pub mod request_sender;
pub mod s3;
pub mod served_tree;
pub mod token;
pub mod web;
pub mod webdav;

pub use error::{Result, ServeError};

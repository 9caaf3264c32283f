//! A gateway for WebDAV (RFC 4918, classes 1 and 2) by the crate `dav-server`: its requests become calls of the library.
//!
//! Invariant: a request reaches the tree only after its sender, its name and password, and whether it may write were checked.
//! An upload is there whole or not at all. Deliberately absent: properties of clients' own, and partial uploads.

pub mod body;
pub mod filesystem;
pub mod guard;
pub mod metadata;
mod server;
pub mod upload;

pub use server::{WebdavServer, WebdavSettings};

//! A gateway for NFS (RFC 1813, version 3) with its protocol for mounting, over TCP on one port.
//!
//! `record` cuts what arrives into messages (RFC 5531), `rpc` has their heads, `request` what is asked, with `xdr` (RFC 4506);
//! `tree` answers it from the library, where inodes are named by `handle` and listings go on by `listing`.
//!
//! Invariants: nothing of a message is believed before it was checked against its length; a handle that this volume did not give out
//! for this tree names nothing; memory for messages and answers has a limit for all clients together. Deliberately absent: locks
//! (NLM), the port mapper, access control lists, versions 2 and 4, and a memory of answers for requests that are sent again.

mod attributes;
mod changing;
mod handle;
mod listing;
mod memory;
mod mount;
pub mod protocol;
mod reading;
mod record;
pub mod request;
pub mod rpc;
mod sender;
mod server;
mod socket_owner;
mod tree;
pub mod xdr;

pub use mount::MountRequest;
pub use sender::NfsSenders;
pub use server::{NfsServer, NfsSettings};

//! Synchronising one directory with another, here or on another host.
//!
//! Everything is planned before anything is done: both sides are listed whole, the plan is a pure function of the two
//! listings and the options, and a run carries out the plan that a dry run prints.
//!
//! | module | owns |
//! |---|---|
//! | `listing` | what is on one side, compact and sorted |
//! | `name_charset` | names in the charsets of two hosts |
//! | `options` | what a run is asked to do |
//! | `owners` | owners and groups by name |
//! | `scan` | listing a local tree |
//! | `delta` | what of a file the other side has already |
//! | `rules` | what is left out and what is protected: rsync's filter language |
//! | `plan` | what a run will do |
//! | `moving` | taking away at the source what the destination has |
//! | `source` | where entries and content come from |
//! | `stored_stat` | metadata that is kept in an attribute instead of being set |
//! | `receive` | the receiving side: writing entries, beside their places |
//! | `transfer` | carrying out a plan: phases, threads, failures |
//! | `local` | a directory of this host as an end |
//! | `snapshot` | a place in a snapshot as a source |
//! | `union` | several sources as one |
//! | `wire` | the bytes between two hosts |
//! | `remote` | a directory of another host as an end |
//! | `session` | the conversation of two hosts |
//! | `two_way` | both ways, by what both sides last agreed on |
//! | `watch` | noticing that a tree changes, and when to act on it |
//!
//! Invariant: path system calls are made by `vellum_host::beneath` alone. Deliberately absent: anything that
//! prints, and the meaning of command lines.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make the trees that the code works on"))]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on has failed"))]

pub mod delta;
pub mod error;
pub mod listing;
pub mod local;
pub mod moving;
pub mod name_charset;
pub mod options;
pub mod owners;
mod path;
pub mod plan;
pub mod receive;
pub mod remote;
pub mod rules;
pub mod scan;
pub mod session;
pub mod snapshot;
pub mod source;
pub mod stored_stat;
mod transfer;
pub mod two_way;
pub mod union;
pub mod watch;
pub mod wire;

pub use error::{Result, SyncError};

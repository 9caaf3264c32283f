//! Synchronising one directory with another, here or on another host.
//!
//! Everything is planned before anything is changed: both sides are listed completely, the plan is a pure function of
//! the two listings and the options, and a run carries out the plan that a dry run prints.
//!
//! | module | owns |
//! |---|---|
//! | `model` | the data that both sides share: `listing` (the entries of one side, compact and sorted), `options`,
//! `owners` |
//! | `rules` | what is excluded and what is protected: rsync's filter language |
//! | `plan` | the steps of a run |
//! | `ends` | where entries come from and go: `local`, `remote`, `snapshot`, `object`, and sources made of others:
//! `union`, `name_charset`, `stored_stat` |
//! | `local` | `scan` lists a tree, `transfer` carries a plan out, `receive` writes entries, `moving` removes what was copied |
//! | `remote` | `wire` (the bytes between two hosts), `session` (their protocol), `delta` |
//! | `two_way` | both directions, by the state that both sides last agreed on |
//! | `watch` | noticing that a tree changes, and when to act on it |
//!
//! Invariant: path system calls are made by `vellum_host::beneath` alone. Deliberately absent: printing, and the
//! meaning of command lines.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make the trees that the code works on"))]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on has failed"))]

pub mod ends;
pub mod error;
pub mod local;
pub mod model;
pub mod plan;
pub mod remote;
pub mod rules;
pub mod two_way;
pub mod watch;

pub use error::{Result, SyncError};

//! Checked-out worktrees on real directories: every kind of file, hostile names and snapshots, races, faults.

#![allow(clippy::disallowed_methods, reason = "tests and measurements make the trees that the code works on")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod absent;
mod audit;
mod cache;
mod chance;
mod databases;
mod edits;
mod fresh;
mod full_disk;
mod hostile;
mod jvs;
mod killed;
mod metadata;
mod model;
mod mounted;
mod partial;
mod picture;
mod place;
mod races;
mod round_trip;
mod safety;
mod scanning;
mod selecting;
mod several;
mod unprivileged;
mod unreadable;
mod workspace;
mod zoo;

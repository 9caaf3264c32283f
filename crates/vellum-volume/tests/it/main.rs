//! Integration tests of the volume: everything that must hold across several commands, worktrees and accidents.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod collecting;
mod comparing;
mod damage;
mod devices;
mod finding;
mod forged;
mod golden;
mod history;
mod interleaving;
mod killed;
mod leases;
mod long_files;
mod merging;
mod model;
mod naming;
mod node_packs;
mod opening;
mod operations;
mod operations_thinned;
mod oversized;
mod pins;
mod ram;
mod readers;
mod refs;
mod remotes;
mod retention;
mod rotation;
mod rotation_races;
mod sessions;
mod together;
mod undo;
mod world;

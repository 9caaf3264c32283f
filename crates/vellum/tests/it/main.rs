//! The binary as a user runs it, one file per command, on temporary directories.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod disk;
mod mounting;
mod world;

mod bench;
mod cat;
mod completion;
mod crashes;
mod diff;
mod export;
mod forget;
mod fork;
mod gc;
mod global;
mod help;
mod history;
mod info;
mod init;
mod inside;
mod json;
mod key;
mod lease;
mod listing;
mod ls;
mod mdtest;
mod memory;
mod mount;
mod mounted;
mod mounts;
mod nameless;
mod objbench;
mod profile;
mod programs;
mod quota;
mod restore;
mod rings;
mod selected;
mod show;
mod snapshot;
mod stats;
mod status;
mod sync;
mod sync_ask;
mod sync_calls;
mod sync_owners;
mod sync_remote;
mod sync_rsync;
mod sync_two_way;
mod sync_watch;
mod tag;
mod trouble;
mod umount;
mod verify;
mod worktree;

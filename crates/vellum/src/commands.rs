//! One file per command: its arguments, whose doc comments are the help, then one function.

pub mod bench;
pub mod cat;
pub mod completion;
pub mod diff;
pub mod export;
pub mod flush;
pub mod forget;
pub mod fork;
pub mod gc;
pub mod history;
pub mod info;
pub mod init;
pub mod key;
pub mod ls;
pub mod mdtest;
pub mod mount;
pub mod mounts;
pub mod objbench;
pub mod restore;
pub mod show;
pub mod snapshot;
pub mod status;
pub mod tag;
pub mod umount;
pub mod verify;
pub mod worktree;

//! Owner of files that root creates in another user's directory: the owner of that directory, who could not use them
//! otherwise.
//!
//! Deliberately absent: files of the worktree, whose owners snapshots record.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Gid, Uid, fchown, fstat};
use rustix::io::Errno;

/// Gives a file or directory that this process has just made to the owner of the directory that it was made in. Does
/// nothing unless this is root, and the directory is not root's.
pub fn set_owner_from_dir(dir: impl AsFd, made: impl AsFd) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = fstat(dir)?;
    if owner.st_uid == 0 {
        return Ok(());
    }
    match fchown(made, Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid))) {
        // A filesystem without owners, or a root that is root of a namespace only: the file is what it can be.
        Err(Errno::PERM | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(()),
        done => Ok(done?),
    }
}

//! Removes a fork that failed.
//!
//! Invariant: only what the fork made is removed: what is at a path of its snapshot and looks as the fork made it, its
//! temporary files, and directories of the snapshot that are empty then. What a user put in meanwhile stays.

use vellum_host::beneath::{HeldDir, remove_temp_entries};
use vellum_host::metadata::FileStat;
use vellum_types::{FileKind, Ino, InodeAttr};
use vellum_volume::FsTree;

use crate::error::Result;

/// Mode of a directory that is being emptied; its own may not allow that.
const WORKING_MODE: u32 = 0o700;

/// Removes what a fork of this state made in a directory. What cannot be removed stays: the fork has failed for a reason
/// that the user is told.
pub(super) fn remove_fork_entries(root: &HeldDir, target: &FsTree) {
    remove_entries(root, target, Ino::ROOT);
}

fn remove_entries(dir: &HeldDir, target: &FsTree, ino: Ino) {
    let _ = remove_temp_entries(dir);
    // What cannot be read of the snapshot was not made.
    let Ok(entries) = target.list_entries(ino) else { return };
    for (name, dentry) in entries {
        let _ = remove_entry(dir, &name, target, dentry.ino);
    }
}

fn remove_entry(dir: &HeldDir, name: &[u8], target: &FsTree, ino: Ino) -> Result<()> {
    let attr = target.expect_inode_attr(ino)?;
    let stat = dir.stat(name)?;
    if stat.kind != attr.kind {
        return Ok(());
    }
    if stat.kind == FileKind::Dir {
        // The fork may already have given the directory its own mode, which can forbid the owner to remove
        // entries (EACCES).
        dir.hold_node(name)?.set_mode(WORKING_MODE)?;
        remove_entries(&dir.open_dir(name)?, target, ino);
        // One that holds something of somebody else's stays.
        return Ok(dir.remove_dir(name)?);
    }
    if is_likely_created(&stat, &attr) { Ok(dir.unlink(name)?) } else { Ok(()) }
}

/// Every file has its time before it has its name; who writes to it, or makes one of that name, gives it another.
fn is_likely_created(stat: &FileStat, attr: &InodeAttr) -> bool {
    stat.mtime == attr.mtime && (attr.kind != FileKind::File || stat.size == attr.size)
}

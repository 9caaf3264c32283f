//! Removing a failed fork.
//!
//! Invariant: only entries that the fork created are removed: those at paths of its snapshot with the expected
//! attributes, its temporary files, and directories of the snapshot that become empty. Entries that a user added
//! meanwhile stay.

use vellum_host::beneath::{HeldDir, remove_temp_entries};
use vellum_host::metadata::FileStat;
use vellum_types::{FileKind, Ino, InodeAttr};
use vellum_volume::FsTree;

use crate::error::Result;

/// Mode of a directory while it is emptied; its own mode may forbid that.
const WORKING_MODE: u32 = 0o700;

/// Removes the entries that a fork of this state created in a directory. Entries that cannot be removed stay: the
/// caller reports the error of the fork itself.
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
        // This fails if the directory contains entries of other origin, which stay.
        return Ok(dir.remove_dir(name)?);
    }
    if is_likely_created(&stat, &attr) { Ok(dir.unlink(name)?) } else { Ok(()) }
}

/// Whether the fork seems to have created a file. It sets the time before the name; any later write, or another file of
/// that name, has another time.
fn is_likely_created(stat: &FileStat, attr: &InodeAttr) -> bool {
    stat.mtime == attr.mtime && (attr.kind != FileKind::File || stat.size == attr.size)
}

//! What is shown in a try although the fork covers it: mounts that are cloned before, and moved to their places afterwards.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

/// A clone of what is seen at a path, with all that is mounted below it.
pub struct KeptMount {
    tree: OwnedFd,
}

impl KeptMount {
    /// Clones what is seen at a path.
    pub fn clone_mounts(path: &Path) -> rustix::io::Result<Self> {
        // With what is mounted below it: in a user namespace, the kernel does not show what lies beneath a mount.
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(CWD, path, flags).map(|tree| Self { tree })
    }

    /// Lets nobody write through it.
    pub fn make_read_only(&self) -> rustix::io::Result<()> {
        let wanted =
            libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
        // Recursive, because the clone has all that is mounted below it, and each mount has attributes of its own.
        let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
        #[expect(unsafe_code, reason = "no safe call sets attributes of mounts")]
        // SAFETY: the kernel reads the name and the structure, whose size it is told, and keeps neither.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                self.tree.as_raw_fd(),
                c"".as_ptr(),
                flags,
                &raw const wanted,
                size_of::<libc::mount_attr>(),
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    /// Shows it at a path.
    pub fn show_at(&self, path: &Path) -> rustix::io::Result<()> {
        move_mount(self.tree.as_fd(), "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    }
}

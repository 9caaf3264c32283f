//! Watching a directory: the one call of inotify that takes a path.

use std::os::fd::AsFd;

use rustix::fs::inotify::{self, WatchFlags};
use rustix::io::Errno;

use super::dir::{HeldDir, system_error};
use super::{BeneathError, HeldNode};

impl HeldDir {
    /// Adds an inotify watch on this directory; returns the watch descriptor of its events, which stays the same if the
    /// directory is moved.
    pub fn add_inotify_watch(&self, instance: impl AsFd, events: WatchFlags) -> Result<i32, BeneathError> {
        // The descriptor's link leads to the held directory itself and nowhere else.
        let path = HeldNode::from_borrowed_fd(self.as_fd()).proc_path();
        inotify::add_watch(instance, path, events | WatchFlags::ONLYDIR)
            .map_err(|errno: Errno| system_error("watch the directory", b".", errno))
    }
}

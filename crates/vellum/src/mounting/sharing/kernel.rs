//! What the kernel of a client's mount has cached, beside what else is mounted there.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vellum_cluster::client::KernelCaches;
use vellum_fuse::CacheInvalidator;

use crate::mounting::log::MountLog;
use crate::mounting::table;

/// The kernel of a client's mount.
pub struct ClientKernel {
    invalidator: Arc<CacheInvalidator>,
    mountpoint: PathBuf,
    mounts: Mutex<InnerMounts>,
    log: Arc<MountLog>,
}

/// Whether anything is mounted in the mount.
struct InnerMounts {
    /// Signals changes of the kernel's table of mounts; None: it cannot be watched, and is read each time.
    changes: Option<File>,
    is_known: bool,
    are_there: bool,
}

impl ClientKernel {
    /// Of the mount on `mountpoint`.
    pub fn new(invalidator: Arc<CacheInvalidator>, mountpoint: PathBuf, log: Arc<MountLog>) -> Self {
        let changes = File::open("/proc/self/mountinfo").ok();
        let mounts = InnerMounts { changes, is_known: false, are_there: false };
        Self { invalidator, mountpoint, mounts: Mutex::new(mounts), log }
    }

    fn find_inner_mounts(&self) -> bool {
        // If the table cannot be read, nothing is known of any; then the kernel at least shows what there is.
        let mounts = table::read_mounts().unwrap_or_default();
        mounts.iter().any(|mount| {
            mount.mountpoint != self.mountpoint && mount.mountpoint.starts_with(&self.mountpoint)
        })
    }
}

impl InnerMounts {
    fn has_changed(&self) -> bool {
        let Some(changes) = &self.changes else { return true };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The table is always readable; a change is signalled as an exception, once.
        poll(&mut [PollFd::new(changes, PollFlags::PRI)], Some(&now)) != Ok(0)
    }
}

impl KernelCaches for ClientKernel {
    fn can_drop_names(&self) -> bool {
        self.invalidator.can_invalidate_all_names()
    }

    fn holds_mounts(&self) -> bool {
        let mut mounts = self.mounts.lock();
        // Asked in any case, as asking takes the signal. Before the table is read: a change in between is signalled again.
        let has_changed = mounts.has_changed();
        if has_changed || !mounts.is_known {
            mounts.are_there = self.find_inner_mounts();
            mounts.is_known = true;
        }
        mounts.are_there
    }

    fn drop_names(&self) {
        self.invalidator.invalidate_all_names();
    }

    fn drop_attributes(&self, node: u64) {
        self.invalidator.invalidate_attributes(node);
    }

    fn note_names_end(&self) {
        self.log.write_warning(
            "something else is mounted in the mount, which the kernel would unmount when it drops names: it caches none any more",
        );
    }
}

//! An open file of any type, for its metadata.
//!
//! A node is opened by name with `O_PATH`, which does not open the file itself: no fifo waits, no device is activated.
//! Calls that refuse such descriptors go through `/proc/self/fd`, whose links lead to the open inode itself.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, Gid, Mode, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use vellum_types::UnixTime;

use super::Result;
use super::dir::{stat_fd, system_error};
use crate::metadata::FileStat;

/// A held file of any kind.
#[derive(Debug)]
pub struct HeldNode<'a> {
    handle: NodeHandle<'a>,
}

#[derive(Debug)]
enum NodeHandle<'a> {
    /// A file that is open for its content: calls use its descriptor.
    Open(BorrowedFd<'a>),
    /// A directory with a descriptor of its `HeldDir`.
    StandingOn(BorrowedFd<'a>),
    /// A descriptor of its own, opened with `O_PATH`.
    Held(OwnedFd),
}

impl AsFd for HeldNode<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.handle {
            NodeHandle::Open(fd) | NodeHandle::StandingOn(fd) => *fd,
            NodeHandle::Held(fd) => fd.as_fd(),
        }
    }
}

impl<'a> HeldNode<'a> {
    /// The node of a file that is open for its content, which is the cheapest form.
    #[must_use]
    pub fn from_file(file: &'a File) -> Self {
        Self { handle: NodeHandle::Open(file.as_fd()) }
    }

    pub(super) fn from_borrowed_fd(fd: BorrowedFd<'a>) -> Self {
        Self { handle: NodeHandle::StandingOn(fd) }
    }

    pub(super) fn from_owned_fd(fd: OwnedFd) -> HeldNode<'static> {
        HeldNode { handle: NodeHandle::Held(fd) }
    }

    /// The descriptor, if calls on descriptors accept it.
    pub(super) fn usable_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.handle {
            NodeHandle::Open(fd) => Some(*fd),
            NodeHandle::StandingOn(_) | NodeHandle::Held(_) => None,
        }
    }

    /// The path in `/proc` that leads to the open inode.
    pub(super) fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.as_fd().as_raw_fd())
    }

    /// Its present attributes.
    pub fn stat(&self) -> Result<FileStat> {
        stat_fd(self.as_fd())
    }

    /// Changes owner and group; None leaves one unchanged.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        // The all-ones id means "leave unchanged" to the kernel, and belongs to no user.
        let valid = |id: &u32| *id != u32::MAX;
        let uid = uid.filter(valid).map(Uid::from_raw);
        let gid = gid.filter(valid).map(Gid::from_raw);
        match self.usable_fd() {
            Some(fd) => fs::fchown(fd, uid, gid),
            // `fchown` fails with EBADF on an O_PATH descriptor; with AT_EMPTY_PATH the kernel takes the
            // descriptor itself.
            None => fs::chownat(self, "", uid, gid, AtFlags::EMPTY_PATH),
        }
        .map_err(|errno| system_error("change the owner of", b".", errno))
    }

    /// Changes the lowest twelve mode bits. Symlinks have none.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        match self.usable_fd() {
            Some(fd) => fs::fchmod(fd, mode),
            // `fchmodat` has no flag for an empty path on older kernels, and `fchmod` fails on O_PATH
            // (EBADF).
            None => fs::chmod(self.proc_path(), mode),
        }
        .map_err(|errno| system_error("change the mode of", b".", errno))
    }

    /// Sets access and modification time.
    pub fn set_times(&self, atime: UnixTime, mtime: UnixTime) -> Result<()> {
        self.set_timestamps(&Timestamps {
            last_access: to_timespec(atime),
            last_modification: to_timespec(mtime),
        })
    }

    /// Sets the modification time alone.
    pub fn set_mtime(&self, mtime: UnixTime) -> Result<()> {
        let omit = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
        self.set_timestamps(&Timestamps { last_access: omit, last_modification: to_timespec(mtime) })
    }

    /// Sets the modification time, and the access time to the present: FUSE filesystems with the older library ignore
    /// one without the other.
    pub fn set_mtime_as_read_now(&self, mtime: UnixTime) -> Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
        self.set_timestamps(&Timestamps { last_access: now, last_modification: to_timespec(mtime) })
    }

    fn set_timestamps(&self, times: &Timestamps) -> Result<()> {
        let outcome = match self.usable_fd() {
            Some(fd) => fs::futimens(fd, times),
            None => match fs::utimensat(self, "", times, AtFlags::EMPTY_PATH) {
                // Linux before 5.8 does not know this flag here.
                Err(Errno::INVAL) => fs::utimensat(fs::CWD, self.proc_path(), times, AtFlags::empty()),
                other => other,
            },
        };
        outcome.map_err(|errno| system_error("set the times of", b".", errno))
    }
}

fn to_timespec(time: UnixTime) -> Timespec {
    // The kernel gives larger numbers other meanings (UTIME_NOW, UTIME_OMIT), or refuses them.
    Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos.min(999_999_999)) }
}

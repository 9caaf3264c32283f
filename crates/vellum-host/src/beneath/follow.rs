//! Reading the target of a symlink, for callers that explicitly request it (`sync --copy-links`).
//!
//! Invariant: nothing is written, and only the last component may be a symlink. Its target may be anywhere, because the
//! caller has explicitly requested that.

use std::fs::File;

use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use vellum_types::UnixTime;

use super::Result;
use super::dir::{HeldDir, READ_NAMES, STAND_ON, STAT_MASK, system_error};
use super::file::{GUARDED, OpenedFile, expect_regular_file};
use super::node::HeldNode;
use crate::metadata::FileStat;

impl HeldDir {
    /// The attributes of the target of `name`.
    pub fn stat_following(&self, name: &[u8]) -> Result<FileStat> {
        let statx =
            self.call_on_name("follow", name, || fs::statx(self, name, AtFlags::NO_AUTOMOUNT, STAT_MASK))?;
        FileStat::from_statx(&statx)
            .ok_or_else(|| system_error("read attributes of", name, rustix::io::Errno::OPNOTSUPP))
    }

    /// The access time of the target of `name`.
    pub fn read_access_time_following(&self, name: &[u8]) -> Result<UnixTime> {
        let statx = self.call_on_name("follow", name, || {
            fs::statx(self, name, AtFlags::NO_AUTOMOUNT, StatxFlags::ATIME)
        })?;
        // A foreign filesystem may report any number of nanoseconds.
        Ok(UnixTime { secs: statx.stx_atime.tv_sec, nanos: statx.stx_atime.tv_nsec.min(999_999_999) })
    }

    /// Opens the target directory of `name` as a base of paths.
    pub fn open_dir_following(&self, name: &[u8]) -> Result<Self> {
        let flags = STAND_ON.difference(OFlags::NOFOLLOW);
        self.call_on_name("follow", name, || fs::openat(self, name, flags, Mode::empty())).map(Self::from_fd)
    }

    /// Opens the target directory of `name` for reading its names.
    pub fn open_dir_to_read_following(&self, name: &[u8]) -> Result<Self> {
        let flags = READ_NAMES.difference(OFlags::NOFOLLOW);
        self.call_on_name("follow", name, || fs::openat(self, name, flags, Mode::empty())).map(Self::from_fd)
    }

    /// Opens the target of `name` for reading, if it is a regular file.
    pub fn open_file_following(&self, name: &[u8]) -> Result<OpenedFile> {
        let flags = GUARDED.difference(OFlags::NOFOLLOW) | OFlags::RDONLY;
        let fd = self.call_on_name("follow", name, || fs::openat(self, name, flags, Mode::empty()))?;
        // The target can be anything, so the kind is checked on the descriptor.
        expect_regular_file(File::from(fd), name)
    }

    /// Opens the target of `name` without access to its content, to read its metadata.
    pub fn hold_node_following(&self, name: &[u8]) -> Result<HeldNode<'static>> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        self.call_on_name("follow", name, || fs::openat(self, name, flags, Mode::empty()))
            .map(HeldNode::from_owned_fd)
    }
}

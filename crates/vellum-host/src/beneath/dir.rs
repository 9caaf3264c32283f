//! An open directory, and the operations on its entries.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use vellum_types::key::check_name;
use vellum_types::{FileKind, UnixTime};

use super::{BeneathError, HeldNode, Result};
use crate::metadata::FileStat;

/// Flags for a directory that serves as a base of paths: no permission to read it is needed.
pub(super) const STAND_ON: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags for a directory whose names are read.
pub(super) const READ_NAMES: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The fields that `statx` returns: those of a [`FileStat`].
pub(super) const STAT_MASK: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);
/// Longest path in one system call, bytes: below Linux's `PATH_MAX` of 4096 with its NUL.
const RESOLVE_STEP_MAX: usize = 4000;
/// How often a path resolution is repeated that the kernel gave up with EAGAIN because of a concurrent rename.
const RESOLVE_TRIES: usize = 16;

/// An open directory. Cloning is cheap and shares the descriptor.
#[derive(Debug, Clone)]
pub struct HeldDir {
    fd: Arc<OwnedFd>,
}

/// The file types that `mknod` creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialFile {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with its number.
    CharDevice(u64),
    /// A block device with its number.
    BlockDevice(u64),
}

impl AsFd for HeldDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl HeldDir {
    /// Opens a directory that the user named, for reading. Symlinks are followed: a root may itself be a symlink to a
    /// directory. Directories for writing are opened by [`Self::open_trusted_root`] where other users may have placed
    /// symlinks.
    pub fn open_root(path: &Path) -> Result<Self> {
        let path = path.as_os_str().as_encoded_bytes();
        let flags = READ_NAMES.difference(OFlags::NOFOLLOW);
        let fd = match fs::openat(fs::CWD, path, flags, Mode::empty()) {
            // A directory without read permission cannot be listed, but entries in it can still be reached by
            // name. O_PATH needs search permission on the path only.
            Err(Errno::ACCESS) => {
                fs::openat(fs::CWD, path, STAND_ON.difference(OFlags::NOFOLLOW), Mode::empty())
            }
            other => other,
        };
        fd.map(Self::from_fd).map_err(|errno| BeneathError::system_error("open the directory", path, errno))
    }

    /// Takes a descriptor that is known to be a directory's.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// Whether both share one descriptor, and not only the directory.
    #[must_use]
    pub fn is_same_descriptor(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fd, &other.fd)
    }

    /// Opens a subdirectory as a base of paths; reading its names needs another open.
    pub fn open_dir(&self, name: &[u8]) -> Result<Self> {
        self.open_dir_with(name, STAND_ON)
    }

    /// Opens a subdirectory whose names are read.
    pub fn open_dir_to_read(&self, name: &[u8]) -> Result<Self> {
        self.open_dir_with(name, READ_NAMES)
    }

    fn open_dir_with(&self, name: &[u8], flags: OFlags) -> Result<Self> {
        let fd =
            self.call_on_name("open the directory", name, || fs::openat(self, name, flags, Mode::empty()))?;
        Ok(Self::from_fd(fd))
    }

    /// Opens this directory again, with a descriptor that allows reading its names.
    pub fn reopen_to_read(&self) -> Result<Self> {
        self.reopen_descriptor().map(Self::from_fd)
    }

    /// Opens this directory again, with a read position of its own.
    pub(super) fn reopen_descriptor(&self) -> Result<OwnedFd> {
        let flags = READ_NAMES.difference(OFlags::NOFOLLOW);
        fs::openat(self, ".", flags, Mode::empty())
            .map_err(|errno| system_error("read the directory", b".", errno))
    }

    /// Opens the directory at a relative path of any length, without following symlinks or `..`.
    pub fn resolve_dir(&self, path: &[u8]) -> Result<Self> {
        let mut here = self.clone();
        // A path can be longer than PATH_MAX (ENAMETOOLONG). Each part is short enough for one call.
        for step in split_path_parts(path)? {
            here = here.resolve_path_part(&step)?;
        }
        Ok(here)
    }

    /// Opens the directory at a relative path, for reading its names. Symlinks are followed within this directory;
    /// fails with `EXDEV` if one is absolute or leads out of it.
    pub fn open_dir_within(&self, path: &[u8]) -> Result<Self> {
        // The kernel itself refuses to leave the directory, so no rename of a component during the walk can
        // lead out of it. Links of procfs would jump to any open file.
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = READ_NAMES.difference(OFlags::NOFOLLOW);
        let mut tries = 0;
        loop {
            match fs::openat2(self, path, flags, Mode::empty(), how) {
                Ok(fd) => return Ok(Self::from_fd(fd)),
                // EAGAIN means that something was renamed while the kernel resolved `..`, and that it could
                // not rule out an escape.
                Err(Errno::AGAIN | Errno::INTR) if tries < RESOLVE_TRIES => tries += 1,
                Err(errno) => return Err(system_error("open the directory", path, errno)),
            }
        }
    }

    /// Opens the directory of the last component of a relative path; returns it with that component.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(Self, &'p [u8])> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (path.get(..slash).unwrap_or_default(), path.get(slash + 1..).unwrap_or_default()),
            None => (&path[..0], path),
        };
        check_file_name(name)?;
        Ok((self.resolve_dir(parent)?, name))
    }

    fn resolve_path_part(&self, path: &[u8]) -> Result<Self> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        for _ in 0..RESOLVE_TRIES {
            match fs::openat2(self, path, STAND_ON, Mode::empty(), how) {
                Ok(fd) => return Ok(Self::from_fd(fd)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                // No openat2 (an old kernel, a strict sandbox), or too much commotion: one component at a time.
                Err(Errno::NOSYS | Errno::PERM) => break,
                Err(errno) => return Err(system_error("open the directory", path, errno)),
            }
        }
        let mut here = self.clone();
        for name in path.split(|byte| *byte == b'/') {
            here = here.open_dir(name)?;
        }
        Ok(here)
    }

    /// The attributes of the entry `name`; a symlink is not followed.
    pub fn stat(&self, name: &[u8]) -> Result<FileStat> {
        let statx = self.read_attributes(name, STAT_MASK)?;
        FileStat::from_statx(&statx).ok_or_else(|| system_error("read attributes of", name, Errno::OPNOTSUPP))
    }

    fn read_attributes(&self, name: &[u8], mask: StatxFlags) -> Result<fs::Statx> {
        // Without NO_AUTOMOUNT, looking at an entry could mount a network filesystem.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        self.call_on_name("read attributes of", name, || fs::statx(self, name, flags, mask))
    }

    /// The access time of the entry `name`.
    pub fn read_access_time(&self, name: &[u8]) -> Result<UnixTime> {
        let statx = self.read_attributes(name, StatxFlags::ATIME)?;
        Ok(UnixTime { secs: statx.stx_atime.tv_sec, nanos: statx.stx_atime.tv_nsec.min(999_999_999) })
    }

    /// The attributes of the directory itself.
    pub fn stat_self(&self) -> Result<FileStat> {
        stat_fd(self.as_fd())
    }

    /// The target of a symlink.
    pub fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.call_on_name("read the symlink", name, || fs::readlinkat(self, name, Vec::new()))
            .map(std::ffi::CString::into_bytes)
    }

    /// Creates a subdirectory; the process's umask applies.
    pub fn create_dir(&self, name: &[u8], mode: u32) -> Result<()> {
        self.call_on_name("make the directory", name, || {
            fs::mkdirat(self, name, Mode::from_raw_mode(mode & 0o7777))
        })
    }

    /// Creates a symlink with any target.
    pub fn create_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        self.call_on_name("make the symlink", name, || fs::symlinkat(target, self, name))
    }

    /// Creates a fifo, a socket or a device node; the process's umask applies.
    pub fn create_special(&self, name: &[u8], special: SpecialFile, mode: u32) -> Result<()> {
        let (kind, device) = match special {
            SpecialFile::Fifo => (fs::FileType::Fifo, 0),
            SpecialFile::Socket => (fs::FileType::Socket, 0),
            SpecialFile::CharDevice(number) => (fs::FileType::CharacterDevice, number),
            SpecialFile::BlockDevice(number) => (fs::FileType::BlockDevice, number),
        };
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.call_on_name("make", name, || fs::mknodat(self, name, kind, mode, device))
    }

    /// Links the file `name` to `new_name` in `to`. Callers handle `EMLINK` by copying the file.
    pub fn link_file(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        check_file_name(new_name)?;
        self.call_on_name("make a hard link to", name, || {
            fs::linkat(self, name, to, new_name, AtFlags::empty())
        })
    }

    /// Like [`Self::link_file`], but replaces an existing `new_name` atomically.
    pub fn link_replacing(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        // `linkat` never replaces, so the link is made under a temporary name and renamed.
        let temp = super::create::new_temp_name()?;
        self.link_file(name, to, &temp)?;
        let renamed = to.rename(&temp, to, new_name);
        // If both were names of one file already, the kernel leaves the temporary one where it is.
        match to.unlink(&temp) {
            Err(error) if !error.is_not_found() => renamed.and(Err(error)),
            _ => renamed,
        }
    }

    /// Renames an entry, and replaces an existing `new_name`.
    pub fn rename(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        self.rename_with(name, to, new_name, RenameFlags::empty())
    }

    /// Renames an entry atomically, unless `new_name` exists; fails where the filesystem does not support that.
    pub(super) fn rename_exclusively(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        self.rename_with(name, to, new_name, RenameFlags::NOREPLACE)
    }

    /// Exchanges two names.
    pub fn exchange_names(&self, name: &[u8], to: &Self, new_name: &[u8]) -> Result<()> {
        self.rename_with(name, to, new_name, RenameFlags::EXCHANGE)
    }

    fn rename_with(&self, name: &[u8], to: &Self, new_name: &[u8], flags: RenameFlags) -> Result<()> {
        check_file_name(new_name)?;
        // The older call is enough where there are no flags, and every kernel has it.
        self.call_on_name("rename", name, || match flags.is_empty() {
            true => fs::renameat(self, name, to, new_name),
            false => fs::renameat_with(self, name, to, new_name, flags),
        })
    }

    /// Removes an entry that is not a directory.
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        self.call_on_name("remove", name, || fs::unlinkat(self, name, AtFlags::empty()))
    }

    /// Removes an empty subdirectory.
    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.call_on_name("remove the directory", name, || fs::unlinkat(self, name, AtFlags::REMOVEDIR))
    }

    /// Opens an entry of any type without access to its content, to read or change its metadata.
    pub fn hold_node(&self, name: &[u8]) -> Result<HeldNode<'static>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.call_on_name("open", name, || fs::openat(self, name, flags, Mode::empty()))
            .map(HeldNode::from_owned_fd)
    }

    /// The directory itself, to read or change its metadata.
    #[must_use]
    pub fn hold_self(&self) -> HeldNode<'_> {
        // The descriptor may be one with O_PATH; calls that suit those work with others, too.
        HeldNode::from_borrowed_fd(self.as_fd())
    }

    /// Syncs the names of this directory to the disk.
    pub fn sync_names(&self) -> Result<()> {
        // The held descriptor may be O_PATH, on which `fsync` fails with EBADF.
        let fd = self.reopen_descriptor()?;
        fs::fsync(fd).map_err(|errno| system_error("make durable the directory", b".", errno))
    }

    /// Checks the name and makes the call; an error contains the name.
    pub(super) fn call_on_name<T>(
        &self,
        action: &'static str,
        name: &[u8],
        call: impl Fn() -> rustix::io::Result<T>,
    ) -> Result<T> {
        // A name with a slash or `..` would leave the directory. Every call with a name goes through here.
        check_file_name(name)?;
        rustix::io::retry_on_intr(call).map_err(|errno| system_error(action, name, errno))
    }
}

pub(super) fn system_error(action: &'static str, name: &[u8], errno: Errno) -> BeneathError {
    BeneathError::system_error(action, name, errno)
}

pub(super) fn check_file_name(name: &[u8]) -> Result<()> {
    check_name(name).map_err(|_| BeneathError::Name(name.into()))
}

/// The attributes of the file of a descriptor.
pub(super) fn stat_fd(fd: BorrowedFd<'_>) -> Result<FileStat> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let statx = fs::statx(fd, "", flags, STAT_MASK)
        .map_err(|errno| system_error("read attributes of", b".", errno))?;
    FileStat::from_statx(&statx).ok_or_else(|| system_error("read attributes of", b".", Errno::OPNOTSUPP))
}

/// Splits a path into pieces that fit into one system call, and checks each component.
fn split_path_parts(path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut steps: Vec<Vec<u8>> = Vec::new();
    // Empty components and `.` lead nowhere, and would be refused as names.
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        check_file_name(name)?;
        match steps.last_mut() {
            Some(step) if step.len() + name.len() < RESOLVE_STEP_MAX => {
                step.push(b'/');
                step.extend_from_slice(name);
            }
            _ => steps.push(name.to_vec()),
        }
    }
    Ok(steps)
}

impl SpecialFile {
    /// The special file of this type; None for files, directories and symlinks.
    #[must_use]
    pub fn from_kind(kind: FileKind, device: u64) -> Option<Self> {
        match kind {
            FileKind::Fifo => Some(Self::Fifo),
            FileKind::Socket => Some(Self::Socket),
            FileKind::CharDevice => Some(Self::CharDevice(device)),
            FileKind::BlockDevice => Some(Self::BlockDevice(device)),
            FileKind::File | FileKind::Dir | FileKind::Symlink => None,
        }
    }
}

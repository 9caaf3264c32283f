//! Opening a path that the user typed, in which other users may have placed symlinks.
//!
//! Invariant: a symlink is followed only if root or the caller owns it, or if only root and the caller can write to its
//! directory. Owner and target are read through one descriptor, so that the link cannot be replaced in between.
//! Deliberately absent: restricting where a path ends; the caller's own links may lead anywhere.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::dir::{HeldDir, READ_NAMES, STAND_ON};
use super::{BeneathError, Result};

/// Most symlinks that are followed in one path: Linux's limit.
const LINKS_MAX: u32 = 40;
/// The permission of users other than the owner to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const OPEN_DIR: &str = "open the directory";

impl HeldDir {
    /// Opens a directory that the user named, for writing. Fails with [`BeneathError::UntrustedLink`] if the path
    /// contains a symlink of an untrusted owner.
    pub fn open_trusted_root(path: &Path) -> Result<Self> {
        open_trusted_dir(fs::CWD, path.as_os_str().as_encoded_bytes())
    }

    /// The same with a path relative to this directory, or an absolute one.
    pub fn open_trusted_dir(&self, path: &[u8]) -> Result<Self> {
        open_trusted_dir(self.as_fd(), path)
    }
}

/// Opens a file that the user named for reading; symlinks are followed as in [`HeldDir::open_trusted_root`].
pub fn open_trusted_file(path: &Path) -> Result<File> {
    open_trusted_file_with(path, OFlags::RDONLY)
}

/// Opens a file that the user named for appending; it is created if it does not exist.
pub fn append_to_trusted_file(path: &Path) -> Result<File> {
    open_trusted_file_with(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
}

fn open_trusted_file_with(path: &Path, flags: OFlags) -> Result<File> {
    let path = path.as_os_str().as_encoded_bytes();
    let end = TrustedWalk::start(fs::CWD, path, "open")?.walk()?;
    end.open(flags | OFlags::NOCTTY | OFlags::CLOEXEC)
        .map(File::from)
        .map_err(|errno| BeneathError::system_error("open", path, errno))
}

fn open_trusted_dir(base: BorrowedFd<'_>, path: &[u8]) -> Result<HeldDir> {
    let end = TrustedWalk::start(base, path, OPEN_DIR)?.walk()?;
    let opened = match end.open(READ_NAMES.difference(OFlags::NOFOLLOW)) {
        // Without permission to read, the directory can still be written to.
        Err(Errno::ACCESS) => end.open(STAND_ON.difference(OFlags::NOFOLLOW)),
        other => other,
    };
    opened.map(HeldDir::from_fd).map_err(|errno| BeneathError::system_error(OPEN_DIR, path, errno))
}

/// The end of a walk: all symlinks are resolved, except one of procfs.
struct WalkEnd {
    dir: OwnedFd,
    name: Vec<u8>,
    /// It is a symlink of procfs, which leads to an open file instead of a path.
    is_magic: bool,
}

impl WalkEnd {
    fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        // The last component is opened without following links: it was found to be none, and must not have
        // become one since.
        let flags = if self.is_magic { flags } else { flags | OFlags::NOFOLLOW };
        // Used only if the file is made. The umask takes away what the user does not want.
        let mode = Mode::from_raw_mode(0o666);
        rustix::io::retry_on_intr(|| fs::openat(&self.dir, &*self.name, flags, mode))
    }
}

/// A walk along a path, one component after the other.
struct TrustedWalk<'p> {
    typed: &'p [u8],
    action: &'static str,
    here: OwnedFd,
    /// The path of `here`, for messages.
    shown: Vec<u8>,
    /// The remaining components, in reverse order.
    rest: Vec<Vec<u8>>,
    links: u32,
}

impl<'p> TrustedWalk<'p> {
    fn start(base: BorrowedFd<'_>, typed: &'p [u8], action: &'static str) -> Result<Self> {
        let wrap = |errno| BeneathError::system_error(action, typed, errno);
        if typed.is_empty() {
            return Err(wrap(Errno::NOENT));
        }
        let here = fs::openat(base, ".", STAND_ON, Mode::empty()).map_err(wrap)?;
        let mut walk = Self { typed, action, here, shown: Vec::new(), rest: Vec::new(), links: 0 };
        walk.push_path(typed).map_err(wrap)?;
        Ok(walk)
    }

    /// Puts a path in front of the remaining components.
    fn push_path(&mut self, path: &[u8]) -> rustix::io::Result<()> {
        // An absolute target begins again at the root.
        if path.starts_with(b"/") {
            self.here = fs::openat(fs::CWD, "/", STAND_ON, Mode::empty())?;
            self.shown = b"/".to_vec();
        }
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        self.rest.extend(parts.rev().map(<[u8]>::to_vec));
        Ok(())
    }

    fn walk(mut self) -> Result<WalkEnd> {
        while let Some(name) = self.rest.pop() {
            let is_last = self.rest.is_empty();
            match self.step_into_dir(&name) {
                // The last component is opened by the caller, with the flags that it needs. `..` cannot be
                // replaced by a link.
                Ok(dir) if is_last && name != b".." => {
                    drop(dir);
                    return Ok(WalkEnd { dir: self.here, name, is_magic: false });
                }
                Ok(dir) => {
                    self.here = dir;
                    append_part(&mut self.shown, &name);
                }
                // A file that is to be made.
                Err(Errno::NOENT) if is_last => {
                    return Ok(WalkEnd { dir: self.here, name, is_magic: false });
                }
                // With O_DIRECTORY and O_NOFOLLOW, a symlink gives ENOTDIR or ELOOP, depending on the kernel.
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    if let Some(end) = self.follow_link(name, is_last)? {
                        return Ok(end);
                    }
                }
                Err(errno) => return Err(self.wrap_errno(errno)),
            }
        }
        Ok(WalkEnd { dir: self.here, name: b".".to_vec(), is_magic: false })
    }

    /// Opens a subdirectory as a base of paths; an automount there is mounted.
    fn step_into_dir(&self, name: &[u8]) -> rustix::io::Result<OwnedFd> {
        rustix::io::retry_on_intr(|| fs::openat(&self.here, name, STAND_ON, Mode::empty()))
    }

    /// Follows a symlink, or ends the walk at an entry that is not a symlink, or is one of procfs.
    fn follow_link(&mut self, name: Vec<u8>, is_last: bool) -> Result<Option<WalkEnd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link =
            fs::openat(&self.here, &*name, flags, Mode::empty()).map_err(|errno| self.wrap_errno(errno))?;
        let stat = fs::fstat(&link).map_err(|errno| self.wrap_errno(errno))?;
        if !fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
            if !is_last {
                return Err(self.wrap_errno(Errno::NOTDIR));
            }
            let dir = self.here.try_clone().map_err(|source| self.wrap_io_error(source))?;
            return Ok(Some(WalkEnd { dir, name, is_magic: false }));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(self.wrap_errno(Errno::LOOP));
        }
        // The descriptor stands on the link itself, so owner and target are of the same link even if the name
        // is replaced meanwhile.
        let target = fs::readlinkat(&link, "", Vec::new()).map_err(|errno| self.wrap_errno(errno))?;
        // In a sticky directory anybody can place a link that leads the caller's writes elsewhere. The kernel
        // has a similar rule (`fs.protected_symlinks`), which is not always on.
        if !is_trusted_owner(stat.st_uid) && !self.is_written_by_trusted_only()? {
            let mut link = self.shown.clone();
            append_part(&mut link, &name);
            return Err(BeneathError::UntrustedLink {
                link: link.into(),
                target: target.into_bytes().into(),
                owner: stat.st_uid,
            });
        }
        // The text of such a link need not be a path, as `pipe:[4026]` is none: only the kernel can follow it.
        let is_magic = fs::fstatfs(&link).is_ok_and(|found| found.f_type == fs::PROC_SUPER_MAGIC);
        if !is_magic {
            self.push_path(target.as_bytes()).map_err(|errno| self.wrap_errno(errno))?;
            return Ok(None);
        }
        if is_last {
            let dir = self.here.try_clone().map_err(|source| self.wrap_io_error(source))?;
            return Ok(Some(WalkEnd { dir, name, is_magic: true }));
        }
        let flags = STAND_ON.difference(OFlags::NOFOLLOW);
        self.here =
            fs::openat(&self.here, &*name, flags, Mode::empty()).map_err(|errno| self.wrap_errno(errno))?;
        append_part(&mut self.shown, &name);
        Ok(None)
    }

    /// Whether only root and the caller can create names in the directory.
    fn is_written_by_trusted_only(&self) -> Result<bool> {
        let stat = fs::fstat(&self.here).map_err(|errno| self.wrap_errno(errno))?;
        Ok(is_trusted_owner(stat.st_uid) && stat.st_mode & WRITABLE_BY_OTHERS == 0)
    }

    fn wrap_errno(&self, errno: Errno) -> BeneathError {
        BeneathError::system_error(self.action, self.typed, errno)
    }

    fn wrap_io_error(&self, source: std::io::Error) -> BeneathError {
        BeneathError::System { action: self.action, name: self.typed.into(), source }
    }
}

fn is_trusted_owner(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

fn append_part(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

//! New files that appear under their name complete or not at all.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::dir::{HeldDir, check_file_name, system_error};
use super::{BeneathError, HeldNode};

type Result<T> = std::result::Result<T, BeneathError>;

/// How names of files being written begin. A scan leaves them out, and [`remove_temp_entries`] removes forgotten ones.
pub const TEMP_PREFIX: &[u8] = b".vellum-tmp-";
/// Hexadecimal digits of randomness in a temporary name: 64 bits, so that two never meet.
const TEMP_DIGITS: usize = 16;
/// Permissions of a file until its own are applied: nobody else reads what may be secret.
const PRIVATE: u32 = 0o600;

/// Where the bytes of a new file are before it has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StagingMethod {
    /// Under a temporary name beside it: cheaper when an existing file is to be replaced.
    Named,
    /// Nowhere (`O_TMPFILE`); falls back to a temporary name where the filesystem cannot. Costs little more than writing
    /// under the final name, where a temporary name costs half as much again; and whoever is killed leaves nothing.
    #[default]
    Anonymous,
}

/// What to do about a file that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplacePolicy {
    /// Fail with `EEXIST`.
    Never,
    /// Replace it in one step.
    Always,
}

/// A file being written. Dropped before [`StagedFile::commit`], it leaves nothing behind.
#[derive(Debug)]
pub struct StagedFile {
    dir: HeldDir,
    file: Option<File>,
    temp: Option<Vec<u8>>,
}

impl HeldDir {
    /// Starts a new file in this directory, readable and writable by the caller alone.
    pub fn stage_file(&self) -> Result<StagedFile> {
        self.stage_file_by(StagingMethod::default())
    }

    /// Starts a new file in this directory in the given manner.
    pub fn stage_file_by(&self, staging: StagingMethod) -> Result<StagedFile> {
        self.start_staged_file(staging, PRIVATE)
    }

    /// Starts a file without a name that has a mode from the start, less what the umask takes; where that cannot be, it
    /// has a temporary name and is the caller's alone.
    pub fn stage_file_with_mode(&self, mode: u32) -> Result<StagedFile> {
        self.start_staged_file(StagingMethod::Anonymous, mode)
    }

    fn start_staged_file(&self, staging: StagingMethod, mode: u32) -> Result<StagedFile> {
        if staging == StagingMethod::Anonymous {
            match self.open_anonymous_file(mode) {
                Ok(fd) => {
                    return Ok(StagedFile { dir: self.clone(), file: Some(File::from(fd)), temp: None });
                }
                // Filesystems without O_TMPFILE say so in one of these ways.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(system_error("create a file in", b".", errno)),
            }
        }
        // The mode stays private under a temporary name, which others can see.
        let name = new_temp_name()?;
        let file = self.create_file(&name, PRIVATE)?;
        Ok(StagedFile { dir: self.clone(), file: Some(file), temp: Some(name) })
    }

    fn open_anonymous_file(&self, mode: u32) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        fs::openat(self, ".", flags, Mode::from_raw_mode(mode))
    }
}

impl StagedFile {
    /// Starts a file under its own name, in a directory that nobody sees.
    pub(super) fn stage_hidden(dir: &HeldDir, name: &[u8], mode: u32) -> Result<Self> {
        let file = dir.create_file(name, mode)?;
        Ok(Self { dir: dir.clone(), file: Some(file), temp: Some(name.to_vec()) })
    }

    /// The file, to be written.
    pub fn file(&self) -> Result<&File> {
        self.file.as_ref().ok_or_else(|| system_error("write", b".", Errno::BADF))
    }

    /// The file, for its metadata.
    pub fn node(&self) -> Result<HeldNode<'_>> {
        self.file().map(HeldNode::from_file)
    }

    /// Gives the file its name, in one step.
    pub fn commit(mut self, name: &[u8], replace: ReplacePolicy) -> Result<File> {
        check_file_name(name)?;
        // The file was created under its own name in a hidden directory and has nothing to be renamed.
        if self.temp.as_deref() == Some(name) {
            self.temp = None;
            return self.into_file();
        }
        let dir = self.dir.clone();
        self.commit_in(&dir, name, replace)?;
        self.into_file()
    }

    /// Gives the file a name in a directory that may be another one than it was begun in, in one step. Fails with `EXDEV`
    /// if that lies on another filesystem; the file is as it was then.
    pub fn commit_in(&mut self, dir: &HeldDir, name: &[u8], replace: ReplacePolicy) -> Result<()> {
        check_file_name(name)?;
        // `linkat` names a nameless file and fails with EEXIST if the name is taken. To replace, the file is
        // linked under a temporary name first and then renamed, which is the only call that replaces in one
        // step.
        if self.temp.is_none() {
            match self.link_anonymous(dir, name) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) if replace == ReplacePolicy::Always => self.link_as_temp(dir)?,
                Err(errno) => return Err(system_error("create", name, errno)),
            }
        }
        let temp = self.temp.clone().unwrap_or_default();
        match replace {
            ReplacePolicy::Always => self.dir.rename(&temp, dir, name)?,
            ReplacePolicy::Never => self.dir.rename_no_replace(&temp, dir, name)?,
        }
        // From here on the name belongs to the file: dropping the value must not remove it.
        self.temp = None;
        Ok(())
    }

    fn into_file(mut self) -> Result<File> {
        self.file.take().ok_or_else(|| system_error("write", b".", Errno::BADF))
    }

    fn link_as_temp(&mut self, dir: &HeldDir) -> Result<()> {
        let temp = new_temp_name()?;
        self.link_anonymous(dir, &temp).map_err(|errno| system_error("create", &temp, errno))?;
        // If the rename fails, the temporary name is removed from the directory in which it was made.
        self.dir = dir.clone();
        self.temp = Some(temp);
        Ok(())
    }

    fn link_anonymous(&self, dir: &HeldDir, name: &[u8]) -> rustix::io::Result<()> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?;
        match fs::linkat(file, "", dir, name, AtFlags::EMPTY_PATH) {
            // Naming by descriptor is for the privileged on older kernels; /proc serves everybody.
            Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {
                let path = HeldNode::from_borrowed_fd(file.as_fd()).proc_path();
                fs::linkat(fs::CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
            }
            other => other,
        }
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let Some(temp) = self.temp.take() {
            // Nothing more can be done about a failure here; the sweep will find the name.
            let _ = self.dir.unlink(&temp);
        }
    }
}

/// A fresh name for a file or directory being written. Its length does not depend on the final name's, which may
/// have all 255 bytes.
pub fn new_temp_name() -> Result<Vec<u8>> {
    let random = getrandom::u64().map_err(|_| system_error("draw a random name in", b".", Errno::IO))?;
    let mut name = TEMP_PREFIX.to_vec();
    name.extend_from_slice(format!("{random:0TEMP_DIGITS$x}").as_bytes());
    Ok(name)
}

/// Whether a name is one that [`HeldDir::stage_file`] may have made.
#[must_use]
pub fn is_temp_name(name: &[u8]) -> bool {
    name.strip_prefix(TEMP_PREFIX).is_some_and(|digits| {
        digits.len() == TEMP_DIGITS && digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Removes the temporary files and directories that a killed writer left in this directory. For the holder of the
/// worktree's lock only: a living writer's files would go too.
pub fn remove_temp_entries(dir: &HeldDir) -> Result<usize> {
    let mut swept = 0;
    for listed in dir.read_names()?.iter().filter(|listed| is_temp_name(listed.name)) {
        match dir.unlink(listed.name) {
            Ok(()) => swept += 1,
            Err(error) if error.is_not_found() => {}
            // It is a hidden directory, which can be locked by somebody who is filling it.
            Err(error) if error.errno() == Some(Errno::ISDIR) => {
                swept += usize::from(super::remove_stale_hidden_dir(dir, listed.name)?);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(swept)
}

//! New files that appear under their name completely or not at all.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::dir::{HeldDir, check_file_name, system_error};
use super::{HeldNode, Result};

/// The prefix of names of files that are being written. Scans leave them out, and [`remove_temp_entries`] removes old
/// ones.
pub const TEMP_PREFIX: &[u8] = b".vellum-tmp-";
/// Hexadecimal digits of randomness in a temporary name: 64 bits, so that two names never collide.
const TEMP_DIGITS: usize = 16;
/// Permissions of a file until its own are applied, so that other users cannot read it before.
const PRIVATE: u32 = 0o600;

/// Where the content of a new file is before the file has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StagingMethod {
    /// Under a temporary name in the same directory: cheaper if an existing file is to be replaced.
    Named,
    /// Without a name (`O_TMPFILE`); falls back to a temporary name where the filesystem lacks it. Costs little more
    /// than writing under the final name, whereas a temporary name costs half as much again; a killed process leaves
    /// nothing.
    #[default]
    Anonymous,
}

/// What happens if the name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplacePolicy {
    /// It fails with `EEXIST`.
    Never,
    /// The existing file is replaced atomically.
    Always,
}

/// A file that is being written. Dropping it before [`StagedFile::commit`] removes it.
#[derive(Debug)]
pub struct StagedFile {
    dir: HeldDir,
    file: Option<File>,
    temp: Option<Vec<u8>>,
}

impl HeldDir {
    /// Creates a new file in this directory that only the user can read and write.
    pub fn stage_file(&self) -> Result<StagedFile> {
        self.stage_file_by(StagingMethod::default())
    }

    /// Creates a new file in this directory by the given method.
    pub fn stage_file_by(&self, staging: StagingMethod) -> Result<StagedFile> {
        self.start_staged_file(staging, PRIVATE)
    }

    /// Creates a file without a name, and with its final mode, reduced by the umask; a fallback with a temporary name
    /// is private instead.
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
    /// Creates a file under its final name in a hidden directory.
    pub(super) fn stage_hidden(dir: &HeldDir, name: &[u8], mode: u32) -> Result<Self> {
        let file = dir.create_file(name, mode)?;
        Ok(Self { dir: dir.clone(), file: Some(file), temp: Some(name.to_vec()) })
    }

    /// The file, for its content.
    pub fn file(&self) -> Result<&File> {
        self.file.as_ref().ok_or_else(|| system_error("write", b".", Errno::BADF))
    }

    /// The file, for its metadata.
    pub fn node(&self) -> Result<HeldNode<'_>> {
        self.file().map(HeldNode::from_file)
    }

    /// Gives the file its name atomically.
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

    /// Gives the file a name atomically, in a directory that may differ from the one of its creation. Fails with
    /// `EXDEV` if that is on another filesystem; the file is then unchanged.
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

/// A new name for a file or directory that is being written. Its length does not depend on the final name, which may
/// use all 255 bytes.
pub fn new_temp_name() -> Result<Vec<u8>> {
    let random = getrandom::u64().map_err(|_| system_error("draw a random name in", b".", Errno::IO))?;
    let mut name = TEMP_PREFIX.to_vec();
    name.extend_from_slice(format!("{random:0TEMP_DIGITS$x}").as_bytes());
    Ok(name)
}

/// Whether a name may be that of a [`StagedFile`].
#[must_use]
pub fn is_temp_name(name: &[u8]) -> bool {
    name.strip_prefix(TEMP_PREFIX).is_some_and(|digits| {
        digits.len() == TEMP_DIGITS && digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Removes the temporary files and directories that a killed process left in this directory. Only the holder of the
/// worktree's lock may call this: it would also remove files of running writers.
pub fn remove_temp_entries(dir: &HeldDir) -> Result<usize> {
    let mut swept = 0;
    for listed in dir.read_names()?.iter().filter(|listed| is_temp_name(listed.name)) {
        match dir.unlink(listed.name) {
            Ok(()) => swept += 1,
            Err(error) if error.is_not_found() => {}
            // It is a hidden directory, which its writer may have locked.
            Err(error) if error.errno() == Some(Errno::ISDIR) => {
                swept += usize::from(super::remove_stale_hidden_dir(dir, listed.name)?);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(swept)
}

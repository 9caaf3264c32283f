//! The files that a merge tool reads and writes: a private temporary directory, and the file of the worktree that takes the
//! result.
//!
//! Invariant: the file of the worktree is as it was until the tool has succeeded, and is written only if nobody else has
//! changed it meanwhile. What the tool has made is not lost when it cannot be written.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use vellum_host::beneath::{BeneathError, HeldDir, HeldNode, new_temp_name, stat_file};
use vellum_host::escape::format_path;
use vellum_host::metadata::FileStat;
use vellum_types::{ErrorKind, UnixTime};
use vellum_volume::Volume;
use vellum_volume::tree::{ContentPart, FileReader, InodeRecord};

use super::versions::ConflictVersions;
use crate::error::{CliError, Result};

/// Bytes that are copied and compared at once.
const BLOCK: usize = 128 << 10;
/// Longest extension of a name that temporary files get, too, bytes: editors choose their colours by it.
const EXTENSION_MAX: usize = 16;
/// The owner's right to write.
const OWNER_WRITES: u32 = 0o200;

/// The four files of one conflict, in a directory that only this user can enter. They go with it, unless it is kept.
pub struct ToolFiles {
    path: PathBuf,
    dir: HeldDir,
    extension: Vec<u8>,
    is_kept: bool,
    /// The output before the tool has run.
    untouched: Option<FileStat>,
}

/// One of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFile {
    Base,
    Local,
    Remote,
    Merged,
}

impl ToolFile {
    pub const ALL: [Self; 4] = [Self::Base, Self::Local, Self::Remote, Self::Merged];

    /// The variable that names it, as other programs that start merge tools have it.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Base => "BASE",
            Self::Local => "LOCAL",
            Self::Remote => "REMOTE",
            Self::Merged => "MERGED",
        }
    }
}

impl ToolFiles {
    /// Makes the directory, for a file of this path.
    pub fn create(path_in_worktree: &[u8]) -> Result<Self> {
        let random = new_temp_name().map_err(BeneathError::into_io_error);
        let random = random.map_err(CliError::io_error("draw a random name for", "a temporary directory"))?;
        let random = String::from_utf8_lossy(&random).into_owned();
        // The tool does not run where this command does.
        let parent = std::path::absolute(std::env::temp_dir());
        let parent = parent.map_err(CliError::io_error("find", "the directory for temporary files"))?;
        let path = parent.join(format!("vellum-merge{random}"));
        let failed =
            || CliError::io_error("make the directory", format_path(path.as_os_str().as_encoded_bytes()));
        DirBuilder::new().mode(0o700).create(&path).map_err(failed())?;
        let dir = HeldDir::open_root(&path).map_err(|error| failed()(error.into_io_error()))?;
        let extension = find_extension(path_in_worktree);
        Ok(Self { path, dir, extension, is_kept: false, untouched: None })
    }

    /// Where a file is.
    pub fn path_of(&self, file: ToolFile) -> PathBuf {
        self.path.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&self.name_of(file)))
    }

    fn name_of(&self, file: ToolFile) -> Vec<u8> {
        let mut name = file.variable().to_ascii_lowercase().into_bytes();
        name.extend_from_slice(&self.extension);
        name
    }

    /// Writes the versions, and what the worktree has now as the output. Without a common version, that is an empty file.
    pub fn write_versions(
        &mut self,
        volume: &Volume,
        versions: &ConflictVersions,
        current: &mut WorktreeFile,
    ) -> Result<()> {
        for (file, version) in [
            (ToolFile::Base, versions.base.as_ref()),
            (ToolFile::Local, Some(&versions.ours)),
            (ToolFile::Remote, Some(&versions.theirs)),
        ] {
            // Read-only: only $MERGED is looked at, and a tool that writes to another file must fail, and not lose what
            // it did.
            let mut created = self.create_file(file, 0o400)?;
            if let Some(version) = version {
                write_version(volume, version, &mut created).map_err(|error| self.explain(file, error))?;
            }
        }
        let mut merged = self.create_file(ToolFile::Merged, 0o600)?;
        let copied = current.file.rewind().and_then(|()| io::copy(&mut current.file, &mut merged));
        copied.map_err(CliError::io_error("write", self.shown(ToolFile::Merged)))?;
        self.untouched = Some(
            self.mark_untouched(&merged)
                .map_err(CliError::io_error("write", self.shown(ToolFile::Merged)))?,
        );
        Ok(())
    }

    fn create_file(&self, file: ToolFile, mode: u32) -> Result<File> {
        let created = self.dir.create_file(&self.name_of(file), mode).map_err(BeneathError::into_io_error);
        created.map_err(CliError::io_error("write", self.shown(file)))
    }

    /// A time in the past: whatever writes the file, be it the same bytes, gives it another one.
    fn mark_untouched(&self, merged: &File) -> io::Result<FileStat> {
        let long_ago = UnixTime { secs: 0, nanos: 0 };
        HeldNode::from_file(merged).set_mtime(long_ago).map_err(BeneathError::into_io_error)?;
        stat_file(merged).map_err(BeneathError::into_io_error)
    }

    fn explain(&self, file: ToolFile, error: VersionError) -> CliError {
        match error {
            VersionError::Volume(error) => error.into(),
            VersionError::Write(error) => CliError::io_error("write", self.shown(file))(error),
        }
    }

    fn shown(&self, file: ToolFile) -> String {
        format_path(self.path_of(file).as_os_str().as_encoded_bytes())
    }

    /// What the tool has written, or why there is nothing.
    pub fn open_output(&self) -> std::result::Result<File, String> {
        match self.dir.open_file(&self.name_of(ToolFile::Merged)) {
            Ok(opened) if self.untouched.is_some_and(|before| before.is_same_state(&opened.stat)) => {
                Err("it has written nothing to $MERGED".into())
            }
            Ok(opened) => Ok(opened.file),
            Err(error) if error.is_not_found() => Err("it has removed $MERGED".into()),
            Err(error) => Err(format!("what it has left in $MERGED cannot be read: {error}")),
        }
    }

    /// Keeps the directory with what the tool has made; returns where that is.
    pub fn keep_output(&mut self) -> String {
        self.is_kept = true;
        self.shown(ToolFile::Merged)
    }
}

impl Drop for ToolFiles {
    fn drop(&mut self) {
        if !self.is_kept {
            // What cannot be removed is left in a directory for temporary files.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The extension of a name with its dot, if it is an ordinary one.
fn find_extension(path: &[u8]) -> Vec<u8> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0);
    let extension = dot.and_then(|dot| name.get(dot..)).unwrap_or_default();
    let is_plain = extension.iter().skip(1).all(u8::is_ascii_alphanumeric);
    if is_plain && extension.len() <= EXTENSION_MAX { extension.to_vec() } else { Vec::new() }
}

/// Why a version was not written.
enum VersionError {
    Volume(vellum_volume::VolumeError),
    Write(io::Error),
}

fn write_version(
    volume: &Volume,
    version: &InodeRecord,
    to: &mut File,
) -> std::result::Result<(), VersionError> {
    let mut reader = FileReader::new(volume, version).map_err(VersionError::Volume)?;
    while let Some(part) = reader.next_part().map_err(VersionError::Volume)? {
        match part {
            ContentPart::Data(bytes) => to.write_all(bytes),
            // A hole stays one: a sparse file may be longer than the disk.
            ContentPart::Hole(len) => {
                to.seek(SeekFrom::Current(i64::try_from(len).unwrap_or(i64::MAX))).map(drop)
            }
        }
        .map_err(VersionError::Write)?;
    }
    // A hole at the end is no write, and would be missing.
    to.set_len(version.attr.size).map_err(VersionError::Write)
}

/// A regular file of the worktree, as it is before a tool runs.
pub struct WorktreeFile {
    parent: HeldDir,
    name: Vec<u8>,
    file: File,
    stat: FileStat,
}

impl WorktreeFile {
    /// Opens it. No symlink leads out of the worktree.
    pub fn open(root: &Path, path: &[u8]) -> std::result::Result<Self, BeneathError> {
        let (parent, name) = HeldDir::open_root(root)?.resolve_parent(path)?;
        let opened = parent.open_file(name)?;
        Ok(Self { name: name.to_vec(), parent, file: opened.file, stat: opened.stat })
    }

    /// Whether nobody has changed or replaced it since it was opened.
    pub fn is_unchanged(&self) -> bool {
        self.parent.stat(&self.name).is_ok_and(|now| now.is_same_state(&self.stat))
    }

    /// Whether it has exactly the content of a version.
    pub fn has_content_of(&self, volume: &Volume, version: &InodeRecord) -> Result<bool> {
        // Sizes are compared first, which needs no content from the store.
        if self.stat.size != version.attr.size {
            return Ok(false);
        }
        let mut file = io::BufReader::with_capacity(BLOCK, &self.file);
        let mut reader = FileReader::new(volume, version)?;
        while let Some(part) = reader.next_part()? {
            let is_equal = match part {
                ContentPart::Data(bytes) => is_next(&mut file, bytes),
                ContentPart::Hole(len) => is_zero(&mut file, len),
            };
            // A file that cannot be read is not known to be equal.
            if !is_equal.unwrap_or(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes it.
    pub fn remove(&self) -> std::result::Result<(), BeneathError> {
        self.parent.unlink(&self.name)
    }

    /// Gives it the content of another file. It stays the same file: with its mode, owner, attributes and hard links.
    pub fn replace_content(&self, from: &mut File) -> io::Result<()> {
        let mut to = self.open_to_write().map_err(BeneathError::into_io_error)?;
        let len = from.metadata()?.len();
        // A full disk is noticed here, while the old content is whole. Not every filesystem can tell.
        // At least 1 byte, because the kernel refuses a length of 0.
        let reserved = fallocate(&to, FallocateFlags::KEEP_SIZE, 0, len.max(1));
        if let Err(Errno::NOSPC | Errno::DQUOT) = reserved {
            return Err(io::ErrorKind::StorageFull.into());
        }
        from.rewind()?;
        io::copy(from, &mut to)?;
        // The old content may have been longer.
        to.set_len(len)?;
        to.sync_all()
    }

    /// A file that even its owner may not write is one for this moment.
    fn open_to_write(&self) -> std::result::Result<File, BeneathError> {
        let open = || self.parent.open_file_to_update(&self.name).map(|opened| opened.file);
        match open() {
            Err(error) if error.kind() == ErrorKind::Denied && self.stat.mode & OWNER_WRITES == 0 => {
                let node = self.parent.hold_node(&self.name)?;
                node.set_mode(self.stat.mode | OWNER_WRITES)?;
                let opened = open();
                // Set back whether or not the file could be opened: an open file stays writable.
                node.set_mode(self.stat.mode)?;
                opened
            }
            opened => opened,
        }
    }
}

fn is_next(file: &mut impl Read, mut bytes: &[u8]) -> io::Result<bool> {
    let mut block = vec![0; BLOCK];
    while !bytes.is_empty() {
        let now = block.get_mut(..bytes.len().min(BLOCK)).unwrap_or_default();
        file.read_exact(now)?;
        let (expected, rest) = bytes.split_at(now.len());
        if now != expected {
            return Ok(false);
        }
        bytes = rest;
    }
    Ok(true)
}

fn is_zero(file: &mut impl Read, len: u64) -> io::Result<bool> {
    let mut block = vec![0; BLOCK];
    let mut left = file.take(len);
    loop {
        match left.read(&mut block)? {
            0 => return Ok(left.limit() == 0),
            count if block.iter().take(count).any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::find_extension;

    #[test]
    fn only_ordinary_extensions_are_kept() {
        for (path, extension) in [
            ("dir/a.txt", ".txt"),
            ("a.tar.gz", ".gz"),
            ("a", ""),
            ("dir.d/a", ""),
            (".hidden", ""),
            ("a.b c", ""),
            ("a.$(reboot)", ""),
            ("a.averyveryverylongextension", ""),
        ] {
            assert_eq!(find_extension(path.as_bytes()), extension.as_bytes(), "{path}");
        }
    }
}

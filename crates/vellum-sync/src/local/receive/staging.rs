//! Directories that the user selected for files being written: for temporary files (`--temp-dir`), and for partial
//! files (an absolute `--partial-dir`).
//!
//! Invariant: a file that was written on another filesystem is copied to a temporary name in its own directory, so that
//! it still appears in one step. Deliberately absent: removing old files from these directories, which other runs may
//! use; where the filesystem supports files without names (O_TMPFILE), none are left.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use vellum_host::beneath::{
    BeneathError, HeldDir, HeldNode, ReplacePolicy, StagedFile, StagingMethod, stat_file,
};
use vellum_host::clone::clone_or_copy_content;

use super::EntryWriter;
use super::file::{hash_file, is_interruption, map_name_conflict};
use super::partial::PartialFile;
use crate::error::{Result, SyncError};
use crate::model::listing::ListingEntry;
use crate::model::options::{WriteOptions, resolve_missing_path};
use crate::plan::SyncStep;

/// Mode of a directory that is created for partial files, which other users may not read.
const PRIVATE: u32 = 0o700;
const TEMP: &str = "cannot write files in the directory of --temp-dir";
const PARTIAL: &str = "cannot keep files in the directory of --partial-dir";

/// The directories, which are opened before anything is changed.
#[derive(Debug, Clone, Default)]
pub struct StagingDirectories {
    /// The directory of temporary files; None: their own directories.
    pub(super) temp: Option<HeldDir>,
    /// The directory of partial files; None: their own directories.
    pub(super) partial: Option<HeldDir>,
}

impl StagingDirectories {
    /// Opens them; `root` is the destination's root.
    pub(crate) fn open_dirs(root: &HeldDir, writing: &WriteOptions) -> Result<Self> {
        let temp = writing
            .temp_dir
            .as_ref()
            // A staging directory can be world-writable (`/tmp`), where other users can place symlinks.
            .map(|path| root.open_trusted_dir(path).map_err(|error| unusable_dir_error(TEMP, path, &error)));
        let partial = writing.partial_dir.as_ref().filter(|path| path.starts_with(b"/")).map(|path| {
            open_or_create_dir(root, path).map_err(|error| unusable_dir_error(PARTIAL, path, &error))
        });
        Ok(Self { temp: temp.transpose()?, partial: partial.transpose()? })
    }

    /// Fails if [`Self::open_dirs`] would fail once the destination, which does not exist yet, is created.
    pub fn check_dirs(destination: &Path, writing: &WriteOptions) -> Result<()> {
        let open = |path: &[u8]| {
            let path = destination.join(OsStr::from_bytes(path));
            HeldDir::open_trusted_root(&resolve_missing_path(&path)).map(drop)
        };
        if let Some(path) = &writing.temp_dir {
            open(path).map_err(|error| unusable_dir_error(TEMP, path, &error))?;
        }
        let Some(path) = writing.partial_dir.as_ref().filter(|path| path.starts_with(b"/")) else {
            return Ok(());
        };
        match open(path) {
            Err(error) if error.is_not_found() => {
                let parent = Path::new(OsStr::from_bytes(path)).parent().unwrap_or(Path::new("/"));
                open(parent.as_os_str().as_bytes()).map_err(|error| unusable_dir_error(PARTIAL, path, &error))
            }
            opened => opened.map_err(|error| unusable_dir_error(PARTIAL, path, &error)),
        }
    }
}

/// Opens the directory at an absolute path; its last component is created if it is missing.
fn open_or_create_dir(root: &HeldDir, path: &[u8]) -> Result<HeldDir, BeneathError> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match (root.open_trusted_dir(path), path.iter().rposition(|byte| *byte == b'/')) {
        (Err(error), Some(slash)) if error.is_not_found() => {
            let (parent, name) = path.split_at(slash + 1);
            match root.open_trusted_dir(parent)?.create_dir(name, PRIVATE) {
                Err(error) if error.errno() != Some(Errno::EXIST) => Err(error),
                _ => root.open_trusted_dir(path),
            }
        }
        (opened, _) => opened,
    }
}

fn unusable_dir_error(what: &'static str, path: &[u8], error: &BeneathError) -> SyncError {
    let why = match error.errno() {
        Some(Errno::NOENT) => "it does not exist".to_owned(),
        Some(Errno::NOTDIR) => "it is not a directory".to_owned(),
        Some(errno) => std::io::Error::from(errno).to_string(),
        None => error.to_string(),
    };
    SyncError::End { what, path: path.to_vec(), why }
}

/// A complete file without its final name.
pub(super) enum WrittenFile {
    /// It disappears, or is removed by a later run, if the run ends now.
    Staged(StagedFile),
    /// Another run would continue it.
    Partial(PartialFile),
}

impl WrittenFile {
    pub(super) fn file(&self) -> Result<&File> {
        match self {
            Self::Staged(staged) => Ok(staged.file()?),
            Self::Partial(partial) => Ok(&partial.file),
        }
    }

    pub(super) fn commit_in(
        &mut self,
        dir: &HeldDir,
        name: &[u8],
        replace: ReplacePolicy,
    ) -> Result<(), BeneathError> {
        match self {
            Self::Staged(staged) => staged.commit_in(dir, name, replace),
            Self::Partial(partial) => partial.commit_in(dir, name, replace),
        }
    }
}

impl WrittenFile {
    /// Removes it, after it was copied.
    pub(super) fn discard(self) {
        if let Self::Partial(partial) = self {
            partial.discard_unless_useful(false);
        }
    }
}

impl EntryWriter<'_> {
    /// Keeps the old version, and renames a complete file to its final name.
    pub(super) fn publish_written(
        &self,
        mut written: WrittenFile,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<()> {
        if let Some(delayed) = self.delayed.as_ref().filter(|delayed| delayed.is_open()) {
            return self.delay(delayed, written, dir, step, entry);
        }
        let named = self.publish_or_copy(&mut written, dir, step, entry);
        // A partial file is kept only if another run can use it. After a refusal by the destination the next
        // run would find the same refusal.
        if let (Err(error), WrittenFile::Partial(partial)) = (&named, &written) {
            partial.discard_unless_useful(is_interruption(error));
        }
        named
    }

    fn publish_or_copy(
        &self,
        written: &mut WrittenFile,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<()> {
        // The old version has its second name before the new one takes its place. A crash in between leaves
        // the old version under both names.
        self.keep_backup(dir, step, entry)?;
        let replace = if step.old.is_some() { ReplacePolicy::Always } else { ReplacePolicy::Never };
        match written.commit_in(dir, entry.name(), replace) {
            Ok(()) => {
                self.restore_times(written.file()?, entry);
                Ok(())
            }
            // A rename cannot cross filesystems. The copy is made beside the place, so the file still appears
            // in one step.
            Err(error) if error.errno() == Some(Errno::XDEV) => {
                let mut copy = self.copy_staged_file(written.file()?, dir, step, entry)?;
                // It took a while.
                self.keep_backup(dir, step, entry)?;
                copy.commit_in(dir, entry.name(), replace).map_err(map_name_conflict)?;
                self.restore_times(copy.file()?, entry);
                if let WrittenFile::Partial(partial) = written {
                    partial.discard_unless_useful(false);
                }
                Ok(())
            }
            Err(error) => Err(map_name_conflict(error)),
        }
    }

    /// Sets the times of a renamed file again if the rename changed them.
    fn restore_times(&self, file: &File, entry: &ListingEntry<'_>) {
        let hold = || Some(HeldNode::from_file(file));
        self.times.ensure_times_after_rename(hold, entry, self.job.options);
    }

    /// Copies a file of another filesystem to a temporary file in its own directory.
    pub(super) fn copy_staged_file(
        &self,
        file: &File,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<StagedFile> {
        let copy = dir.stage_file_by(StagingMethod::Named)?;
        clone_or_copy_content(file, copy.file()?, &stat_file(file)?)?;
        // Only content is copied; attributes are applied again, as to any new file of this directory.
        self.apply_file_attributes(dir, copy.file()?, step, entry, None)?;
        let writing = &self.job.options.writing;
        if writing.fsync || writing.verify {
            copy.file()?.sync_all().map_err(SyncError::wrap_io_error("make durable"))?;
        }
        if writing.verify && hash_file(copy.file()?, self.flow.meter)? != hash_file(file, self.flow.meter)? {
            return Err(SyncError::Unequal);
        }
        Ok(copy)
    }
}

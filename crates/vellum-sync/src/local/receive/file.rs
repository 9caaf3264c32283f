//! Receiving one entry: it is written under a temporary name, gets its attributes, and is renamed in one step.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use vellum_host::ProgressMeter;
use vellum_host::beneath::{
    BeneathError, HeldDir, HeldNode, HiddenDir, OpenedFile, ReplacePolicy, SpecialFile, StagedFile,
    StagingMethod, new_temp_name,
};
use vellum_host::metadata::FileStat;
use vellum_types::{FileKind, LookupResult, UnixTime};

use super::content::BLOCK;
use super::delayed::DelayedNames;
use super::filling::FileFill;
use super::partial::PartialFile;
use super::small::{NewFileDefaults, compute_begin_time};
use super::staging::{StagingDirectories, WrittenFile};
use super::times::TimeKeeping;
use super::{BackupKeeper, PreviousOccupant, SyncJob, TransferControl, attributes, default_acl};
use crate::ends::{ContentPieces, OldVersion, SourceContent};
use crate::error::{Result, SyncError};
use crate::model::listing::{ContentDigest, EntryFlags, ListingEntry};
use crate::model::options::DeltaMode;
use crate::plan::{SyncStep, WriteMethod};

/// Writes entries into directories of the destination.
pub(crate) struct EntryWriter<'a> {
    pub job: &'a SyncJob<'a>,
    pub flow: TransferControl<'a>,
    pub keeper: Option<BackupKeeper>,
    pub(super) staging: StagingDirectories,
    pub delayed: Option<DelayedNames>,
    umask: u32,
    /// Files with a change time before this one were not changed during the run.
    pub(super) begun: UnixTime,
    siblings: NewFileDefaults,
    pub(super) times: TimeKeeping,
}

/// The destination of an entry.
#[derive(Clone, Copy)]
pub(crate) struct EntryDestination<'d> {
    pub dir: &'d HeldDir,
    /// The hidden directory, if `dir` is one: entries in it are created under their final names.
    pub hidden: Option<&'d HiddenDir>,
}

/// A file being written, with its initial attributes if they are known.
pub(super) struct UnfinishedFile {
    pub file: StagedFile,
    pub like: Option<FileStat>,
}

impl<'a> EntryWriter<'a> {
    pub fn new(
        job: &'a SyncJob<'a>,
        flow: TransferControl<'a>,
        keeper: Option<BackupKeeper>,
        staging: StagingDirectories,
    ) -> Self {
        // The umask is not used where modes are copied.
        let umask = if job.options.preserve.modes { 0 } else { attributes::read_umask() };
        Self {
            job,
            flow,
            keeper,
            staging,
            delayed: None,
            umask,
            begun: compute_begin_time(),
            siblings: NewFileDefaults::default(),
            times: TimeKeeping::default(),
        }
    }

    /// Writes a file; returns messages for attributes that could not be applied.
    pub fn write_file(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        how: WriteMethod,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        if matches!(how, WriteMethod::InPlace | WriteMethod::Append)
            && let Some(failed) = self.write_in_place(home.dir, step, entry, how == WriteMethod::Append)?
        {
            return Ok(failed);
        }
        self.write_new_file(home, step, how, entry)
    }

    fn write_new_file(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        how: WriteMethod,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        let dir = home.dir;
        let old = match how {
            // An old file that cannot be opened is no error: the new one is sent whole.
            WriteMethod::Delta if self.needs_old_file() => dir.open_file(entry.name()).ok(),
            _ => None,
        };
        // Before the source is opened: what an earlier run left decides from which version the source sends a
        // difference.
        if let Some(partial) = PartialFile::open(dir, entry, &self.job.options.writing, &self.staging)? {
            let resumed = self.resume_file(&partial, old.as_ref(), dir, step, entry);
            let failed =
                resumed.inspect_err(|error| partial.discard_unless_useful(is_interruption(error)))?;
            self.publish_written(WrittenFile::Partial(partial), dir, step, entry)?;
            return Ok(failed);
        }
        // A small file of this host is read before anything is created: if it has changed, no temporary file
        // has to be removed.
        if let Some(failed) = self.write_small_file(home, step, entry)? {
            return Ok(failed);
        }
        let old_version = old.as_ref().map(|old| OldVersion::from_kept_file(&old.file));
        let mut content = self.job.source.open_content(*entry, old_version)?;
        self.check_source_unchanged(&content, entry)?;
        self.write_staged_file(home, step, entry, old.as_ref(), &mut content)
    }

    /// Writes a file under a temporary name, and renames it.
    pub(super) fn write_staged_file(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
        old: Option<&OpenedFile>,
        content: &mut SourceContent,
    ) -> Result<Vec<String>> {
        let dir = home.dir;
        let replaces = step.old.is_some();
        let UnfinishedFile { file: new, like } = self.create_file(home, step, entry)?;
        let filling = FileFill::new(new.file()?, entry.size(), replaces);
        let received = match (&mut *content, old) {
            (SourceContent::File(from), Some(old))
                if self.job.options.writing.delta == DeltaMode::Always
                    && self.flow.share_blocks(new.file()?, old)? =>
            {
                self.flow.rewrite_shared(&filling, from, old)?;
                None
            }
            (SourceContent::File(from), _) => {
                self.flow.fill_file(&filling, from)?;
                None
            }
            (SourceContent::Pieces(pieces), old) => self.assemble_file(&filling, &mut **pieces, old)?,
        };
        // Attributes before the name: nobody ever sees the new file with the wrong owner or mode.
        let failed = self.apply_file_attributes(dir, new.file()?, step, entry, like)?;
        // Content and attributes are durable before the name, so after a crash the name leads to the old file
        // or to the complete new one.
        self.sync_and_verify(new.file()?, content, received)?;
        self.finish_file(new, home, step, entry)?;
        Ok(failed)
    }

    /// Renames a complete file to its final name.
    pub(super) fn finish_file(
        &self,
        new: StagedFile,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<()> {
        // In a hidden directory nothing can have the name, and there is no old version to keep.
        if home.hidden.is_none() {
            return self.publish_written(WrittenFile::Staged(new), home.dir, step, entry);
        }
        // It has its own name from the start.
        new.commit(entry.name(), ReplacePolicy::Never).map(drop).map_err(map_name_conflict)
    }

    /// Fills a new file with pieces. Returns the hash of the content, unless the file's parts are read at the same time
    /// and no verification needs the hash.
    fn assemble_file(
        &self,
        filling: &FileFill<'_>,
        pieces: &mut dyn ContentPieces,
        old: Option<&OpenedFile>,
    ) -> Result<Option<ContentDigest>> {
        // Parts arrive in any order, and a hash needs them in order. A file that is verified is therefore
        // read in one piece.
        match pieces.split_parts().filter(|_| !self.job.options.writing.verify) {
            Some(parts) => self.flow.assemble_parts(filling, parts).map(|()| None),
            None => self.flow.assemble_pieces(filling, pieces, old.map(|old| &old.file)).map(Some),
        }
    }

    /// Creates the file that will get the entry's name.
    pub(super) fn create_file(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<UnfinishedFile> {
        let dir = home.dir;
        if let Some(temp) = &self.staging.temp {
            return Ok(UnfinishedFile { file: temp.stage_file()?, like: None });
        }
        if step.old.is_some() {
            // Linux has no call that gives a nameless file (O_TMPFILE) the name of an existing one. It would
            // need a temporary name anyway.
            let file = dir.stage_file_by(StagingMethod::Named)?;
            // The lock is held while the name is temporary: it shows another run that the file is being
            // written.
            let _ = flock(file.file()?, FlockOperation::NonBlockingLockExclusive);
            return Ok(UnfinishedFile { file, like: None });
        }
        // No other process reaches a file without a name, or in a hidden directory, so it may have its mode
        // from the start, which in most cases saves a call.
        let mode = entry.mode() & 0o777;
        let file = match home.hidden {
            Some(hidden) => hidden.stage_file(entry.name(), mode).map_err(map_name_conflict)?,
            None => dir.stage_file_with_mode(mode)?,
        };
        let like = self.siblings.find_or_stat(dir, mode, file.file()?, self.job.options)?;
        Ok(UnfinishedFile { file, like })
    }

    /// Whether the old file is used: a local copy without shared blocks does not need it.
    fn needs_old_file(&self) -> bool {
        self.job.source.needs_old_version() || self.job.options.writing.delta == DeltaMode::Always
    }

    /// Completes a file that an earlier run may have begun.
    fn resume_file(
        &self,
        partial: &PartialFile,
        old: Option<&OpenedFile>,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        // What arrived is of this very file, so it is worth more than an old version that is not much longer.
        let arrived = partial.arrived_len();
        // Either what arrived or the old version is the basis of the difference, since the source compares
        // with one file only.
        let goes_on = arrived > 0 && old.is_none_or(|old| arrived >= old.stat.size / 2);
        let there = if goes_on { Some(&partial.file) } else { old.map(|old| &old.file) };
        let mut content = self.job.source.open_content(*entry, there.map(OldVersion::from_kept_file))?;
        self.check_source_unchanged(&content, entry)?;
        let received = match &mut content {
            SourceContent::File(from) => {
                // What an earlier run left is compared block by block and corrected. Its length or time would
                // prove nothing.
                self.flow.patch_file(&partial.file, from, 0)?;
                None
            }
            SourceContent::Pieces(pieces) if goes_on => {
                Some(self.flow.resume_content(&partial.file, arrived, &mut **pieces)?)
            }
            SourceContent::Pieces(pieces) => {
                // The pieces will refer to the old version, so what arrived earlier is of no use. With its
                // end left in place, the file would be too long.
                rustix::fs::ftruncate(&partial.file, 0)
                    .map_err(|errno| SyncError::wrap_io_error("write")(errno.into()))?;
                let filling = FileFill::new(&partial.file, entry.size(), step.old.is_some());
                self.assemble_file(&filling, &mut **pieces, old)?
            }
        };
        let failed = self.apply_file_attributes(dir, &partial.file, step, entry, None)?;
        self.sync_and_verify(&partial.file, &content, received)?;
        Ok(failed)
    }

    /// Applies the attributes to a new file; `like` are its present ones, if they are known.
    pub(super) fn apply_file_attributes(
        &self,
        dir: &HeldDir,
        file: &File,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
        like: Option<FileStat>,
    ) -> Result<Vec<String>> {
        let node = HeldNode::from_file(file);
        // In a new file all that the attributes depend on is known from the first file of its directory,
        // which spares a `statx` for each file.
        let now = like.map_or_else(|| node.stat(), Ok)?;
        let newcomer = self.previous_occupant(step, &dir.hold_self());
        let failed = attributes::apply_known_attributes(&node, &now, entry, newcomer, self.job.options)?;
        self.times.ensure_times(&node, entry, self.job.options);
        Ok(failed)
    }

    /// The previous entry of the name; `dir` has the default ACL for new entries.
    fn previous_occupant(&self, step: &SyncStep, dir: &HeldNode<'_>) -> PreviousOccupant<'a> {
        let old = step.old.map(|id| self.job.to.entry(id));
        let same_kind = |old: &ListingEntry<'_>| {
            step.source.is_some_and(|id| self.job.from.entry(id).kind() == old.kind())
        };
        match old.filter(same_kind).filter(|old| !old.flags().contains(EntryFlags::IMPLIED)) {
            Some(old) => PreviousOccupant::No { mode: old.mode(), old: Some(old) },
            None => PreviousOccupant::Yes { umask: self.new_entry_umask(dir) },
        }
    }

    /// The mode bits that new entries of a directory do not get if modes are not copied.
    fn new_entry_umask(&self, dir: &HeldNode<'_>) -> u32 {
        if self.job.options.preserve.modes {
            return 0;
        }
        default_acl::read_allowed_mode(dir).map_or(self.umask, |allowed| 0o777 & !allowed)
    }

    /// Verifies the written file and syncs it, as far as the options require. `received` is the hash of content that is
    /// not a file of this host.
    pub(super) fn sync_and_verify(
        &self,
        file: &File,
        content: &SourceContent,
        received: Option<ContentDigest>,
    ) -> Result<()> {
        let writing = &self.job.options.writing;
        // Pages that are not yet written cannot be dropped from the cache, so verification needs them on the
        // disk as well.
        if writing.fsync || writing.verify {
            file.sync_all().map_err(SyncError::wrap_io_error("make durable"))?;
        }
        if !writing.verify {
            return Ok(());
        }
        // A read from the page cache would prove nothing about the disk.
        let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        let wanted = match content {
            SourceContent::File(from) => Some(hash_file(&from.file, self.flow.meter)?),
            SourceContent::Pieces(_) => received,
        };
        if wanted == Some(hash_file(file, self.flow.meter)?) { Ok(()) } else { Err(SyncError::Unequal) }
    }

    /// Fails if the entry to be replaced, deleted or changed neither is as it was listed nor has its wanted state
    /// already; only with [`crate::model::options::WriteOptions::unchanged`].
    pub fn check_old_unchanged(&self, dir: &HeldDir, step: &SyncStep) -> Result<()> {
        let old = step.old.map(|id| self.job.to.entry(id));
        let Some(old) = old.filter(|old| self.job.options.writing.unchanged && !old.is_dir()) else {
            return Ok(());
        };
        // An entry that is gone cannot be lost.
        let Some(stat) = dir.stat(old.name()).none_if_missing()? else { return Ok(()) };
        let size = if stat.kind == FileKind::File { stat.size } else { 0 };
        let source = step.source.map(|id| self.job.from.entry(id));
        let is = |entry: &ListingEntry<'_>| {
            (entry.kind(), entry.size(), entry.mtime()) == (stat.kind, size, stat.mtime)
        };
        // Names that come and go change the time of a file with several.
        let stamp =
            if old.flags().contains(EntryFlags::LINKED) { 0 } else { self.job.to.change_stamp(old.id()) };
        let untouched = stamp == 0 || stamp == crate::local::scan::compute_stamp(&stat);
        // If the destination already is what the source has, another run or program did the same, and
        // replacing it loses nothing.
        if is(&old) && untouched || source.is_some_and(|source| is(&source)) {
            Ok(())
        } else {
            Err(SyncError::Changed)
        }
    }

    /// Fails if the source's file is not as it was listed.
    fn check_source_unchanged(&self, content: &SourceContent, entry: &ListingEntry<'_>) -> Result<()> {
        match content {
            // A local file is opened long after it was listed. What a two-way run decides about one version
            // must not be done with another one. Content of other hosts is checked where it is read.
            SourceContent::File(from)
                if self.job.options.writing.unchanged
                    && (from.stat.size, from.stat.mtime) != (entry.size(), entry.mtime()) =>
            {
                Err(SyncError::Changed)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn keep_backup(&self, dir: &HeldDir, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<()> {
        // The old version is checked as late as possible: directly before it gets its second name and is
        // replaced.
        self.check_old_unchanged(dir, step)?;
        match &self.keeper {
            Some(keeper) if step.old.is_some() => keeper.keep_replaced(dir, entry.name(), &entry.path()),
            _ => Ok(()),
        }
    }

    /// Creates a symlink or a special file.
    pub fn create_node(
        &self,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        if step.old.is_none() {
            // `symlink` and `mknod` fail with EEXIST if the name is taken, so nothing is replaced.
            self.create_node_as(dir, entry.name(), entry).map_err(map_name_conflict)?;
            return self.apply_new_attributes(&dir.hold_self(), &dir.hold_node(entry.name())?, step, entry);
        }
        let temp = new_temp_name()?;
        self.create_node_as(dir, &temp, entry)?;
        // A node that replaces another is made under a temporary name: a symlink cannot be rewritten, and removing
        // the old one first would leave a moment without either.
        let made = || {
            let failed = self.apply_new_attributes(&dir.hold_self(), &dir.hold_node(&temp)?, step, entry)?;
            self.keep_backup(dir, step, entry)?;
            dir.rename(&temp, dir, entry.name())?;
            let hold = || dir.hold_node(entry.name()).ok();
            self.times.ensure_times_after_rename(hold, entry, self.job.options);
            Ok(failed)
        };
        made().inspect_err(|_| {
            let _ = dir.unlink(&temp);
        })
    }

    fn create_node_as(
        &self,
        dir: &HeldDir,
        name: &[u8],
        entry: &ListingEntry<'_>,
    ) -> Result<(), BeneathError> {
        match SpecialFile::from_kind(entry.kind(), entry.rdev()) {
            Some(special) => dir.create_special(name, special, 0o600),
            None => dir.create_symlink(name, entry.symlink_target()),
        }
    }

    /// Links a name to an existing file; None if that is impossible, and a copy has to be made.
    pub fn link_file(
        &self,
        from: (&HeldDir, &[u8]),
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Option<()>> {
        self.check_old_unchanged(dir, step)?;
        let temp = if step.old.is_some() { Some(new_temp_name()?) } else { None };
        match from.0.link_file(from.1, dir, temp.as_deref().unwrap_or(entry.name())) {
            Ok(()) => {}
            // The old file is untouched at this point. The caller copies instead.
            Err(error) if is_link_refused(&error) => return Ok(None),
            Err(error) => return Err(map_name_conflict(error)),
        }
        let Some(temp) = temp else { return Ok(Some(())) };
        // Only now it is known that the old file is replaced: what cannot be linked may stay, and then needs no backup.
        let named =
            self.keep_backup(dir, step, entry).and_then(|()| Ok(dir.rename(&temp, dir, entry.name())?));
        // If both were names of one file already, the kernel leaves the temporary one where it is.
        match dir.unlink(&temp) {
            Err(error) if !error.is_not_found() => named.and(Err(error.into())),
            _ => named,
        }
        .map(Some)
    }

    /// Applies the attributes to an existing entry.
    pub fn apply_attributes(
        &self,
        node: &HeldNode<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        // Among the entries with a separate step for attributes, only directories can be new; a new directory
        // inherits the default ACL of its parent.
        self.apply_new_attributes(node, node, step, entry)
    }

    /// The same for a new entry of a directory, which has the default ACL for new entries.
    fn apply_new_attributes(
        &self,
        dir: &HeldNode<'_>,
        node: &HeldNode<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        let failed =
            attributes::apply_attributes(node, entry, self.previous_occupant(step, dir), self.job.options)?;
        self.times.ensure_times(node, entry, self.job.options);
        Ok(failed)
    }

    /// Deletes an entry of the destination.
    pub fn delete_entry(&self, dir: &HeldDir, old: &ListingEntry<'_>) -> Result<()> {
        let deleted = match (&self.keeper, old.kind()) {
            // Directories are not kept: whatever was in them is in the trash under its whole path.
            (_, FileKind::Dir) => dir.remove_dir(old.name()),
            (Some(keeper), _) => return keeper.keep_deleted(dir, old.name(), &old.path()),
            (None, _) => dir.unlink(old.name()),
        };
        Ok(deleted.ignore_missing()?)
    }
}

/// Whether an error interrupted a transfer that another run can continue.
pub(super) fn is_interruption(error: &SyncError) -> bool {
    matches!(error, SyncError::Lost | SyncError::LostTo { .. } | SyncError::Stopped) || error.is_final()
}

/// Whether a file cannot be linked there: the link limit, another filesystem, or no support.
pub(super) fn is_link_refused(error: &BeneathError) -> bool {
    // EPERM comes from filesystems without hard links (FAT) and from `fs.protected_hardlinks`.
    const REASONS: [Errno; 5] = [Errno::MLINK, Errno::XDEV, Errno::PERM, Errno::NOSYS, Errno::OPNOTSUPP];
    error.errno().is_some_and(|errno| REASONS.contains(&errno))
}

/// Maps the error of a name that is taken although the listing has no such entry.
pub(crate) fn map_name_conflict(error: BeneathError) -> SyncError {
    match error.errno() {
        Some(Errno::EXIST) => SyncError::Taken,
        _ => error.into(),
    }
}

/// Computes the BLAKE3 hash of a file's content. Fails if a stop is requested.
pub(crate) fn hash_file(file: &File, meter: &ProgressMeter) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 4 * BLOCK];
    let mut position = 0;
    loop {
        // Within the file, too: a huge one takes minutes.
        meter.check_stopped()?;
        match file.read_at(&mut buffer, position) {
            Ok(0) => return Ok(*hasher.finalize().as_bytes()),
            Ok(count) => {
                hasher.update(buffer.get(..count).unwrap_or_default());
                position += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SyncError::wrap_io_error("read")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_ends_the_hashing_of_a_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let meter = ProgressMeter::default();
        assert!(hash_file(&file, &meter).is_ok());
        meter.request_stop();
        assert!(matches!(hash_file(&file, &meter), Err(SyncError::Stopped)));
    }
}

//! One entry that is received: written beside its place, given its attributes, and named in one step.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use vellum_checkout::beneath::{
    BeneathError, HeldDir, HeldNode, HiddenDir, OpenedFile, ReplacePolicy, SpecialFile, StagedFile,
    StagingMethod, temp_name,
};
use vellum_checkout::meta::FileStat;
use vellum_types::{FileKind, UnixTime};

use super::content::BLOCK;
use super::delayed::DelayedNames;
use super::filling::FileFill;
use super::partial::PartialFile;
use super::small::{NewFileDefaults, begun};
use super::staging::{StagingDirectories, WrittenFile};
use super::times::TimeKeeping;
use super::{BackupKeeper, PreviousOccupant, SyncJob, TransferControl, attributes, default_acl};
use crate::error::{Result, SyncError};
use crate::listing::{ContentDigest, EntryFlags, ListingEntry};
use crate::options::DeltaMode;
use crate::plan::{SyncStep, WriteMethod};
use crate::source::{ContentPieces, FileContent, OldVersion};

/// Writes entries into directories of the destination.
pub(crate) struct EntryWriter<'a> {
    pub job: &'a SyncJob<'a>,
    pub flow: TransferControl<'a>,
    pub keeper: Option<BackupKeeper>,
    pub(super) staging: StagingDirectories,
    pub delayed: Option<DelayedNames>,
    umask: u32,
    /// What was changed before this moment was changed before the run.
    pub(super) begun: UnixTime,
    siblings: NewFileDefaults,
    pub(super) times: TimeKeeping,
}

/// Where an entry goes.
#[derive(Clone, Copy)]
pub(crate) struct EntryDestination<'d> {
    pub dir: &'d HeldDir,
    /// It is one that nobody sees yet: what is in it may have its own name from the start.
    pub hidden: Option<&'d HiddenDir>,
}

/// A file being written, and what it is like before it is given anything, if that is known.
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
        // Where modes are copied nobody asks for it.
        let umask = if job.options.preserve.modes { 0 } else { attributes::umask() };
        Self {
            job,
            flow,
            keeper,
            staging,
            delayed: None,
            umask,
            begun: begun(),
            siblings: NewFileDefaults::default(),
            times: TimeKeeping::default(),
        }
    }

    /// Writes a file; gives the attributes that could not be applied.
    pub fn write(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        how: WriteMethod,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        if matches!(how, WriteMethod::InPlace | WriteMethod::Append)
            && let Some(failed) = self.over(home.dir, step, entry, how == WriteMethod::Append)?
        {
            return Ok(failed);
        }
        self.beside(home, step, how, entry)
    }

    fn beside(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        how: WriteMethod,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        let dir = home.dir;
        let old = match how {
            WriteMethod::Delta if self.uses_old() => dir.open_file(entry.name()).ok(),
            _ => None,
        };
        if let Some(partial) = PartialFile::open(dir, entry, &self.job.options.writing, &self.staging)? {
            let resumed = self.resume(&partial, old.as_ref(), (dir, step, entry));
            let failed = resumed.inspect_err(|error| partial.clear(is_cut_off(error)))?;
            self.name(WrittenFile::Partial(partial), dir, step, entry)?;
            return Ok(failed);
        }
        if let Some(failed) = self.at_once(home, step, entry)? {
            return Ok(failed);
        }
        let old_version = old.as_ref().map(|old| OldVersion::kept(&old.file));
        let mut content = self.job.source.open(*entry, old_version)?;
        self.as_listed(&content, entry)?;
        self.put(home, step, entry, old.as_ref(), &mut content)
    }

    /// Writes a file beside its place, and gives it its name.
    pub(super) fn put(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
        old: Option<&OpenedFile>,
        content: &mut FileContent,
    ) -> Result<Vec<String>> {
        let (dir, replaces) = (home.dir, step.old.is_some());
        let UnfinishedFile { file: new, like } = self.new_file(home, step, entry)?;
        let filling = FileFill::new(new.file()?, entry.size(), replaces);
        let received = match (&mut *content, old) {
            (FileContent::File(from), Some(old))
                if self.job.options.writing.delta == DeltaMode::Always
                    && self.flow.shared(new.file()?, old)? =>
            {
                self.flow.renew(&filling, from, old)?;
                None
            }
            (FileContent::File(from), _) => {
                self.flow.fill(&filling, from)?;
                None
            }
            (FileContent::Pieces(pieces), old) => self.assemble(&filling, &mut **pieces, old)?,
        };
        let failed = self.dress((dir, new.file()?), step, entry, like)?;
        self.settle(new.file()?, content, received)?;
        self.finish(new, home, step, entry)?;
        Ok(failed)
    }

    /// Gives a file that is complete its name.
    pub(super) fn finish(
        &self,
        new: StagedFile,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<()> {
        if home.hidden.is_none() {
            return self.name(WrittenFile::Staged(new), home.dir, step, entry);
        }
        // It has its own name from the start.
        new.commit(entry.name(), ReplacePolicy::Never).map(drop).map_err(taken)
    }

    /// Fills a new file with pieces; gives the hash of what arrived, unless nobody will compare it and the parts of the
    /// file can be had at the same time.
    fn assemble(
        &self,
        filling: &FileFill<'_>,
        pieces: &mut dyn ContentPieces,
        old: Option<&OpenedFile>,
    ) -> Result<Option<ContentDigest>> {
        match pieces.parts().filter(|_| !self.job.options.writing.verify) {
            Some(parts) => self.flow.assemble_parts(filling, parts).map(|()| None),
            None => self.flow.assemble(filling, pieces, old.map(|old| &old.file)).map(Some),
        }
    }

    /// Begins a file that will have the entry's name.
    pub(super) fn new_file(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<UnfinishedFile> {
        let dir = home.dir;
        if let Some(temp) = &self.staging.temp {
            return Ok(UnfinishedFile { file: temp.new_file()?, like: None });
        }
        if step.old.is_some() {
            let file = dir.new_file_staged(StagingMethod::Named)?;
            // Held while the name is temporary: another run that finds it knows that somebody is writing it.
            let _ = flock(file.file()?, FlockOperation::NonBlockingLockExclusive);
            return Ok(UnfinishedFile { file, like: None });
        }
        // Nobody reaches what has no name, or is in a directory that has none: it may have its mode from the start,
        // which mostly spares setting it.
        let mode = entry.mode() & 0o777;
        let file = match home.hidden {
            Some(hidden) => hidden.new_file(entry.name(), mode).map_err(taken)?,
            None => dir.new_file_of_mode(mode)?,
        };
        let like = self.siblings.of(dir, mode, file.file()?, self.job.options)?;
        Ok(UnfinishedFile { file, like })
    }

    /// Whether anybody looks at the old file: who copies within a host, and shares no blocks, does not.
    fn uses_old(&self) -> bool {
        self.job.source.looks_at_old() || self.job.options.writing.delta == DeltaMode::Always
    }

    /// Writes what is missing of a file that an earlier run may have begun.
    fn resume(
        &self,
        partial: &PartialFile,
        old: Option<&OpenedFile>,
        (dir, step, entry): (&HeldDir, &SyncStep, &ListingEntry<'_>),
    ) -> Result<Vec<String>> {
        // What arrived is of this very file, so it is worth more than an old version that is not much longer.
        let arrived = partial.arrived();
        let goes_on = arrived > 0 && old.is_none_or(|old| arrived >= old.stat.size / 2);
        let there = if goes_on { Some(&partial.file) } else { old.map(|old| &old.file) };
        let mut content = self.job.source.open(*entry, there.map(OldVersion::kept))?;
        self.as_listed(&content, entry)?;
        let received = match &mut content {
            FileContent::File(from) => {
                self.flow.patch(&partial.file, from, 0)?;
                None
            }
            FileContent::Pieces(pieces) if goes_on => {
                Some(self.flow.go_on(&partial.file, arrived, &mut **pieces)?)
            }
            FileContent::Pieces(pieces) => {
                rustix::fs::ftruncate(&partial.file, 0)
                    .map_err(|errno| SyncError::io("write")(errno.into()))?;
                let filling = FileFill::new(&partial.file, entry.size(), step.old.is_some());
                self.assemble(&filling, &mut **pieces, old)?
            }
        };
        let failed = self.dress((dir, &partial.file), step, entry, None)?;
        self.settle(&partial.file, &content, received)?;
        Ok(failed)
    }

    /// Gives a new file of a directory the attributes; `like` is what it has, if that is known.
    pub(super) fn dress(
        &self,
        (dir, file): (&HeldDir, &File),
        step: &SyncStep,
        entry: &ListingEntry<'_>,
        like: Option<FileStat>,
    ) -> Result<Vec<String>> {
        let node = HeldNode::of_file(file);
        let now = like.map_or_else(|| node.stat(), Ok)?;
        let newcomer = self.newcomer(step, &dir.self_node());
        let failed = attributes::apply_to(&node, &now, entry, newcomer, self.job.options)?;
        self.times.ensure(&node, entry, self.job.options);
        Ok(failed)
    }

    /// What stood there before; `dir` has the default ACL that new entries get.
    fn newcomer(&self, step: &SyncStep, dir: &HeldNode<'_>) -> PreviousOccupant<'a> {
        let old = step.old.map(|id| self.job.to.entry(id));
        let same_kind = |old: &ListingEntry<'_>| {
            step.source.is_some_and(|id| self.job.from.entry(id).kind() == old.kind())
        };
        match old.filter(same_kind).filter(|old| !old.flags().has(EntryFlags::IMPLIED)) {
            Some(old) => PreviousOccupant::No { mode: old.mode(), old: Some(old) },
            None => PreviousOccupant::Yes { umask: self.taken_from_new(dir) },
        }
    }

    /// The mode bits that new entries of a directory do not get, where modes are not copied.
    fn taken_from_new(&self, dir: &HeldNode<'_>) -> u32 {
        if self.job.options.preserve.modes {
            return 0;
        }
        default_acl::allowed(dir).map_or(self.umask, |allowed| 0o777 & !allowed)
    }

    /// Reads again what was written, and makes it durable, if that is asked for. `received` is the hash of content that
    /// is not a file of this host.
    pub(super) fn settle(
        &self,
        file: &File,
        content: &FileContent,
        received: Option<ContentDigest>,
    ) -> Result<()> {
        let writing = &self.job.options.writing;
        if writing.fsync || writing.verify {
            file.sync_all().map_err(SyncError::io("make durable"))?;
        }
        if !writing.verify {
            return Ok(());
        }
        // What is still in memory would prove nothing about the disk.
        let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        let wanted = match content {
            FileContent::File(from) => Some(hash(&from.file)?),
            FileContent::Pieces(_) => received,
        };
        if wanted == Some(hash(file)?) { Ok(()) } else { Err(SyncError::Unequal) }
    }

    /// What is replaced, deleted or changed is as it was listed, or already as it shall be; asked for by
    /// [`crate::options::WriteOptions::unchanged`].
    pub fn still(&self, dir: &HeldDir, step: &SyncStep) -> Result<()> {
        let old = step.old.map(|id| self.job.to.entry(id));
        let Some(old) = old.filter(|old| self.job.options.writing.unchanged && !old.is_dir()) else {
            return Ok(());
        };
        let stat = match dir.stat(old.name()) {
            // What is gone cannot be lost.
            Err(error) if error.is_not_found() => return Ok(()),
            stat => stat?,
        };
        let size = if stat.kind == FileKind::File { stat.size } else { 0 };
        let source = step.source.map(|id| self.job.from.entry(id));
        let is = |entry: &ListingEntry<'_>| {
            (entry.kind(), entry.size(), entry.mtime()) == (stat.kind, size, stat.mtime)
        };
        // Names that come and go change the time of a file with several.
        let stamp = if old.flags().has(EntryFlags::LINKED) { 0 } else { self.job.to.stamp(old.id()) };
        let untouched = stamp == 0 || stamp == crate::scan::stamp(&stat);
        if is(&old) && untouched || source.is_some_and(|source| is(&source)) {
            Ok(())
        } else {
            Err(SyncError::Changed)
        }
    }

    /// The source's file is as it was listed.
    fn as_listed(&self, content: &FileContent, entry: &ListingEntry<'_>) -> Result<()> {
        match content {
            FileContent::File(from)
                if self.job.options.writing.unchanged
                    && (from.stat.size, from.stat.mtime) != (entry.size(), entry.mtime()) =>
            {
                Err(SyncError::Changed)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn keep(&self, dir: &HeldDir, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<()> {
        self.still(dir, step)?;
        match &self.keeper {
            Some(keeper) if step.old.is_some() => keeper.keep(dir, entry.name(), &entry.path()),
            _ => Ok(()),
        }
    }

    /// Makes a symlink or a special file.
    pub fn make(&self, dir: &HeldDir, step: &SyncStep, entry: &ListingEntry<'_>) -> Result<Vec<String>> {
        if step.old.is_none() {
            self.make_as(dir, entry.name(), entry).map_err(taken)?;
            return self.attributes_in(&dir.self_node(), &dir.node(entry.name())?, step, entry);
        }
        let temp = temp_name()?;
        self.make_as(dir, &temp, entry)?;
        let made = || {
            let failed = self.attributes_in(&dir.self_node(), &dir.node(&temp)?, step, entry)?;
            self.keep(dir, step, entry)?;
            dir.rename(&temp, dir, entry.name())?;
            Ok(failed)
        };
        made().inspect_err(|_| {
            let _ = dir.unlink(&temp);
        })
    }

    fn make_as(
        &self,
        dir: &HeldDir,
        name: &[u8],
        entry: &ListingEntry<'_>,
    ) -> std::result::Result<(), BeneathError> {
        match SpecialFile::of(entry.kind(), entry.rdev()) {
            Some(special) => dir.make_special(name, special, 0o600),
            None => dir.make_symlink(name, entry.target()),
        }
    }

    /// Makes a name of a file that is there; None if that cannot be, and a copy has to do.
    pub fn link(
        &self,
        from: (&HeldDir, &[u8]),
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Option<()>> {
        self.keep(dir, step, entry)?;
        let linked = match step.old {
            Some(_) => from.0.link_replacing(from.1, dir, entry.name()),
            None => from.0.link(from.1, dir, entry.name()),
        };
        match linked {
            Ok(()) => Ok(Some(())),
            Err(error) if cannot_link(&error) => Ok(None),
            Err(error) => Err(taken(error)),
        }
    }

    /// Sets the attributes of something that is there.
    pub fn attributes(
        &self,
        node: &HeldNode<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        // Of what has a step of its own only a directory can be new, and it has the default ACL of the one that it is in.
        self.attributes_in(node, node, step, entry)
    }

    /// The same of an entry that is new in a directory, which has the default ACL that new entries get.
    fn attributes_in(
        &self,
        dir: &HeldNode<'_>,
        node: &HeldNode<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        let failed = attributes::apply(node, entry, self.newcomer(step, dir), self.job.options)?;
        self.times.ensure(node, entry, self.job.options);
        Ok(failed)
    }

    /// Deletes an entry of the destination.
    pub fn delete(&self, dir: &HeldDir, old: &ListingEntry<'_>) -> Result<()> {
        let deleted = match (&self.keeper, old.kind()) {
            (_, FileKind::Dir) => dir.remove_dir(old.name()),
            (Some(keeper), _) => return keeper.take(dir, old.name(), &old.path()),
            (None, _) => dir.unlink(old.name()),
        };
        match deleted {
            Err(error) if error.is_not_found() => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Whether a failure cut off what would have gone well, so that another run can go on where it was.
pub(super) fn is_cut_off(error: &SyncError) -> bool {
    matches!(error, SyncError::Lost | SyncError::LostTo { .. } | SyncError::Stopped) || error.is_final()
}

/// Whether a file cannot have another name there: it has too many, lies elsewhere, or the filesystem knows no such thing.
pub(super) fn cannot_link(error: &BeneathError) -> bool {
    const REASONS: [Errno; 5] = [Errno::MLINK, Errno::XDEV, Errno::PERM, Errno::NOSYS, Errno::OPNOTSUPP];
    error.errno().is_some_and(|errno| REASONS.contains(&errno))
}

/// A name that is taken although nobody saw it.
pub(crate) fn taken(error: BeneathError) -> SyncError {
    match error.errno() {
        Some(Errno::EXIST) => SyncError::Taken,
        _ => error.into(),
    }
}

/// The BLAKE3 hash of a file's content.
pub(crate) fn hash(file: &File) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 4 * BLOCK];
    let mut position = 0;
    loop {
        match file.read_at(&mut buffer, position) {
            Ok(0) => return Ok(*hasher.finalize().as_bytes()),
            Ok(count) => {
                hasher.update(buffer.get(..count).unwrap_or_default());
                position += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SyncError::io("read")(error)),
        }
    }
}

//! One inode: read, encoded, and compared with the base.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;

use vellum_host::beneath::{ExtendedAttribute, HeldNode};
use vellum_host::error_chain::format_error_chain;
use vellum_host::metadata::FileStat;
use vellum_map::KeySpan;
use vellum_types::value::MODE_MASK;
use vellum_types::{Dentry, ErrorKind, FileKind, Ino, InodeAttr, MapKey, MapKeyTag};
use vellum_volume::tree::{InodeRecord, compute_generation};
use vellum_volume::{FsTree, SnapshotStatistics};

use super::content::{ContentReader, PreviousContent};
use super::jobs::CaptureJob;
use super::number::InodeNumbers;
use super::unseen::{DirEntryName, UnexaminedEntries, UnscannedLinkNames};
use super::{RecordedContent, UnreadableNewEntry};
use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::scan::{OpenTreeDirs, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanTree};

/// What came of a job.
#[derive(Default)]
pub struct InodeOutcome {
    /// Changes of the map, by key.
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// What was added and removed, in numbers.
    pub tally: StatisticsDelta,
    /// Attributes that are younger than the scan; None if none can be trusted.
    pub later: Option<(ScanEntryId, Option<FileStat>)>,
    /// What went wrong.
    pub trouble: Option<UnreadablePolicy>,
}

/// How an entry that could not be read is dealt with.
pub enum UnreadablePolicy {
    /// What the base has of it stays, or what was read is recorded.
    Reported(CheckoutProblem),
    /// It is taken out of the state again, which is worth a word unless it merely vanished.
    Corrected(Option<CheckoutProblem>, UnreadableNewEntry),
}

/// The difference that an inode makes to the statistics.
#[derive(Debug, Clone, Copy, Default)]
pub struct StatisticsDelta {
    old: SnapshotStatistics,
    new: SnapshotStatistics,
    changed: bool,
}

impl StatisticsDelta {
    fn from_change(old: Option<&InodeAttr>, new: Option<&InodeAttr>, changed: bool) -> Self {
        let count = |attr: Option<&InodeAttr>| {
            let mut statistics = SnapshotStatistics::default();
            match attr.map(|attr| (attr.kind, attr.size)) {
                None => {}
                Some((FileKind::File, size)) => (statistics.files, statistics.bytes) = (1, size),
                Some((FileKind::Dir, _)) => statistics.dirs = 1,
                Some(_) => statistics.others = 1,
            }
            statistics
        };
        Self { old: count(old), new: count(new), changed }
    }

    /// Brings statistics up to date.
    pub fn add_to_statistics(&self, sum: &mut SnapshotStatistics) {
        // Added before the old is taken away, so that the sum does not stop at 0 in between.
        let step = |sum: &mut u64, old: u64, new: u64| *sum = sum.saturating_add(new).saturating_sub(old);
        step(&mut sum.files, self.old.files, self.new.files);
        step(&mut sum.dirs, self.old.dirs, self.new.dirs);
        step(&mut sum.others, self.old.others, self.new.others);
        step(&mut sum.bytes, self.old.bytes, self.new.bytes);
        sum.changed += u64::from(self.changed);
    }
}

/// Reads inodes.
pub struct InodeReader<'a> {
    pub tree: &'a ScanTree,
    pub base: Option<&'a FsTree>,
    pub numbers: &'a InodeNumbers,
    pub gaps: &'a UnexaminedEntries<'a>,
    /// Directories that are gone, but for what is absent in them.
    pub kept: &'a HashSet<Ino>,
    pub unseen: &'a UnscannedLinkNames,
    pub dirs: OpenTreeDirs<'a>,
    pub content: ContentReader<'a>,
}

/// The entries of a map under one inode.
type InodeEntries = BTreeMap<Vec<u8>, Vec<u8>>;

impl InodeReader<'_> {
    /// Does a job. Only what concerns the whole operation is an error: a full store, a damaged base.
    pub fn run_job(&self, job: CaptureJob) -> Result<InodeOutcome> {
        match job {
            CaptureJob::Remove(ino) => {
                let old = self.read_old_inode(ino)?;
                let left = old.as_ref().and_then(|old| self.inode_with_other_names(old));
                self.compute_outcome(ino, old.as_ref(), left)
            }
            CaptureJob::Prune(ino) => {
                let old = self.read_old_inode(ino)?;
                let left = old.clone().map(|old| self.prune_dir(old));
                self.compute_outcome(ino, old.as_ref(), left)
            }
            CaptureJob::Dir(ino, dir) => self.capture_dir(ino, dir),
            CaptureJob::Entry(ino, id) => self.capture_entry(ino, self.tree.entry(id)),
        }
    }

    /// A file that lost all names that were looked for, if it has others.
    fn inode_with_other_names(&self, old: &InodeRecord) -> Option<InodeRecord> {
        let names = self.unseen.names_of_inode(old.ino);
        let first = &names.first()?.entry;
        let mut left = old.clone();
        left.attr.nlink = u32::try_from(names.len()).unwrap_or(u32::MAX);
        // An inode records one of its names, which must be one that exists: paths of the inode are made from
        // it.
        if !names.iter().any(|name| (name.entry.0, &name.entry.1) == (left.attr.parent, &left.attr.name)) {
            (left.attr.parent, left.attr.name) = first.clone();
        }
        Some(left)
    }

    /// A directory with only what is absent in it.
    fn prune_dir(&self, mut dir: InodeRecord) -> InodeRecord {
        let ino = dir.ino;
        dir.entries
            .retain(|(name, dentry)| self.gaps.is_absent(ino, name) || self.kept.contains(&dentry.ino));
        dir.attr.nlink = count_dir_links(dir.entries.iter().map(|(_, dentry)| dentry));
        dir
    }

    fn capture_dir(&self, ino: Ino, index: ScanDirIndex) -> Result<InodeOutcome> {
        let dir = self.tree.dir(index);
        let old = self.read_old_inode(ino)?;
        let is_shadowed = self.gaps.is_shadowed_dir(ino);
        let on_the_way = is_shadowed || !dir.is_fully_scanned() && dir.is_readable();
        let mut attr = match &old {
            // Of a directory that is only passed through on the way to the selected paths, nothing else is taken.
            Some(old) if on_the_way => self.move_dir_attributes(&old.attr, dir.own_entry()),
            old => self.build_attributes(dir.stat(), dir.own_entry(), old.as_ref()),
        };
        // Names that the scan did not look at, or could not examine, stay in the directory: only a name that
        // was looked for and not found is removed.
        let retained = old
            .iter()
            .flat_map(|old| &old.entries)
            .filter(|(name, dentry)| {
                !self.gaps.proves_removal(&dir, ino, name)
                    || self.kept.contains(&dentry.ino) && dir.find_entry(name).is_none()
            })
            .cloned();
        let scanned = dir.entries().map(|entry| {
            (
                entry.name().to_vec(),
                Dentry { ino: self.numbers.number_of_entry(entry.id()), kind: entry.kind() },
            )
        });
        // Of a name on both sides, what was scanned counts.
        let entries: BTreeMap<_, _> = retained.chain(scanned).collect();
        attr.nlink = count_dir_links(entries.values());
        let (xattrs, trouble) = match self.dirs.open_dir(index).and_then(|dir| dir.hold_self().read_xattrs())
        {
            Ok(xattrs) => match old.as_ref().filter(|_| is_shadowed) {
                // The last snapshot says what the directory is like for which this one stands.
                Some(old) => (old.xattrs.clone(), None),
                None => (sort_xattr_pairs(xattrs), None),
            },
            Err(error) => {
                // Attributes that cannot be read stay as the last snapshot has them; recording none would
                // delete them on a restore.
                let kept = old.as_ref().map(|old| old.xattrs.clone()).unwrap_or_default();
                (kept, Some(UnreadablePolicy::Reported(unreadable_problem(dir.path(), &error))))
            }
        };
        let new =
            InodeRecord { ino, attr, entries: entries.into_iter().collect(), xattrs, extents: Vec::new() };
        let outcome = self.compute_outcome(ino, old.as_ref(), Some(new))?;
        Ok(InodeOutcome { trouble, ..outcome })
    }

    /// The attributes of a directory as the base has them, in its present place.
    fn move_dir_attributes(&self, old: &InodeAttr, entry: Option<ScanEntryRef<'_>>) -> InodeAttr {
        let mut attr = old.clone();
        if let Some(entry) = entry {
            attr.parent = self.numbers.number_of_dir(&entry.containing_dir());
            attr.name = entry.name().to_vec();
        }
        attr
    }

    fn capture_entry(&self, ino: Ino, entry: ScanEntryRef<'_>) -> Result<InodeOutcome> {
        let old = self.read_old_inode(ino)?;
        let mut failure = None;
        // One name may have vanished since the scan while the file still has others.
        for entry in std::iter::once(entry).chain(self.find_other_names(ino, entry)) {
            match self.read_inode(ino, &entry, old.as_ref()) {
                Ok((new, content)) => {
                    let mut outcome = self.compute_outcome(ino, old.as_ref(), Some(new))?;
                    if let Some(content) = content {
                        record_late_change(&mut outcome, &entry, &content);
                    }
                    return Ok(outcome);
                }
                // A failed call on this file is a problem of this file. Everything else (the store, the base,
                // a request to stop) ends the capture.
                Err(error @ (CheckoutError::Beneath(_) | CheckoutError::Path { .. })) => {
                    failure.get_or_insert(error);
                }
                Err(other) => return Err(other),
            }
        }
        Ok(failure
            .map_or_else(InodeOutcome::default, |error| self.handle_unreadable(ino, &entry, old, &error)))
    }

    /// The names of a file but for one. They are looked for only when the first one fails.
    fn find_other_names<'e>(
        &'e self,
        ino: Ino,
        first: ScanEntryRef<'e>,
    ) -> impl Iterator<Item = ScanEntryRef<'e>> {
        // This walks all entries, which is acceptable: it happens only for a file with several names that
        // could not be read under the first.
        let several = self.numbers.links_of_inode(ino).is_some_and(|links| links.count > 1);
        let all = several.then(|| self.tree.walk_entries()).into_iter().flatten();
        all.filter(move |other| other.id() != first.id() && self.numbers.number_of_entry(other.id()) == ino)
    }

    fn read_inode(
        &self,
        ino: Ino,
        entry: &ScanEntryRef<'_>,
        old: Option<&InodeRecord>,
    ) -> Result<(InodeRecord, Option<RecordedContent>)> {
        let dir = self.dirs.open_dir(entry.containing_dir().index())?;
        let mut attr = self.build_attributes(entry.stat(), Some(*entry), old);
        let mut extents = Vec::new();
        let mut read = None;
        let xattrs = match entry.kind() {
            FileKind::File => {
                let opened = dir.open_file(entry.name())?;
                // Attributes are read through the open file, so that they belong to the same file as the
                // content even if its name is replaced meanwhile.
                let xattrs = HeldNode::from_file(&opened.file).read_xattrs()?;
                let before =
                    old.map(|old| PreviousContent { chunking: old.attr.chunking, extents: &old.extents });
                let mut content = self.content.read_file(opened, before)?;
                // The attributes at the time of reading replace those of the scan: mode, owner and time must
                // belong to the content that is recorded.
                attr = self.build_attributes(&content.stat, Some(*entry), old);
                (attr.size, attr.chunking) = (content.size, content.chunking);
                attr.inline = content.inline.take();
                extents = std::mem::take(&mut content.extents);
                read = Some(content);
                xattrs
            }
            FileKind::Symlink => {
                attr.target = dir.read_link(entry.name())?;
                // The length of the target that was read, not the one of the scan: the link may have been
                // replaced in between, and some filesystems (procfs) report 0.
                attr.size = attr.target.len() as u64;
                dir.hold_node(entry.name())?.read_xattrs()?
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                attr.rdev = entry.stat().rdev;
                dir.hold_node(entry.name())?.read_xattrs()?
            }
            FileKind::Dir | FileKind::Fifo | FileKind::Socket => {
                dir.hold_node(entry.name())?.read_xattrs()?
            }
        };
        Ok((InodeRecord { ino, attr, entries: Vec::new(), xattrs: sort_xattr_pairs(xattrs), extents }, read))
    }

    /// Keeps what the base has; what it does not have, or what is gone, is taken out again.
    fn handle_unreadable(
        &self,
        ino: Ino,
        entry: &ScanEntryRef<'_>,
        old: Option<InodeRecord>,
        error: &CheckoutError,
    ) -> InodeOutcome {
        let gone = error.kind() == ErrorKind::NotFound;
        let report = unreadable_problem(entry.path(), error);
        // Without an entry in the stat cache, the next snapshot looks at this file again.
        let mut outcome = InodeOutcome { later: Some((entry.id(), None)), ..InodeOutcome::default() };
        outcome.trouble = Some(match old {
            // The base's version stays only if the file still exists, or has a name that the scan did not
            // look at. A file that vanished since the scan is recorded as removed.
            Some(_) if !gone || !self.unseen.names_of_inode(ino).is_empty() => {
                UnreadablePolicy::Reported(report)
            }
            // The changes of the directories were computed from the scan and already contain the names of
            // this file. The sink takes ascending keys only, so they cannot be taken back here: the caller
            // removes them from the finished tree.
            old => {
                outcome.tally =
                    StatisticsDelta::from_change(old.as_ref().map(|old| &old.attr), None, old.is_some());
                let keys =
                    old.as_ref().map(|old| encode_inode(old).into_keys().collect()).unwrap_or_default();
                let name = |entry: ScanEntryRef<'_>| -> DirEntryName {
                    (self.numbers.number_of_dir(&entry.containing_dir()), entry.name().to_vec())
                };
                let names =
                    std::iter::once(*entry).chain(self.find_other_names(ino, *entry)).map(name).collect();
                let correction = UnreadableNewEntry { names, keys };
                UnreadablePolicy::Corrected((!gone).then_some(report), correction)
            }
        });
        outcome
    }

    fn read_old_inode(&self, ino: Ino) -> Result<Option<InodeRecord>> {
        // A number given out by this capture is not in the base, so the lookup is skipped.
        let Some(base) = self.base.filter(|_| self.numbers.is_from_base(ino)) else { return Ok(None) };
        Ok(if base.inode_attr(ino)?.is_some() { Some(base.read_inode(ino)?) } else { None })
    }

    fn build_attributes(
        &self,
        stat: &FileStat,
        entry: Option<ScanEntryRef<'_>>,
        old: Option<&InodeRecord>,
    ) -> InodeAttr {
        let mut attr = InodeAttr::new(stat.kind, stat.mode & MODE_MASK);
        (attr.uid, attr.gid) = (stat.uid, stat.gid);
        // Access, change and birth times are recorded as the modification time: reading or restoring a file
        // changes them, and each snapshot would differ from the last one.
        attr.set_all_times(stat.mtime);
        if let Some(entry) = entry {
            let links = self.numbers.links_of_inode(self.numbers.number_of_entry(entry.id()));
            // All names of a file give the same parent and name, independent of the name under which the file
            // was read. Equal directories must give equal trees.
            let first = links.map_or(entry, |links| self.tree.entry(links.first));
            let unseen = self.unseen.names_of_inode(self.numbers.number_of_entry(entry.id()));
            let seen = links.map_or(1, |links| links.count);
            attr.nlink = seen.saturating_add(u32::try_from(unseen.len()).unwrap_or(u32::MAX));
            (attr.parent, attr.name) = match unseen.first().filter(|unseen| unseen.precedes(&first)) {
                Some(unseen) => unseen.entry.clone(),
                None => (self.numbers.number_of_dir(&first.containing_dir()), first.name().to_vec()),
            };
            // Two lines of history can give one number to different files. The generation, a hash of the
            // first place of the file, tells them apart, and it stays when the file is renamed.
            attr.generation =
                old.map_or_else(|| compute_generation(attr.parent, &attr.name), |old| old.attr.generation);
        }
        attr
    }

    fn compute_outcome(
        &self,
        ino: Ino,
        old: Option<&InodeRecord>,
        new: Option<InodeRecord>,
    ) -> Result<InodeOutcome> {
        let held = match old {
            Some(_) => self.read_base_entries(ino)?,
            None => InodeEntries::new(),
        };
        let wanted = new.as_ref().map(encode_inode).unwrap_or_default();
        let changes = diff_entries(held, wanted);
        let tally = StatisticsDelta::from_change(
            old.map(|old| &old.attr),
            new.as_ref().map(|new| &new.attr),
            !changes.is_empty(),
        );
        Ok(InodeOutcome { changes, tally, ..InodeOutcome::default() })
    }

    /// All that the base holds under an inode.
    fn read_base_entries(&self, ino: Ino) -> Result<InodeEntries> {
        let Some(base) = self.base else { return Ok(InodeEntries::new()) };
        // Keys begin with the inode number, so that all of an inode is one range.
        let end = MapKey::first_for_tag(Ino(ino.0.saturating_add(1)), MapKeyTag::Attr);
        let span = KeySpan::from_bounds(MapKey::for_attr(ino).as_bytes(), end.as_bytes());
        let entries = base.map_view().read_range(base.nodes(), span)?;
        entries.map(|entry| entry.map(|e| (e.key.to_vec(), e.value.to_vec())).map_err(Into::into)).collect()
    }
}

fn record_late_change(outcome: &mut InodeOutcome, entry: &ScanEntryRef<'_>, content: &RecordedContent) {
    if content.unsteady {
        let message = "it changed each time it was read; recorded is what was read last".into();
        outcome.trouble = Some(UnreadablePolicy::Reported(CheckoutProblem { path: entry.path(), message }));
        outcome.later = Some((entry.id(), None));
    } else if content.stat != *entry.stat() {
        outcome.later = Some((entry.id(), Some(content.stat)));
    }
}

/// The link count of a directory with these entries: its name, its `.`, and the `..` of each directory in it.
fn count_dir_links<'d>(entries: impl Iterator<Item = &'d Dentry>) -> u32 {
    // Some filesystems (btrfs) always report 1, so the scanned count is not used.
    let subdirs = entries.filter(|dentry| dentry.kind == FileKind::Dir).count();
    u32::try_from(subdirs + 2).unwrap_or(u32::MAX)
}

fn encode_inode(inode: &InodeRecord) -> InodeEntries {
    let ino = inode.ino;
    let mut entries = InodeEntries::new();
    entries.insert(MapKey::for_attr(ino).into_bytes(), inode.attr.encode());
    for (name, dentry) in &inode.entries {
        entries.insert(MapKey::for_dentry(ino, name).into_bytes(), dentry.encode());
    }
    for (name, value) in &inode.xattrs {
        entries.insert(MapKey::for_xattr(ino, name).into_bytes(), value.clone());
    }
    for (offset, extent) in &inode.extents {
        entries.insert(MapKey::for_extent(ino, *offset).into_bytes(), extent.encode());
    }
    entries
}

fn diff_entries(held: InodeEntries, wanted: InodeEntries) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let gone = held.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), None));
    let gone: Vec<_> = gone.collect();
    let new = wanted.into_iter().filter(|(key, value)| held.get(key) != Some(value));
    let mut changes: Vec<_> = new.map(|(key, value)| (key, Some(value))).chain(gone).collect();
    // Removals were found apart from the rest, and the sink takes ascending keys only.
    changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    changes
}

fn sort_xattr_pairs(xattrs: Vec<ExtendedAttribute>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs: Vec<_> = xattrs.into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
    pairs.sort_unstable();
    pairs
}

fn unreadable_problem(path: Vec<u8>, error: &dyn Error) -> CheckoutProblem {
    CheckoutProblem { path, message: format!("it could not be read: {}", format_error_chain(error)) }
}

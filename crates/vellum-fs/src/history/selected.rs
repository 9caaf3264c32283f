//! Snapshots of selected paths: these as they are now, everything else as in the last snapshot.
//!
//! The last snapshot's state becomes a worktree of its own, in memory; there the paths are brought to what a view of
//! the present has, sharing content; and its tree is stored. Invariant: the live worktree itself stays as it is, and
//! stands on the new snapshot as one with changes. It costs what the paths hold, and unlike a snapshot of everything
//! it needs the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::escape::format_path;
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, SnapshotId};
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::operations::{RecordedCommand, scoped_command};
use vellum_volume::session::date_after_parent;
use vellum_volume::tree::StateReader;
use vellum_volume::tree::path_components;
use vellum_volume::{SnapshotRecord, SnapshotStatistics, VolumeError, WriteSession};

use crate::attributes::AttributeChanges;
use crate::attributes::xattr::XattrFlags;
use crate::error::{FsError, Result};
use crate::fs::{LiveFilesystem, RequestCaller};
use crate::history::exclusions::{ExclusionChoice, keep_exclusions};
use crate::history::partial::allow_not_found;
use crate::history::snapshot::{LiveSnapshotRequest, next_moment};
use crate::history::view::LiveView;
use crate::history::visible::SessionTree;
use crate::names::own_uid;
use crate::tree::MapReader;
use crate::tree::head::AncestorSnapshot;

/// How often it is begun anew because another snapshot was made meanwhile.
pub(crate) const TRIES: usize = 10;

/// A snapshot whose tree is in the store.
pub(crate) struct StoredSnapshot<'s> {
    /// Its record, but for what depends on the last snapshot: its time and its counter.
    pub record: SnapshotRecord,
    /// What the worktree stands on.
    pub last: Option<AncestorSnapshot>,
    /// What is left out from then on; None: what was left out before.
    pub kept: Option<&'s SnapshotExclusions>,
}

/// What can be recorded of the worktree as it is now.
struct PresentState {
    view: LiveView,
    /// Protects a tree that nothing names.
    _session: Option<WriteSession>,
}

impl PresentState {
    fn open(fs: &Arc<LiveFilesystem>, exclusions: &SnapshotExclusions) -> Result<Self> {
        if exclusions.is_empty() {
            return Ok(Self { view: fs.open_view()?, _session: None });
        }
        let visible = fs.store_visible_tree(exclusions)?;
        let view = fs.open_copy(visible.root, visible.counted)?.open_view()?;
        Ok(Self { view, _session: Some(visible.session) })
    }
}

impl LiveFilesystem {
    /// Makes a snapshot of some paths, from the root, without what is left out. When it returns, the snapshot is in the store.
    pub fn snapshot_paths(
        self: &Arc<Self>,
        request: &LiveSnapshotRequest,
        paths: &[Vec<u8>],
        choice: ExclusionChoice<'_>,
    ) -> Result<SnapshotId> {
        self.lease().check_held()?;
        // What the last snapshot of everything left out is not recorded by one of some paths.
        let kept = self.kept_exclusions()?;
        let exclusions = match choice {
            ExclusionChoice::Kept => kept,
            ExclusionChoice::Given(given) => kept.join(given),
        };
        if paths.iter().any(|path| path_components(path).next().is_none()) {
            return self.create_snapshot_excluding(request, &[], ExclusionChoice::Given(&exclusions));
        }
        for _ in 0..TRIES {
            // The new snapshot's parent must be in the store, and so must its tree, on which it is built.
            self.publisher().publish_pending()?;
            if let Some(id) = self.try_snapshot_paths(request, paths, &exclusions)? {
                return Ok(id);
            }
        }
        Err(VolumeError::Raced(format!("the worktree '{}'", self.worktree_name())).into())
    }

    /// None if another snapshot was made meanwhile.
    fn try_snapshot_paths(
        self: &Arc<Self>,
        request: &LiveSnapshotRequest,
        paths: &[Vec<u8>],
        exclusions: &SnapshotExclusions,
    ) -> Result<Option<SnapshotId>> {
        let last = self.live_map().lock_head().snapshot;
        // Before the lock: it may have to publish first.
        let present = PresentState::open(self, exclusions)?;
        let now = &present.view;
        // Held to the end: nothing is published, and no layer goes, while this is built on the last snapshot.
        let paused = self.publisher().pause_publishing();
        // A snapshot takes no lock that would have kept it out until here.
        if self.live_map().lock_head().snapshot != last || !self.live_map().pending_snapshots()?.is_empty() {
            return Ok(None);
        }
        let selected = self.build_selected_state(now, last, paths)?;
        let session = self.volume().begin_lazy_write_session()?;
        let SessionTree { session, root, counted } = selected.store_copy(session)?;
        drop(paused);
        let record = SnapshotRecord {
            root,
            parents: last.iter().map(|last| last.id).collect(),
            paths: paths.to_vec(),
            statistics: counted,
            ..self.new_snapshot_record(request)
        };
        let stored = StoredSnapshot { record, last, kept: None };
        let made = self.commit_stored_snapshot(stored, &request.tags)?;
        session.end_session()?;
        Ok(made)
    }

    /// Lets the worktree stand on a snapshot whose tree is in the store. None, and no snapshot, if another one was made
    /// since `last`. The caller's session protects the tree.
    pub(crate) fn commit_stored_snapshot(
        &self,
        StoredSnapshot { record, last, kept }: StoredSnapshot<'_>,
        tags: &[String],
    ) -> Result<Option<SnapshotId>> {
        let _one_at_a_time = self.publisher().pause_publishing();
        // A snapshot is later than the one that it follows, even if the clock was set back.
        let time = last.map_or(record.time, |last| date_after_parent(record.time, next_moment(last.time)));
        let counter = last.map_or(0, |last| last.counter) + 1;
        let mut record = SnapshotRecord { time, counter, ..record };
        let id = self.volume().assign_snapshot_id(&mut record)?;
        // Before anything names it.
        self.volume().catalog.store_record(&record)?;
        let stands = AncestorSnapshot { id, counter, time };
        let command = scoped_command().unwrap_or_else(|| RecordedCommand::from_words(&["snapshot"]));
        let (is_next, sequence) = self.live_map().change_head(|head, txn| {
            // Nor is it kept out now: snapshots of everything need the head only, as this does.
            let is_next = head.snapshot == last;
            if is_next {
                head.snapshot = Some(stands);
                self.publisher().set_head_command(Some(command.clone()));
                kept.map_or(Ok(()), |kept| keep_exclusions(txn, kept))?;
            }
            Ok(is_next)
        })?;
        if !is_next {
            // It would be in no line.
            self.volume().catalog.forget_snapshots(&[id])?;
            return Ok(None);
        }
        self.live_map().live_store().wait_until_durable(sequence)?;
        self.publisher().announce_snapshot(&record, &command)?;
        self.publisher().add_snapshot_tags(tags, &id, &command)?;
        Ok(Some(id))
    }

    /// A worktree in memory: the last snapshot with the paths as the view has them.
    fn build_selected_state(
        &self,
        now: &LiveView,
        last: Option<AncestorSnapshot>,
        paths: &[Vec<u8>],
    ) -> Result<Arc<Self>> {
        let (root, counted) = match last {
            Some(last) => {
                let (state, ..) = self.load_published_state(last.id)?;
                (state.base, state.counted)
            }
            None => (self.volume().empty_root(), SnapshotStatistics::default()),
        };
        let selected = self.open_copy(root, counted)?;
        // What is made in the copy must not get the number of something that the worktree has made since its last
        // snapshot, and that may be selected next.
        selected.raise_next_number(now)?;
        let mut bringing = SelectedRestore { fs: &selected, now, linked: HashMap::new() };
        // All paths are cleared before any is brought: one may lie within another, and a file may have moved from one
        // to the other.
        let arounds: Vec<_> = paths.iter().map(|path| bringing.clear_path(path)).collect::<Result<_>>()?;
        paths.iter().zip(arounds).try_for_each(|(path, around)| bringing.restore_path(path, &around))?;
        Ok(selected)
    }

    /// New numbers are none that the view has.
    pub(crate) fn raise_next_number(&self, view: &LiveView) -> Result<()> {
        let next = view.read_state(|state| state.read_super_block())?.next_ino;
        // Brings what the transaction will read into memory. Otherwise it would have to be begun anew.
        self.live_map().read_head_state(|state| state.read_super_block())?;
        self.live_map().apply_change(|txn| {
            let next_ino = txn.read_super_block()?.next_ino.max(next);
            txn.set_key(MapKey::for_attr(Ino::SUPER), &SuperBlock { next_ino }.encode());
            Ok(())
        })
    }
}

/// A worktree that is brought to what a view has, path by path.
struct SelectedRestore<'b> {
    fs: &'b LiveFilesystem,
    now: &'b LiveView,
    /// Files with several links that were made anew: what they became.
    linked: HashMap<Ino, Ino>,
}

/// A directory on both sides.
#[derive(Debug, Clone, Copy)]
struct DirectoryPair {
    now: Ino,
    then: Ino,
}

/// The last directory on the way to a path that was there before, as it was.
type ExistingAncestor = (Ino, Arc<InodeAttr>);

impl SelectedRestore<'_> {
    /// Takes away what is not there any more, or stands for another inode, or another state of it: nobody sees this
    /// worktree before it is whole.
    fn clear_path(&self, path: &[u8]) -> Result<ExistingAncestor> {
        let around = self.check_path(path)?;
        let around = (around, self.fs.inode_attr(around)?);
        let (dir, source, name) = self.create_parents(path)?;
        let mut below = Vec::new();
        self.clear_name(source, (dir, name), &mut below)?;
        while let Some(pair) = below.pop() {
            for (name, source) in self.list_pair_names(pair)? {
                self.clear_name(source, (pair.then, &name), &mut below)?;
            }
        }
        Ok(around)
    }

    fn clear_name(
        &self,
        source: Option<Dentry>,
        at: (Ino, &[u8]),
        below: &mut Vec<DirectoryPair>,
    ) -> Result<()> {
        let (dir, name) = at;
        let Some(there) = allow_not_found(self.fs.find_dentry(dir, name))? else { return Ok(()) };
        match source.filter(|source| *source == there) {
            Some(same) if same.kind == FileKind::Dir => {
                below.push(DirectoryPair { now: same.ino, then: same.ino })
            }
            // Whatever changes in an inode, its time of change does.
            Some(same) if self.now.inode_attr(same.ino)? == self.fs.inode_attr(same.ino)? => {}
            _ => self.fs.names().remove_tree(dir, name, own_uid())?,
        }
        Ok(())
    }

    /// The directory in which a path ends, made as it is now if it was not there; what the path stands for now; and
    /// the last name.
    fn create_parents<'p>(&self, path: &'p [u8]) -> Result<(Ino, Option<Dentry>, &'p [u8])> {
        let names: Vec<&[u8]> = path_components(path).collect();
        let Some((name, above)) = names.split_last() else { return Err(Errno::INVAL.into()) };
        let mut pair = DirectoryPair { now: Ino::ROOT, then: Ino::ROOT };
        for name in above {
            let now = self.now.find_dentry(pair.now, name)?.ino;
            let there = allow_not_found(self.fs.find_dentry(pair.then, name))?;
            let then = match there.filter(|there| there.kind == FileKind::Dir) {
                Some(dir) => dir.ino,
                None => {
                    // Something that is no directory has the name, and has to make room for one.
                    if there.is_some() {
                        self.fs.names().remove_tree(pair.then, name, own_uid())?;
                    }
                    self.fs.copy_inode_exactly(self.now, now, pair.then, name)?.ino
                }
            };
            pair = DirectoryPair { now, then };
        }
        Ok((pair.then, allow_not_found(self.now.find_dentry(pair.now, name))?, name))
    }

    /// Brings what is missing.
    fn restore_path(&mut self, path: &[u8], (around, was): &ExistingAncestor) -> Result<()> {
        let (dir, source, name) = self.create_parents(path)?;
        let mut below = Vec::new();
        self.restore_name(source, (dir, name), &mut below)?;
        let mut pairs = self.find_created_dirs(path, *around)?;
        while let Some(pair) = below.pop() {
            pairs.push(pair);
            for (name, source) in self.list_pair_names(pair)? {
                self.restore_name(source, (pair.then, &name), &mut below)?;
            }
        }
        // From the innermost outwards, when nothing is put into them any more: entries that come change their
        // directory's times.
        for DirectoryPair { now, then } in pairs.into_iter().rev() {
            self.restore_dir_attributes(&*self.now.inode_attr(now)?, now, then)?;
        }
        // What is around the path stays as it was: the times of the directory that something is put into, too.
        restore_times(self.fs, *around, was)
    }

    fn restore_name(
        &mut self,
        source: Option<Dentry>,
        at: (Ino, &[u8]),
        below: &mut Vec<DirectoryPair>,
    ) -> Result<()> {
        let (dir, name) = at;
        let Some(source) = source else { return Ok(()) };
        let then = match (allow_not_found(self.fs.find_dentry(dir, name))?, self.linked.get(&source.ino)) {
            // What differs was cleared before: what is left is the same on both sides, or a directory.
            (Some(there), _) => there.ino,
            (None, Some(copy)) => self.fs.names().link(*copy, dir, name)?.ino,
            (None, None) => self.fs.copy_inode_exactly(self.now, source.ino, dir, name)?.ino,
        };
        if source.kind == FileKind::Dir {
            below.push(DirectoryPair { now: source.ino, then });
        } else if self.now.inode_attr(source.ino)?.nlink > 1 {
            self.linked.insert(source.ino, then);
        }
        Ok(())
    }

    /// The names of a directory on either side, and what they stand for now.
    fn list_pair_names(&self, pair: DirectoryPair) -> Result<BTreeMap<Vec<u8>, Option<Dentry>>> {
        let then = self.fs.list_entries(pair.then)?.into_iter().map(|entry| (entry.name, None));
        let now = self.now.list_entries(pair.now)?.into_iter();
        let now = now.map(|entry| (entry.name, Some(Dentry { ino: entry.ino, kind: entry.kind })));
        // Of a name on both sides, the later one counts.
        Ok(then.chain(now).collect())
    }

    /// The directories on the way to a path that were made for it: those below `around`.
    fn find_created_dirs(&self, path: &[u8], around: Ino) -> Result<Vec<DirectoryPair>> {
        let names: Vec<&[u8]> = path_components(path).collect();
        let mut pair = DirectoryPair { now: Ino::ROOT, then: Ino::ROOT };
        let mut made = Vec::new();
        let mut is_below = false;
        for name in names.split_last().map_or(&[][..], |(_, above)| above) {
            // Before the step down: `around` itself was there before, and what is below it was made.
            is_below |= pair.then == around;
            pair = DirectoryPair {
                now: self.now.find_dentry(pair.now, name)?.ino,
                then: self.fs.find_dentry(pair.then, name)?.ino,
            };
            if is_below {
                made.push(pair);
            }
        }
        Ok(made)
    }

    /// A path that is named must mean something, and the directory that it lies in must be there: else that would have
    /// to be recorded as gone, with all else that was in it. Gives the last directory on the way that was there before.
    fn check_path(&self, path: &[u8]) -> Result<Ino> {
        let names: Vec<&[u8]> = path_components(path).collect();
        let Some((name, above)) = names.split_last() else { return Ok(Ino::ROOT) };
        let find = |dir, name| allow_not_found(self.now.find_dentry(dir, name));
        let mut dir = Ino::ROOT;
        for name in above {
            match find(dir, name)?.filter(|entry| entry.kind == FileKind::Dir) {
                Some(entry) => dir = entry.ino,
                None => return Err(FsError::ParentGone(format_path(path))),
            }
        }
        let mut was = Some(Dentry { ino: Ino::ROOT, kind: FileKind::Dir });
        let mut around = Ino::ROOT;
        for name in &names {
            let Some(dir) = was.filter(|was| was.kind == FileKind::Dir) else {
                was = None;
                break;
            };
            around = dir.ino;
            was = allow_not_found(self.fs.find_dentry(dir.ino, name))?;
        }
        if was.is_none() && find(dir, name)?.is_none() {
            let place = format!("the worktree '{}'", self.fs.worktree_name());
            return Err(VolumeError::NoSuchPath { path: format_path(path), place }.into());
        }
        Ok(around)
    }

    /// A directory's own attributes, when all in it is as it is to be.
    fn restore_dir_attributes(&self, attr: &InodeAttr, now: Ino, then: Ino) -> Result<()> {
        let there = self.fs.inode_attr(then)?;
        if there.ctime == attr.ctime && *there == *attr {
            return Ok(());
        }
        let names = self.now.listxattr(now)?;
        // Those that go are first, so that there are never more names than an inode may have.
        for name in self.fs.listxattr(then)? {
            if !names.contains(&name) {
                self.fs.attributes().removexattr(then, &name)?;
            }
        }
        for name in names {
            let value = self.now.getxattr(now, &name)?;
            self.fs.attributes().setxattr(then, &name, &value, XattrFlags::default())?;
        }
        let owner =
            AttributeChanges { uid: Some(attr.uid), gid: Some(attr.gid), ..AttributeChanges::default() };
        // Owner, then mode, then times, as POSIX forces: a change of owner takes away set-id bits, and each of the
        // two changes the time of change.
        self.fs.attributes().setattr(then, &owner, RequestCaller::NOBODY)?;
        self.fs.attributes().setattr(
            then,
            &AttributeChanges { mode: Some(attr.mode), ..AttributeChanges::default() },
            RequestCaller::NOBODY,
        )?;
        restore_times(self.fs, then, attr)
    }
}

/// Gives an inode all times that it had, that of its last change too.
pub(crate) fn restore_times(fs: &LiveFilesystem, ino: Ino, attr: &InodeAttr) -> Result<()> {
    let changes = AttributeChanges { ctime: Some(attr.ctime), ..AttributeChanges::for_times_of(attr) };
    fs.attributes().setattr(ino, &changes, RequestCaller::NOBODY).map(drop)
}

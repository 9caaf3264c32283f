//! Restores of selected paths: they get the content that a snapshot has there, and the rest stays.
//!
//! Invariant: the entry at a path is replaced atomically; until then it is unchanged. Content is shared.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::escape::format_path;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, SnapshotId};
use vellum_volume::SnapshotOrigin;
use vellum_volume::tree::path_components;
use vellum_volume::tree::{DirectoryEntry, StateReader};

use crate::attributes::AttributeChanges;
use crate::error::{FsError, Result};
use crate::fs::{LiveFilesystem, RequestCaller};
use crate::history::carried::{CarriedDirectory, CarriedEntries, check_places_free};
use crate::history::copy::new_hidden_name;
use crate::history::exclusions::{ExcludedEntry, ExclusionRules};
use crate::history::expected::ExpectedState;
use crate::history::snapshot::LiveSnapshotRequest;
use crate::history::view::LiveView;
use crate::names::{RenameFlags, own_uid};

/// A name that may stand for something else now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedName {
    /// The directory.
    pub dir: Ino,
    /// The name in it.
    pub name: Vec<u8>,
}

/// What was done.
#[derive(Debug)]
pub struct RestoredPaths {
    /// The snapshot that undoes it, if one was made.
    pub saved: Option<SnapshotId>,
    /// The names that were made, replaced or removed.
    pub replaced: Vec<ReplacedName>,
}

impl LiveFilesystem {
    /// Brings paths from the root to what a snapshot has there, which may be nothing: then what is there is removed. What no
    /// snapshot holds is saved in one first, unless it is to be discarded. The worktree goes on standing where it stood.
    /// Fails with [`FsError::PathNowhere`], and changes nothing, if neither has one of the paths. What the last snapshot left
    /// out of them stays; unless it is to be discarded, this fails with [`FsError::InTheWay`] if the snapshot has something else in its place.
    pub fn restore_paths(
        self: &Arc<Self>,
        target: SnapshotId,
        paths: &[Vec<u8>],
        discard: bool,
    ) -> Result<RestoredPaths> {
        self.lease().check_held()?;
        // No restore of everything in between: the paths would go into one state, and their directories belong to
        // another.
        let _entered = self.epochs().enter_epoch();
        let view = self.open_snapshot_view(target)?;
        let restored = self.restore_paths_from(&view, target, paths, discard)?;
        // When this returns, a power cut does not take the restore back.
        self.content().sync_all()?;
        Ok(restored)
    }

    /// Restores paths as [`LiveFilesystem::restore_paths`] does. Fails with [`FsError::ChangedMeanwhile`], and changes nothing,
    /// if the worktree holds something else than the caller has looked at. Without paths, only what no snapshot holds is
    /// saved.
    pub fn restore_expected_paths(
        self: &Arc<Self>,
        target: SnapshotId,
        paths: &[Vec<u8>],
        discard: bool,
        expected: &ExpectedState,
    ) -> Result<RestoredPaths> {
        self.lease().check_held()?;
        let view = self.open_snapshot_view(target)?;
        // Alone from the check to the last path: each is replaced by itself, and somebody could write to the next one
        // meanwhile.
        let alone = self.epochs().lock_epoch();
        self.check_expected_state(expected)?;
        let restored = self.restore_paths_from(&view, target, paths, discard)?;
        drop(alone);
        self.content().sync_all()?;
        Ok(restored)
    }

    /// The caller has entered the epoch, or locked it.
    fn restore_paths_from(
        self: &Arc<Self>,
        view: &LiveView,
        target: SnapshotId,
        paths: &[Vec<u8>],
        discard: bool,
    ) -> Result<RestoredPaths> {
        let kept = KeptEntries::find(self, paths)?;
        for path in paths {
            let is_here = contains_path(&**self, path)? && !kept.contains(path);
            if !is_here && !contains_path(view, path)? {
                let snapshot = self.volume().short_id(&target)?;
                return Err(FsError::PathNowhere { path: format_path(path), snapshot });
            }
        }
        if !discard {
            check_places_free(&kept.entries, view)?;
        }
        let saved = if discard || !self.is_changed()? {
            None
        } else {
            let note = format!("before the restore of paths of {}", self.volume().short_id(&target)?);
            let request = LiveSnapshotRequest { note, tags: Vec::new(), origin: SnapshotOrigin::Safety };
            Some(self.create_snapshot(&request)?)
        };
        // Held until all is copied: the snapshot may be forgotten by somebody else meanwhile.
        let _borrowing = self.retain_content(view)?;
        let _kept = kept.now.as_ref().map(|now| self.retain_content(now)).transpose()?;
        let mut restore = PathRestore { fs: self, view, kept: &kept, replaced: Vec::new() };
        for path in paths {
            // The root has no name under which a copy could replace it.
            if path_components(path).next().is_none() {
                restore.restore_root_entries()?;
            } else {
                restore.restore_path(path)?;
            }
        }
        Ok(RestoredPaths { saved, replaced: restore.replaced })
    }
}

/// What the last snapshot left out of paths that are restored, or of what they lie in.
struct KeptEntries {
    entries: Vec<ExcludedEntry>,
    /// Where they are; None: there are none.
    now: Option<LiveView>,
}

impl KeptEntries {
    fn find(fs: &Arc<LiveFilesystem>, paths: &[Vec<u8>]) -> Result<Self> {
        let exclusions = fs.kept_exclusions()?;
        if exclusions.is_empty() {
            return Ok(Self { entries: Vec::new(), now: None });
        }
        let now = fs.open_view()?;
        let mut entries = ExclusionRules::parse(&exclusions)?.find_excluded(&now)?;
        entries.retain(|entry| paths.iter().any(|path| entry.concerns(path)));
        Ok(Self { now: (!entries.is_empty()).then_some(now), entries })
    }

    /// Whether a path is left out.
    fn contains(&self, path: &[u8]) -> bool {
        self.entries.iter().any(|entry| entry.contains(path))
    }

    /// Those below a path.
    fn below<'k>(&'k self, path: &'k [u8]) -> impl Iterator<Item = &'k ExcludedEntry> {
        self.entries.iter().filter(move |entry| entry.is_within(path) && !entry.contains(path))
    }
}

/// Whether a state has something at a path from the root.
fn contains_path(state: &dyn StateReader<FsError>, path: &[u8]) -> Result<bool> {
    let mut dir = Ino::ROOT;
    for name in path_components(path) {
        match allow_not_found(state.find_dentry(dir, name))? {
            Some(entry) => dir = entry.ino,
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Paths that are brought to what a view has there.
struct PathRestore<'r> {
    fs: &'r LiveFilesystem,
    view: &'r LiveView,
    kept: &'r KeptEntries,
    replaced: Vec<ReplacedName>,
}

impl PathRestore<'_> {
    /// The root itself stays.
    fn restore_root_entries(&mut self) -> Result<()> {
        let names = |entries: Vec<DirectoryEntry>| entries.into_iter().map(|entry| entry.name);
        let now = names(self.fs.list_entries(Ino::ROOT)?);
        let all: BTreeSet<Vec<u8>> = now.chain(names(self.view.list_entries(Ino::ROOT)?)).collect();
        all.iter().try_for_each(|name| self.restore_path(name))
    }

    fn restore_path(&mut self, path: &[u8]) -> Result<()> {
        let PathRestore { fs, view, .. } = *self;
        let names: Vec<&[u8]> = path_components(path).collect();
        let Some((name, above)) = names.split_last() else { return Err(Errno::INVAL.into()) };
        let mut dir = Ino::ROOT;
        let mut was = Some(Ino::ROOT);
        for name in above {
            was = was
                .map(|was| allow_not_found(view.find_dentry(was, name)))
                .transpose()?
                .flatten()
                .map(|entry| entry.ino);
            dir = match (allow_not_found(fs.find_dentry(dir, name))?, was) {
                (Some(entry), _) if entry.kind == FileKind::Dir => entry.ino,
                (Some(_), _) => return Err(Errno::NOTDIR.into()),
                // Neither has it.
                (None, None) => return Ok(()),
                (None, Some(was)) => {
                    self.replaced.push(ReplacedName { dir, name: name.to_vec() });
                    self.create_similar_dir(&*view.inode_attr(was)?, dir, name)?
                }
            };
        }
        let source = was.map(|was| allow_not_found(view.find_dentry(was, name))).transpose()?.flatten();
        let there = allow_not_found(fs.find_dentry(dir, name))?;
        let keeps = self.kept.below(path).next().is_some();
        match (source, there) {
            (None, None) => return Ok(()),
            // What no snapshot holds stays where the snapshot has nothing.
            (None, Some(_)) if self.kept.contains(path) => return Ok(()),
            (_, Some(there)) if keeps => self.replace_around_kept(path, source, there, dir)?,
            (None, Some(_)) => fs.names().remove_tree(dir, name, own_uid())?,
            (Some(source), None) => drop(fs.copy_retained_tree(view, source.ino, dir, name)?),
            (Some(source), Some(_)) => self.replace_entry(source.ino, dir, name)?,
        }
        self.replaced.push(ReplacedName { dir, name: name.to_vec() });
        Ok(())
    }

    /// The new one takes the old one's place, which goes then.
    fn replace_entry(&self, source: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        // Copied aside first: until the exchange, which is one transaction, the old entry is whole and in its place.
        let aside = new_hidden_name()?;
        self.fs.copy_retained_tree(self.view, source, dir, &aside)?;
        let exchanged = self.fs.names().rename(
            dir,
            &aside,
            dir,
            name,
            RenameFlags { exchange: true, ..RenameFlags::default() },
        );
        // What stands aside now is the old one, or a copy that nobody wants.
        let removed = self.fs.names().remove_tree(dir, &aside, own_uid());
        exchanged.and(removed)
    }

    /// The new one takes the old one's place, with what was left out of that.
    fn replace_around_kept(
        &self,
        path: &[u8],
        source: Option<Dentry>,
        there: Dentry,
        dir: Ino,
    ) -> Result<()> {
        let PathRestore { fs, view, kept, .. } = *self;
        let (Some(now), Some(name)) = (&kept.now, path_components(path).last()) else {
            return Err(Errno::INVAL.into());
        };
        // Copied as the rest is: until the exchange, what was left out is in its place, and afterwards it is again.
        let aside = new_hidden_name()?;
        let copied = match source {
            Some(source) => {
                fs.copy_retained_tree(view, source.ino, dir, &aside).map(|copy| (copy.ino, copy.attr.kind))
            }
            None => self
                .create_similar_dir(&*now.inode_attr(there.ino)?, dir, &aside)
                .map(|ino| (ino, FileKind::Dir)),
        };
        let filled = copied.and_then(|(then, kind)| {
            // Of a file, nothing can be kept below: that was refused, or is given up.
            if kind != FileKind::Dir {
                return Ok(());
            }
            let mut carried = CarriedEntries::new(fs, now, true);
            let base = CarriedDirectory { now: there.ino, then };
            if source.is_none() {
                carried.note_made_dir(base);
            }
            for excluded in kept.below(path) {
                let below = excluded.path.get(path.len()..).unwrap_or_default();
                carried.carry_entry(base, below, &excluded.entry)?;
            }
            carried.finish()
        });
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        let exchanged = filled.and_then(|()| fs.names().rename(dir, &aside, dir, name, flags));
        // What stands aside now is the old one, or a copy that nobody wants.
        let removed = fs.names().remove_tree(dir, &aside, own_uid());
        exchanged.and(removed)
    }

    /// An empty directory with the permissions and the owner of another.
    fn create_similar_dir(&self, attr: &InodeAttr, dir: Ino, name: &[u8]) -> Result<Ino> {
        let caller = RequestCaller { uid: attr.uid, gid: attr.gid, umask: 0 };
        let ino = self.fs.names().mkdir(dir, name, attr.mode, caller)?.ino;
        // In a directory with a set-group-id bit or a default list, `mkdir` gives another group or another
        // mode than it was asked for.
        let owner =
            AttributeChanges { uid: Some(attr.uid), gid: Some(attr.gid), ..AttributeChanges::default() };
        self.fs.attributes().setattr(ino, &owner, caller)?;
        self.fs.attributes().setattr(
            ino,
            &AttributeChanges { mode: Some(attr.mode), ..AttributeChanges::default() },
            caller,
        )?;
        Ok(ino)
    }
}

/// What was looked for, if it is there.
pub(crate) fn allow_not_found<T>(looked: Result<T>) -> Result<Option<T>> {
    match looked {
        Ok(value) => Ok(Some(value)),
        Err(FsError::Posix(Errno::NOENT | Errno::NOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}

//! Restoring entries of the trash: each becomes a new inode of the worktree, which shares the content.
//!
//! Invariant: an entry leaves the trash only after its copy in the worktree is durable; after a crash it is in both.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::escape::format_path;
use vellum_types::{FileKind, Ino, InodeAttr};
use vellum_volume::tree::{StateReader, path_components};

use crate::attributes::{AttributeChanges, TimeChange};
use crate::error::{FsError, Result};
use crate::fs::{LiveFilesystem, RequestCaller};
use crate::history::partial::{ReplacedName, allow_not_found};
use crate::history::view::LiveView;
use crate::publish::LAYERS_MANY;

/// Permissions of directories above a restored entry that are not there any more.
const PARENT_MODE: u32 = 0o755;

/// An entry that is to be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashRestore {
    /// Its number.
    pub number: Ino,
    /// The path that it gets, from the root.
    pub path: Vec<u8>,
}

/// A restore of entries that is in progress.
struct EntryRestore<'r> {
    fs: &'r LiveFilesystem,
    view: LiveView,
    created: Vec<ReplacedName>,
    /// Directories that were restored, with their attributes in the trash.
    dirs: Vec<(Ino, Arc<InodeAttr>)>,
}

impl LiveFilesystem {
    /// Restores entries of the trash, and removes them there. A directory may exist already; for any other name that is
    /// taken it fails before anything is changed. Returns the names that were created.
    pub fn restore_from_trash(self: &Arc<Self>, entries: &[TrashRestore]) -> Result<Vec<ReplacedName>> {
        self.lease().check_held()?;
        // No restore of everything in between: the entries would go into one state, and their directories belong to
        // another.
        let _entered = self.epochs().enter_epoch();
        let view = self.open_trash_view()?.ok_or(Errno::NOENT)?;
        // Until the copies are published, only the trash names their content in the store.
        let _borrowing = self.retain_content(&view)?;
        let mut restore = EntryRestore { fs: self, view, created: Vec::new(), dirs: Vec::new() };
        let mut sorted: Vec<&TrashRestore> = entries.iter().collect();
        // Directories come before what is in them.
        sorted.sort_by(|a, b| path_components(&a.path).cmp(path_components(&b.path)));
        restore.check_paths(&sorted)?;
        sorted.iter().try_for_each(|entry| restore.restore_entry(entry))?;
        restore.restore_dir_times()?;
        let created = restore.created;
        // Before the entries go: a loss of power must leave one of the two.
        self.content().sync_all()?;
        let numbers: Vec<Ino> = entries.iter().map(|entry| entry.number).collect();
        self.trash().remove_entries(&numbers)?;
        Ok(created)
    }

    /// Opens a view of the trash as it is now; `None`: there is none.
    fn open_trash_view(self: &Arc<Self>) -> Result<Option<LiveView>> {
        let layers = self.live_map().lock_head().trash_layers().len();
        // A store that was away for long must not leave more layers than a head may have.
        if layers >= LAYERS_MANY {
            self.publisher().publish_all()?;
        }
        // What is restored must not be removed while it is copied.
        self.live_map().change_head(|head, _| {
            head.seal_trash();
            Ok(())
        })?;
        // With the head held: none of the layers can be removed before the view is counted.
        let head = self.live_map().lock_head();
        Ok(head.sealed_trash().map(|state| LiveView::begin_sealed(self, state)))
    }
}

impl EntryRestore<'_> {
    /// Fails if a name is taken, or an entry is not there.
    fn check_paths(&self, entries: &[&TrashRestore]) -> Result<()> {
        let mut paths = BTreeSet::new();
        for entry in entries {
            let names: Vec<&[u8]> = path_components(&entry.path).collect();
            let kind = match self.view.inode_attr(entry.number) {
                // The caller named an entry, and never held an inode that could have become stale.
                Err(FsError::Posix(Errno::STALE)) => return Err(Errno::NOENT.into()),
                attr => attr?.kind,
            };
            let taken = || FsError::NameTaken(format_path(&entry.path));
            if names.is_empty() || !paths.insert(names.clone()) {
                return Err(taken());
            }
            match self.find_kind(&names)? {
                None => {}
                Some(FileKind::Dir) if kind == FileKind::Dir => {}
                Some(_) => return Err(taken()),
            }
        }
        Ok(())
    }

    /// What a path stands for; `None` if it is free. Fails if a part of it is no directory.
    fn find_kind(&self, names: &[&[u8]]) -> Result<Option<FileKind>> {
        let mut found = (Ino::ROOT, FileKind::Dir);
        for name in names {
            if found.1 != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            match allow_not_found(self.fs.find_dentry(found.0, name))? {
                Some(dentry) => found = (dentry.ino, dentry.kind),
                None => return Ok(None),
            }
        }
        Ok(Some(found.1))
    }

    fn restore_entry(&mut self, entry: &TrashRestore) -> Result<()> {
        let names: Vec<&[u8]> = path_components(&entry.path).collect();
        let Some((name, above)) = names.split_last() else { return Err(Errno::INVAL.into()) };
        let mut dir = Ino::ROOT;
        for name in above {
            dir = match allow_not_found(self.fs.find_dentry(dir, name))? {
                Some(dentry) => dentry.ino,
                None => self.create_parent(dir, name)?,
            };
        }
        let attr = self.view.inode_attr(entry.number)?;
        if attr.kind == FileKind::Dir && allow_not_found(self.fs.find_dentry(dir, name))?.is_some() {
            return Ok(());
        }
        let copy = self.fs.copy_retained_tree(&self.view, entry.number, dir, name)?;
        self.created.push(ReplacedName { dir, name: name.to_vec() });
        if attr.kind == FileKind::Dir {
            self.dirs.push((copy.ino, attr));
        }
        Ok(())
    }

    /// Creates a directory that belongs to the owner of the one above it.
    fn create_parent(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let above = self.fs.inode_attr(dir)?;
        // No mask: there is no program whose own it would be.
        let caller = RequestCaller { uid: above.uid, gid: above.gid, umask: 0 };
        let ino = self.fs.names().mkdir(dir, name, PARENT_MODE, caller)?.ino;
        self.created.push(ReplacedName { dir, name: name.to_vec() });
        Ok(ino)
    }

    /// Entries that come change their directory's times.
    fn restore_dir_times(&self) -> Result<()> {
        for (ino, attr) in &self.dirs {
            let mtime = Some(TimeChange::At(attr.mtime));
            let times = AttributeChanges { mtime, ..AttributeChanges::default() };
            self.fs.attributes().setattr(*ino, &times, RequestCaller::NOBODY)?;
        }
        Ok(())
    }
}

//! The stat cache of a worktree: written after what made or recorded its files.

use std::collections::{HashMap, HashSet};

use vellum_host::metadata::{FileStat, MetadataCaller};
use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino, InodeAttr};
use vellum_volume::FsTree;
use vellum_volume::history::HistoryEntry;

use super::{CLOCK_TICK, CheckoutWorktree, STATCACHE_FILE};
use crate::capture::CaptureResult;
use crate::error::{CheckoutProblem, Result};
use crate::scan::{ScanDirIndex, ScanEntryId, ScanEntryRef, ScanTree};
use crate::statcache::{
    FilesystemTime, NewStatCache, RecordedEntry, StatCache, copy_stat_cache, write_stat_cache,
};

impl CheckoutWorktree {
    /// Writes the stat cache.
    pub(super) fn write_stat_cache(
        &self,
        tree: &ScanTree,
        root: MapRoot,
        stamp: FilesystemTime,
        captured: &CaptureResult,
    ) -> Result<()> {
        let dir = &self.open_state_dir()?;
        let name = self.line.cache_file.as_bytes();
        let cache = NewStatCache { dir, name, base: root.0, stamp };
        let recorded = |entry: ScanEntryRef<'_>| captured.recorded_state(entry);
        Ok(write_stat_cache(cache, tree, recorded)?)
    }

    /// Leaves entries out of the stat cache of a snapshot: those of which `keeps` says so, by directory and name, with what
    /// is below them.
    pub(crate) fn rewrite_stat_cache(
        &self,
        head: &HistoryEntry,
        keeps: impl Fn(Ino, &[u8]) -> bool,
    ) -> Result<()> {
        let dir = &self.open_state_dir()?;
        // One that cannot be read is not used, either.
        let Ok(old) = StatCache::load(dir, STATCACHE_FILE) else { return Ok(()) };
        let base = head.record.root.0;
        if old.base_root() != base {
            return Ok(());
        }
        let cache = NewStatCache { dir, name: STATCACHE_FILE, base, stamp: old.filesystem_time() };
        Ok(copy_stat_cache(cache, &old, keeps)?)
    }

    /// The same after a mere look: only if no other command is at work.
    pub(super) fn try_write_stat_cache(
        &self,
        tree: &ScanTree,
        root: MapRoot,
        stamp: FilesystemTime,
        captured: &CaptureResult,
    ) {
        if let Ok(Some(_lock)) = self.volume.state.try_lock_worktree() {
            // A look must not fail for the sake of the next one.
            let _ = self.write_stat_cache(tree, root, stamp, captured);
        }
    }

    /// Writes the stat cache of a directory that was just made to hold a snapshot. An entry is remembered if it looks
    /// as it was made; the stamp is taken when the clock has ticked, so that a later edit shows. What could not be
    /// done is not remembered, so that it shows too. If all this fails, only work is lost.
    pub(crate) fn write_restored_stat_cache(
        &self,
        entry: &HistoryEntry,
        target: &FsTree,
        problems: &[CheckoutProblem],
    ) {
        let remember = || -> Result<()> {
            // Files that were written in the same tick as the stamp would be racy, and the next snapshot
            // would read the whole directory again.
            std::thread::sleep(CLOCK_TICK);
            let (stamp, tree) = self.scan_dir(None, &[])?;
            let numbers = match_restored_numbers(&tree, target, problems)?;
            let recorded = |entry: ScanEntryRef<'_>| {
                let (ino, as_made) = numbers.get(&entry.id())?;
                Some(RecordedEntry {
                    ino: *ino,
                    stat: (!as_made).then(|| entry.stat().with_outdated_ctime()),
                })
            };
            let dir = &self.open_state_dir()?;
            let cache = NewStatCache { dir, name: STATCACHE_FILE, base: entry.record.root.0, stamp };
            Ok(write_stat_cache(cache, &tree, recorded)?)
        };
        // An older cache that is left describes another root, or is still right.
        let _ = remember();
    }
}

/// The inode numbers of entries, and whether they look as the target says; other files are left out.
fn match_restored_numbers(
    tree: &ScanTree,
    target: &FsTree,
    problems: &[CheckoutProblem],
) -> Result<HashMap<ScanEntryId, (Ino, bool)>> {
    let failed: HashSet<&[u8]> = problems.iter().map(|problem| problem.path.as_slice()).collect();
    let privileged = MetadataCaller::current_process().is_privileged();
    let mut numbers = HashMap::new();
    let mut dirs = HashMap::from([(ScanDirIndex::ROOT, Ino::ROOT)]);
    for dir in tree.dirs() {
        let Some(ino) = dirs.get(&dir.index()).copied() else { continue };
        let entries: HashMap<_, _> = target.list_entries(ino)?.into_iter().collect();
        for entry in dir.entries() {
            let Some(dentry) = entries.get(entry.name()).filter(|dentry| dentry.kind == entry.kind()) else {
                continue;
            };
            // The path of an entry has to be put together, so it is asked for only if something failed.
            let looks_right =
                has_applied_attributes(&target.expect_inode_attr(dentry.ino)?, entry.stat(), privileged)
                    && (failed.is_empty() || !failed.contains(entry.path().as_slice()));
            if looks_right || dentry.kind == FileKind::Dir {
                numbers.insert(entry.id(), (dentry.ino, looks_right));
            }
            if let Some(child) = entry.child_index() {
                dirs.insert(child, dentry.ino);
            }
        }
    }
    Ok(numbers)
}

/// Whether a file has the attributes that it was given. Who is not root may not have been able to give them all.
fn has_applied_attributes(attr: &InodeAttr, stat: &FileStat, privileged: bool) -> bool {
    // Whatever else has a size has it from the filesystem.
    let sized = attr.kind != FileKind::File || attr.size == stat.size;
    // Linux does not keep the mode of a symlink: it always shows 0777.
    let moded = attr.kind == FileKind::Symlink || attr.mode == stat.mode;
    sized
        && attr.mtime == stat.mtime
        && (!privileged || moded && (attr.uid, attr.gid) == (stat.uid, stat.gid))
}

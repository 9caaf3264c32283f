//! The next stat cache: what a scan saw, and for what it did not look at, what the last cache says.

use vellum_host::beneath::HeldDir;
use vellum_host::metadata::FileStat;
use vellum_types::{BlobId, FileKind, Ino};

use super::{
    CachedDir, CachedEntry, FilesystemTime, NewStatCacheEntry, StatCache, StatCacheBlockId, StatCacheError,
    StatCacheWriter,
};
use crate::scan::{ScanDir, ScanDirIndex, ScanEntryRef, ScanTree};

type Result<T, E = StatCacheError> = std::result::Result<T, E>;

/// What became of a scanned entry in the map.
#[derive(Debug, Clone, Copy)]
pub struct RecordedEntry {
    /// Its number there.
    pub ino: Ino,
    /// What it looked like when its content was read, if that was later than the scan; equal before and after the
    /// reading, or else it must not be remembered at all.
    pub stat: Option<FileStat>,
}

/// Where the entries of a block come from.
enum BlockSource {
    Tree(ScanDirIndex),
    Old(CachedDir),
}

/// A stat cache to be written.
#[derive(Debug, Clone, Copy)]
pub struct NewStatCache<'d> {
    /// The directory that it is put into.
    pub dir: &'d HeldDir,
    /// Its name, replaced in one step.
    pub name: &'d [u8],
    /// The root of the map to which the tree was recorded.
    pub base: BlobId,
    /// The filesystem's time before the scan.
    pub stamp: FilesystemTime,
}

/// Writes the cache of `tree`. `recorded` is asked for each entry in the tree;
/// those it answers with None (unreadable, changed while being read) are not remembered, nor what is below them.
/// What a partial scan left out is taken over from the tree's own cache.
pub fn write_stat_cache(
    cache: NewStatCache<'_>,
    tree: &ScanTree,
    mut recorded: impl FnMut(ScanEntryRef<'_>) -> Option<RecordedEntry>,
) -> Result<()> {
    // Of a root that is only on the way to the selected paths, its own attributes were not recorded.
    let root_dir = tree.dir(ScanDirIndex::ROOT);
    let root_stat =
        if root_dir.is_fully_scanned() { *tree.root_stat() } else { tree.root_stat().with_outdated_ctime() };
    let NewStatCache { dir, name, base, stamp } = cache;
    let writer = StatCacheWriter::create(dir, base, stamp, (Ino::ROOT, &root_stat))?;
    let mut merge = StatCacheMerge {
        writer,
        stamp,
        stack: vec![(BlockSource::Tree(ScanDirIndex::ROOT), StatCacheBlockId::ROOT)],
    };
    while let Some((source, block)) = merge.stack.pop() {
        merge.writer.begin_block(block)?;
        let first_child = merge.stack.len();
        match source {
            BlockSource::Old(old) => merge.copy_cached_dir(tree.cache(), old)?,
            BlockSource::Tree(index) => merge.write_dir(tree, tree.dir(index), &mut recorded)?,
        }
        // The stack gives back the first child first: blocks lie in the order of a walk.
        merge.stack.get_mut(first_child..).unwrap_or_default().reverse();
    }
    merge.writer.commit_cache(name)
}

/// Writes a cache without some of its entries: those of which `keeps` says so, by directory and name, with what is below.
pub(crate) fn copy_stat_cache(
    cache: NewStatCache<'_>,
    old: &StatCache,
    keeps: impl Fn(Ino, &[u8]) -> bool,
) -> Result<()> {
    let Some(root) = old.root_entry() else { return Ok(()) };
    let NewStatCache { dir, name, base, stamp } = cache;
    let mut writer = StatCacheWriter::create(dir, base, stamp, (Ino::ROOT, &root.stat))?;
    let mut stack = vec![(CachedDir::ROOT, Ino::ROOT, StatCacheBlockId::ROOT)];
    while let Some((source, ino, block)) = stack.pop() {
        writer.begin_block(block)?;
        let first_child = stack.len();
        for entry in old.entries(source).filter(|entry| keeps(ino, entry.name)) {
            let copy =
                NewStatCacheEntry { name: entry.name, ino: entry.ino, stat: &entry.stat, racy: entry.racy };
            let block = writer.write_entry(&copy)?;
            stack.extend(block.zip(entry.child).map(|(block, child)| (child, entry.ino, block)));
        }
        // Blocks lie in the order of a walk here, too.
        stack.get_mut(first_child..).unwrap_or_default().reverse();
    }
    writer.commit_cache(name)
}

struct StatCacheMerge {
    writer: StatCacheWriter,
    stamp: FilesystemTime,
    stack: Vec<(BlockSource, StatCacheBlockId)>,
}

impl StatCacheMerge {
    fn write_dir(
        &mut self,
        tree: &ScanTree,
        dir: ScanDir<'_>,
        recorded: &mut impl FnMut(ScanEntryRef<'_>) -> Option<RecordedEntry>,
    ) -> Result<()> {
        let old = dir.cached_dir();
        // Nothing is known of its entries now. The old ones are still right if they are unchanged when the
        // directory can be read again.
        if !dir.is_readable() {
            return old.map_or(Ok(()), |old| self.copy_cached_dir(tree.cache(), old));
        }
        let mut skipped = old.into_iter().flat_map(|old| cached_dir_entries(tree.cache(), old)).peekable();
        for entry in dir.entries() {
            while let Some(old) = skipped.next_if(|old| old.name < entry.name()) {
                self.write_uncovered_entry(&dir, &old)?;
            }
            // The scanned entry replaces the old one of its name.
            skipped.next_if(|old| old.name == entry.name());
            if let Some(what) = recorded(entry) {
                self.write_scanned_entry(entry, what)?;
            }
        }
        skipped.try_for_each(|old| self.write_uncovered_entry(&dir, &old))
    }

    fn write_scanned_entry(&mut self, entry: ScanEntryRef<'_>, what: RecordedEntry) -> Result<()> {
        let stat = what.stat.as_ref().unwrap_or(entry.stat());
        // The entry is written although it is racy: its inode number is still wanted.
        let racy = self.stamp.can_hide_change(stat);
        let block =
            self.writer.write_entry(&NewStatCacheEntry { name: entry.name(), ino: what.ino, stat, racy })?;
        if let (Some(block), Some(child)) = (block, entry.child_index()) {
            self.stack.push((BlockSource::Tree(child), block));
        }
        Ok(())
    }

    /// What the scan was not to look at stays; what it looked for and did not find is gone.
    fn write_uncovered_entry(&mut self, dir: &ScanDir<'_>, old: &CachedEntry<'_>) -> Result<()> {
        if dir.has_examined(old.name) { Ok(()) } else { self.write_cached_entry(old) }
    }

    fn copy_cached_dir(&mut self, cache: Option<&StatCache>, dir: CachedDir) -> Result<()> {
        cached_dir_entries(cache, dir).try_for_each(|entry| self.write_cached_entry(&entry))
    }

    fn write_cached_entry(&mut self, old: &CachedEntry<'_>) -> Result<()> {
        let entry = NewStatCacheEntry { name: old.name, ino: old.ino, stat: &old.stat, racy: old.racy };
        let block = self.writer.write_entry(&entry)?;
        if let (Some(block), Some(child), FileKind::Dir) = (block, old.child, old.stat.kind) {
            self.stack.push((BlockSource::Old(child), block));
        }
        Ok(())
    }
}

fn cached_dir_entries(cache: Option<&StatCache>, dir: CachedDir) -> impl Iterator<Item = CachedEntry<'_>> {
    cache.into_iter().flat_map(move |cache| cache.entries(dir))
}

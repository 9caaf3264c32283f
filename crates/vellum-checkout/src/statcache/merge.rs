//! The next stat cache: what a scan saw, and for what it did not look at, what the last cache says.

use vellum_types::{BlobId, FileKind, Ino};

use super::{BlockId, CachedDir, CachedEntry, NewEntry, Stamp, StatCache, StatCacheError, StatCacheWriter};
use crate::beneath::Dir;
use crate::meta::Stat;
use crate::scan::{DirIndex, DirView, EntryRef, Tree};

type Result<T> = std::result::Result<T, StatCacheError>;

/// What became of a scanned entry in the map.
#[derive(Debug, Clone, Copy)]
pub struct Recorded {
    /// Its number there.
    pub ino: Ino,
    /// What it looked like when its content was read, if that was later than the scan; equal before and after the
    /// reading, or else it must not be remembered at all.
    pub stat: Option<Stat>,
}

/// Where the entries of a block come from.
enum Source {
    Tree(DirIndex),
    Old(CachedDir),
}

/// Writes the cache for the map `base`, to which `tree` was recorded. `recorded` is asked for each entry in the tree;
/// those it answers with None (unreadable, changed while being read) are not remembered, nor what is below them.
/// What a partial scan left out is taken over from the tree's own cache. `name` is replaced in one step.
pub fn write_tree(
    (dir, name): (&Dir, &[u8]),
    (base, stamp): (BlobId, Stamp),
    tree: &Tree,
    root: Ino,
    mut recorded: impl FnMut(EntryRef<'_>) -> Option<Recorded>,
) -> Result<()> {
    // Of a root that is only on the way to the selected paths, its own attributes were not recorded.
    let root_dir = tree.dir(DirIndex::ROOT);
    let root_stat = if root_dir.is_whole() { *tree.root_stat() } else { tree.root_stat().outdated() };
    let writer = StatCacheWriter::create(dir, base, stamp, (root, &root_stat))?;
    let mut merge = Merge { writer, stamp, stack: vec![(Source::Tree(DirIndex::ROOT), BlockId::ROOT)] };
    while let Some((source, block)) = merge.stack.pop() {
        merge.writer.begin(block)?;
        let first_child = merge.stack.len();
        match source {
            Source::Old(old) => merge.copy(tree.cache(), old)?,
            Source::Tree(index) => merge.directory(tree, tree.dir(index), &mut recorded)?,
        }
        // The stack gives back the first child first: blocks lie in the order of a walk.
        merge.stack.get_mut(first_child..).unwrap_or_default().reverse();
    }
    merge.writer.finish(name)
}

struct Merge {
    writer: StatCacheWriter,
    stamp: Stamp,
    stack: Vec<(Source, BlockId)>,
}

impl Merge {
    fn directory(
        &mut self,
        tree: &Tree,
        dir: DirView<'_>,
        recorded: &mut impl FnMut(EntryRef<'_>) -> Option<Recorded>,
    ) -> Result<()> {
        let old = dir.cached();
        if !dir.was_read() {
            return old.map_or(Ok(()), |old| self.copy(tree.cache(), old));
        }
        let mut skipped = old.into_iter().flat_map(|old| cached_entries(tree.cache(), old)).peekable();
        for entry in dir.entries() {
            while let Some(old) = skipped.next_if(|old| old.name < entry.name()) {
                self.old_unless_covered(&dir, &old)?;
            }
            skipped.next_if(|old| old.name == entry.name());
            if let Some(what) = recorded(entry) {
                self.scanned(entry, what)?;
            }
        }
        skipped.try_for_each(|old| self.old_unless_covered(&dir, &old))
    }

    fn scanned(&mut self, entry: EntryRef<'_>, what: Recorded) -> Result<()> {
        let stat = what.stat.as_ref().unwrap_or(entry.stat());
        let racy = self.stamp.is_racy(stat);
        let block = self.writer.entry(&NewEntry { name: entry.name(), ino: what.ino, stat, racy })?;
        if let (Some(block), Some(child)) = (block, entry.child()) {
            self.stack.push((Source::Tree(child), block));
        }
        Ok(())
    }

    /// What the scan was not to look at stays; what it looked for and did not find is gone.
    fn old_unless_covered(&mut self, dir: &DirView<'_>, old: &CachedEntry<'_>) -> Result<()> {
        if dir.covers(old.name) { Ok(()) } else { self.old(old) }
    }

    fn copy(&mut self, cache: Option<&StatCache>, dir: CachedDir) -> Result<()> {
        cached_entries(cache, dir).try_for_each(|entry| self.old(&entry))
    }

    fn old(&mut self, old: &CachedEntry<'_>) -> Result<()> {
        let entry = NewEntry { name: old.name, ino: old.ino, stat: &old.stat, racy: old.racy };
        let block = self.writer.entry(&entry)?;
        if let (Some(block), Some(child), FileKind::Dir) = (block, old.child, old.stat.kind) {
            self.stack.push((Source::Old(child), block));
        }
        Ok(())
    }
}

fn cached_entries(cache: Option<&StatCache>, dir: CachedDir) -> impl Iterator<Item = CachedEntry<'_>> {
    cache.into_iter().flat_map(move |cache| cache.entries(dir))
}

//! Files whose attributes and pieces are kept decoded.
//!
//! Of a file of few pieces all of them are kept; of a longer one those around what is read, in windows: a reader in order needs
//! each window once, and however long a file is, a read decodes a bounded number of extents.
//!
//! Invariant: what is kept fits into its part of a cache. Otherwise it would be decoded again for each read.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use vellum_map::KeySpan;
use vellum_types::limits::EXTENT_MAX;
use vellum_types::{BlobId, DecodeError, Extent, ExtentSource, Ino, InodeAttr, MapKey, MapKeyRef, MapKeyTag};

use super::{
    FilePiece, FsTree, InodeRecord, SeekTarget, check_extent_bounds, collect_file_pieces,
    collect_pieces_within, wrap_inode_error,
};
use crate::error::{Result, VolumeError};

/// Files that are kept, of all states together, bytes: the kernel asks for a file several times in a row, and for files of many
/// snapshots over time.
const FILES_KEPT: u64 = 8 << 20;
/// The same of windows.
const WINDOWS_KEPT: u64 = 8 << 20;
/// Parts of each cache, a count: one thread at a time changes a part.
const SHARDS: usize = 8;
/// Bytes that a cache itself takes for an entry, about.
const ENTRY: u64 = 64;
/// Extents up to which a file is kept whole, a count: those of some 64 MiB.
const WHOLE_MAX: usize = 1024;
/// A window, bytes of the file: of pages that were written here and there, some 4,000 pieces.
const WINDOW: u64 = 16 << 20;

/// The files.
pub(super) struct FileCache {
    /// By the root of the tree and the inode in it.
    files: Cache<(BlobId, Ino), Arc<FileContent>, FileWeighter>,
    /// The same, and the window's number.
    windows: Cache<(BlobId, Ino, u64), Arc<[FilePiece]>, WindowWeighter>,
}

impl FileCache {
    /// Keeps nothing yet.
    pub fn new() -> Self {
        Self {
            files: new_cache(FILES_KEPT, size_of::<FileContent>() as u64, FileWeighter),
            windows: new_cache(WINDOWS_KEPT, ENTRY * 64, WindowWeighter),
        }
    }
}

/// A cache of some bytes, for entries that take so many at least.
fn new_cache<K: Eq + std::hash::Hash, V: Clone, W: Weighter<K, V> + Clone>(
    capacity: u64,
    entry: u64,
    weighter: W,
) -> Cache<K, V, W> {
    let expected = usize::try_from(capacity / entry).unwrap_or(usize::MAX);
    let options = OptionsBuilder::new()
        .shards(SHARDS)
        .estimated_items_capacity(expected)
        .weight_capacity(capacity)
        .build();
    match options {
        // By default there are the more parts the more processors there are: too small ones for what is kept here.
        Ok(options) => {
            Cache::with_options(options, weighter, DefaultHashBuilder::default(), DefaultLifecycle::default())
        }
        // Only options that are missing are refused.
        Err(_) => Cache::with_weighter(expected, capacity, weighter),
    }
}

#[derive(Debug, Clone)]
struct FileWeighter;

impl Weighter<(BlobId, Ino), Arc<FileContent>> for FileWeighter {
    fn weight(&self, _: &(BlobId, Ino), file: &Arc<FileContent>) -> u64 {
        let FileContent { attr, xattrs, pieces, .. } = &**file;
        let xattrs: usize = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let inline = attr.inline.as_ref().map_or(0, Vec::len) + attr.target.len();
        let pieces = pieces.as_ref().map_or(0, |pieces| size_of_val(&pieces[..]));
        (size_of::<FileContent>() + pieces + xattrs + inline) as u64 + ENTRY
    }
}

#[derive(Debug, Clone)]
struct WindowWeighter;

impl Weighter<(BlobId, Ino, u64), Arc<[FilePiece]>> for WindowWeighter {
    fn weight(&self, _: &(BlobId, Ino, u64), pieces: &Arc<[FilePiece]>) -> u64 {
        size_of_val(&pieces[..]) as u64 + ENTRY
    }
}

/// A file, or another inode, without the entries of a directory.
pub(super) struct FileContent {
    ino: Ino,
    pub attr: InodeAttr,
    /// Extended attributes, by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// All of them, holes included; None: they are too many.
    pieces: Option<Vec<FilePiece>>,
    /// Bytes that are not in holes, once they were counted.
    stored: OnceLock<u64>,
}

/// The pieces of some in order that have something of a range.
fn pieces_within(pieces: &[FilePiece], range: Range<u64>) -> impl Iterator<Item = &FilePiece> {
    // A search by halves: each read would walk over all pieces of the file.
    let first = pieces.partition_point(|piece| piece.offset + piece.len <= range.start);
    pieces.iter().skip(first).take_while(move |piece| piece.offset < range.end)
}

impl FsTree {
    /// Reads everything of an inode but a directory's entries, and its content's pieces unless they are many; of a state without
    /// layers through the cache.
    pub(super) fn file_content(&self, ino: Ino) -> Result<Arc<FileContent>> {
        // The root says what a state holds only if no layer lies over it.
        if !self.view.layers.is_empty() {
            return self.load_file(ino);
        }
        self.content.files().files.get_or_insert_with(&(self.view.base.0, ino), || self.load_file(ino))
    }

    fn load_file(&self, ino: Ino) -> Result<Arc<FileContent>> {
        let attr = self.expect_inode_attr(ino)?;
        let (record, is_whole) = self.read_inode_parts(ino, attr, |read| read.extents.len() < WHOLE_MAX)?;
        check_extent_bounds(ino, &record.attr, &record.extents)?;
        let pieces = is_whole.then(|| collect_file_pieces(&record)).transpose()?;
        let InodeRecord { attr, xattrs, .. } = record;
        Ok(Arc::new(FileContent { ino, attr, xattrs, pieces, stored: OnceLock::new() }))
    }

    /// Reads an inode without a directory's entries, as far as `goes_on` says of what was read; and whether that is all.
    pub(crate) fn read_inode_parts(
        &self,
        ino: Ino,
        attr: InodeAttr,
        goes_on: impl Fn(&InodeRecord) -> bool,
    ) -> Result<(InodeRecord, bool)> {
        let mut record =
            InodeRecord { ino, attr, entries: Vec::new(), xattrs: Vec::new(), extents: Vec::new() };
        // Of an inode's keys, the entries come first after the attributes: the scan begins behind them.
        let start = MapKey::first_for_tag(ino, MapKeyTag::Xattr);
        let end = MapKey::first_for_tag(Ino(ino.0.saturating_add(1)), MapKeyTag::Attr);
        let span = KeySpan::from_bounds(start.as_bytes(), end.as_bytes());
        for entry in self.view.read_range(&*self.nodes, span)? {
            if !goes_on(&record) {
                return Ok((record, false));
            }
            let entry = entry?;
            match MapKeyRef::parse(&entry.key).map_err(wrap_inode_error(ino))? {
                MapKeyRef::Xattr(_, name) => record.xattrs.push((name.to_vec(), entry.value.to_vec())),
                MapKeyRef::Extent(_, offset) => {
                    let extent = Extent::decode(&entry.value).map_err(wrap_inode_error(ino))?;
                    record.extents.push((offset, extent));
                }
                // Neither is in the span, which begins behind them.
                MapKeyRef::Attr(_) | MapKeyRef::Dentry(..) => {}
            }
        }
        Ok((record, true))
    }

    /// Returns the pieces of a file that have something of a range within its size, holes included.
    pub(super) fn pieces_of_range(&self, file: &FileContent, range: Range<u64>) -> Result<Vec<FilePiece>> {
        if let Some(pieces) = &file.pieces {
            return Ok(pieces_within(pieces, range).copied().collect());
        }
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let window = at / WINDOW;
            let pieces = self.window_pieces(file, window)?;
            found.extend(pieces_within(&pieces, at..range.end));
            at = (window + 1).saturating_mul(WINDOW);
        }
        Ok(found)
    }

    fn window_pieces(&self, file: &FileContent, window: u64) -> Result<Arc<[FilePiece]>> {
        let start = window.saturating_mul(WINDOW);
        let range = start..start.saturating_add(WINDOW).min(file.attr.size);
        let load = || {
            // An extent that begins before it can reach into it.
            let starts = range.start.saturating_sub(EXTENT_MAX)..range.end;
            let extents: Vec<_> = self.read_extents(file, starts)?.collect::<Result<_>>()?;
            check_extent_bounds(file.ino, &file.attr, &extents)?;
            Ok(collect_pieces_within(file.ino, &extents, range.clone())?.into())
        };
        if !self.view.layers.is_empty() {
            return load();
        }
        self.content.files().windows.get_or_insert_with(&(self.view.base.0, file.ino, window), load)
    }

    /// Returns the extents of a file that begin within a range, in order.
    fn read_extents(
        &self,
        file: &FileContent,
        starts: Range<u64>,
    ) -> Result<impl Iterator<Item = Result<(u64, Extent)>>> {
        let ino = file.ino;
        let size = file.attr.size;
        let bounds = [starts.start, starts.end].map(|offset| MapKey::for_extent(ino, offset));
        let [start, end] = bounds.each_ref().map(MapKey::as_bytes);
        let entries = self.view.read_range(&*self.nodes, KeySpan::from_bounds(start, end))?;
        Ok(entries.map(move |entry| {
            let entry = entry?;
            let parsed: Result<_, DecodeError> =
                MapKeyRef::parse(&entry.key).and_then(|key| Ok((key, Extent::decode(&entry.value)?)));
            match parsed.map_err(wrap_inode_error(ino))? {
                (MapKeyRef::Extent(_, offset), extent)
                    if offset.checked_add(extent.len).is_some_and(|end| end <= size) =>
                {
                    Ok((offset, extent))
                }
                _ => Err(VolumeError::BadTree(format!("inode {ino} has an extent that is too long"))),
            }
        }))
    }

    /// Counts the bytes of a file that are not in holes.
    pub(super) fn count_stored_bytes(&self, file: &FileContent) -> Result<u64> {
        if let Some(stored) = file.stored.get() {
            return Ok(*stored);
        }
        let stored = match &file.pieces {
            Some(pieces) => pieces.iter().filter(|piece| piece.chunk.is_some()).map(|piece| piece.len).sum(),
            None => {
                let mut stored = 0u64;
                for extent in self.read_extents(file, 0..file.attr.size)? {
                    let (_, extent) = extent?;
                    if extent.source != ExtentSource::Hole {
                        // In a damaged tree extents may overlap.
                        stored = stored.saturating_add(extent.len);
                    }
                }
                stored
            }
        };
        Ok(*file.stored.get_or_init(|| stored))
    }

    /// Returns the next data or hole of a file from `offset` on, if there is any.
    pub(super) fn find_data_or_hole(
        &self,
        file: &FileContent,
        offset: u64,
        seek: SeekTarget,
    ) -> Result<Option<u64>> {
        let size = file.attr.size;
        let is_data = seek == SeekTarget::Data;
        if offset >= size {
            return Ok(None);
        }
        // Inline content is stored whole: its only hole is the end.
        if file.attr.inline.is_some() {
            return Ok(Some(if is_data { offset } else { size }));
        }
        // The end of a file counts as a hole (lseek(2)).
        let at_end = (!is_data).then_some(size);
        if let Some(pieces) = &file.pieces {
            let mut rest = pieces_within(pieces, offset..size);
            let found = rest.find(|piece| piece.chunk.is_some() == is_data);
            return Ok(found.map_or(at_end, |piece| Some(piece.offset.max(offset))));
        }
        let mut at = offset;
        for extent in self.read_extents(file, offset.saturating_sub(EXTENT_MAX)..size)? {
            let (start, extent) = extent?;
            let end = start + extent.len;
            if end <= at {
                continue;
            }
            // What no extent covers is a hole.
            if start > at && !is_data {
                return Ok(Some(at));
            }
            if (extent.source != ExtentSource::Hole) == is_data {
                return Ok(Some(start.max(at)));
            }
            at = end;
        }
        Ok(if is_data { None } else { Some(at) })
    }
}

#[cfg(test)]
mod tests {
    use vellum_types::FileKind;

    use super::*;

    fn file(pieces: usize) -> FileContent {
        FileContent {
            ino: Ino(7),
            attr: InodeAttr::new(FileKind::File, 0o644),
            xattrs: vec![(b"user.key".to_vec(), vec![0; 1000])],
            pieces: Some(vec![FilePiece { offset: 0, len: 1, chunk: None }; pieces]),
            stored: OnceLock::new(),
        }
    }

    /// What a mount keeps of all snapshots that were ever looked at must not grow with their number.
    #[test]
    fn a_file_weighs_what_its_pieces_and_attributes_take() {
        let weigh = |pieces| FileWeighter.weight(&(BlobId([0; 32]), Ino(7)), &Arc::new(file(pieces)));
        assert!(weigh(0) > 1000 + size_of::<FileContent>() as u64);
        assert_eq!(weigh(1000) - weigh(0), 1000 * size_of::<FilePiece>() as u64);
    }

    /// A file of 1 GiB was too long for its part of the cache, and was decoded again for each read.
    #[test]
    fn what_a_reader_comes_back_to_is_kept() {
        let cache = FileCache::new();
        let root = BlobId([0; 32]);
        // As many as two pieces for each extent: a hole may be in front of it.
        cache.files.insert((root, Ino(7)), Arc::new(file(2 * WHOLE_MAX + 1)));
        assert!(cache.files.get(&(root, Ino(7))).is_some());
        let pages = usize::try_from(WINDOW / 4096).unwrap_or(usize::MAX);
        let piece = FilePiece { offset: 0, len: 4096, chunk: None };
        for window in 0..2 {
            cache.windows.insert((root, Ino(7), window), vec![piece; pages].into());
        }
        assert!((0..2).all(|window| cache.windows.get(&(root, Ino(7), window)).is_some()));
    }
}

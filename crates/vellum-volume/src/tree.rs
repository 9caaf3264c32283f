//! One filesystem state, read by inode and by path: a map's root, with layers over it or none.
//!
//! Invariant: whatever the nodes hold, a walk here ends, names are legal file names, and content has the length
//! that the attributes say; anything else is an error that names the place.

mod chunks;
mod content;
mod file_content;
mod file_reader;
mod path_budget;
mod path_stack;
mod read_streams;
mod reader;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_crypto::VolumeKeys;
use vellum_host::escape::format_path;
use vellum_map::{
    ChangeLayer, KeySpan, LoadBytes, MapBuilder, MapError, MapRoot, MapShape, MapView, NodeCache, NodeSink,
};
use vellum_store::BlobStore;
use vellum_types::value::SuperBlock;
use vellum_types::{
    BlobId, BlobKind, DecodeError, Dentry, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey, MapKeyRef,
    MapKeyTag,
};

pub use self::chunks::{ChunkCache, ChunkStatistics};
pub(crate) use self::content::ContentCache;
pub use self::file_reader::{ContentPart, FileReader};
pub use self::path_budget::PathBudget;
pub use self::path_stack::PathStack;
pub use self::read_streams::{NotedRead, PrefetchLimits, ReadPattern, ReadStreams};
pub use self::reader::{DirectoryEntry, SeekTarget, StateReader};
use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// Deepest directory nesting that a path is built for; a hostile tree may hold a circle of directories.
pub const DEPTH_MAX: usize = 100_000;

/// Longest path of a directory that is remembered, bytes (`PATH_MAX`): the paths of a deep tree, each kept whole, would
/// take memory with the square of its depth.
const PATH_KEPT_MAX: usize = 4096;

/// Fetches nodes from a volume's blobs. The node of the empty map, which states before the first snapshot stand on,
/// need not be stored.
pub struct NodeLoader {
    blobs: Arc<BlobStore>,
    empty: (BlobId, Vec<u8>),
}

impl NodeLoader {
    /// Returns the store that the nodes come from.
    pub(crate) fn blobs(&self) -> &BlobStore {
        &self.blobs
    }

    /// Fetches nodes from `blobs`. `shape` and `keys` determine the node of the empty map.
    pub fn new(blobs: Arc<BlobStore>, shape: MapShape, keys: &VolumeKeys) -> Result<Self> {
        let kept = EmptyMapNode { keys, bytes: Mutex::default() };
        let root = MapBuilder::new(shape, &kept).finish_tree()?;
        let bytes = kept.bytes.into_inner();
        Ok(Self { blobs, empty: (root.0, bytes) })
    }

    /// Returns the root of the empty map.
    #[must_use]
    pub fn empty_root(&self) -> MapRoot {
        MapRoot(self.empty.0)
    }
}

struct EmptyMapNode<'a> {
    keys: &'a VolumeKeys,
    bytes: Mutex<Vec<u8>>,
}

impl NodeSink for EmptyMapNode<'_> {
    fn store_node(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
        // A map without entries is one node.
        *self.bytes.lock() = bytes.to_vec();
        Ok(self.keys.compute_blob_id(BlobKind::Node, bytes))
    }
}

impl LoadBytes for NodeLoader {
    fn load_bytes(&self, id: &BlobId) -> Result<Vec<u8>, MapError> {
        // Also if the store has it: what is known needs no request.
        if *id == self.empty.0 {
            return Ok(self.empty.1.clone());
        }
        self.blobs
            .read_blob(BlobKind::Node, id)
            .map_err(|error| MapError::from_load_failure(*id, error.kind(), error))
    }
}

/// All that a map holds of one inode.
#[derive(Debug, Clone)]
pub struct InodeRecord {
    /// Its number.
    pub ino: Ino,
    /// Its attributes.
    pub attr: InodeAttr,
    /// Entries of a directory, by name.
    pub entries: Vec<(Vec<u8>, Dentry)>,
    /// Extended attributes, by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Content that is not inline, by offset, not overlapping, within the file's size.
    pub extents: Vec<(u64, Extent)>,
}

/// A filesystem state.
pub struct FsTree {
    nodes: Arc<NodeCache<NodeLoader>>,
    content: Arc<ContentCache>,
    view: MapView,
    /// Paths of directories, as far as they were asked for.
    paths: Mutex<DirectoryPaths>,
}

/// Paths of directories: the short ones, and the last one that is long, which the next is likely to begin with.
#[derive(Default)]
struct DirectoryPaths {
    short: HashMap<Ino, Arc<[u8]>>,
    long: Option<(Ino, Arc<[u8]>)>,
}

impl DirectoryPaths {
    fn get_path(&self, ino: Ino) -> Option<&Arc<[u8]>> {
        self.short
            .get(&ino)
            .or_else(|| self.long.as_ref().filter(|(long, _)| *long == ino).map(|(_, path)| path))
    }

    fn insert_short_path(&mut self, ino: Ino, path: &[u8]) {
        if path.len() <= PATH_KEPT_MAX {
            self.short.insert(ino, path.into());
        }
    }
}

impl Volume {
    /// Opens the state that a snapshot recorded. Nothing is read yet.
    #[must_use]
    pub fn open_tree(&self, root: MapRoot) -> FsTree {
        self.open_tree_with_layers(root, Vec::new())
    }

    /// Opens the state of a snapshot with changes over it, the newest layer first.
    #[must_use]
    pub fn open_tree_with_layers(&self, root: MapRoot, layers: Vec<Arc<ChangeLayer>>) -> FsTree {
        FsTree {
            nodes: self.nodes.clone(),
            content: self.content.clone(),
            view: MapView { layers, base: root },
            paths: Mutex::default(),
        }
    }
}

impl FsTree {
    /// Returns the map of the state.
    #[must_use]
    pub fn map_view(&self) -> &MapView {
        &self.view
    }

    /// Returns the cache that its nodes are read through.
    #[must_use]
    pub fn nodes(&self) -> &NodeCache<NodeLoader> {
        &self.nodes
    }

    /// Returns the value under a key. Fails if a node on the way to it is missing or damaged.
    pub fn get_value(&self, key: &MapKey) -> Result<Option<vellum_map::MapValue>> {
        Ok(self.view.get_value(&*self.nodes, key.as_bytes())?)
    }

    /// Returns the attributes of an inode, if it exists. Fails with [`VolumeError::Decode`] if they cannot be read.
    pub fn inode_attr(&self, ino: Ino) -> Result<Option<InodeAttr>> {
        let value = self.get_value(&MapKey::for_attr(ino))?;
        value.map(|value| InodeAttr::decode_published(&value).map_err(wrap_inode_error(ino))).transpose()
    }

    /// Returns the attributes of an inode that something refers to. Fails with [`VolumeError::BadTree`] if it is missing.
    pub fn expect_inode_attr(&self, ino: Ino) -> Result<InodeAttr> {
        self.inode_attr(ino)?.ok_or_else(|| VolumeError::BadTree(format!("inode {ino} is missing")))
    }

    /// Returns the state's own record, with the counter of inode numbers. Fails with [`VolumeError::BadTree`] if it is
    /// missing.
    pub fn read_super_block(&self) -> Result<SuperBlock> {
        let value = self.get_value(&MapKey::for_attr(Ino::SUPER))?;
        let value = value.ok_or_else(|| VolumeError::BadTree("its own record is missing".into()))?;
        SuperBlock::decode(&value).map_err(wrap_inode_error(Ino::SUPER))
    }

    /// Returns the entry `name` of a directory, if there is one. Fails as [`Self::check_dentry_place`] does.
    pub fn lookup_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>> {
        let found = self.lookup_dentry_unchecked(dir, name)?;
        if let Some(dentry) = &found {
            self.check_dentry_place(dir, name, dentry)?;
        }
        Ok(found)
    }

    /// Returns the entry `name` of a directory, whatever the directory that it names says of its place.
    pub(crate) fn lookup_dentry_unchecked(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>> {
        let value = self.get_value(&MapKey::for_dentry(dir, name))?;
        value.map(|value| Dentry::decode(&value).map_err(wrap_inode_error(dir))).transpose()
    }

    /// Fails with [`VolumeError::BadTree`] if an entry names a directory that belongs to another place. A directory records the
    /// one place where it is, so a walk down through checked entries visits each directory once, and ends.
    pub fn check_dentry_place(&self, dir: Ino, name: &[u8], dentry: &Dentry) -> Result<()> {
        // Whatever else it is may have several names, of which its attributes tell one, and no walk goes on below it.
        if dentry.kind != FileKind::Dir {
            return Ok(());
        }
        let attr = self.expect_inode_attr(dentry.ino)?;
        let refuse = |what: &str| {
            Err(VolumeError::BadTree(format!("'{}' in directory {dir} {what}", format_path(name))))
        };
        if attr.kind != FileKind::Dir {
            return refuse("is said to be a directory and is none");
        }
        // The root is in no directory, whatever its attributes say.
        if dentry.ino == Ino::ROOT || attr.parent != dir || attr.name != name {
            return refuse("is a directory that belongs to another place");
        }
        Ok(())
    }

    /// Visits everything of one inode, undecoded.
    pub(crate) fn scan_inode_raw(
        &self,
        ino: Ino,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let end = MapKey::first_for_tag(Ino(ino.0.saturating_add(1)), MapKeyTag::Attr);
        let span = KeySpan::from_bounds(MapKey::for_attr(ino).as_bytes(), end.as_bytes());
        for entry in self.view.read_range(&*self.nodes, span)? {
            let entry = entry?;
            each(&entry.key, &entry.value)?;
        }
        Ok(())
    }

    /// Reads everything of one inode in one scan. Fails with [`VolumeError::BadTree`] if it is missing, or if its extents
    /// overlap or lie beyond its size.
    pub fn read_inode(&self, ino: Ino) -> Result<InodeRecord> {
        let mut attr = None;
        let mut entries = Vec::new();
        let mut xattrs = Vec::new();
        let mut extents = Vec::new();
        self.scan_inode(ino, |key, value| {
            match key {
                MapKeyRef::Attr(_) => attr = Some(InodeAttr::decode_published(value)?),
                MapKeyRef::Dentry(_, name) => entries.push((name.to_vec(), Dentry::decode(value)?)),
                MapKeyRef::Xattr(_, name) => xattrs.push((name.to_vec(), value.to_vec())),
                MapKeyRef::Extent(_, offset) => extents.push((offset, Extent::decode(value)?)),
            }
            Ok(())
        })?;
        let attr = attr.ok_or_else(|| VolumeError::BadTree(format!("inode {ino} is missing")))?;
        check_extent_bounds(ino, &attr, &extents)?;
        Ok(InodeRecord { ino, attr, entries, xattrs, extents })
    }

    fn scan_inode(
        &self,
        ino: Ino,
        mut each: impl FnMut(MapKeyRef<'_>, &[u8]) -> Result<(), DecodeError>,
    ) -> Result<()> {
        self.scan_inode_raw(ino, |key, value| {
            MapKeyRef::parse(key).and_then(|key| each(key, value)).map_err(wrap_inode_error(ino))
        })
    }

    /// Returns the entries of a directory, by name. Fails as [`Self::check_dentry_place`] does for each of them.
    pub fn list_entries(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Dentry)>> {
        let entries = self.read_inode(dir)?.entries;
        entries.iter().try_for_each(|(name, dentry)| self.check_dentry_place(dir, name, dentry))?;
        Ok(entries)
    }

    /// Returns the inode at `path`, relative to the root; no symlink is followed. Fails with [`VolumeError::NoSuchPath`] if
    /// there is none; `place` is what that error calls the state.
    pub fn find_path(&self, path: &[u8], place: &str) -> Result<(Ino, InodeAttr)> {
        let mut ino = Ino::ROOT;
        // `..` is looked up like any other name, and no directory holds it: a path cannot lead out of the tree.
        for name in path_components(path) {
            let missing = || VolumeError::NoSuchPath { path: format_path(path), place: place.into() };
            ino = self.lookup_dentry(ino, name)?.ok_or_else(missing)?.ino;
        }
        Ok((ino, self.expect_inode_attr(ino)?))
    }

    /// Returns the path of an inode's first name, relative to the root. Fails with [`VolumeError::BadTree`] if a directory
    /// above it lies in itself or too deep.
    pub fn inode_path(&self, ino: Ino) -> Result<Vec<u8>> {
        let attr = self.expect_inode_attr(ino)?;
        self.entry_path(attr.parent, &attr.name)
    }

    /// Returns the path of the entry `name` of a directory, relative to the root. Fails as [`Self::inode_path`] does.
    pub fn entry_path(&self, dir: Ino, name: &[u8]) -> Result<Vec<u8>> {
        // Only the root has no name.
        if name.is_empty() {
            return Ok(Vec::new());
        }
        let mut path = self.dir_path(dir)?.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Ok(path)
    }

    fn dir_path(&self, dir: Ino) -> Result<Arc<[u8]>> {
        let mut below: Vec<(Ino, Vec<u8>)> = Vec::new();
        let mut at = dir;
        // Brent's way to notice a circle: a mark that is moved on ever more rarely is met again in it.
        let mut mark = dir;
        let mut marked_at = 1;
        let mut path = loop {
            if at == Ino::ROOT {
                break Vec::new();
            }
            // The lock is held for this look alone: reading attributes may fetch nodes from the store.
            if let Some(path) = self.paths.lock().get_path(at) {
                break path.to_vec();
            }
            let attr = self.expect_inode_attr(at)?;
            below.push((at, attr.name));
            at = attr.parent;
            if at == mark || below.len() > DEPTH_MAX {
                return Err(VolumeError::BadTree(format!(
                    "the directory {dir} lies in itself, or deeper than {DEPTH_MAX} levels"
                )));
            }
            if below.len() == marked_at {
                mark = at;
                marked_at *= 2;
            }
        };
        for (ino, name) in below.into_iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            self.paths.lock().insert_short_path(ino, &path);
        }
        let path: Arc<[u8]> = path.into();
        if path.len() > PATH_KEPT_MAX {
            self.paths.lock().long = Some((dir, path.clone()));
        }
        Ok(path)
    }
}

/// Returns the components of a path as it was typed, without empty ones and `.`.
pub fn path_components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Returns what messages call a kind of file.
#[must_use]
pub fn file_kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "a file",
        FileKind::Dir => "a directory",
        FileKind::Symlink => "a symbolic link",
        FileKind::Fifo => "a fifo",
        FileKind::Socket => "a socket",
        FileKind::CharDevice => "a character device",
        FileKind::BlockDevice => "a block device",
    }
}

fn check_extent_bounds(ino: Ino, attr: &InodeAttr, extents: &[(u64, Extent)]) -> Result<()> {
    let bad = |what: &str| Err(VolumeError::BadTree(format!("inode {ino} has {what}")));
    // What reads extents relies on them being in order and within the size, so that no arithmetic on them overflows.
    if !extents.is_empty() && (attr.kind != FileKind::File || attr.inline.is_some()) {
        return bad("extents that it should not have");
    }
    let mut end = 0;
    for (offset, extent) in extents {
        if *offset < end {
            return bad("overlapping extents");
        }
        end = match offset.checked_add(extent.len) {
            Some(end) if end <= attr.size => end,
            _ => return bad("extents beyond its size"),
        };
    }
    Ok(())
}

/// Returns the generation of a file: 16 bits of a hash of the name that it was first seen under. It tells files apart that
/// got one number in two lines of history, which both begin to count where they part. 16 bits keep the map small.
#[must_use]
pub fn compute_generation(dir: Ino, name: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&dir.0.to_le_bytes()).update(name);
    let [low, high, ..] = *hasher.finalize().as_bytes();
    u64::from(u16::from_le_bytes([low, high]))
}

fn wrap_inode_error(ino: Ino) -> impl Fn(DecodeError) -> VolumeError {
    move |source| VolumeError::Decode { what: format!("inode {ino} of the tree"), source }
}

/// The part of a file that one blob or hole supplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePiece {
    /// Where it stands in the file.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// The chunk and where it begins in it; None is a hole.
    pub chunk: Option<(BlobId, u32)>,
}

impl FilePiece {
    /// The chunk that it is a part of; None for a hole.
    fn chunk_id(&self) -> Option<BlobId> {
        self.chunk.map(|(id, _)| id)
    }
}

/// Returns a file's content as pieces, holes included, from 0 to its size. Inline content has no pieces. Fails with
/// [`VolumeError::BadTree`] if an extent is in a write log.
pub fn collect_file_pieces(inode: &InodeRecord) -> Result<Vec<FilePiece>> {
    if inode.attr.inline.is_some() {
        return Ok(Vec::new());
    }
    collect_pieces_within(inode.ino, &inode.extents, 0..inode.attr.size)
}

/// Returns the pieces of a range of a file, holes included; its extents must have been checked.
fn collect_pieces_within(ino: Ino, extents: &[(u64, Extent)], range: Range<u64>) -> Result<Vec<FilePiece>> {
    let mut pieces = Vec::with_capacity(extents.len());
    let mut at = range.start;
    let hole = |offset, end: u64| FilePiece { offset, len: end - offset, chunk: None };
    for (offset, extent) in extents {
        // It cannot overflow: the extents were checked against the file's size when they were read.
        let end = (offset + extent.len).min(range.end);
        let from = (*offset).max(range.start);
        if from >= end {
            continue;
        }
        if from > at {
            pieces.push(hole(at, from));
        }
        let chunk = match extent.source {
            ExtentSource::Hole => None,
            ExtentSource::Chunk { id, skip } => {
                let skip = u32::try_from(from - offset).ok().and_then(|before| skip.checked_add(before));
                Some((
                    id,
                    skip.ok_or_else(|| {
                        VolumeError::BadTree(format!("inode {ino} has a piece that is too long"))
                    })?,
                ))
            }
            ExtentSource::WriteLog { .. } => {
                return Err(VolumeError::BadTree(format!("inode {ino} points into a write log")));
            }
        };
        pieces.push(FilePiece { offset: from, len: end - from, chunk });
        at = end;
    }
    // What was never written at the end, as after truncate(2) to a larger size, has no extent.
    if at < range.end {
        pieces.push(hole(at, range.end));
    }
    Ok(pieces)
}

/// Returns `len` bytes of a chunk from `skip` on. Fails with [`VolumeError::BadTree`] if the chunk is shorter.
pub fn slice_chunk(chunk: &[u8], id: BlobId, skip: u32, len: u64) -> Result<&[u8]> {
    let bytes = usize::try_from(skip)
        .ok()
        .zip(usize::try_from(len).ok())
        .and_then(|(skip, len)| chunk.get(skip..)?.get(..len));
    bytes.ok_or_else(|| VolumeError::BadTree(format!("a file needs more bytes of chunk {id} than it has")))
}

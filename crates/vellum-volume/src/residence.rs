//! Where the content of files is: on this machine, or only in the store; and bringing it here.
//!
//! Invariant: what is said to be here is read without the store: the nodes that name it, its chunks, and the chunks that
//! these are differences to. Deliberately absent: plain directories, in which everything is here; the rules of a mount.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use vellum_host::escape::format_path;
use vellum_host::{OperationStopped, ProgressMeter};
use vellum_map::{KeySpan, MapError, MapNode, MapRoot, MapView, NodeCache, NodeSource};
use vellum_store::{BlobStore, CachePin, CacheRoom, EvictedBytes, PackCache, PieceSet};
use vellum_types::{BlobId, BlobKind, Dentry, Extent, ExtentSource, FileKind, Ino, MapKey, MapKeyTag};

use crate::error::{Result, VolumeError};
use crate::tree::{FsTree, NodeLoader, PathStack, path_components};
use crate::volume::Volume;

/// Rounds of looking and fetching, a count: the first brings chunks and the second what they are differences to. Another
/// process that evicts meanwhile costs the rest.
const ROUNDS: usize = 4;

/// Where the content of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentState {
    /// On this machine.
    Here,
    /// So much of it, percent: 1 to 99.
    Partly(u8),
    /// In the store only.
    Remote,
    /// On this machine only.
    Unpublished,
    /// On this machine, and it stays here.
    Pinned,
}

impl fmt::Display for ContentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("here"),
            Self::Partly(percent) => write!(f, "partly {percent}%"),
            Self::Remote => f.write_str("remote"),
            Self::Unpublished => f.write_str("unpublished"),
            Self::Pinned => f.write_str("pinned"),
        }
    }
}

/// Returns where the content of a file is that has these extents. Fails if the index has none of its chunks.
pub fn find_content_state(blobs: &BlobStore, extents: &[Extent]) -> Result<ContentState> {
    // Before the index is asked, which knows nothing of what is in a write log.
    if extents.iter().any(is_unpublished) {
        return Ok(ContentState::Unpublished);
    }
    // The local copies, if the store is in a service and there is a place for copies.
    let Some(copies) = blobs.local_copies() else { return Ok(ContentState::Here) };
    let mut pieces = PieceSet::default();
    add_readable_extents(blobs, extents, &mut pieces)?;
    let total = pieces.wanted_bytes();
    // Without a place for copies, nothing of a service's content is on this machine; an empty file has none anywhere.
    let Some(cache) = copies.pack_cache().filter(|_| total > 0) else {
        return Ok(if total == 0 { ContentState::Here } else { ContentState::Remote });
    };
    // Counted in stored bytes: this is what would have to be fetched.
    let missing = cache.missing_pieces(&pieces).wanted_bytes();
    Ok(match total - missing {
        0 => ContentState::Remote,
        here if here == total && cache.unpinned_pieces(&pieces).is_empty() => ContentState::Pinned,
        here if here == total => ContentState::Here,
        here => {
            let percent = u128::from(here) * 100 / u128::from(total);
            // Neither 0 nor 100, which have words of their own.
            ContentState::Partly(u8::try_from(percent).unwrap_or(99).clamp(1, 99))
        }
    })
}

fn is_unpublished(extent: &Extent) -> bool {
    matches!(extent.source, ExtentSource::WriteLog { .. })
}

fn add_readable_extents(blobs: &BlobStore, extents: &[Extent], pieces: &mut PieceSet) -> Result<()> {
    for extent in extents {
        if let ExtentSource::Chunk { id, skip } = extent.source {
            blobs.add_readable_pieces(BlobKind::Chunk, &id, u64::from(skip) + extent.len, pieces)?;
        }
    }
    Ok(())
}

/// What is to be fetched, pinned or evicted of some files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentScope {
    /// Names and attributes, and content; what the command needs to read all of it without the store.
    Readable,
    /// Names and attributes.
    Names,
    /// Content alone.
    Content,
}

/// Why something is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedContent {
    /// It is not in the store yet.
    Unpublished,
    /// A program has it open.
    Open,
    /// It is pinned.
    Pinned,
}

impl fmt::Display for RefusedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unpublished => "it is not in the store yet",
            Self::Open => "it is open",
            Self::Pinned => "it is pinned",
        })
    }
}

/// Some files, and the pieces that hold them.
#[derive(Debug, Default)]
pub struct SelectedContent {
    /// Files.
    pub files: u64,
    /// Pieces of packs.
    pub pieces: PieceSet,
    /// Files that are left out, by path from the root, and why.
    pub refused: Vec<(Vec<u8>, RefusedContent)>,
}

/// What a selection reads of a filesystem state.
pub trait ContentTree {
    /// What reading fails with.
    type Error: From<VolumeError>;

    /// Returns the entry `name` of a directory; None if there is none.
    fn lookup_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>, Self::Error>;

    /// Returns the entries of a directory, by name.
    fn list_entries(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Dentry)>, Self::Error>;

    /// Returns the extents of a file that have data or were holes when they were written; None for what is no file.
    fn file_extents(&self, ino: Ino) -> Result<Option<Vec<Extent>>, Self::Error>;
}

/// Collects the pieces of some files.
pub struct ContentSelector<'v> {
    volume: &'v Volume,
    base: MapRoot,
    scope: ContentScope,
    /// Files that a program has open.
    open: HashSet<Ino>,
    /// Paths that are left out with all below.
    excluded: HashSet<Vec<u8>>,
    /// Pieces that hold their content.
    kept: PieceSet,
    /// Nodes that were read for what was selected.
    nodes: Mutex<HashSet<BlobId>>,
    selected: SelectedContent,
}

impl<'v> ContentSelector<'v> {
    /// Selects files of a tree in the store.
    #[must_use]
    pub fn new(volume: &'v Volume, base: MapRoot, scope: ContentScope) -> Self {
        Self {
            volume,
            base,
            scope,
            open: HashSet::new(),
            excluded: HashSet::new(),
            kept: PieceSet::default(),
            nodes: Mutex::default(),
            selected: SelectedContent::default(),
        }
    }

    /// Leaves these files out: a program has them open.
    #[must_use]
    pub fn without_open_files(self, open: HashSet<Ino>) -> Self {
        Self { open, ..self }
    }

    /// Leaves these paths out, with all below them, unless one is selected itself.
    #[must_use]
    pub fn without_paths(self, excluded: HashSet<Vec<u8>>) -> Self {
        Self { excluded, ..self }
    }

    /// Selects the files at and below a path of `state`, of which the selector's tree is all that is in the store. Fails
    /// with [`VolumeError::NoSuchPath`] if there is nothing at the path; `place` is what that error calls the state.
    pub fn select_path<S: ContentTree>(
        &mut self,
        state: &S,
        path: &[u8],
        place: &str,
        meter: &ProgressMeter,
    ) -> Result<(), S::Error> {
        let mut top = Dentry { ino: Ino::ROOT, kind: FileKind::Dir };
        for name in path_components(path) {
            // Whoever opens the path without the store reads each directory above it.
            self.add_names(top.ino)?;
            let missing = || VolumeError::NoSuchPath { path: format_path(path), place: place.into() };
            top = state.lookup_dentry(top.ino, name)?.ok_or_else(missing)?;
        }
        let mut names = PathStack::default();
        names.push_entries(vec![(path.to_vec(), top)]);
        while let Some(Dentry { ino, kind }) = names.next_entry() {
            meter.check_stopped().map_err(VolumeError::from)?;
            if names.path() != path && self.excluded.contains(names.path()) {
                continue;
            }
            self.add_names(ino)?;
            match kind {
                FileKind::Dir => names.push_entries(state.list_entries(ino)?),
                // A program that reads it would have to fetch at once what was just removed.
                FileKind::File if self.open.contains(&ino) => {
                    self.refuse_file(names.path(), RefusedContent::Open);
                    let extents = state.file_extents(ino)?.unwrap_or_default();
                    add_readable_extents(&self.volume.blobs, &extents, &mut self.kept)?;
                }
                FileKind::File => {
                    self.add_file(names.path(), &state.file_extents(ino)?.unwrap_or_default())?;
                }
                FileKind::Symlink
                | FileKind::Fifo
                | FileKind::Socket
                | FileKind::CharDevice
                | FileKind::BlockDevice => {}
            }
        }
        Ok(())
    }

    /// Adds what the tree has of an inode: a directory with its names, or the attributes of a file.
    fn add_names(&mut self, ino: Ino) -> Result<()> {
        if self.scope == ContentScope::Content || self.volume.blobs.local_copies().is_none() {
            return Ok(());
        }
        // Read for the record of what was read: the nodes on the way are what has to be here.
        let recorder = NodeRecorder { nodes: &self.volume.nodes, seen: &self.nodes };
        let end = MapKey::first_for_tag(Ino(ino.0.saturating_add(1)), MapKeyTag::Attr);
        let span = KeySpan::from_bounds(MapKey::for_attr(ino).as_bytes(), end.as_bytes());
        // Of the base alone: layers over it are not in the store.
        let view = MapView::new(self.base);
        view.read_range(&recorder, span)?.try_for_each(|entry| entry.map(drop))?;
        Ok(())
    }

    /// Adds the content of a file; `extents` are those of its present state.
    fn add_file(&mut self, path: &[u8], extents: &[Extent]) -> Result<()> {
        let blobs = &self.volume.blobs;
        let Some(copies) = blobs.local_copies().filter(|_| self.scope != ContentScope::Names) else {
            self.selected.files += 1;
            return Ok(());
        };
        let has_unpublished = extents.iter().any(is_unpublished);
        if has_unpublished {
            self.refuse_file(path, RefusedContent::Unpublished);
        }
        // What is unpublished is on this machine anyway: the rest of the file can be made readable without the store.
        if self.scope == ContentScope::Readable {
            self.selected.files += 1;
            return add_readable_extents(blobs, extents, &mut self.selected.pieces);
        }
        if has_unpublished {
            return Ok(());
        }
        let mut pieces = PieceSet::default();
        for extent in extents {
            if let ExtentSource::Chunk { id, .. } = extent.source {
                // Its own bytes alone: what it is a difference to may be content of other files as well.
                blobs.add_blob_pieces(BlobKind::Chunk, &id, &mut pieces)?;
            }
        }
        let is_pinned = |cache: &PackCache| !pieces.is_empty() && cache.unpinned_pieces(&pieces).is_empty();
        if copies.pack_cache().is_some_and(is_pinned) {
            self.refuse_file(path, RefusedContent::Pinned);
        } else {
            self.selected.files += 1;
            self.selected.pieces.add_all(&pieces);
        }
        Ok(())
    }

    /// Leaves a file out.
    fn refuse_file(&mut self, path: &[u8], why: RefusedContent) {
        self.selected.refused.push((path.to_vec(), why));
    }

    /// What was selected, with the nodes that it needs.
    pub fn finish_selection(mut self) -> Result<SelectedContent> {
        // The content of two files may meet in one piece.
        self.selected.pieces.remove_all(&self.kept);
        for id in self.nodes.into_inner() {
            // Nodes are read whole, unlike chunks, of which a file may need the beginning only.
            let added = self.volume.blobs.add_readable_pieces(
                BlobKind::Node,
                &id,
                u64::MAX,
                &mut self.selected.pieces,
            );
            match added {
                // The empty map is in no store.
                Err(_) if id == self.volume.empty_root().0 => {}
                added => added?,
            }
        }
        Ok(self.selected)
    }
}

/// Remembers which nodes are read.
struct NodeRecorder<'a> {
    nodes: &'a NodeCache<NodeLoader>,
    seen: &'a Mutex<HashSet<BlobId>>,
}

impl NodeSource for NodeRecorder<'_> {
    fn load_node(&self, id: &BlobId) -> Result<Arc<MapNode>, MapError> {
        // Also if the node is in memory: later processes, which do not have this memory, must find it on the disk.
        self.seen.lock().insert(*id);
        self.nodes.load_node(id)
    }

    fn prefetch_nodes(&self, ids: &[BlobId]) {
        self.nodes.prefetch_nodes(ids);
    }
}

impl ContentTree for FsTree {
    type Error = VolumeError;

    fn lookup_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>> {
        FsTree::lookup_dentry(self, dir, name)
    }

    fn list_entries(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Dentry)>> {
        FsTree::list_entries(self, dir)
    }

    fn file_extents(&self, ino: Ino) -> Result<Option<Vec<Extent>>> {
        let inode = self.read_inode(ino)?;
        let extents = inode.extents.into_iter().map(|(_, extent)| extent);
        Ok((inode.attr.kind == FileKind::File).then(|| extents.collect()))
    }
}

impl FsTree {
    /// Returns where the content of a file is; None for what has no content. Fails as [`find_content_state`] does.
    pub fn content_state(&self, ino: Ino) -> Result<Option<ContentState>> {
        let extents = self.file_extents(ino)?;
        extents.map(|extents| find_content_state(self.nodes().loader().blobs(), &extents)).transpose()
    }
}

/// A pin that is to be made of what is selected.
#[derive(Debug, Clone)]
pub struct NewPin {
    /// Its name.
    pub name: String,
    /// The paths, for whoever reads the list of pins.
    pub content: String,
}

/// What was brought to this machine.
#[derive(Debug, Default)]
pub struct HydratedContent {
    /// Files.
    pub files: u64,
    /// Bytes as they are stored, with those that were here before.
    pub bytes: u64,
    /// Bytes that were fetched.
    pub fetched: u64,
    /// Whether the store is on this machine, so that nothing had to be fetched.
    pub is_local: bool,
    /// Files that are not in the store yet, and cannot be pinned; by path from the root, and why.
    pub refused: Vec<(Vec<u8>, RefusedContent)>,
}

impl Volume {
    /// Brings what `select` finds to this machine, and pins it if `pin` is given. Goes on where an earlier call was
    /// interrupted. `select` is called again after each round, as what a difference needs is known only once it is here.
    pub fn hydrate_content<E: From<VolumeError>>(
        &self,
        pin: Option<&NewPin>,
        meter: &ProgressMeter,
        select: impl Fn() -> Result<SelectedContent, E>,
    ) -> Result<HydratedContent, E> {
        let Some(copies) = self.blobs.local_copies() else {
            let files = select()?.files;
            return Ok(HydratedContent { files, is_local: true, ..HydratedContent::default() });
        };
        let cache = copies.pack_cache().ok_or(VolumeError::NoCache)?;
        let mut fetched = 0;
        let mut selected = select()?;
        for _ in 0..ROUNDS {
            // A pin before the content: what comes is not pushed out again by something else.
            match pin {
                Some(pin) => self.pin_pieces(cache, pin, &selected.pieces)?,
                // Without a pin, content that does not fit would push out what was just fetched.
                None => check_room(
                    cache,
                    cache
                        .find_room(&selected.pieces)
                        .map_err(VolumeError::wrap_local_error(cache.folder()))?,
                )?,
            }
            let missing = cache.missing_pieces(&selected.pieces);
            if missing.is_empty() {
                break;
            }
            let bytes = missing.wanted_bytes();
            meter.begin_phase(0, bytes);
            if !copies.fetch_into_cache(&missing, meter).map_err(VolumeError::from)? {
                return Err(VolumeError::from(OperationStopped).into());
            }
            fetched += bytes;
            // The base of a difference is named in the blob itself, which could not be read before.
            selected = select()?;
        }
        let SelectedContent { files, pieces, refused } = selected;
        Ok(HydratedContent { files, bytes: pieces.wanted_bytes(), fetched, is_local: false, refused })
    }

    /// Tells the store that all nodes of a tree are going to be read, and those that were written with its root: few
    /// requests then fetch what would be asked for node by node. Nothing depends on it.
    pub fn announce_tree(&self, root: MapRoot) {
        if let Some(copies) = self.blobs.local_copies() {
            copies.announce_reads(&self.blobs.list_pack_pieces(&root.0));
        }
    }

    /// Tells the store that the content of these files of a tree is going to be read, as [`Self::announce_tree`] does of
    /// nodes.
    pub fn announce_content(&self, tree: &FsTree, files: impl Iterator<Item = Ino>) {
        let Some(copies) = self.blobs.local_copies() else { return };
        let mut pieces = PieceSet::default();
        for ino in files {
            // What cannot be read, or is not in the index, is reported by whoever needs it: files before it are written.
            let Ok(Some(extents)) = tree.file_extents(ino) else { continue };
            for extent in extents {
                if let ExtentSource::Chunk { id, .. } = extent.source {
                    let _ = self.blobs.add_blob_pieces(BlobKind::Chunk, &id, &mut pieces);
                }
            }
        }
        copies.announce_reads(&pieces);
    }

    /// Removes pieces from this machine, but for those that are pinned.
    pub fn evict_content(&self, pieces: &PieceSet) -> Result<EvictedBytes> {
        match self.blobs.local_copies().and_then(|copies| copies.pack_cache()) {
            None => Ok(EvictedBytes::default()),
            Some(cache) => cache.evict_pieces(pieces).map_err(VolumeError::wrap_local_error(cache.folder())),
        }
    }

    fn pin_pieces(&self, cache: &PackCache, pin: &NewPin, pieces: &PieceSet) -> Result<()> {
        // For the list of pins only: a clock before 1970 must not keep anybody from pinning.
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let NewPin { name, content } = pin.clone();
        let pin = CachePin {
            name,
            worktree: self.worktree.worktree.clone(),
            content,
            created,
            pieces: pieces.clone(),
        };
        let room = cache.add_pin(&pin).map_err(VolumeError::wrap_local_error(cache.folder()))?;
        check_room(cache, room)
    }
}

fn check_room(cache: &PackCache, room: CacheRoom) -> Result<()> {
    if room.is_enough() {
        return Ok(());
    }
    let CacheRoom { part, wanted, pinned, allowed } = room;
    Err(VolumeError::CacheTooSmall { folder: cache.folder().to_path_buf(), part, wanted, pinned, allowed })
}

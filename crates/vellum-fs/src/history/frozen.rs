//! Frozen trees: published snapshots that are read lazily, without a live worktree.
//!
//! Deliberately absent: path lookup and comparison, which `vellum_volume::FsTree` has; writing.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use rustix::io::Errno;
use vellum_types::{BlobId, BlobKind, FileKind, Ino, InodeAttr};
use vellum_volume::tree::{FilePiece, InodeRecord, collect_file_pieces, slice_chunk};
use vellum_volume::{FsTree, Volume};

use crate::error::{FsError, Result};

/// Files whose attributes and pieces are kept decoded, of all snapshots together, bytes: the kernel asks for a file several
/// times in a row, and for files of many snapshots over time.
const FILES_KEPT: u64 = 8 << 20;
/// Bytes that the cache itself takes for an entry, about.
const ENTRY: u64 = 64;

/// Decoded chunks that are kept for the next request, bytes: the kernel reads ahead by a megabyte, and several files
/// at once; what it has read, it keeps itself.
const CHUNKS_KEPT: u64 = 32 << 20;

/// Decoded chunks and files, shared by all frozen trees.
pub struct FrozenChunks {
    volume: Arc<Volume>,
    kept: Cache<BlobId, Arc<Vec<u8>>, ChunkLengthWeighter>,
    /// By the root of the tree and the inode in it.
    files: Cache<(BlobId, Ino), Arc<FrozenFile>, FileWeighter>,
}

#[derive(Debug, Clone)]
struct ChunkLengthWeighter;

impl Weighter<BlobId, Arc<Vec<u8>>> for ChunkLengthWeighter {
    fn weight(&self, _: &BlobId, chunk: &Arc<Vec<u8>>) -> u64 {
        chunk.len() as u64 + ENTRY
    }
}

#[derive(Debug, Clone)]
struct FileWeighter;

impl Weighter<(BlobId, Ino), Arc<FrozenFile>> for FileWeighter {
    fn weight(&self, _: &(BlobId, Ino), file: &Arc<FrozenFile>) -> u64 {
        let FrozenFile { inode, pieces } = &**file;
        let xattrs: usize = inode.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let inline = inode.attr.inline.as_ref().map_or(0, Vec::len) + inode.attr.target.len();
        let parts = size_of_val(&pieces[..]) + size_of_val(&inode.extents[..]);
        (size_of::<FrozenFile>() + parts + xattrs + inline) as u64 + ENTRY
    }
}

impl FrozenChunks {
    /// The chunks of a volume.
    #[must_use]
    pub fn new(volume: Arc<Volume>) -> Self {
        let expected = usize::try_from(CHUNKS_KEPT >> 16).unwrap_or(usize::MAX);
        let kept = Cache::with_weighter(expected, CHUNKS_KEPT, ChunkLengthWeighter);
        let expected = usize::try_from(FILES_KEPT / size_of::<FrozenFile>() as u64).unwrap_or(usize::MAX);
        Self { volume, kept, files: Cache::with_weighter(expected, FILES_KEPT, FileWeighter) }
    }

    fn get_chunk(&self, ino: Ino, id: BlobId) -> Result<Arc<Vec<u8>>> {
        self.kept.get_or_insert_with(&id, || {
            let chunk = self.volume.blobs.read_blob(BlobKind::Chunk, &id);
            chunk.map(Arc::new).map_err(|source| FsError::Content { ino, source })
        })
    }
}

/// A snapshot's tree.
pub struct FrozenTree {
    tree: FsTree,
    chunks: Arc<FrozenChunks>,
}

/// An inode with its content's pieces.
struct FrozenFile {
    inode: InodeRecord,
    pieces: Vec<FilePiece>,
}

impl FrozenTree {
    /// The tree of a snapshot.
    #[must_use]
    pub fn new(tree: FsTree, chunks: Arc<FrozenChunks>) -> Self {
        Self { tree, chunks }
    }

    /// The inode that a name stands for.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<(Ino, InodeAttr)> {
        let dentry = self.tree.lookup_dentry(dir, name)?.ok_or(Errno::NOENT)?;
        Ok((dentry.ino, self.tree.expect_inode_attr(dentry.ino)?))
    }

    /// Attributes of an inode.
    pub fn inode_attr(&self, ino: Ino) -> Result<InodeAttr> {
        Ok(self.tree.expect_inode_attr(ino)?)
    }

    /// The path of an inode's first link, from the root.
    pub fn inode_path(&self, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.tree.inode_path(ino)?)
    }

    /// How many bytes an inode takes: of a file, those that are no holes.
    pub fn stored_bytes(&self, ino: Ino, attr: &InodeAttr) -> Result<u64> {
        if attr.kind != FileKind::File || attr.inline.is_some() || attr.size == 0 {
            return Ok(attr.size);
        }
        let file = self.get_file(ino)?;
        Ok(file.pieces.iter().filter(|piece| piece.chunk.is_some()).map(|piece| piece.len).sum())
    }

    /// Names in a directory, with what they stand for.
    pub fn list_entries(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>> {
        let entries = self.tree.list_entries(dir)?;
        Ok(entries.into_iter().map(|(name, dentry)| (name, dentry.ino, dentry.kind)).collect())
    }

    /// Target of a symlink.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.inode_attr(ino)?.target)
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let file = self.get_file(ino)?;
        let found = file.inode.xattrs.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).ok_or(Errno::NODATA.into())
    }

    /// Names of the extended attributes.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.get_file(ino)?.inode.xattrs.iter().map(|(name, _)| name.clone()).collect())
    }

    /// Content from `offset` on: `len` bytes, or fewer at the end.
    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.get_file(ino)?;
        let size = file.inode.attr.size;
        let end = offset.saturating_add(len as u64).min(size);
        let mut bytes = Vec::with_capacity(usize::try_from(end.saturating_sub(offset)).unwrap_or(0).min(len));
        if let Some(content) = &file.inode.attr.inline {
            let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
            bytes.extend_from_slice(range.and_then(|(from, to)| content.get(from..to)).unwrap_or_default());
            return Ok(bytes);
        }
        let first = file.pieces.partition_point(|piece| piece.offset + piece.len <= offset);
        for piece in file.pieces.iter().skip(first).take_while(|piece| piece.offset < end) {
            let from = offset.max(piece.offset);
            self.append_piece(ino, piece, from, end.min(piece.offset + piece.len), &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Appends the bytes from `from` to `to` of the file, which lie in `piece`.
    fn append_piece(
        &self,
        ino: Ino,
        piece: &FilePiece,
        from: u64,
        to: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let skip = from - piece.offset;
        let len = to - from;
        match piece.chunk {
            None => bytes.resize(bytes.len() + usize::try_from(len).map_err(|_| Errno::OVERFLOW)?, 0),
            Some((id, at)) => {
                let chunk = self.chunks.get_chunk(ino, id)?;
                let at = u32::try_from(skip).ok().and_then(|skip| at.checked_add(skip));
                bytes.extend_from_slice(slice_chunk(&chunk, id, at.ok_or(Errno::IO)?, len)?);
            }
        }
        Ok(())
    }

    /// The next data or hole from `offset` on.
    pub fn seek_data_or_hole(&self, ino: Ino, offset: u64, data: bool) -> Result<u64> {
        let file = self.get_file(ino)?;
        let size = file.inode.attr.size;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        if file.inode.attr.inline.is_some() {
            return Ok(if data { offset } else { size });
        }
        let mut rest = file.pieces.iter().filter(|piece| piece.offset + piece.len > offset);
        match rest.find(|piece| piece.chunk.is_some() == data) {
            Some(piece) => Ok(piece.offset.max(offset)),
            None if data => Err(Errno::NXIO.into()),
            None => Ok(size),
        }
    }

    fn get_file(&self, ino: Ino) -> Result<Arc<FrozenFile>> {
        self.chunks.files.get_or_insert_with(&(self.tree.map_view().base.0, ino), || {
            let inode = self.tree.read_inode(ino)?;
            let pieces = collect_file_pieces(&inode)?;
            Ok(Arc::new(FrozenFile { inode, pieces }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a mount keeps of all snapshots that were ever looked at must not grow with their number.
    #[test]
    fn a_file_weighs_what_its_pieces_and_attributes_take() {
        let inode = InodeRecord {
            ino: Ino(7),
            attr: InodeAttr::new(FileKind::File, 0o644),
            entries: Vec::new(),
            xattrs: vec![(b"user.key".to_vec(), vec![0; 1000])],
            extents: Vec::new(),
        };
        let piece = FilePiece { offset: 0, len: 1, chunk: None };
        let weigh = |pieces: usize| {
            let file = FrozenFile { inode: inode.clone(), pieces: vec![piece; pieces] };
            FileWeighter.weight(&(BlobId([0; 32]), Ino(7)), &Arc::new(file))
        };
        assert!(weigh(0) > 1000 + size_of::<FrozenFile>() as u64);
        assert_eq!(weigh(5000) - weigh(0), 5000 * size_of::<FilePiece>() as u64);
    }
}

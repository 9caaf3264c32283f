//! A write whose bytes a client of a shared worktree has put into the store: the request names the chunks instead.
//!
//! The kernel knows no such request. It is laid out as the kernel's of a write (`fuse_write_in`), with the chunks in place of the
//! data: their number (u32), and for each its id (32 bytes) and its length (u32). Numbers are little-endian.
//!
//! Invariant: what decodes has at least one chunk, none of them empty or longer than a chunk can be, and together they have
//! as many bytes as the head states. So they neither overlap nor leave a gap.

use vellum_fs::StoredChunk;
use vellum_types::BlobId;
use vellum_types::limits::BLOB_MAX;

use super::fields::{MalformedRequest, RequestFields};

/// Bytes of `fuse_write_in`.
pub const WRITE_HEAD_LEN: usize = 40;
/// Bytes of a chunk in a request.
const CHUNK_LEN: usize = 36;
/// Bytes of the number of chunks.
const COUNT_LEN: usize = 4;
/// Most chunks of a write, a count: a megabyte of the smallest ones, and a request of 36 KiB.
pub const WRITE_CHUNKS_MAX: usize = 1024;

/// The chunks of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredChunks<'a>(&'a [u8]);

impl<'a> StoredChunks<'a> {
    /// Decodes what follows the head of a write of `len` bytes.
    pub(super) fn decode(fields: &mut RequestFields<'a>, len: u32) -> Result<Self, MalformedRequest> {
        let count = fields.read_number::<u32>()? as usize;
        if count == 0 || count > WRITE_CHUNKS_MAX {
            return Err(MalformedRequest::Chunks);
        }
        let chunks = Self(fields.read_bytes(count * CHUNK_LEN)?);
        let is_sound = |chunk: StoredChunk| chunk.len > 0 && chunk.len as usize <= BLOB_MAX;
        if !fields.0.is_empty()
            || !chunks.iter_chunks().all(is_sound)
            || chunks.count_bytes() != u64::from(len)
        {
            return Err(MalformedRequest::Chunks);
        }
        Ok(chunks)
    }

    /// Each chunk, in the order of the file.
    pub fn iter_chunks(self) -> impl Iterator<Item = StoredChunk> + use<'a> {
        let decode_chunk = |bytes: &[u8]| {
            let (id, len) = bytes.split_first_chunk::<{ BlobId::LEN }>()?;
            Some(StoredChunk { id: BlobId(*id), len: u32::from_le_bytes(len.try_into().ok()?) })
        };
        // The list has whole chunks only: it was cut to their number when it was decoded.
        self.0.chunks_exact(CHUNK_LEN).filter_map(decode_chunk)
    }

    /// How many bytes they have together.
    #[must_use]
    pub fn count_bytes(self) -> u64 {
        self.iter_chunks().map(|chunk| u64::from(chunk.len)).sum()
    }
}

/// The body of a write of chunks, by that of the write of their bytes: `head` is its beginning, [`WRITE_HEAD_LEN`] bytes.
#[must_use]
pub fn encode_stored_write(head: &[u8], chunks: &[StoredChunk]) -> Vec<u8> {
    let mut body = Vec::with_capacity(head.len() + COUNT_LEN + chunks.len() * CHUNK_LEN);
    body.extend(head);
    body.extend(u32::try_from(chunks.len()).unwrap_or(u32::MAX).to_le_bytes());
    for StoredChunk { id, len } in chunks {
        body.extend(id.as_bytes());
        body.extend(len.to_le_bytes());
    }
    body
}

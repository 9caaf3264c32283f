//! What a client of a worktree does with large writes: it stores the bytes as chunks, for [`super::StoredWriteTarget`].
//!
//! Invariant: from before the first chunk is looked for until [`ChunkUploader::end_session`], the store has a session of this
//! process, and nothing that was stored or found is collected. Deliberately absent: the worktree, which another process has open.

use std::sync::Arc;

use parking_lot::Mutex;
use rayon::prelude::*;
use vellum_chunker::Chunker;
use vellum_host::parallel::run_parallel;
use vellum_types::BlobKind;
use vellum_volume::{Volume, WriteSession};

use super::StoredChunk;
use crate::error::{FsError, Result};

/// Stores contents as chunks.
pub struct ChunkUploader {
    volume: Arc<Volume>,
    chunker: Chunker,
    /// While something was stored of which nobody has said that it is named.
    session: Mutex<Option<WriteSession>>,
}

impl ChunkUploader {
    /// Stores into the store of a volume. Nothing is asked of it yet.
    #[must_use]
    pub fn new(volume: Arc<Volume>) -> Self {
        let chunker = Chunker::new(volume.config.chunker, &volume.keys.chunker_key());
        Self { volume, chunker, session: Mutex::default() }
    }

    /// Stores contents durably, and gives the chunks of each in their order. What is stored already is not stored again.
    pub fn store_contents(&self, contents: &[&[u8]]) -> Result<Vec<Vec<StoredChunk>>> {
        let mut held = self.session.lock();
        let mut session = match held.take() {
            Some(session) => session,
            None => self.volume.begin_lazy_write_session()?,
        };
        // If it fails the session ends: its writer stores nothing any more.
        session.renew_if_due()?;
        let stored = contents.par_iter().map(|content| self.store_content(&session, content));
        let chunks = run_parallel(|| stored.collect::<Result<Vec<_>>>())?;
        session.flush_blobs()?;
        session.resume_session(&self.volume)?;
        *held = Some(session);
        Ok(chunks)
    }

    /// Ends the session: all that was stored is named by the worktree, or nobody will name it.
    pub fn end_session(&self) -> Result<()> {
        let session = self.session.lock().take();
        session.map_or(Ok(()), |session| Ok(session.end_session()?))
    }

    fn store_content(&self, session: &WriteSession, content: &[u8]) -> Result<Vec<StoredChunk>> {
        let mut chunks = Vec::new();
        let mut rest = content;
        while !rest.is_empty() {
            let end = self.chunker.find_chunk_end(rest, true).unwrap_or(rest.len());
            let uncut = || FsError::BadTree("what was written cannot be cut into chunks".into());
            let (chunk, behind) =
                rest.split_at_checked(end).filter(|(chunk, _)| !chunk.is_empty()).ok_or_else(uncut)?;
            let id = session.put_blob(BlobKind::Chunk, chunk)?;
            chunks.push(StoredChunk { id, len: u32::try_from(chunk.len()).map_err(|_| uncut())? });
            rest = behind;
        }
        Ok(chunks)
    }
}

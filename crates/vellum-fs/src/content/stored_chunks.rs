//! Content whose chunks a client of the worktree has stored: a write names them, and brings no bytes.
//!
//! The collector knows what trees name. So before the first such chunk is named by a layer, the store gets a session for the
//! worktree's unpublished content, and it keeps it until a tree names all of them. A key of the live store says which layer is
//! the newest that names any; it is written by the transaction that names them.
//!
//! Invariant: while a layer names a chunk that no tree is known to have, the store has that session. Deliberately absent:
//! whether a chunk holds as many bytes as its writer says. Whoever has the volume's key could as well publish a tree that says
//! so; readers check each chunk.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use rustix::io::Errno;
use vellum_live::{LiveStore, StoreTransaction};
use vellum_types::limits::BLOB_MAX;
use vellum_types::{BlobId, BlobKind, Extent, ExtentSource, Ino};
use vellum_volume::Volume;

use super::LiveContent;
use super::write::{PendingWrite, WritePosition};
use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::tree::LiveMap;
use crate::tree::head::{LayerId, STORED_CHUNKS_KEY};

/// Bytes by which a stored blob may be longer than what it holds: those of the seal and of its head.
const SEAL_MAX: u64 = 64;

/// A chunk in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredChunk {
    /// Its id.
    pub id: BlobId,
    /// Its bytes, at least 1 and at most [`BLOB_MAX`].
    pub len: u32,
}

/// Where a write of stored chunks goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredWriteTarget {
    /// The file.
    pub ino: Ino,
    /// From where on; None: at its end, wherever that is by then.
    pub offset: Option<u64>,
    /// Whether privileges that the file gives go.
    pub kill_suid: bool,
}

/// The session in the store for chunks that only layers name.
pub(crate) struct UnpublishedChunks {
    volume: Arc<Volume>,
    live: Arc<dyn LiveStore>,
    worktree: String,
    /// Held for reading while chunks are named.
    session: RwLock<HeldSession>,
}

/// What this process knows of that session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldSession {
    /// An earlier process may have left one, which nothing here needs.
    Unneeded,
    /// There is none.
    Absent,
    /// There is one, and the index may have been read before it was put.
    Left,
    /// There is one, and the index was read since.
    IndexRead,
}

impl UnpublishedChunks {
    pub fn new(volume: Arc<Volume>, map: &LiveMap, worktree: &str) -> Self {
        let live = map.live_store().clone();
        Self { volume, live, worktree: worktree.into(), session: RwLock::new(HeldSession::Unneeded) }
    }

    /// Puts the session if an earlier process has left such chunks: a fork or a rename has another name for it. If it has not, the
    /// session may be there all the same: that process may have ended after it put it and before anything was named, or this one
    /// has taken the worktree over from another machine. Without `is_shared` that is looked for when something is published, and
    /// not by whoever waits for the mount.
    pub fn hold_left_chunks(&self, is_shared: bool) -> Result<()> {
        let mut session = self.session.write();
        if self.live.get(STORED_CHUNKS_KEY)?.is_some() {
            self.volume.hold_unpublished(&self.worktree)?;
            *session = HeldSession::Left;
        } else if is_shared {
            self.volume.release_or_leave_unpublished(&self.worktree)?;
            *session = HeldSession::Absent;
        }
        Ok(())
    }

    /// Makes sure that nothing is collected until what this returns is dropped, and afterwards as long as layers name chunks.
    fn begin_naming(&self) -> Result<RwLockReadGuard<'_, HeldSession>> {
        loop {
            let session = self.session.read();
            if *session == HeldSession::IndexRead {
                return Ok(session);
            }
            drop(session);
            let mut session = self.session.write();
            // Another thread may have done it meanwhile.
            if *session != HeldSession::IndexRead {
                self.volume.hold_unpublished(&self.worktree)?;
                *session = HeldSession::Left;
                // In this order, as any writer: what was condemned before the session stood must not be relied on.
                self.volume.blobs.refresh_index()?;
                *session = HeldSession::IndexRead;
            }
        }
    }

    /// Notes that layers were removed, of which `needed` are left. `keeps`: these name chunks that the new tree does not have,
    /// and are older than this one. Part of the transaction that removes the layers.
    pub fn note_published(
        txn: &mut dyn StoreTransaction,
        needed: &BTreeSet<LayerId>,
        keeps: Option<LayerId>,
    ) -> Result<()> {
        let Some(newest) = txn.get(STORED_CHUNKS_KEY)? else { return Ok(()) };
        // A value of another form is none of ours, and counts as one that all layers may have.
        let newest = <[u8; 8]>::try_from(&newest[..]).map_or(u64::MAX, u64::from_be_bytes);
        match keeps {
            Some(layer) => {
                let newest = newest.max(layer.0);
                txn.set_key(STORED_CHUNKS_KEY, newest.to_be_bytes().as_slice().into());
            }
            None if needed.iter().all(|layer| layer.0 > newest) => txn.delete_key(STORED_CHUNKS_KEY),
            None => {}
        }
        Ok(())
    }

    /// Removes the session if no layer names such chunks any more. To be called after that is confirmed.
    pub fn release_unneeded(&self) -> Result<()> {
        if *self.session.read() == HeldSession::Absent {
            return Ok(());
        }
        // Whoever names chunks now holds it for reading, and has written the key before it lets go.
        let mut session = self.session.write();
        if *session != HeldSession::Absent && self.live.get(STORED_CHUNKS_KEY)?.is_none() {
            match self.volume.release_or_leave_unpublished(&self.worktree) {
                Ok(()) => *session = HeldSession::Absent,
                // Most likely there is none: nobody's publishing fails because of it. The next one looks again.
                Err(error) if *session == HeldSession::Unneeded => {
                    tracing::debug!(%error, "it is not known whether a session for unpublished content is left");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Whether layers of a live state that nobody has open name chunks that clients have stored, and that no tree is known to have.
pub fn names_stored_chunks(live: &dyn LiveStore) -> Result<bool> {
    Ok(live.get(STORED_CHUNKS_KEY)?.is_some())
}

impl LiveFilesystem {
    /// Whether layers name chunks that clients have stored, and that no tree is known to have.
    pub fn names_stored_chunks(&self) -> Result<bool> {
        names_stored_chunks(&**self.live_map().live_store())
    }
}

impl LiveContent {
    /// Writes what chunks in the store hold, in their order; gives how many bytes were written, which is fewer only at the
    /// largest size. Fails with `ENODATA` if the store does not have one of them: then the bytes are to be written.
    pub fn write_stored(&self, target: StoredWriteTarget, chunks: &[StoredChunk]) -> Result<usize> {
        let StoredWriteTarget { ino, offset, kill_suid } = target;
        let place = offset.map_or(WritePosition::End, WritePosition::At);
        let len = chunks.iter().map(|chunk| u64::from(chunk.len)).sum::<u64>();
        let write = PendingWrite::new(ino, place, usize::try_from(len).map_err(|_| Errno::FBIG)?, kill_suid);
        if chunks.iter().any(|chunk| chunk.len == 0 || chunk.len as usize > BLOB_MAX) {
            return Err(Errno::INVAL.into());
        }
        let extent = |chunk: &StoredChunk| {
            let source = ExtentSource::Chunk { id: chunk.id, skip: 0 };
            Extent { len: u64::from(chunk.len), source }
        };
        let extents: Vec<Extent> = chunks.iter().map(extent).collect();
        // To the end: nothing may be collected between the look and the commit.
        let held = self.unpublished.begin_naming()?;
        let name_extents = || {
            self.map.apply_change(|txn| {
                txn.note_stored_chunks();
                write.write_extents(self, txn, &extents)
            })
        };
        let written = self.check_stored(chunks).and_then(|()| name_extents());
        drop(held);
        if written.is_err() {
            // If this fails, too, the next publishing tries again.
            let _ = self.unpublished.release_unneeded();
        }
        written
    }

    fn check_stored(&self, chunks: &[StoredChunk]) -> Result<()> {
        let blobs = &self.volume.blobs;
        let is_stored = |chunk: &StoredChunk| {
            // What is only in packs that are about to go does not count.
            let place = blobs.contains(&chunk.id).then(|| blobs.locate_blob(&chunk.id)).flatten();
            place.is_some_and(|place| {
                place.kind == BlobKind::Chunk && u64::from(place.len) <= u64::from(chunk.len) + SEAL_MAX
            })
        };
        if chunks.iter().all(is_stored) {
            return Ok(());
        }
        // A client has told the index of them a moment ago.
        blobs.refresh_index()?;
        if chunks.iter().all(is_stored) { Ok(()) } else { Err(Errno::NODATA.into()) }
    }

    /// The session in the store for chunks that only layers name.
    pub(crate) fn unpublished_chunks(&self) -> &UnpublishedChunks {
        &self.unpublished
    }
}

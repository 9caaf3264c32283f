//! Writes blobs: each content once, packed with others, durable when `finish` returns.
//!
//! Invariant: blobs that `finish` acknowledges are in durable packs, and in an index object that became durable after
//! them. The first failure stops the writer: it acknowledges nothing afterwards. Memory is bounded: one open pack per
//! kind, two being uploaded, and the ids since the last index object.

mod index_reading;
mod pending;
mod similar;
mod stats;
mod upload;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use vellum_types::limits::BLOB_MAX;
use vellum_types::{BlobId, BlobKind, ErrorKind, PackId};

use self::index_reading::IndexReading;
use self::pending::{PendingBlobs, PendingLocation};
use self::similar::{BlobEnds, SimilarBlobs};
pub use self::stats::WriteStats;
use self::stats::WriterCounters;
use self::upload::{UploadJob, UploadQueue};
use super::body::{BasePlace, BlobBodyFault, NewDifference, OpenedBody};
use super::reliance::{PackReliance, StoredCopy};
use super::{BlobError, BlobStore, body};
use crate::index::{BlobLocation, CommitFailure, IndexAddition};
use crate::object::ObjectKey;
use crate::pack::{PackBuilder, PackEntry, pack_key};

thread_local! {
    // Where a blob is sealed before it is copied into its pack: one buffer per thread, reused.
    static SEALED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// State that the uploading threads share with the writer.
pub(super) struct BlobWriterShared {
    pub(super) store: BlobStore,
    pending: PendingBlobs,
    failed: OnceLock<Arc<BlobError>>,
    stats: WriterCounters,
    uploaded: Mutex<Vec<(BlobId, BlobLocation)>>,
}

/// Nobody knows packs that no index names. What filled the store up must not stay there: it would be put once more by
/// the next attempt.
impl Drop for BlobWriterShared {
    fn drop(&mut self) {
        if self.failed.get().is_none_or(|error| error.kind() != ErrorKind::NoSpace) {
            return;
        }
        let uploaded = self.uploaded.get_mut();
        let packs: HashSet<PackId> = uploaded.drain(..).map(|(_, place)| place.pack).collect();
        for pack in packs {
            // What cannot be deleted is garbage, as it was.
            let _ = self.store.inner.objects.delete_object(&pack_key(&pack));
        }
    }
}

/// One blob of each pack.
fn select_packs(blobs: &[(BlobId, BlobLocation)]) -> HashMap<PackId, (BlobId, BlobLocation)> {
    blobs.iter().map(|blob| (blob.1.pack, *blob)).collect()
}

/// The pack of one kind that is being filled.
struct OpenPack {
    number: u32,
    builder: PackBuilder,
    similar: SimilarBlobs,
}

impl OpenPack {
    fn new(number: u32, kind: BlobKind) -> Self {
        Self { number, builder: PackBuilder::new(kind), similar: SimilarBlobs::default() }
    }
}

/// A blob of an open pack that another can be stored as a difference to.
struct OpenBase {
    number: u32,
    place: BasePlace,
    plaintext: Vec<u8>,
}

/// Writes blobs; used by any number of threads at once.
pub struct BlobWriter {
    pub(super) shared: Arc<BlobWriterShared>,
    chunks: Mutex<OpenPack>,
    nodes: Mutex<OpenPack>,
    uploads: UploadQueue,
    index_reading: IndexReading,
    pub(super) packs: PackReliance,
    /// Blobs that are stored again, with the packs in which their copies are lost.
    renewed: Mutex<Vec<(BlobId, PackId)>>,
}

impl BlobWriterShared {
    /// Remembers a failed commit. Packs that no index object names go when the writer does, if there was no space.
    fn record_failed_commit(
        &self,
        failure: CommitFailure,
        packs: HashMap<PackId, (BlobId, BlobLocation)>,
    ) -> BlobError {
        if !failure.may_be_named {
            self.uploaded.lock().extend(packs.into_values());
        }
        self.record_failure(failure.error)
    }

    /// Remembers the first failure; returns the error for the caller of the failed call.
    fn record_failure(&self, error: BlobError) -> BlobError {
        // Of failures that race, the first one stays: the others are mostly its consequences.
        let _ = self.failed.set(Arc::new(error));
        // It was set at the latest just now, so that the check always fails; the other error is never returned.
        self.check_failure().err().unwrap_or(BlobError::Unsettled)
    }

    fn check_failure(&self) -> Result<(), BlobError> {
        self.failed.get().map_or(Ok(()), |error| Err(BlobError::Stopped(error.clone())))
    }
}

impl BlobWriter {
    /// For a caller who has read the index.
    pub(super) fn new(store: BlobStore) -> Self {
        Self::with_index_reading(store, IndexReading::done())
    }

    /// Reads the index when it needs it.
    pub(super) fn new_lazy(store: BlobStore) -> Self {
        Self::with_index_reading(store, IndexReading::deferred())
    }

    fn with_index_reading(store: BlobStore, index_reading: IndexReading) -> Self {
        let shared = Arc::new(BlobWriterShared {
            store,
            pending: PendingBlobs::default(),
            failed: OnceLock::new(),
            stats: WriterCounters::default(),
            uploaded: Mutex::default(),
        });
        let uploads = UploadQueue::new(shared.clone());
        let open = |kind| Mutex::new(OpenPack::new(uploads.next_pack_number(), kind));
        let chunks = open(BlobKind::Chunk);
        let nodes = open(BlobKind::Node);
        let packs = PackReliance::default();
        Self { shared, chunks, nodes, uploads, index_reading, packs, renewed: Mutex::default() }
    }

    /// Stores a content, unless it is stored already, and returns its id.
    pub fn put_blob(&self, kind: BlobKind, plaintext: &[u8]) -> Result<BlobId, BlobError> {
        let id = self.shared.store.inner.keys.compute_blob_id(kind, plaintext);
        self.put_blob_with_id(kind, &id, plaintext)?;
        Ok(id)
    }

    /// Like [`Self::put_blob`], for a caller who knows the id. A wrong id makes a blob that cannot be read.
    pub fn put_blob_with_id(&self, kind: BlobKind, id: &BlobId, plaintext: &[u8]) -> Result<(), BlobError> {
        self.shared.check_failure()?;
        if plaintext.len() > BLOB_MAX {
            return Err(BlobError::TooLarge(plaintext.len()));
        }
        let stats = &self.shared.stats;
        let stored = self.find_reliable_copy(kind, id, plaintext.len());
        let StoredCopy::Lost(lost) = stored.map_err(|error| self.shared.record_failure(error))? else {
            stats.count_duplicate(plaintext.len());
            return Ok(());
        };
        // Of several threads that have the same content at once, one claims it. The others return before it is
        // durable, which is sound because `finish` acknowledges all or nothing.
        if !self.shared.pending.claim_blob(id) {
            stats.count_duplicate(plaintext.len());
            return Ok(());
        }
        if !lost.is_empty() {
            stats.count_renewed_blob();
            let mut renewed = self.renewed.lock();
            renewed.extend(lost.into_iter().map(|pack| (*id, pack)));
        }
        self.seal_and_append_blob(kind, id, plaintext)
    }

    /// A copy that need not be stored again, as far as this writer knows the index.
    fn find_reliable_copy(&self, kind: BlobKind, id: &BlobId, len: usize) -> Result<StoredCopy, BlobError> {
        let store = &self.shared.store;
        match self.index_reading.may_store_unasked(store, id, len)? {
            true => Ok(StoredCopy::Lost(Vec::new())),
            false => store.find_reliable_copy(kind, id, &self.packs),
        }
    }

    /// Stores the sealed bytes of a blob from another pack unchanged, wherever else it may be.
    pub(super) fn copy_blob(
        &self,
        kind: BlobKind,
        id: &BlobId,
        plaintext: &[u8],
        sealed: &[u8],
    ) -> Result<(), BlobError> {
        self.shared.check_failure()?;
        if !self.shared.pending.claim_blob(id) {
            return Ok(());
        }
        self.shared.stats.count_new_blob(sealed.len(), sealed.len());
        self.append_whole_blob(kind, id, BlobEnds::from_plaintext(plaintext), sealed)
    }

    /// Stores a blob from another pack, wherever else it may be.
    pub(super) fn store_blob_again(
        &self,
        kind: BlobKind,
        id: &BlobId,
        plaintext: &[u8],
    ) -> Result<(), BlobError> {
        self.shared.check_failure()?;
        if !self.shared.pending.claim_blob(id) {
            return Ok(());
        }
        self.seal_and_append_blob(kind, id, plaintext)
    }

    /// Stores a claimed blob: as a difference to one of the open pack, if there is one that it resembles.
    fn seal_and_append_blob(&self, kind: BlobKind, id: &BlobId, plaintext: &[u8]) -> Result<(), BlobError> {
        let inner = &self.shared.store.inner;
        let stats = &self.shared.stats;
        let keys = &inner.keys;
        let level = inner.level.load(Ordering::Relaxed);
        let ends =
            if kind == BlobKind::Chunk && level != 0 { BlobEnds::from_plaintext(plaintext) } else { None };
        SEALED.with_borrow_mut(|sealed| {
            sealed.clear();
            if let Some(base) = ends.and_then(|ends| self.open_base(kind, id, &ends)) {
                let difference =
                    NewDifference { kind, id, plaintext, base: &base.place, base_plaintext: &base.plaintext };
                if let Some(body_len) = difference.seal_difference(keys, level, sealed)
                    && self.append_difference(kind, id, base.number, sealed)?
                {
                    stats.count_new_blob(plaintext.len(), body_len);
                    return Ok(());
                }
                // The difference may be in the buffer already, if the pack of its base was closed while it was made.
                sealed.clear();
            }
            let body_len = body::seal_blob(keys, level, kind, id, plaintext, sealed);
            stats.count_new_blob(plaintext.len(), body_len);
            self.append_whole_blob(kind, id, ends, sealed)
        })
    }

    /// A blob of the open pack that resembles this one. It is opened outside of the lock.
    fn open_base(&self, kind: BlobKind, id: &BlobId, ends: &BlobEnds) -> Option<OpenBase> {
        let open = self.lock_open_pack(kind);
        let number = open.number;
        let place = open.similar.find_base(ends, id)?;
        let sealed = place.slice_base(open.builder.as_bytes())?.to_vec();
        drop(open);
        match body::open_blob(&self.shared.store.inner.keys, kind, &place.id, &sealed) {
            Ok(OpenedBody::Content(plaintext)) => Some(OpenBase { number, place, plaintext }),
            // The base is a hint: without it the blob is stored whole.
            _ => None,
        }
    }

    fn append_whole_blob(
        &self,
        kind: BlobKind,
        id: &BlobId,
        ends: Option<BlobEnds>,
        sealed: &[u8],
    ) -> Result<(), BlobError> {
        let mut open = self.lock_open_pack(kind);
        let entry = open.builder.append_blob(*id, sealed);
        if let Some(ends) = ends {
            open.similar.add_blob(&ends, &entry);
        }
        self.close_if_full(open, id, entry)
    }

    /// Returns false, and appends nothing, if the pack of the base was closed meanwhile.
    fn append_difference(
        &self,
        kind: BlobKind,
        id: &BlobId,
        number: u32,
        sealed: &[u8],
    ) -> Result<bool, BlobError> {
        let mut open = self.lock_open_pack(kind);
        // The pack of the base is closed, and a difference must be in the same pack.
        if open.number != number {
            return Ok(false);
        }
        let entry = open.builder.append_blob(*id, sealed);
        self.close_if_full(open, id, entry).map(|()| true)
    }

    fn close_if_full(
        &self,
        mut open: MutexGuard<'_, OpenPack>,
        id: &BlobId,
        entry: PackEntry,
    ) -> Result<(), BlobError> {
        self.shared.pending.set_location(id, PendingLocation { number: open.number, entry });
        if !open.builder.is_full(self.shared.store.inner.options.pack_size) {
            return Ok(());
        }
        let next = OpenPack::new(self.uploads.next_pack_number(), entry.kind);
        let full = std::mem::replace(&mut *open, next);
        // The lock is held while this waits for an upload to end: that is what bounds the memory.
        self.uploads.submit_pack(UploadJob { number: full.number, builder: full.builder })
    }

    /// Stores what a pack of another store holds, all of it.
    pub(super) fn copy_pack(&self, builder: PackBuilder) -> Result<(), BlobError> {
        self.shared.check_failure()?;
        self.uploads.submit_pack(UploadJob { number: self.uploads.next_pack_number(), builder })
    }

    fn lock_open_pack(&self, kind: BlobKind) -> MutexGuard<'_, OpenPack> {
        let open = match kind {
            BlobKind::Chunk => &self.chunks,
            BlobKind::Node => &self.nodes,
        };
        open.lock()
    }

    /// A blob's content, also of one that this writer was given and has not finished.
    pub fn read_blob(&self, kind: BlobKind, id: &BlobId) -> Result<Vec<u8>, BlobError> {
        let store = &self.shared.store;
        loop {
            let Some(claim) = self.shared.pending.get(id) else { return store.read_blob(kind, id) };
            let Some(spot) = claim else {
                // Another thread is sealing it at this moment.
                self.shared.check_failure()?;
                std::thread::yield_now();
                continue;
            };
            if let Some(sealed) = self.find_sealed_bytes(kind, &spot) {
                // A pack has no name before it is complete, but the error needs one.
                let pack = PackId([0; PackId::LEN]);
                let damaged = |fault| BlobError::Damaged { kind, id: *id, pack, fault };
                let keys = &store.inner.keys;
                match body::open_blob(keys, kind, id, &sealed).map_err(damaged)? {
                    OpenedBody::Content(plaintext) => return Ok(plaintext),
                    OpenedBody::Difference(difference) => {
                        let BasePlace { id: base, offset, len } = difference.base;
                        let entry = PackEntry { id: base, kind, offset, len };
                        let base =
                            self.find_sealed_bytes(kind, &PendingLocation { number: spot.number, entry });
                        // Without its base it has left memory between the two looks.
                        if let Some(base) = base {
                            return OpenedBody::Difference(difference)
                                .resolve_plaintext(keys, kind, id, |_| Ok::<_, BlobBodyFault>(base))
                                .map_err(damaged);
                        }
                    }
                }
            }
            if let Some(pack) = self.uploads.find_uploaded_pack(spot.number) {
                return store.read_blob_at(kind, id, &BlobLocation::from_pack_entry(pack, &spot.entry));
            }
            // It moved on, from open to under way or to uploaded, between the two looks.
            self.shared.check_failure()?;
            std::thread::yield_now();
        }
    }

    fn find_sealed_bytes(&self, kind: BlobKind, spot: &PendingLocation) -> Option<Vec<u8>> {
        let range = spot.entry.offset as usize..(spot.entry.offset + spot.entry.len) as usize;
        let open = self.lock_open_pack(kind);
        if open.number == spot.number {
            return open.builder.as_bytes().get(range).map(<[u8]>::to_vec);
        }
        drop(open);
        self.uploads.find_pending_pack(spot.number)?.get(range).map(<[u8]>::to_vec)
    }

    /// Makes everything durable: packs first, then the index.
    pub fn finish(self) -> Result<WriteStats, BlobError> {
        self.finish_with_objects(&[])
    }

    /// Like [`Self::finish`], and puts more objects after the index, behind the same barrier: a snapshot
    /// record that speaks of the blobs costs no wait of its own.
    pub fn finish_with_objects(self, after: &[(ObjectKey, &[u8])]) -> Result<WriteStats, BlobError> {
        let Self { shared, chunks, nodes, mut uploads, renewed, .. } = self;
        // Uploads first: their packs must be durable before an index object names them, and a failed one ends the
        // writer here.
        uploads.join_uploads();
        shared.check_failure()?;
        let inner = &shared.store.inner;
        let open = [chunks, nodes].map(|open| open.into_inner().builder);
        let built: Vec<_> = open
            .into_iter()
            .filter(|b| !b.is_empty())
            .map(|builder| builder.build_pack(&inner.keys))
            .collect();
        // If the commit fails, what no index object can name is put back.
        let mut blobs = std::mem::take(&mut *shared.uploaded.lock());
        for pack in &built {
            shared.stats.count_pack(pack.bytes.len());
            blobs.extend(
                pack.entries.iter().map(|entry| (entry.id, BlobLocation::from_pack_entry(pack.id, entry))),
            );
        }
        let renewed = renewed.into_inner();
        let again: HashSet<BlobId> = renewed.iter().map(|(id, _)| *id).collect();
        let found: Vec<_> = blobs.iter().filter(|(id, _)| again.contains(id)).copied().collect();
        let packs = select_packs(&blobs);
        let before = built.iter().map(|pack| (pack_key(&pack.id), pack.bytes.as_slice())).collect();
        let addition = IndexAddition { blobs, before, after: after.to_vec(), ..IndexAddition::default() };
        let index_bytes = inner
            .index
            .commit_addition(addition)
            .map_err(|failure| shared.record_failed_commit(failure, packs))?;
        shared.stats.count_index(index_bytes);
        if !renewed.is_empty() {
            inner.lost.record_stored(&again);
            // The new copies are durable and found. Where the lost ones cannot be forgotten now, reading tries them
            // first and goes on to the new ones.
            let _ = inner.index.drop_lost_copies(&renewed.into_iter().collect(), found);
        }
        Ok(shared.stats.read_stats())
    }
}

//! Blobs: pieces of content put once, found by id, read back checked.
//!
//! Invariant: `read` returns the bytes whose id was requested, or an error that names the blob. A remembered location
//! is a hint: if it is wrong, the index is read again before the read fails. Deliberately absent: the meaning of
//! chunks and nodes.

pub mod body;
mod error;
mod fetch;
mod gc;
mod reliance;
mod residence;
mod source;
mod transfer;
mod verify;
mod writer;

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use vellum_crypto::VolumeKeys;
use vellum_types::{BlobId, BlobKind, PackId};

use self::body::{BasePlace, BlobBodyFault, OpenedBody};
pub use self::error::BlobError;
pub use self::fetch::FetchedBlobs;
pub use self::gc::PackInfo;
pub use self::source::{BlobSource, HeldBlob};
pub use self::transfer::PackCopyOutcome;
pub use self::verify::RebuildStats;
pub use self::writer::{BlobWriter, WriteStats};
use crate::index::{BlobIndex, BlobLocation};
use crate::object::{FetchPolicy, FetchPolicyScope, ObjectStore};
use crate::pack::pack_key;

/// How blobs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobOptions {
    /// zstd level, 1 to 19; 0 stores everything raw.
    pub level: i32,
    /// Bytes at which a pack is closed.
    pub pack_size: usize,
}

impl BlobOptions {
    /// Smallest useful pack, bytes: below it requests cost more than transfer.
    const PACK_SIZE_MIN: usize = 64 << 10;
    /// Largest pack written, bytes: two are open and two under way at once.
    const PACK_SIZE_MAX: usize = 64 << 20;
    /// Highest zstd level: those above need windows larger than any blob.
    const LEVEL_MAX: i32 = 19;

    fn clamp_values(self) -> Self {
        Self {
            level: self.level.clamp(0, Self::LEVEL_MAX),
            pack_size: self.pack_size.clamp(Self::PACK_SIZE_MIN, Self::PACK_SIZE_MAX),
        }
    }
}

impl Default for BlobOptions {
    fn default() -> Self {
        Self { level: 3, pack_size: 16 << 20 }
    }
}

struct BlobStoreInner {
    objects: Arc<dyn ObjectStore>,
    keys: Arc<VolumeKeys>,
    index: BlobIndex,
    options: BlobOptions,
    /// The level of zstd at present.
    level: AtomicI32,
    lost: reliance::LostCopies,
    observer: OnceLock<Box<UnreadableObserver>>,
    source: OnceLock<source::AttachedSource>,
}

/// A blob that is in the index and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableBlob {
    /// What it is.
    pub kind: BlobKind,
    /// Its id, and that of the blob that it is stored as a difference to, if that one is what is damaged.
    pub blobs: Vec<BlobId>,
    /// The packs that have its copies.
    pub packs: Vec<PackId>,
}

type UnreadableObserver = dyn Fn(&UnreadableBlob) + Send + Sync;

/// The blobs of one volume. Cheap to clone; all clones are one store.
#[derive(Clone)]
pub struct BlobStore {
    inner: Arc<BlobStoreInner>,
}

impl BlobStore {
    /// Opens the blobs in `objects`; `local` is the folder for the local copy of the index, made if missing.
    /// Reads no packs.
    pub fn open(
        objects: Arc<dyn ObjectStore>,
        keys: Arc<VolumeKeys>,
        local: &Path,
        options: BlobOptions,
    ) -> Result<Self, BlobError> {
        let index = BlobIndex::open(objects.clone(), keys.clone(), local)?;
        let options = options.clamp_values();
        Ok(Self {
            inner: Arc::new(BlobStoreInner {
                objects,
                keys,
                index,
                level: AtomicI32::new(options.level),
                options,
                lost: reliance::LostCopies::default(),
                observer: OnceLock::new(),
                source: OnceLock::new(),
            }),
        })
    }

    /// Sets the level of zstd with which blobs are stored from now on; 0: nothing is compressed.
    pub fn set_compression_level(&self, level: i32) {
        // Nothing else depends on the level: a blob that is being stored meanwhile may have either.
        self.inner.level.store(level.clamp(0, BlobOptions::LEVEL_MAX), Ordering::Relaxed);
    }

    /// The store beneath.
    #[must_use]
    pub fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.inner.objects
    }

    /// Takes notice of blobs that others added and of packs that are gone.
    pub fn refresh_index(&self) -> Result<(), BlobError> {
        self.inner.index.refresh_view()
    }

    /// Whether the blob is stored, and may be relied on instead of storing it again: a blob that is only in
    /// condemned packs does not count.
    #[must_use]
    pub fn contains(&self, id: &BlobId) -> bool {
        self.inner.index.current_view().find_live_copy(id).is_some()
    }

    /// Where the blob is, as far as the index knows; also in a condemned pack.
    #[must_use]
    pub fn locate_blob(&self, id: &BlobId) -> Option<BlobLocation> {
        let view = self.inner.index.current_view();
        view.find_live_copy(id).or_else(|| view.find_all_copies(id).first().copied())
    }

    /// As [`Self::locate_blob`], but a place in a pack that is `present` comes before all others.
    #[must_use]
    pub fn locate_in_present(&self, id: &BlobId, present: impl Fn(&PackId) -> bool) -> Option<BlobLocation> {
        let view = self.inner.index.current_view();
        if let Some(place) = view.find_live_copy(id).filter(|place| present(&place.pack)) {
            return Some(place);
        }
        let places = view.find_all_copies(id);
        places.iter().find(|place| present(&place.pack)).or(places.first()).copied()
    }

    /// Calls `observer` from now on with each blob that is in the index and cannot be read. Only the first observer of a
    /// store is called.
    pub fn set_unreadable_observer(&self, observer: impl Fn(&UnreadableBlob) + Send + Sync + 'static) {
        let _ = self.inner.observer.set(Box::new(observer));
    }

    /// The blob's content, checked. What the store does not have is read from its source, if it has one.
    pub fn read_blob(&self, kind: BlobKind, id: &BlobId) -> Result<Vec<u8>, BlobError> {
        let _policy = exempt_nodes(kind);
        if self.has_source() { self.read_here_or_there(kind, id) } else { self.read_own_blob(kind, id) }
    }

    /// A blob of this very store.
    fn read_own_blob(&self, kind: BlobKind, id: &BlobId) -> Result<Vec<u8>, BlobError> {
        let mut last = None;
        let mut unreadable = Vec::new();
        let mut blobs = vec![*id];
        // First with what is known, then after reading the index again, then after checking the local copy of the
        // index.
        for attempt in [ReadAttempt::First, ReadAttempt::Refreshed, ReadAttempt::Healed] {
            if !self.prepare_attempt(attempt)? {
                continue;
            }
            for place in self.inner.index.current_view().find_all_copies(id) {
                // The kind is part of the id and of the seal: at a place of the other kind there are no bytes
                // that would open as this blob.
                if place.kind != kind {
                    continue;
                }
                match self.try_read_at(kind, id, &place) {
                    Ok(plaintext) => return Ok(plaintext),
                    // The store did not answer, so it is not known whether the blob is intact.
                    Err(UnreadableCopy { error: BlobError::Store(error), .. }) => return Err(error.into()),
                    Err(UnreadableCopy { error, base }) => {
                        // Perhaps the store has it as it was written, and only the answer was wrong. The next attempt
                        // asks the store and not the local copy. Once, since true damage stays what it is.
                        if attempt == ReadAttempt::First && matches!(error, BlobError::Damaged { .. }) {
                            self.drop_copies_of(&place, base.as_deref());
                        }
                        last = Some(error);
                        unreadable.push(place);
                        blobs.extend(base.map(|base| base.id));
                    }
                }
            }
        }
        // A writer that comes to this content, or to other blobs of the pack, stores it again.
        unreadable.iter().for_each(|place| self.inner.lost.record_unreadable(place));
        // What a collection took meanwhile is not in the index any more, and is no damage.
        if let Some(observer) = self.inner.observer.get()
            && !unreadable.is_empty()
            && self.contains(id)
        {
            let packs = unreadable.iter().map(|place| place.pack).collect();
            observer(&UnreadableBlob { kind, blobs, packs });
        }
        Err(last.unwrap_or(BlobError::NotFound { kind, id: *id }))
    }

    /// Drops the local copies of a blob's bytes, or of those of its base, if that is what is damaged.
    fn drop_copies_of(&self, place: &BlobLocation, base: Option<&BasePlace>) {
        let offset = base.map_or(place.offset, |base| base.offset);
        let len = base.map_or(place.len, |base| base.len);
        self.inner.objects.drop_local_copies(&pack_key(&place.pack), offset.into(), len.into());
    }

    /// Whether the attempt is worth making.
    fn prepare_attempt(&self, attempt: ReadAttempt) -> Result<bool, BlobError> {
        match attempt {
            ReadAttempt::First => Ok(true),
            ReadAttempt::Refreshed => self.inner.index.refresh_view().map(|()| true),
            ReadAttempt::Healed => self.inner.index.repair_local_runs(),
        }
    }

    /// Reads at one place. [`BlobError::Store`] means that the store did not answer; other places may be tried
    /// after any other error.
    fn read_blob_at(&self, kind: BlobKind, id: &BlobId, place: &BlobLocation) -> Result<Vec<u8>, BlobError> {
        self.try_read_at(kind, id, place).map_err(|copy| copy.error)
    }

    fn try_read_at(
        &self,
        kind: BlobKind,
        id: &BlobId,
        place: &BlobLocation,
    ) -> Result<Vec<u8>, UnreadableCopy> {
        let BlobLocation { pack, offset, len, .. } = *place;
        let damaged = |fault| BlobError::Damaged { kind, id: *id, pack, fault };
        let get = |offset: u32, len: u32| {
            let sealed = self.inner.objects.get_range(&pack_key(&pack), offset.into(), len.into());
            sealed.map_err(|error| match error {
                // A collection may have deleted the pack since the index was read. The next attempt reads the index
                // again.
                crate::StoreError::NotFound { .. } => BlobError::Missing { kind, id: *id, pack },
                // The pack ends before the blob does, so this copy was cut off. Another one may be whole.
                crate::StoreError::Length { .. } => damaged(vellum_types::DecodeError::Truncated.into()),
                other => other.into(),
            })
        };
        let keys = &self.inner.keys;
        let alone = |error| UnreadableCopy { error, base: None };
        let sealed = get(offset, len).map_err(alone)?;
        let difference =
            match body::open_blob(keys, kind, id, &sealed).map_err(|fault| alone(damaged(fault)))? {
                OpenedBody::Content(plaintext) => return Ok(plaintext),
                OpenedBody::Difference(difference) => difference,
            };
        // The difference itself is intact: what fails from here on is the base's fault.
        let base = difference.base;
        let with_base = |error| UnreadableCopy { error, base: Some(Box::new(base)) };
        // The base stands in the same pack, where the difference says. The index is not asked: it may name
        // another copy.
        let sealed = get(difference.base.offset, difference.base.len).map_err(with_base)?;
        OpenedBody::Difference(difference)
            .resolve_plaintext(keys, kind, id, |_| Ok::<_, BlobBodyFault>(sealed))
            .map_err(|fault| with_base(damaged(fault)))
    }

    /// A new writer, which relies on what the index says now. Writers are independent: one does not see what another has not
    /// finished.
    #[must_use]
    pub fn create_writer(&self) -> BlobWriter {
        BlobWriter::new(self.clone())
    }

    /// A new writer that reads the index before it relies on a stored copy for the first time, or when it was given much that
    /// is not known. A writer of little that is new spares a request.
    #[must_use]
    pub fn create_lazy_writer(&self) -> BlobWriter {
        BlobWriter::new_lazy(self.clone())
    }
}

/// Nodes are fetched for everybody, and stay as long: policies are about content.
fn exempt_nodes(kind: BlobKind) -> Option<FetchPolicyScope> {
    match kind {
        BlobKind::Node => Some(FetchPolicy::Ordinary.enter()),
        BlobKind::Chunk => None,
    }
}

/// A copy of a blob that cannot be read.
struct UnreadableCopy {
    error: BlobError,
    /// The blob that it is a difference to, if that is what cannot be read. In a box, as errors are small.
    base: Option<Box<BasePlace>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadAttempt {
    First,
    Refreshed,
    Healed,
}

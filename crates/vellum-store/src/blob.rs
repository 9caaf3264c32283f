//! Blobs: pieces of content put once, found by id, read back checked.
//!
//! Invariant: `read` returns the bytes whose id was asked for, or an error that names the blob. A remembered place
//! is a hint: when it proves wrong, the index is read again before the blob is given up. Deliberately absent: what
//! chunks and nodes mean.

pub mod body;
mod error;
mod fetch;
mod gc;
mod reliance;
mod verify;
mod writer;

use std::path::Path;
use std::sync::Arc;

use vellum_crypto::VolumeKeys;
use vellum_types::{BlobId, BlobKind, PackId};

use self::body::{BlobBodyFault, OpenedBody};
pub use self::error::BlobError;
pub use self::fetch::FetchedBlobs;
pub use self::gc::{PackInfo, RepackStats};
pub use self::verify::RebuildStats;
pub use self::writer::{BlobWriter, WriteStats};
use crate::index::{BlobIndex, BlobLocation};
use crate::object::ObjectStore;
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

    fn clamped(self) -> Self {
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
    lost: reliance::LostCopies,
}

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
        Ok(Self {
            inner: Arc::new(BlobStoreInner {
                objects,
                keys,
                index,
                options: options.clamped(),
                lost: reliance::LostCopies::default(),
            }),
        })
    }

    /// The store beneath.
    #[must_use]
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.inner.objects
    }

    /// The volume's keys.
    #[must_use]
    pub fn keys(&self) -> &Arc<VolumeKeys> {
        &self.inner.keys
    }

    /// Takes notice of blobs that others added and of packs that are gone.
    pub fn refresh(&self) -> Result<(), BlobError> {
        self.inner.index.refresh()
    }

    /// Whether the blob is stored, and may be relied on instead of storing it again: a blob that is only in
    /// condemned packs does not count.
    #[must_use]
    pub fn contains(&self, id: &BlobId) -> bool {
        self.inner.index.view().find_live(id).is_some()
    }

    /// Where the blob is, as far as the index knows; also in a condemned pack.
    #[must_use]
    pub fn locate(&self, id: &BlobId) -> Option<BlobLocation> {
        let view = self.inner.index.view();
        view.find_live(id).or_else(|| view.find_all(id).first().copied())
    }

    /// As [`Self::locate`], but a place in a pack that is `present` comes before all others.
    #[must_use]
    pub fn locate_present(&self, id: &BlobId, present: impl Fn(&PackId) -> bool) -> Option<BlobLocation> {
        let view = self.inner.index.view();
        if let Some(place) = view.find_live(id).filter(|place| present(&place.pack)) {
            return Some(place);
        }
        let places = view.find_all(id);
        places.iter().find(|place| present(&place.pack)).or(places.first()).copied()
    }

    /// The blob's content, checked.
    pub fn read(&self, kind: BlobKind, id: &BlobId) -> Result<Vec<u8>, BlobError> {
        let (mut last, mut unreadable) = (None, Vec::new());
        for attempt in [ReadAttempt::First, ReadAttempt::Refreshed, ReadAttempt::Healed] {
            if !self.prepare(attempt)? {
                continue;
            }
            for place in self.inner.index.view().find_all(id) {
                if place.kind != kind {
                    continue;
                }
                match self.read_at(kind, id, &place) {
                    Ok(plaintext) => return Ok(plaintext),
                    Err(BlobError::Store(error)) => return Err(error.into()),
                    Err(error) => {
                        last = Some(error);
                        unreadable.push(place);
                    }
                }
            }
        }
        // Whoever comes to write this content, or what stood beside it, stores it again.
        unreadable.iter().for_each(|place| self.inner.lost.note_unreadable(place));
        Err(last.unwrap_or(BlobError::NotFound { kind, id: *id }))
    }

    /// Whether the attempt is worth making.
    fn prepare(&self, attempt: ReadAttempt) -> Result<bool, BlobError> {
        match attempt {
            ReadAttempt::First => Ok(true),
            ReadAttempt::Refreshed => self.inner.index.refresh().map(|()| true),
            ReadAttempt::Healed => self.inner.index.heal(),
        }
    }

    /// Reads at one place. [`BlobError::Store`] means that the store did not answer; other places may be tried
    /// after any other error.
    fn read_at(&self, kind: BlobKind, id: &BlobId, place: &BlobLocation) -> Result<Vec<u8>, BlobError> {
        let BlobLocation { pack, offset, len, .. } = *place;
        let damaged = |fault| BlobError::Damaged { kind, id: *id, pack, fault };
        let get = |offset: u32, len: u32| {
            let sealed = self.inner.objects.get_range(&pack_key(&pack), offset.into(), len.into());
            sealed.map_err(|error| match error {
                crate::StoreError::NotFound { .. } => BlobError::Missing { kind, id: *id, pack },
                crate::StoreError::Length { .. } => damaged(vellum_types::DecodeError::Truncated.into()),
                other => other.into(),
            })
        };
        let keys = &self.inner.keys;
        let opened = body::open(keys, kind, id, &get(offset, len)?).map_err(damaged)?;
        let base = match &opened {
            OpenedBody::Difference(difference) => get(difference.base.offset, difference.base.len)?,
            OpenedBody::Content(_) => Vec::new(),
        };
        opened.resolve(keys, kind, id, |_| Ok::<_, BlobBodyFault>(base)).map_err(damaged)
    }

    /// A new writer. Writers are independent: one does not see what another has not finished.
    #[must_use]
    pub fn writer(&self) -> BlobWriter {
        BlobWriter::new(self.clone())
    }
}

enum ReadAttempt {
    First,
    Refreshed,
    Healed,
}

//! The source of a store: another store of the same volume, which is only read, and has blobs that this one lacks.
//!
//! Invariant: writers never rely on what the source has. What is written here is stored here, whatever becomes of the
//! source. Blobs of this store come first: while all that is wanted is here, the source is not even opened.
//! Deliberately absent: refs and records, of which each store has its own; where the source is.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use vellum_types::{BlobId, BlobKind};

use super::{BlobError, BlobStore};
use crate::index::BlobLocation;
use crate::object::{ObjectStore, ServiceTraffic};

type OpenBlobs = dyn Fn() -> Result<BlobStore, BlobError> + Send + Sync;

/// Where blobs are read that a store does not have.
pub struct BlobSource {
    /// Its objects.
    pub objects: Arc<dyn ObjectStore>,
    /// Opens its blobs. Called when the first of them is wanted, and again if that failed.
    pub open: Box<OpenBlobs>,
}

/// A source that is opened when it is needed.
pub(super) struct AttachedSource {
    source: BlobSource,
    opened: OnceLock<BlobStore>,
    /// Held while it is opened, so that several threads that need it open it once.
    opening: Mutex<()>,
}

impl AttachedSource {
    fn open_blobs(&self) -> Result<&BlobStore, BlobError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let _opening = self.opening.lock();
        // Another thread may have opened it while this one waited for the lock.
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = (self.source.open)()?;
        Ok(self.opened.get_or_init(|| opened))
    }
}

/// A blob, and the store that has it.
#[derive(Clone, Copy)]
pub struct HeldBlob<'a> {
    /// The store, or its source.
    pub holder: &'a BlobStore,
    /// Where the blob is in it.
    pub place: BlobLocation,
}

impl BlobStore {
    /// Reads blobs that this store does not have from a source. Only the first source of a store is used.
    pub fn set_source(&self, source: BlobSource) {
        let attached = AttachedSource { source, opened: OnceLock::new(), opening: Mutex::new(()) };
        let _ = self.inner.source.set(attached);
    }

    /// Whether blobs that this store does not have are read from another one.
    #[must_use]
    pub fn has_source(&self) -> bool {
        self.inner.source.get().is_some()
    }

    /// The blobs of the source; none if the store has no source. Fails if it cannot be opened.
    pub fn open_source(&self) -> Result<Option<&Self>, BlobError> {
        self.inner.source.get().map(AttachedSource::open_blobs).transpose()
    }

    /// The objects of the source, if there is one.
    pub(super) fn source_objects(&self) -> Option<&dyn ObjectStore> {
        self.inner.source.get().map(|attached| &*attached.source.objects)
    }

    /// Where a blob is, in this store or in its source. Fails if this store does not have it, and the source cannot be
    /// opened.
    pub fn find_holder(&self, id: &BlobId) -> Result<Option<HeldBlob<'_>>, BlobError> {
        if let Some(place) = self.locate_blob(id) {
            return Ok(Some(HeldBlob { holder: self, place }));
        }
        let Some(source) = self.open_source()? else { return Ok(None) };
        Ok(source.locate_blob(id).map(|place| HeldBlob { holder: source, place }))
    }

    /// As [`Self::find_holder`], after the indexes were read again if need be: another process may have stored it since.
    pub fn require_holder(&self, kind: BlobKind, id: &BlobId) -> Result<HeldBlob<'_>, BlobError> {
        if let Some(held) = self.find_holder(id)? {
            return Ok(held);
        }
        self.refresh_index()?;
        if let Some(source) = self.open_source()?
            && self.locate_blob(id).is_none()
        {
            source.inner.objects.expect_new_objects();
            source.refresh_index()?;
        }
        self.find_holder(id)?.ok_or_else(|| self.not_found_error(kind, id))
    }

    fn not_found_error(&self, kind: BlobKind, id: &BlobId) -> BlobError {
        match self.source_objects() {
            Some(source) => BlobError::NotInSource { kind, id: *id, place: source.describe_location() },
            None => BlobError::NotFound { kind, id: *id },
        }
    }

    /// Reads a blob of this store, or else of its source.
    pub(super) fn read_here_or_there(&self, kind: BlobKind, id: &BlobId) -> Result<Vec<u8>, BlobError> {
        let is_known_there = || {
            let opened = self.inner.source.get().and_then(|attached| attached.opened.get());
            opened.is_some_and(|source| source.locate_blob(id).is_some())
        };
        if self.locate_blob(id).is_none() && !is_known_there() {
            // Another process may have stored it here since. To look again costs less than to open the source.
            self.refresh_index()?;
        }
        // A copy here that cannot be read is no loss if the source has another one.
        let own = match self.locate_blob(id) {
            Some(_) => match self.read_own_blob(kind, id) {
                Ok(plaintext) => return Ok(plaintext),
                Err(error) => Some(error),
            },
            None => None,
        };
        let read = self.open_source().and_then(|source| match source {
            Some(source) => source.read_newest_blob(kind, id),
            None => Err(BlobError::NotFound { kind, id: *id }),
        });
        let error = match (own, read) {
            (_, Ok(plaintext)) => return Ok(plaintext),
            // The index says that the blob is here, so what is wrong with this copy is reported, and not that
            // the source could not help.
            (Some(own), Err(_)) => return Err(own),
            (None, Err(error)) => error,
        };
        // All content may have been copied here since the index was read.
        self.refresh_index()?;
        if self.locate_blob(id).is_some() {
            return self.read_own_blob(kind, id);
        }
        Err(if matches!(error, BlobError::NotFound { .. }) { self.not_found_error(kind, id) } else { error })
    }

    /// Reads a blob of this very store, which is a source: it, and the key that opens it, may be newer than what this
    /// process has read of the store.
    fn read_newest_blob(&self, kind: BlobKind, id: &BlobId) -> Result<Vec<u8>, BlobError> {
        match self.read_own_blob(kind, id) {
            Ok(plaintext) => Ok(plaintext),
            // The store did not answer: to ask again tells nothing else.
            Err(error @ BlobError::Store(_)) => Err(error),
            Err(_) => {
                self.inner.objects.expect_new_objects();
                self.read_own_blob(kind, id)
            }
        }
    }

    /// How many requests are worth having under way at once for what has to be fetched.
    #[must_use]
    pub fn parallel_get_count(&self) -> usize {
        let there = self.source_objects().map_or(1, |source| source.parallel_get_count());
        self.inner.objects.parallel_get_count().max(there)
    }

    /// What this process sent to the service that the store is in, or else its source.
    #[must_use]
    pub fn service_traffic(&self) -> Option<ServiceTraffic> {
        self.inner.objects.service_traffic().or_else(|| self.source_objects()?.service_traffic())
    }

    /// From now on nothing is answered from copies on this machine, neither of the store nor of its source.
    pub fn ignore_local_copies(&self) {
        self.inner.objects.ignore_local_copies();
        if let Some(source) = self.source_objects() {
            source.ignore_local_copies();
        }
    }
}

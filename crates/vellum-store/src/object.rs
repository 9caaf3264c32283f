//! The trait between Vellum and the storage of its objects.
//!
//! Invariant: objects are immutable, apart from refs, which change by compare-and-swap only. What `put`
//! acknowledged is durable. Deliberately absent: blobs, packs, keys of any meaning.

pub mod address;
mod bandwidth;
mod blocks;
mod cache;
mod early;
mod fetch_policy;
mod guarantees;
mod key;
mod local;
mod memory;
mod metered;
mod named;
mod numbered;
mod open;
mod parallel;
mod pieces;
mod plain;
mod probe;
mod published;
mod purpose;
mod read_only;
mod rename;
mod selection;
mod service;
mod sftp;
mod single_writer;
mod traffic;

use std::path::Path;
use std::time::SystemTime;

pub use self::address::StoreAddress;
pub use self::bandwidth::BandwidthLimits;
pub use self::blocks::BlockStore;
pub(crate) use self::cache::fuzz_decoders as fuzz_cache_decoders;
pub use self::cache::{
    CacheCheck, CacheDiskProbe, CachePart, CachePartSummary, CachePin, CacheRoom, CacheSummary, EvictedBytes,
    PackCache, PerPart, PinListing, set_cache_disk_probe,
};
pub use self::early::{EarlyFolder, EarlyRead, EarlyReads};
pub use self::fetch_policy::{FetchPolicy, FetchPolicyScope};
pub use self::guarantees::{StoreGuarantees, StoreMode};
pub use self::key::ObjectKey;
pub use self::local::{LOCK_FILE as LOCAL_LOCK_FILE, LocalStore, TEMP_FOLDER as LOCAL_TEMP_FOLDER};
pub use self::memory::MemoryObjectStore;
pub use self::metered::{MeteredStore, RequestCounts};
pub(crate) use self::named::put_named_object;
pub(crate) use self::numbered::fuzz_version_decoder;
pub use self::numbered::{KeyUse, NumberedRefStore};
pub use self::open::{
    RequestLimits, StoreLocation, chosen_retry_time, create_store, open_store, open_store_with_limits,
    set_retry_time,
};
pub use self::parallel::{join_requests, join_work, map_requests};
pub use self::pieces::PieceSet;
pub use self::plain::{ObjectCondition, ObjectTag, PlainListing, PlainObject, PlainObjectHead};
pub(crate) use self::published::fuzz_listing_decoder;
pub(crate) use self::published::replace_listed;
pub use self::published::{PublishedObjects, PublishedStore, publish_store, unlist_objects};
pub use self::purpose::{PerPurpose, PurposeScope, RequestPurpose};
pub use self::read_only::ReadOnlyStore;
pub use self::rename::{ObjectRename, RenameObjects};
pub use self::selection::{KeyFilter, ObjectSelection, OtherObjects};
pub use self::service::{
    InterruptedUpload, LoginCredentials, PlainObjects, PlainUpload, ServiceStore, UploadedFile,
    describe_clock_lead, list_interrupted_uploads,
};
pub(crate) use self::service::{fuzz_part_list, fuzz_upload_record};
pub use self::sftp::SftpStore;
pub(crate) use self::sftp::fuzz_sftp_decoder;
pub(crate) use self::single_writer::fuzz_claim_decoder;
pub use self::single_writer::{ClaimPace, SingleWriterStore};
pub use self::traffic::{PurposeTraffic, ServiceTraffic};

use crate::error::StoreError;

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: ObjectKey,
    /// Its length in bytes.
    pub size: u64,
    /// When it was put, if the store knows.
    pub modified: Option<SystemTime>,
    /// What a service calls this version of it, if the listing says so.
    pub version: Option<ObjectVersion>,
}

/// What a server calls the version of an object, by which it is asked later whether there is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectVersion {
    /// By its tag.
    Tag(String),
    /// By when it was modified.
    Modified(SystemTime),
}

/// An object and its version, if the store has a sure name for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionedObject {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its version.
    pub version: Option<ObjectVersion>,
}

/// A place for objects. All calls may come from many threads at once.
pub trait ObjectStore: Send + Sync {
    /// A path or an address without secrets, for messages.
    fn describe_location(&self) -> String;

    /// The whole object, which may have `max` bytes: what its kind never exceeds. A larger one is
    /// [`StoreError::TooLarge`], and costs no more memory than `max`, whatever length the store reports.
    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError>;

    /// Like [`Self::get_object`], but none if the object still is the version `known`. A store that knows no versions reads
    /// it again.
    fn get_object_if_changed(
        &self,
        key: &ObjectKey,
        max: u64,
        _known: Option<&ObjectVersion>,
    ) -> Result<Option<VersionedObject>, StoreError> {
        Ok(Some(VersionedObject { bytes: self.get_object(key, max)?, version: None }))
    }

    /// Exactly `len` bytes from `offset` on; fewer is an error. The caller bounds `len`. For immutable
    /// objects only: an implementation may keep a handle of what the key meant when it was first read.
    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError>;

    /// The bytes from `offset` on: `max`, or fewer if the object ends before that; none if it ends before `offset`. For
    /// immutable objects only.
    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        let len = self.object_size(key)?.saturating_sub(offset).min(max);
        if len == 0 { Ok(Vec::new()) } else { self.get_range(key, offset, len) }
    }

    /// The object's length in bytes.
    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError>;

    /// Stores a new object: whole or not at all, and durable on return. Fails with [`StoreError::Exists`]
    /// when the key is taken.
    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError>;

    /// Stores several objects with as few waits for the disk or the network as possible. All are durable on return; on
    /// the way none is visible or durable before those that stand earlier in the list, but for neighbours in one
    /// top-level folder, such as packs: these may come in any order. After an error some may be there, and none of another
    /// folder than the failed one that stands later.
    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        objects.iter().try_for_each(|(key, bytes)| self.put_object(key, bytes))
    }

    /// Replaces the ref's bytes by `new` if they are `expected`, else fails with [`StoreError::Changed`].
    /// `None` stands for the absent ref: creation and deletion. Durable on return.
    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError>;

    /// All objects in a folder and below (`""`: all there are), sorted by key. A missing folder is empty.
    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError>;

    /// The keys that [`Self::list_objects`] would give, without asking for sizes.
    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        Ok(self.list_objects(folder)?.into_iter().map(|info| info.key).collect())
    }

    /// Of what [`Self::list_objects`] would give, the objects that are wanted; of the others, and of those whose names
    /// cannot be keys, how many there are. A service may hold millions of them, for which this takes no memory.
    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        let mut selection = ObjectSelection::default();
        for info in self.list_objects(folder)? {
            selection.add_object(info, is_wanted);
        }
        Ok(selection)
    }

    /// Whether there is any object.
    fn holds_objects(&self) -> Result<bool, StoreError> {
        Ok(!self.list_keys("")?.is_empty())
    }

    /// Removes the object; it is no error if there is none. May come undone in a power cut.
    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError>;

    /// What renames objects without copying them, if the store can do that.
    fn as_renaming(&self) -> Option<&dyn RenameObjects> {
        None
    }

    /// The store that this one wraps, if it does. It answers what the wrapper does not define below.
    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        None
    }

    /// How many ranged gets are worth having under way at once: more than one where waiting dominates.
    fn parallel_get_count(&self) -> usize {
        self.inner_store().map_or(1, |inner| inner.parallel_get_count())
    }

    /// The directory of this machine that it is, if it is one.
    fn local_dir(&self) -> Option<&Path> {
        self.inner_store()?.local_dir()
    }

    /// Reserves space for operations that free space, if a full disk can prevent them. Costs one or two calls.
    fn ensure_reserve(&self) {
        if let Some(inner) = self.inner_store() {
            inner.ensure_reserve();
        }
    }

    /// Releases the reserve if the disk is full: to be called before an operation that frees space.
    fn release_reserve(&self) {
        if let Some(inner) = self.inner_store() {
            inner.release_reserve();
        }
    }

    /// Says what is going to be read soon. A store that waits for a service and holds early answers begins to read it.
    fn expect_reads(&self, reads: Vec<EarlyRead>) {
        if let Some(inner) = self.inner_store() {
            inner.expect_reads(reads);
        }
    }

    /// Whether its refs are numbered versions in the store that it wraps.
    fn numbers_refs(&self) -> bool {
        false
    }

    /// Whether requests leave this machine: what is to be saved is their number, not their bytes.
    fn is_remote(&self) -> bool {
        self.inner_store().is_some_and(|inner| inner.is_remote())
    }

    /// Whether nothing can ever be written to it, whoever asks.
    fn is_read_only(&self) -> bool {
        self.inner_store().is_some_and(|inner| inner.is_read_only())
    }

    /// From now on nothing is answered from copies that earlier processes kept on this machine: what is to be checked is
    /// the store.
    fn ignore_local_copies(&self) {
        if let Some(inner) = self.inner_store() {
            inner.ignore_local_copies();
        }
    }

    /// Says that others have stored objects meanwhile: a listing that was read a moment ago is asked for again.
    fn expect_new_objects(&self) {
        if let Some(inner) = self.inner_store() {
            inner.expect_new_objects();
        }
    }

    /// Drops what is kept on this machine of a range of a pack: it did not authenticate, and may have arrived garbled. The
    /// next read fetches it anew.
    fn drop_local_copies(&self, key: &ObjectKey, offset: u64, len: u64) {
        if let Some(inner) = self.inner_store() {
            inner.drop_local_copies(key, offset, len);
        }
    }

    /// Tries whether the store keeps the promises of this trait, where that is the affair of a server. Stores that keep
    /// them by their construction are not tried.
    fn probe_guarantees(&self) -> Result<StoreGuarantees, StoreError> {
        self.inner_store().map_or(Ok(StoreGuarantees::ALL), |inner| inner.probe_guarantees())
    }

    /// Tells the store what [`Self::probe_guarantees`] found, now or at an earlier time.
    fn adapt_to_guarantees(&self, found: &StoreGuarantees) {
        if let Some(inner) = self.inner_store() {
            inner.adapt_to_guarantees(found);
        }
    }

    /// What is kept of its packs on this machine, if the store is in a service.
    fn as_block_store(&self) -> Option<&BlockStore> {
        self.inner_store()?.as_block_store()
    }

    /// From now on, requests are sent even if the service did not answer a moment ago: the last chance of a process that
    /// ends.
    fn ignore_silence(&self) {
        if let Some(inner) = self.inner_store() {
            inner.ignore_silence();
        }
    }

    /// What this process sent to the service, if the store is in one.
    fn service_traffic(&self) -> Option<ServiceTraffic> {
        self.inner_store()?.service_traffic()
    }

    /// By how many seconds this machine's clock is ahead of the service's, as far as answers have told; negative if it is
    /// behind.
    fn clock_lead(&self) -> Option<i64> {
        self.inner_store()?.clock_lead()
    }

    /// The request statistics, if requests are counted.
    fn as_metered(&self) -> Option<&MeteredStore> {
        self.inner_store()?.as_metered()
    }
}

/// Returns what was read of an object if it has the length that was asked for.
pub(crate) fn check_read_length(
    store: &dyn ObjectStore,
    key: &ObjectKey,
    bytes: Vec<u8>,
    wanted: u64,
) -> Result<Vec<u8>, StoreError> {
    let got = bytes.len() as u64;
    if got == wanted {
        return Ok(bytes);
    }
    Err(StoreError::Length { place: store.describe_location(), key: key.to_string(), wanted, got })
}

//! Objects in a directory or a service, packs of sealed blobs, and the index that finds them.
//!
//! Invariant: what `BlobWriter::finish` acknowledged is durable and found again by every later `BlobStore`, and
//! every blob that is read was authenticated and its id checked. Deliberately absent: files, maps, snapshots.

pub mod blob;
pub mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod index;
pub mod object;
pub mod pack;
mod reserve;

pub use blob::{
    BlobError, BlobOptions, BlobSource, BlobStore, BlobWriter, FetchedBlobs, HeldBlob, PackCopyOutcome,
    PackInfo, RebuildStats, WriteStats,
};
pub use error::StoreError;
pub use index::BlobLocation;
pub use object::{
    BandwidthLimits, BlockStore, CacheCheck, CacheDiskProbe, CachePart, CachePartSummary, CachePin,
    CacheRoom, CacheSummary, ClaimPace, EarlyFolder, EarlyRead, EarlyReads, EvictedBytes, FetchPolicy,
    FetchPolicyScope, InterruptedUpload, KeyFilter, KeyUse, LOCAL_LOCK_FILE, LOCAL_TEMP_FOLDER, LocalStore,
    LoginCredentials, MemoryObjectStore, MeteredStore, NumberedRefStore, ObjectCondition, ObjectInfo,
    ObjectKey, ObjectRename, ObjectSelection, ObjectStore, ObjectTag, ObjectVersion, OtherObjects, PackCache,
    PerPart, PerPurpose, PieceSet, PinListing, PlainListing, PlainObject, PlainObjectHead, PlainObjects,
    PlainUpload, PublishedObjects, PublishedStore, PurposeScope, PurposeTraffic, ReadOnlyStore,
    RenameObjects, RequestCounts, RequestLimits, RequestPurpose, ServiceStore, ServiceTraffic, SftpStore,
    SingleWriterStore, StoreAddress, StoreGuarantees, StoreLocation, StoreMode, UploadedFile,
    VersionedObject, chosen_retry_time, create_store, describe_clock_lead, join_requests, join_work,
    list_interrupted_uploads, map_requests, open_store, open_store_with_limits, publish_store,
    set_cache_disk_probe, set_retry_time, unlist_objects,
};
pub use pack::{PackEntry, PackFinding, PackRange, PackRangeCheck};
pub use reserve::DiskReserve;
pub use vellum_host::owner::set_owner_from_dir;

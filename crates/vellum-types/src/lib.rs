//! The types that all floors share: identifiers, the map's keys and values, limits, error kinds.
//!
//! Invariant: nothing here does I/O, and every decoder accepts hostile bytes without panicking or allocating more
//! than their length justifies.

pub mod codec;
pub mod error;
pub mod id;
pub mod key;
pub mod limits;
pub mod missing;
pub mod value;

pub use codec::{DecodeError, FieldReader, FieldWriter};
pub use error::ErrorKind;
pub use id::{BlobId, BlobKind, Ino, PackId, SnapshotId, VolumeId};
pub use key::{MapKey, MapKeyRef, MapKeyTag};
pub use missing::{LookupResult, MissingError};
pub use value::{BareInodeAttr, ChunkingMode, Dentry, Extent, ExtentSource, FileKind, InodeAttr, UnixTime};

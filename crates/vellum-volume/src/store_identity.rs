//! The object `store`: which store of the volume it is, and how its writers change refs.
//!
//! Invariant: it is written once, by whoever sets the store up or joins it first, and all machines that write to the
//! store do as it says. A store without it is one whose refs are single objects: a directory, or a store of an early
//! version.

use std::sync::Arc;

use vellum_crypto::{RecordDomain, VolumeKeys, fill_random};
use vellum_store::{NumberedRefStore, ObjectKey, ObjectStore, StoreError, StoreMode};
use vellum_types::{DecodeError, FieldReader, FieldWriter};

use crate::error::{Result, VolumeError};

/// Name of the object.
pub(crate) const STORE_OBJECT: &str = "store";
const VERSION: u8 = 1;
/// Bytes of a store's id.
const ID_LEN: usize = 16;
/// Longest object, bytes: two ids, a few numbers, and the seal.
const OBJECT_MAX: u64 = 1024;

/// What tells one store of a volume from another, in random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreId([u8; ID_LEN]);

/// What the object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreIdentity {
    /// The store.
    pub id: StoreId,
    /// How refs are changed.
    pub mode: StoreMode,
    /// The store from which this one was set up by a push, if that one has an identity.
    pub origin: Option<StoreId>,
}

impl StoreIdentity {
    /// Generates the identity of a new store.
    pub fn new_random(mode: StoreMode, origin: Option<StoreId>) -> Self {
        let mut id = [0; ID_LEN];
        fill_random(&mut id);
        Self { id: StoreId(id), mode, origin }
    }

    /// Reads the identity of a store, if it has one. Fails with [`VolumeError::Damaged`] if it was not written with the
    /// volume's keys.
    pub fn read_from(objects: &dyn ObjectStore, keys: &VolumeKeys) -> Result<Option<Self>> {
        let sealed = match objects.get_object(&store_object_key()?, OBJECT_MAX) {
            Ok(sealed) => sealed,
            // Stores of early versions have none, and are used as they always were.
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut plain = Vec::new();
        keys.open_record(RecordDomain::Config, STORE_OBJECT.as_bytes(), &sealed, &mut plain).map_err(
            |error| VolumeError::Damaged { object: STORE_OBJECT.into(), reason: error.to_string() },
        )?;
        parse_identity(&plain).map(Some).map_err(VolumeError::wrap_decode_error(STORE_OBJECT))
    }

    /// Writes the identity, and returns the one that the store has then: another process may have been faster.
    pub fn settle_in(self, objects: &dyn ObjectStore, keys: &VolumeKeys) -> Result<Self> {
        let mut sealed = Vec::new();
        keys.seal_record(RecordDomain::Config, STORE_OBJECT.as_bytes(), &self.encode(), &mut sealed);
        // A put that refuses to replace: of two that set a store up at once, both use what the first one wrote.
        match objects.put_object(&store_object_key()?, &sealed) {
            Ok(()) => Ok(self),
            // None only if it was deleted in between: then nothing contradicts this one.
            Err(StoreError::Exists { .. }) => Ok(Self::read_from(objects, keys)?.unwrap_or(self)),
            Err(error) => Err(error.into()),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mode = match self.mode {
            StoreMode::Shared => 1,
            StoreMode::NumberedRefs => 2,
        };
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_raw(&self.id.0).write_u8(mode);
        match &self.origin {
            None => writer.write_u8(0),
            Some(origin) => writer.write_u8(1).write_raw(&origin.0),
        };
        writer.into_vec()
    }
}

/// Checks the identity of a store, if it has one. Fails as [`StoreIdentity::read_from`] does.
pub(crate) fn check_store_object(objects: &dyn ObjectStore, keys: &VolumeKeys) -> Result<()> {
    StoreIdentity::read_from(objects, keys).map(|_| ())
}

/// Returns the store, with its refs kept as the mode says.
pub(crate) fn apply_mode(objects: Arc<dyn ObjectStore>, mode: StoreMode) -> Arc<dyn ObjectStore> {
    match mode {
        StoreMode::Shared => objects,
        StoreMode::NumberedRefs => Arc::new(NumberedRefStore::new(objects)),
    }
}

fn store_object_key() -> Result<ObjectKey> {
    Ok(ObjectKey::new(STORE_OBJECT)?)
}

/// Decodes the plaintext of the object.
pub(crate) fn parse_identity(plain: &[u8]) -> std::result::Result<StoreIdentity, DecodeError> {
    let mut reader = FieldReader::new(plain);
    let version = reader.read_u8()?;
    if version != VERSION {
        return Err(DecodeError::Version(u32::from(version)));
    }
    let id = StoreId(reader.read_array()?);
    let mode = match reader.read_u8()? {
        1 => StoreMode::Shared,
        2 => StoreMode::NumberedRefs,
        _ => return Err(DecodeError::Invalid("mode of the store")),
    };
    let origin = match reader.read_u8()? {
        0 => None,
        1 => Some(StoreId(reader.read_array()?)),
        _ => return Err(DecodeError::Invalid("origin of the store")),
    };
    reader.expect_end()?;
    Ok(StoreIdentity { id, mode, origin })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use vellum_store::MemoryObjectStore;
    use vellum_types::VolumeId;

    use super::*;

    #[test]
    fn identities_are_read_back_and_the_first_one_stays() {
        let objects = MemoryObjectStore::new("memory://identity");
        let keys = VolumeKeys::for_plain(VolumeId([7; 16]));
        assert_eq!(StoreIdentity::read_from(&objects, &keys).unwrap(), None);
        let origin = StoreIdentity::new_random(StoreMode::Shared, None);
        let first = StoreIdentity::new_random(StoreMode::NumberedRefs, Some(origin.id));
        assert_eq!(first.settle_in(&objects, &keys).unwrap(), first);
        assert_eq!(origin.settle_in(&objects, &keys).unwrap(), first, "somebody else was faster");
        let other = VolumeKeys::for_plain(VolumeId([8; 16]));
        assert!(StoreIdentity::read_from(&objects, &other).is_err(), "of another volume");
    }

    #[test]
    fn other_bytes_are_no_identity() {
        for identity in [
            StoreIdentity::new_random(StoreMode::Shared, None),
            StoreIdentity::new_random(StoreMode::NumberedRefs, Some(StoreId([9; ID_LEN]))),
        ] {
            let plain = identity.encode();
            assert_eq!(parse_identity(&plain).unwrap(), identity);
            (0..plain.len()).for_each(|len| assert!(parse_identity(&plain[..len]).is_err(), "{len}"));
            for (at, byte) in [(0, 2), (17, 0), (17, 4), (18, 2)] {
                let mut wrong = plain.clone();
                wrong[at] = byte;
                assert!(parse_identity(&wrong).is_err(), "{at}: {byte}");
            }
        }
    }
}

//! The object `store`: which store of the volume it is, how its writers change refs, and where content is read that it
//! does not have.
//!
//! Invariant: it is written once, by whoever sets the store up or joins it first, and all machines that write to the
//! store do as it says; only the source of content is taken out of it later, when the store has all content. A store
//! without it is one whose refs are single objects: a directory, or a store of an early version.

use std::sync::Arc;

use vellum_crypto::{RecordDomain, VolumeKeys, fill_random};
use vellum_store::{NumberedRefStore, ObjectKey, ObjectStore, StoreError, StoreLocation, StoreMode};
use vellum_types::{DecodeError, FieldReader, FieldWriter, LookupResult};

use crate::error::{Result, VolumeError};

/// Name of the object.
pub(crate) const STORE_OBJECT: &str = "store";
const VERSION: u8 = 1;
/// The version of an identity with a source: a client that does not know it must not take the store for whole.
const VERSION_WITH_SOURCE: u8 = 2;
/// Bytes of a store's id.
const ID_LEN: usize = 16;
/// Longest object, bytes: two ids, a few numbers, an address, and the seal.
const OBJECT_MAX: u64 = 1024;
/// Longest address of a source, bytes.
const URL_MAX: usize = 512;
/// Longest name of its credentials, bytes.
const CREDENTIALS_MAX: usize = 255;

/// What tells one store of a volume from another, in random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreId([u8; ID_LEN]);

/// What the object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreIdentity {
    /// The store.
    pub id: StoreId,
    /// How refs are changed.
    pub mode: StoreMode,
    /// The store from which this one was set up by a push, if that one has an identity.
    pub origin: Option<StoreId>,
    /// Where content is read that the store does not have.
    pub source: Option<StoreLocation>,
}

impl StoreIdentity {
    /// Generates the identity of a new store.
    pub fn new_random(mode: StoreMode, origin: Option<StoreId>) -> Self {
        let mut id = [0; ID_LEN];
        fill_random(&mut id);
        Self { id: StoreId(id), mode, origin, source: None }
    }

    /// Reads the identity of a store, if it has one. Fails with [`VolumeError::Damaged`] if it was not written with the
    /// volume's keys.
    pub fn read_from(objects: &dyn ObjectStore, keys: &VolumeKeys) -> Result<Option<Self>> {
        // Stores of early versions have none, and are used as they always were.
        let Some(sealed) = objects.get_object(&store_object_key()?, OBJECT_MAX).none_if_missing()? else {
            return Ok(None);
        };
        let mut plain = Vec::new();
        keys.open_record(RecordDomain::Config, STORE_OBJECT.as_bytes(), &sealed, &mut plain).map_err(
            |error| VolumeError::Damaged { object: STORE_OBJECT.into(), reason: error.to_string() },
        )?;
        parse_identity(&plain).map(Some).map_err(VolumeError::wrap_decode_error(STORE_OBJECT))
    }

    /// Fails with [`VolumeError::DependentStore`] if content of the store is read from another one: a store that is read
    /// from elsewhere must have all content.
    pub fn require_whole(&self, objects: &dyn ObjectStore) -> Result<()> {
        match &self.source {
            None => Ok(()),
            Some(source) => Err(VolumeError::DependentStore {
                store: objects.describe_location(),
                source_url: source.url.clone(),
            }),
        }
    }

    /// Writes the identity, and returns the one that the store has then: another process may have been faster.
    pub fn settle_in(self, objects: &dyn ObjectStore, keys: &VolumeKeys) -> Result<Self> {
        let sealed = self.seal(keys)?;
        // A put that refuses to replace: of two that set a store up at once, both use what the first one wrote.
        match objects.put_object(&store_object_key()?, &sealed) {
            Ok(()) => Ok(self),
            // None only if it was deleted in between: then nothing contradicts this one.
            Err(StoreError::Exists { .. }) => Ok(Self::read_from(objects, keys)?.unwrap_or(self)),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the source in the identity of a store, or takes it out of one that has all content by now. It is no error
    /// if there is none.
    pub fn replace_source(
        objects: &dyn ObjectStore,
        keys: &VolumeKeys,
        source: Option<StoreLocation>,
    ) -> Result<()> {
        let key = store_object_key()?;
        let Some(known) = Self::read_from(objects, keys)?.filter(|known| known.source.is_some()) else {
            return Ok(());
        };
        // The swap compares the stored bytes, which reading the identity does not return.
        let old = objects.get_object(&key, OBJECT_MAX)?;
        Ok(objects.swap_ref(&key, Some(&old), Some(&Self { source, ..known }.seal(keys)?))?)
    }

    fn seal(&self, keys: &VolumeKeys) -> Result<Vec<u8>> {
        if let Some(StoreLocation { url, credentials }) = &self.source {
            // Before it is written: no reader accepts a longer object, so the store could not be opened any more.
            require_length("the address of the source", url, URL_MAX)?;
            let name = credentials.as_deref().unwrap_or_default();
            require_length("the name of the credentials", name, CREDENTIALS_MAX)?;
        }
        let mut sealed = Vec::new();
        keys.seal_record(RecordDomain::Config, STORE_OBJECT.as_bytes(), &self.encode(), &mut sealed);
        Ok(sealed)
    }

    /// The plaintext of the object.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mode = match self.mode {
            StoreMode::Shared => 1,
            StoreMode::NumberedRefs => 2,
        };
        let version = if self.source.is_some() { VERSION_WITH_SOURCE } else { VERSION };
        let mut writer = FieldWriter::new();
        writer.write_u8(version).write_raw(&self.id.0).write_u8(mode);
        match &self.origin {
            None => writer.write_u8(0),
            Some(origin) => writer.write_u8(1).write_raw(&origin.0),
        };
        if let Some(StoreLocation { url, credentials }) = &self.source {
            writer.write_bytes(url.as_bytes());
            match credentials {
                None => writer.write_u8(0),
                Some(name) => writer.write_u8(1).write_bytes(name.as_bytes()),
            };
        }
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
pub(crate) fn parse_identity(plain: &[u8]) -> Result<StoreIdentity, DecodeError> {
    let mut reader = FieldReader::new(plain);
    let version = reader.read_u8()?;
    if ![VERSION, VERSION_WITH_SOURCE].contains(&version) {
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
    let source = if version == VERSION_WITH_SOURCE { Some(parse_source(&mut reader)?) } else { None };
    reader.expect_end()?;
    Ok(StoreIdentity { id, mode, origin, source })
}

fn require_length(what: &str, text: &str, max: usize) -> Result<()> {
    if text.len() <= max {
        return Ok(());
    }
    Err(VolumeError::TooLong { what: what.into(), len: text.len(), max })
}

fn parse_source(reader: &mut FieldReader<'_>) -> Result<StoreLocation, DecodeError> {
    let url = reader.read_string(URL_MAX)?.to_owned();
    let credentials = match reader.read_u8()? {
        0 => None,
        1 => Some(reader.read_string(CREDENTIALS_MAX)?.to_owned()),
        _ => return Err(DecodeError::Invalid("credentials of the store's source")),
    };
    Ok(StoreLocation { url, credentials })
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
        assert_eq!(first.clone().settle_in(&objects, &keys).unwrap(), first);
        assert_eq!(origin.clone().settle_in(&objects, &keys).unwrap(), first, "somebody else was faster");
        let other = VolumeKeys::for_plain(VolumeId([8; 16]));
        assert!(StoreIdentity::read_from(&objects, &other).is_err(), "of another volume");
    }

    #[test]
    fn a_source_is_replaced_and_taken_out_and_nothing_else_is_changed() {
        let objects = MemoryObjectStore::new("memory://identity-with-source");
        let keys = VolumeKeys::for_plain(VolumeId([7; 16]));
        let whole = StoreIdentity::new_random(StoreMode::Shared, None);
        StoreIdentity { source: Some(sample_source()), ..whole.clone() }.settle_in(&objects, &keys).unwrap();
        let moved = StoreLocation::new("https://example.com/moved");
        StoreIdentity::replace_source(&objects, &keys, Some(moved.clone())).unwrap();
        let expected = StoreIdentity { source: Some(moved), ..whole.clone() };
        assert_eq!(StoreIdentity::read_from(&objects, &keys).unwrap(), Some(expected));
        for _ in 0..2 {
            StoreIdentity::replace_source(&objects, &keys, None).unwrap();
            assert_eq!(StoreIdentity::read_from(&objects, &keys).unwrap(), Some(whole.clone()));
        }
        let long = StoreLocation::new("x".repeat(URL_MAX + 1));
        assert!(StoreIdentity { source: Some(long), ..whole }.settle_in(&objects, &keys).is_err());
    }

    fn sample_source() -> StoreLocation {
        StoreLocation { url: "https://example.org/photos".to_owned(), credentials: Some("reader".to_owned()) }
    }

    #[test]
    fn other_bytes_are_no_identity() {
        for identity in [
            StoreIdentity::new_random(StoreMode::Shared, None),
            StoreIdentity {
                source: Some(sample_source()),
                ..StoreIdentity::new_random(StoreMode::Shared, None)
            },
            StoreIdentity::new_random(StoreMode::NumberedRefs, Some(StoreId([9; ID_LEN]))),
        ] {
            let plain = identity.encode();
            assert_eq!(parse_identity(&plain).unwrap(), identity);
            (0..plain.len()).for_each(|len| assert!(parse_identity(&plain[..len]).is_err(), "{len}"));
            for (at, byte) in [(0, 3), (17, 0), (17, 4), (18, 2)] {
                let mut wrong = plain.clone();
                wrong[at] = byte;
                assert!(parse_identity(&wrong).is_err(), "{at}: {byte}");
            }
        }
    }
}

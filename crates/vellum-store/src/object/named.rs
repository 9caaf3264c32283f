//! Objects that are named by the hash of their bytes.
//!
//! Invariant: one that is there already under such a name is the same object, or it is damaged. Deliberately absent: how
//! names are made; see `pack` and `index`.

use super::{ObjectKey, ObjectStore};
use crate::error::StoreError;

/// Folders in which names are hashes of the bytes. Records are named by what they say, and sealed anew each time.
const NAMED_BY_BYTES: [&str; 2] = ["packs", "index"];

/// Puts an object that may be there already: an attempt that was killed, or whose answer was lost, may have left it, or
/// something on the way to the service has sent it twice. Fails with [`StoreError::OtherBytes`] if what is there is not
/// what its name says.
pub(crate) fn put_named_object(
    objects: &dyn ObjectStore,
    key: &ObjectKey,
    bytes: &[u8],
) -> Result<(), StoreError> {
    let exists = match objects.put_object(key, bytes) {
        Err(exists @ StoreError::Exists { .. }) => exists,
        put => return put,
    };
    match objects.get_object(key, bytes.len() as u64) {
        Ok(found) if found == bytes => Ok(()),
        Ok(_) | Err(StoreError::TooLarge { .. }) if is_named_by_bytes(key) => {
            Err(StoreError::OtherBytes { place: objects.describe_location(), key: key.to_string() })
        }
        // An object that is sealed anew each time has other bytes under the same name, which is no damage.
        Ok(_) | Err(StoreError::TooLarge { .. }) => Err(exists),
        Err(error) => Err(error),
    }
}

fn is_named_by_bytes(key: &ObjectKey) -> bool {
    key.as_str().split_once('/').is_some_and(|(folder, _)| NAMED_BY_BYTES.contains(&folder))
}

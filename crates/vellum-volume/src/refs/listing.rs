//! Which objects hold refs.

use vellum_store::{ObjectInfo, ObjectKey};

use super::{RefKind, RefStore, is_ref_key};
use crate::error::Result;

/// While it lives, refs of several kinds are taken from one listing of the service, instead of one for each kind. What others
/// create meanwhile is not seen: for who shows refs, or copies them.
pub struct SharedRefListing<'a> {
    refs: &'a RefStore,
}

impl Drop for SharedRefListing<'_> {
    fn drop(&mut self) {
        *self.refs.shared_listing.lock() = None;
    }
}

impl RefStore {
    /// Lists the refs of all kinds at once, if the store is a service.
    pub fn share_listing(&self) -> Result<SharedRefListing<'_>> {
        // In a directory, a listing costs little, and folders that are not asked for would be read for nothing.
        if self.objects.is_remote() {
            let listed = self.objects.select_objects("refs/", is_ref_key)?.objects;
            *self.shared_listing.lock() = Some(listed);
        }
        Ok(SharedRefListing { refs: self })
    }

    /// The objects that hold refs of a kind: those that are listed, and those that were seen before.
    pub fn list_ref_objects(&self, kind: RefKind) -> Result<Vec<ObjectKey>> {
        Ok(self.list_ref_infos(kind)?.into_iter().map(|info| info.key).collect())
    }

    pub(super) fn list_ref_infos(&self, kind: RefKind) -> Result<Vec<ObjectInfo>> {
        let folder = format!("refs/{}/", kind.folder_name());
        // Other names are none of a ref: none leads to them.
        let shared = self.shared_listing.lock().as_ref().map(|all| {
            all.iter().filter(|info| info.key.as_str().starts_with(&folder)).cloned().collect::<Vec<_>>()
        });
        let mut listed = match shared {
            Some(listed) => listed,
            None => self.objects.select_objects(&folder, is_ref_key)?.objects,
        };
        let seen = self.seen.lock();
        // A ref that the store hides from its listing is found missing by whoever reads it, instead of being
        // forgotten.
        let known = seen.keys().filter(|key| key.starts_with(&folder)).cloned();
        for key in known {
            listed.push(ObjectInfo { key: ObjectKey::new(key)?, size: 0, modified: None, version: None });
        }
        // Stable: of one that is listed and was seen, what the listing says comes first, and stays.
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        listed.dedup_by(|a, b| a.key == b.key);
        Ok(listed)
    }
}

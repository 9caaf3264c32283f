//! Tags: names that keep a snapshot.

use vellum_types::SnapshotId;

use super::{RefListing, Volume};
use crate::error::{Result, VolumeError, is_data_loss};
use crate::refs::{RefKind, StoredRef};

impl Volume {
    /// Names a snapshot. A tag that exists is left alone.
    pub fn add_tag(&self, name: &str, target: SnapshotId) -> Result<()> {
        // Those of early versions stay what they are.
        if self.refs.get_ref(RefKind::Tag, name)?.is_none() {
            self.check_new_tag(name)?;
        }
        self.refs.update_ref(RefKind::Tag, name, |old| match old {
            Some(old) if decode_tag_target(old)? != target => {
                Err(VolumeError::Exists { kind: "tag", name: name.into() })
            }
            // Setting a tag to what it names already succeeds, so that a command that was interrupted can be
            // repeated.
            _ => Ok(Some(target.as_bytes().to_vec())),
        })
    }

    /// Removes a tag; gives what it named, if that can be read. One that is damaged or lost may be named by its object.
    pub fn remove_tag(&self, name: &str) -> Result<Option<SnapshotId>> {
        // A removal is how room is made on a full disk, so it may use the reserve.
        self.release_reserves();
        let missing = || VolumeError::NoSuchRef { kind: "tag", name: name.into() };
        let mut target = None;
        let removed = self.refs.update_ref(RefKind::Tag, name, |old| {
            target = Some(decode_tag_target(old.ok_or_else(missing)?)?);
            Ok(None)
        });
        match removed {
            Ok(()) => target.ok_or_else(missing).map(Some),
            Err(error) if is_data_loss(&error) => {
                self.refs.remove_damaged_ref(RefKind::Tag, name).map(|()| None)
            }
            // A damaged tag tells no name: the user gives its object, which is not a name that a tag can have.
            Err(VolumeError::BadName { .. })
                if self.list_readable_tags()?.1.iter().any(|damaged| damaged.key.as_str() == name) =>
            {
                self.refs.remove_damaged_ref(RefKind::Tag, name).map(|()| None)
            }
            Err(error) => Err(error),
        }
    }

    /// The tags that can be read, by name, and those that cannot.
    pub fn list_readable_tags(&self) -> Result<RefListing<SnapshotId>> {
        self.list_decoded_refs(RefKind::Tag, decode_tag_target)
    }

    /// All tags, by name.
    pub fn list_tags(&self) -> Result<Vec<(String, SnapshotId)>> {
        let refs = self.refs.list_refs(RefKind::Tag)?;
        refs.iter().map(|tag| Ok((tag.name.clone(), decode_tag_target(tag)?))).collect()
    }
}

pub(crate) fn decode_tag_target(found: &StoredRef) -> Result<SnapshotId> {
    SnapshotId::from_slice(&found.value).ok_or_else(|| VolumeError::Decode {
        what: format!("the tag '{}'", found.name),
        source: vellum_types::DecodeError::Truncated,
    })
}

//! Whether a volume was changed, found out from listings of its store alone: for those who show it, and look again now and
//! then. Deliberately absent: what was changed, which the history, the labels and the operations tell.

use std::fmt;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use vellum_crypto::RecordDomain;
use vellum_store::{ObjectInfo, ObjectVersion};
use vellum_volume::VolumeError;

use crate::error::Result;
use crate::volume::Volume;

/// A value that is another one after each change of a kind. It is keyed, and says nothing about what it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateToken([u8; 16]);

impl fmt::Display for StateToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How the store of a volume is at a moment. Two that are equal are of the same state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VolumeState {
    /// Of the snapshots that there are.
    pub snapshots: StateToken,
    /// Of what has a name: worktrees and where they stand, tags, notes, pins.
    pub refs: StateToken,
    /// Of what was done, by commands of all machines.
    pub operations: StateToken,
}

impl Volume {
    /// Returns how the store is now: three listings, and no object is read.
    pub fn read_state(&self) -> Result<VolumeState> {
        // Otherwise a store that keeps answers might give the listing that it gave last.
        self.inner().objects.expect_new_objects();
        let objects = &self.inner().objects;
        let mut refs = String::new();
        // With their versions: the names of these objects stay the same, and what is in them changes.
        let listed = objects.list_objects("refs/").map_err(VolumeError::from)?;
        let dir = objects.local_dir();
        listed.iter().for_each(|info| add_version(&mut refs, info, dir));
        let list = |folder: &str| -> Result<String> {
            let keys = objects.list_keys(folder).map_err(VolumeError::from)?;
            Ok(keys.iter().map(|key| format!("{key}\n")).collect())
        };
        Ok(VolumeState {
            snapshots: self.compute_token("snapshots", &list("snapshots/")?),
            refs: self.compute_token("refs", &refs),
            operations: self.compute_token("operations", &list("operations/")?),
        })
    }

    /// Returns whether each look at the store is a request to a service, which somebody pays for.
    #[must_use]
    pub fn is_in_service(&self) -> bool {
        self.inner().objects.is_remote()
    }

    fn compute_token(&self, kind: &str, listing: &str) -> StateToken {
        let bytes = format!("state {kind}\0{listing}");
        let id = self.inner().keys.compute_name_id(RecordDomain::Local, bytes.as_bytes());
        let mut token = [0; 16];
        token.copy_from_slice(&id[..16]);
        StateToken(token)
    }
}

/// Adds a line that is another one if the object is another one.
fn add_version(lines: &mut String, info: &ObjectInfo, dir: Option<&Path>) {
    let version = match (&info.version, dir) {
        (Some(ObjectVersion::Tag(tag)), _) => tag.clone(),
        (Some(ObjectVersion::Modified(time)), _) => format!("{time:?}"),
        // The listing of a directory has whole seconds, in which two refs of one length may follow one another. Each is a file
        // of its own, which was renamed to this name.
        (None, Some(dir)) => match std::fs::symlink_metadata(dir.join(info.key.as_str())) {
            Ok(found) => format!("{} {}.{}", found.ino(), found.mtime(), found.mtime_nsec()),
            // Removed since it was listed.
            Err(_) => String::new(),
        },
        (None, None) => String::new(),
    };
    // Writing to a text cannot fail.
    let _ = writeln!(lines, "{} {} {:?} {version}", info.key, info.size, info.modified);
}

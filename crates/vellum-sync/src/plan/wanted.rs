//! The attributes that a source entry's copy should have.

use vellum_types::{FileKind, UnixTime};

use crate::model::listing::ListingEntry;
use crate::model::options::SyncOptions;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// The attributes to be set; None: an attribute stays as it is, or as a new file gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedAttributes {
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Modification time.
    pub mtime: Option<UnixTime>,
    /// Access time.
    pub atime: Option<UnixTime>,
    /// The mode of the source after mode changes; [`Self::compute_mode`] decides whether it is applied.
    source_mode: u32,
    /// The owner and group whose privileges its set-id bits may grant.
    lends: (u32, u32),
    kind: FileKind,
    modes: bool,
    executability: bool,
}

/// Whether the receiving user may set this group.
fn can_assign_group(gid: u32, options: &SyncOptions) -> bool {
    options.preserve.receiver.as_ref().is_none_or(|receiver| receiver.groups.binary_search(&gid).is_ok())
}

impl WantedAttributes {
    /// The attributes for an entry.
    #[must_use]
    pub fn from_entry(entry: &ListingEntry<'_>, options: &SyncOptions) -> Self {
        let preserve = &options.preserve;
        let changes = &options.changes;
        let kind = entry.kind();
        let source_mode = changes
            .modes
            .iter()
            .fold(entry.mode(), |mode, change| change.apply_to_mode(mode, kind == FileKind::Dir));
        let times = preserve.times
            && match kind {
                FileKind::Dir => !preserve.omit_dir_times,
                FileKind::Symlink => !preserve.omit_link_times,
                _ => true,
            };
        // Set-id bits are wanted for these owners only. If the file ends up with another owner, it must not
        // run with the privileges of that one.
        let lends = (changes.owner.unwrap_or(entry.uid()), changes.group.unwrap_or(entry.gid()));
        Self {
            uid: changes.owner.or(preserve.owners.then_some(entry.uid())),
            gid: changes
                .group
                .or(preserve.groups.then_some(entry.gid()))
                // A user can only give a file to a group to which the user belongs (EPERM otherwise).
                .filter(|gid| can_assign_group(*gid, options)),
            mtime: times.then_some(entry.mtime()),
            atime: if kind == FileKind::Dir { None } else { entry.atime().filter(|_| preserve.atimes) },
            source_mode,
            lends,
            kind,
            modes: preserve.modes,
            executability: preserve.executability,
        }
    }

    /// The mode of the source after mode changes.
    #[must_use]
    pub fn source_mode(&self) -> u32 {
        self.source_mode
    }

    /// The mode of an existing entry with the mode `now`, once it belongs to this owner and group; None for symlinks,
    /// which have none. Set-id bits are left out where they would grant the privileges of another owner than the
    /// source's.
    #[must_use]
    pub fn compute_mode(&self, now: u32, uid: u32, gid: u32) -> Option<u32> {
        if self.kind == FileKind::Symlink {
            return None;
        }
        if self.modes {
            return Some(self.clear_foreign_bits(self.source_mode, uid, gid));
        }
        // The rule of rsync's `--executability`: x is removed if the source has none, and otherwise added
        // where r is set, if the file has none yet.
        if self.executability && self.kind == FileKind::File {
            let executable = self.source_mode & 0o111 != 0;
            // Everyone with permission to read gets permission to execute.
            return Some(if !executable {
                now & !0o111
            } else if now & 0o111 == 0 {
                now | (now & 0o444) >> 2
            } else {
                now
            });
        }
        Some(now)
    }

    /// The mode of a new entry that has `now` so far.
    #[must_use]
    pub fn compute_new_mode(&self, umask: u32, now: u32, uid: u32, gid: u32) -> Option<u32> {
        if self.kind == FileKind::Symlink {
            return None;
        }
        // A new directory has set-gid from the one that it is in.
        let inherited = if self.kind == FileKind::Dir { now & SET_GID } else { 0 };
        let mode = match self.modes {
            true => self.source_mode,
            false => self.source_mode & 0o777 & !umask | inherited,
        };
        Some(self.clear_foreign_bits(mode, uid, gid))
    }

    fn clear_foreign_bits(&self, mode: u32, uid: u32, gid: u32) -> u32 {
        match self.kind {
            // On directories the bits lend no privilege; set-gid chooses the group of new entries.
            FileKind::Dir => mode,
            _ => {
                let foreign_user = if uid == self.lends.0 { 0 } else { SET_UID };
                let foreign_group = if gid == self.lends.1 { 0 } else { SET_GID };
                mode & !(foreign_user | foreign_group)
            }
        }
    }
}

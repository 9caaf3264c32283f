//! Applying attributes in the order that side effects in the kernel require: owner, extended attributes, mode, times.
//!
//! Invariant: set-id bits are set after the owner, and never grant the privileges of another owner than the source's.

use rustix::io::Errno;
use vellum_host::beneath::{BeneathError, HeldDir, HeldNode};
use vellum_host::metadata::FileStat;
use vellum_types::FileKind;

use crate::ends::SyncSide;
use crate::error::{Result, SyncError};
use crate::model::listing::ListingEntry;
use crate::model::options::{ACL_PREFIX, SyncOptions};
use crate::plan::WantedAttributes;

/// Attributes that are removed if the source lacks them; others, such as labels, belong to the system.
const REMOVED: [&[u8]; 3] = [b"user.", b"trusted.", b"security.capability"];

/// The previous entry of a name.
#[derive(Clone, Copy)]
pub enum PreviousOccupant<'a> {
    /// None: the mode is the source's, reduced by the umask or by the default ACL of the directory.
    Yes {
        /// The mode bits that are removed.
        umask: u32,
    },
    /// An entry with this mode.
    No {
        /// The lowest twelve bits.
        mode: u32,
        /// Its listed entry, whose attributes exclude those that rules protect.
        old: Option<ListingEntry<'a>>,
    },
}

impl PreviousOccupant<'_> {
    /// Whether an attribute that the source lacks may be removed.
    fn can_remove_xattr(&self, name: &[u8]) -> bool {
        match self {
            Self::No { old: Some(old), .. } => old.xattrs().iter().any(|xattr| xattr.name == name),
            Self::No { old: None, .. } | Self::Yes { .. } => true,
        }
    }
}

/// Applies the attributes of a source entry; returns messages for those that could not be applied.
pub(super) fn apply_attributes(
    node: &HeldNode<'_>,
    entry: &ListingEntry<'_>,
    newcomer: PreviousOccupant<'_>,
    options: &SyncOptions,
) -> Result<Vec<String>> {
    apply_known_attributes(node, &node.stat()?, entry, newcomer, options)
}

/// The same for a node whose present attributes are known.
pub(super) fn apply_known_attributes(
    node: &HeldNode<'_>,
    now: &FileStat,
    entry: &ListingEntry<'_>,
    newcomer: PreviousOccupant<'_>,
    options: &SyncOptions,
) -> Result<Vec<String>> {
    // Another process replaced the entry since it was written.
    if now.kind != entry.kind() {
        return Err(SyncError::Changed);
    }
    let wanted = WantedAttributes::from_entry(entry, options);
    let mut failed = Vec::new();
    // The owner comes first: `chown` clears the set-id bits and file capabilities, which are set below.
    let (uid, gid) = apply_owner(node, &wanted, now, &mut failed);
    // A change of owner or ACL may have changed the mode, so the mode is set again even if it was right
    // before.
    let mut touched = (uid, gid) != (now.uid, now.gid);
    if options.preserve.lists_xattrs(SyncSide::Destination) {
        touched |= apply_xattrs(PresentNode { node, now }, entry, &newcomer, options, &mut failed);
    }
    let mode = match newcomer {
        PreviousOccupant::Yes { umask } => wanted.compute_new_mode(umask, now.mode, uid, gid),
        PreviousOccupant::No { mode, .. } => wanted.compute_mode(mode, uid, gid),
    };
    if let Some(mode) = mode.filter(|mode| touched || *mode != now.mode) {
        let set = node.set_mode(mode);
        // The filesystem does not support modes, and those of the source were not requested.
        let is_none = |error: &BeneathError| {
            matches!(error.errno(), Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM))
        };
        if options.preserve.modes || !set.as_ref().is_err_and(is_none) {
            record_failure(set, &mut failed);
        }
    }
    // Nothing after this changes the file, so the times stay.
    match (wanted.atime, wanted.mtime) {
        (None, None) => {}
        (None, Some(mtime)) if mtime == now.mtime => {}
        (None, Some(mtime)) => record_failure(node.set_mtime(mtime), &mut failed),
        (Some(atime), mtime) => {
            record_failure(node.set_times(atime, mtime.unwrap_or(now.mtime)), &mut failed)
        }
    }
    Ok(failed)
}

fn record_failure(outcome: Result<(), BeneathError>, failed: &mut Vec<String>) {
    if let Err(error) = outcome {
        failed.push(SyncError::from(error).format_chain());
    }
}

/// Sets owner and group as far as the process may; returns the resulting ones.
fn apply_owner(
    node: &HeldNode<'_>,
    wanted: &WantedAttributes,
    now: &FileStat,
    failed: &mut Vec<String>,
) -> (u32, u32) {
    // `chown` with the all-ones number leaves the owner unchanged, so such a file keeps the caller's.
    let is_somebody = |id: &u32| *id != u32::MAX;
    let mut try_one = |uid: Option<u32>, gid: Option<u32>| match node.set_owner(uid, gid) {
        Ok(()) => true,
        Err(error) => {
            // Not permitted, or an id that this user namespace does not have: it stays the caller's, as with rsync.
            if !matches!(error.errno(), Some(Errno::PERM | Errno::INVAL)) {
                failed.push(SyncError::from(error).format_chain());
            }
            false
        }
    };
    let uid = wanted.uid.filter(is_somebody).filter(|uid| *uid != now.uid);
    let gid = wanted.gid.filter(is_somebody).filter(|gid| *gid != now.gid);
    // One call if both may be set. If that is refused, each is tried alone: a user may give a file to another
    // of the user's groups, but not to another user.
    if uid.is_some() && gid.is_some() && try_one(uid, gid) {
        return (uid.unwrap_or(now.uid), gid.unwrap_or(now.gid));
    }
    let has_uid = uid.is_some() && try_one(uid, None);
    let has_gid = gid.is_some() && try_one(None, gid);
    (
        if has_uid { uid.unwrap_or(now.uid) } else { now.uid },
        if has_gid { gid.unwrap_or(now.gid) } else { now.gid },
    )
}

/// Sets the requested ACLs and other extended attributes to those of the source. Returns whether this may have changed
/// the mode.
fn apply_xattrs(
    target: PresentNode<'_>,
    entry: &ListingEntry<'_>,
    newcomer: &PreviousOccupant<'_>,
    options: &SyncOptions,
    failed: &mut Vec<String>,
) -> bool {
    let node = target.node;
    let concerns = |name: &[u8]| options.preserve.sets_xattr(name);
    let present = node.list_xattr_names().unwrap_or_else(|error| {
        // What the source lacks stays then: it may be a capability.
        record_failure(Err(error), failed);
        Vec::new()
    });
    let mut touched = false;
    for name in present.iter().filter(|name| concerns(name)) {
        // Security labels are left alone: the system gives them by its own rules, and removing them needs
        // privilege.
        let stale = !entry.xattrs().iter().any(|xattr| xattr.name == *name)
            && (name.starts_with(ACL_PREFIX)
                || REMOVED.iter().any(|ours| name.starts_with(ours)) && newcomer.can_remove_xattr(name));
        if stale {
            touched = true;
            record_failure(target.retry_writable(|| node.remove_xattr(name)), failed);
        }
    }
    for xattr in entry.xattrs().iter().filter(|xattr| concerns(&xattr.name)) {
        // Comparing first spares a write, which would change the change time and need privilege for some
        // names.
        let same = present.contains(&xattr.name)
            && matches!(node.read_xattr(&xattr.name), Ok(Some(value)) if value == xattr.value);
        if !same {
            touched = true;
            let set = || node.set_xattr(&xattr.name, &xattr.value);
            record_failure(target.retry_writable(set), failed);
        }
    }
    touched
}

/// A node with its present attributes.
#[derive(Clone, Copy)]
struct PresentNode<'a> {
    node: &'a HeldNode<'a>,
    now: &'a FileStat,
}

impl PresentNode<'_> {
    /// Tries again with write permission, which the kernel requires for `user.` attributes, even of the owner.
    fn retry_writable(&self, change: impl Fn() -> Result<(), BeneathError>) -> Result<(), BeneathError> {
        match change() {
            Err(error) if error.errno() == Some(Errno::ACCESS) && self.now.kind != FileKind::Symlink => {
                self.node.set_mode(self.now.mode & 0o777 | 0o600)?;
                change()
            }
            other => other,
        }
    }
}

/// The umask of the process, from `/proc`: `umask(2)` can only be read by changing it.
#[must_use]
pub fn read_umask() -> u32 {
    const USUAL: u32 = 0o022;
    let read = || {
        use std::io::Read;
        let status =
            HeldDir::open_root(std::path::Path::new("/proc/self")).ok()?.open_file(b"status").ok()?;
        let mut text = String::new();
        status.file.take(1 << 16).read_to_string(&mut text).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        u32::from_str_radix(line.trim(), 8).ok()
    };
    read().unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::listing::{DirectoryBlock, ListingEntryId, NewListingEntry, TreeListing};

    /// More names than the kernel lists: 64 KiB. Only root may set these, and ext4 has no room for them.
    fn set_more_names_than_are_listed(node: &HeldNode<'_>) -> bool {
        let names = (0..300).map(|number| format!("trusted.{number:0240}"));
        names.map(|name| node.set_xattr(name.as_bytes(), b"x")).all(|set| set.is_ok())
    }

    #[test]
    fn attributes_that_cannot_be_listed_are_a_problem() {
        let Ok(temp) = tempfile::tempdir_in("/dev/shm") else { return };
        let dir = HeldDir::open_root(temp.path()).unwrap();
        let file = dir.create_file(b"file", 0o644).unwrap();
        let node = HeldNode::from_file(&file);
        if !set_more_names_than_are_listed(&node) {
            return;
        }
        let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
        let mut block = DirectoryBlock::default();
        let new = NewListingEntry { kind: FileKind::File, mode: 0o644, ..NewListingEntry::unknown_dir() };
        block.push(b"file", &new, None).unwrap();
        listing.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
        let entry = listing.find_path(b"file").unwrap();
        let mut options = SyncOptions::default();
        options.preserve.xattrs = true;
        let newcomer = PreviousOccupant::No { mode: 0o644, old: None };
        let failed = apply_attributes(&node, &entry, newcomer, &options).unwrap();
        assert!(failed.iter().any(|message| message.contains("list the extended attributes")), "{failed:?}");
    }
}

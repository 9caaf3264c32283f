//! Applying the metadata in a snapshot to a file.

use rustix::io::Errno;
use rustix::process::geteuid;
use vellum_types::{FileKind, UnixTime};

use super::FileStat;
use crate::beneath::{BeneathError, ExtendedAttribute, HeldNode};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const OWNER_MAY_WRITE: u32 = 0o600;
/// ACLs: access to a file, and the default for new entries of a directory.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// Attributes of users.
const USER_PREFIX: &[u8] = b"user.";
/// File capabilities: they grant privileges, so unrecorded ones are removed.
const CAPABILITY: &[u8] = b"security.capability";

/// The metadata of a file.
#[derive(Debug, Clone, Copy)]
pub struct TargetMetadata<'a> {
    /// The lowest twelve mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Access and modification time; None leaves them (directories get theirs after their entries).
    pub times: Option<(UnixTime, UnixTime)>,
    /// All extended attributes; other attributes of users, and ACLs, are removed.
    pub xattrs: &'a [ExtendedAttribute],
}

/// The caller, which determines the failures that are expected.
#[derive(Debug, Clone, Copy)]
pub struct MetadataCaller {
    privileged: bool,
}

impl MetadataCaller {
    /// The present credentials of this process.
    #[must_use]
    pub fn current_process() -> Self {
        Self { privileged: geteuid().is_root() }
    }

    /// Whether owners can be set.
    #[must_use]
    pub fn is_privileged(self) -> bool {
        self.privileged
    }
}

/// The result.
#[derive(Debug, Default)]
pub struct AppliedMetadata {
    /// Owner or group are not the recorded ones, because the caller may not set them. Set-id bits were left out.
    pub owner_lost: bool,
    /// All other failures.
    pub problems: Vec<BeneathError>,
}

impl AppliedMetadata {
    /// Whether everything was applied.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.owner_lost && self.problems.is_empty()
    }
}

/// Applies `wanted`: first the owner, since changing it clears set-id bits and capabilities; then extended attributes,
/// while the owner may still write; then the mode; the times last. Continues after failures and reports all of them.
pub fn apply_metadata(
    node: &HeldNode<'_>,
    wanted: &TargetMetadata<'_>,
    caller: MetadataCaller,
) -> AppliedMetadata {
    let mut applied = AppliedMetadata::default();
    let now = match node.stat() {
        Ok(now) => now,
        Err(error) => {
            applied.problems.push(error);
            return applied;
        }
    };
    // The order follows from the kernel: `chown` clears set-id bits and capabilities, so owner comes before
    // mode and attributes; writing an ACL changes the mode, so attributes come before it.
    let kept = apply_owner(node, wanted, &now, caller, &mut applied);
    apply_xattrs(node, wanted, &now, &mut applied);
    // The kernel cannot set the mode of a symlink.
    if now.kind != FileKind::Symlink {
        let mode = allowed_mode(wanted.mode, now.kind, kept);
        record_failure(node.set_mode(mode), &mut applied);
    }
    apply_times(node, wanted, &mut applied);
    applied
}

/// The initial attributes of new files in a directory: owner, mode and ACL follow from the directory and the mode of
/// creation, and are the same for all files that one process creates there.
#[derive(Debug, Clone, Copy)]
pub struct FreshFileDefaults {
    now: FileStat,
    has_xattrs: bool,
}

impl FreshFileDefaults {
    /// Reads the initial attributes of a new file.
    pub fn from_node(node: &HeldNode<'_>) -> Result<Self, BeneathError> {
        let has_xattrs = node.list_xattr_names()?.iter().any(|name| is_removable_xattr(name));
        Ok(Self { now: node.stat()?, has_xattrs })
    }
}

/// Applies `wanted` to a file that no other process can reach yet and that has the attributes `fresh`: equal ones are
/// not applied again.
pub fn apply_fresh_metadata(
    node: &HeldNode<'_>,
    wanted: &TargetMetadata<'_>,
    caller: MetadataCaller,
    fresh: &FreshFileDefaults,
) -> AppliedMetadata {
    // Inherited or recorded attributes need the whole sequence, because writing an ACL changes the mode.
    if fresh.has_xattrs || !wanted.xattrs.is_empty() {
        return apply_metadata(node, wanted, caller);
    }
    let mut applied = AppliedMetadata::default();
    let kept = apply_owner(node, wanted, &fresh.now, caller, &mut applied);
    let mode = allowed_mode(wanted.mode, fresh.now.kind, kept);
    // Most files were made with their mode, and need no call for it.
    if mode != fresh.now.mode {
        record_failure(node.set_mode(mode), &mut applied);
    }
    apply_times(node, wanted, &mut applied);
    applied
}

fn apply_times(node: &HeldNode<'_>, wanted: &TargetMetadata<'_>, applied: &mut AppliedMetadata) {
    if let Some((atime, mtime)) = wanted.times {
        record_failure(node.set_times(atime, mtime), applied);
    }
}

fn record_failure(outcome: Result<(), BeneathError>, applied: &mut AppliedMetadata) {
    if let Err(error) = outcome {
        applied.problems.push(error);
    }
}

/// Determines which of the recorded owner and group the file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeptOwnership {
    uid: bool,
    gid: bool,
}

fn apply_owner(
    node: &HeldNode<'_>,
    wanted: &TargetMetadata<'_>,
    now: &FileStat,
    caller: MetadataCaller,
    applied: &mut AppliedMetadata,
) -> KeptOwnership {
    let mut kept = KeptOwnership { uid: wanted.uid == now.uid, gid: wanted.gid == now.gid };
    // For other users this would fail with EPERM on every file.
    if !kept.uid && caller.privileged {
        kept.uid = try_set_owner(node, Some(wanted.uid), None, applied);
    }
    // A user may give a file to another of the user's groups, so this is tried.
    if !kept.gid {
        kept.gid = try_set_owner(node, None, Some(wanted.gid), applied);
    }
    applied.owner_lost = !(kept.uid && kept.gid);
    kept
}

fn try_set_owner(
    node: &HeldNode<'_>,
    uid: Option<u32>,
    gid: Option<u32>,
    applied: &mut AppliedMetadata,
) -> bool {
    // The kernel leaves the owner unchanged for the all-ones id: no file can have it.
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return false;
    }
    match node.set_owner(uid, gid) {
        Ok(()) => true,
        Err(error) => {
            // Not permitted, or an id that this user namespace does not have: the file stays the caller's.
            if !matches!(error.errno(), Some(Errno::PERM | Errno::INVAL)) {
                applied.problems.push(error);
            }
            false
        }
    }
}

/// Removes the set-id bits if they would grant the privileges of another owner than the recorded one.
fn allowed_mode(mode: u32, kind: FileKind, kept: KeptOwnership) -> u32 {
    match kind {
        // On directories the bits lend no privilege; set-gid chooses the group of new entries.
        FileKind::Dir if kept.gid => mode,
        FileKind::Dir => mode & !SET_GID,
        _ if kept.uid && kept.gid => mode,
        _ => mode & !(SET_UID | SET_GID),
    }
}

fn apply_xattrs(
    node: &HeldNode<'_>,
    wanted: &TargetMetadata<'_>,
    now: &FileStat,
    applied: &mut AppliedMetadata,
) {
    let present = match node.list_xattr_names() {
        Ok(names) => names,
        Err(error) => {
            applied.problems.push(error);
            Vec::new()
        }
    };
    // A capability that the record does not have would give the file privileges that its owner removed.
    let stale = present
        .iter()
        .filter(|name| is_removable_xattr(name) && !wanted.xattrs.iter().any(|x| x.name == **name));
    for name in stale {
        record_failure(retry_writable(node, now, || node.remove_xattr(name)), applied);
    }
    for xattr in wanted.xattrs {
        // Labels that the system gave already cost a privileged call to repeat.
        if present.contains(&xattr.name)
            && matches!(node.read_xattr(&xattr.name), Ok(Some(value)) if value == xattr.value)
        {
            continue;
        }
        record_failure(retry_writable(node, now, || node.set_xattr(&xattr.name, &xattr.value)), applied);
    }
}

/// Whether an unrecorded attribute is removed. Others (security labels) belong to the system.
fn is_removable_xattr(name: &[u8]) -> bool {
    name.starts_with(USER_PREFIX) || name.starts_with(ACL_PREFIX) || name == CAPABILITY
}

/// Tries again with write permission, which the kernel requires for `user.` attributes, even of the owner.
fn retry_writable(
    node: &HeldNode<'_>,
    now: &FileStat,
    change: impl Fn() -> Result<(), BeneathError>,
) -> Result<(), BeneathError> {
    match change() {
        Err(error) if error.errno() == Some(Errno::ACCESS) && now.kind != FileKind::Symlink => {
            // Set-id bits have no business on a file in between; the recorded mode follows.
            node.set_mode((now.mode & 0o777) | OWNER_MAY_WRITE)?;
            change()
        }
        other => other,
    }
}

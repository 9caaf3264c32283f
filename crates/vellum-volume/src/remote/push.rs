//! Sends snapshots to a remote and moves its refs.
//!
//! Invariant: a ref of the remote moves only from a snapshot to one that descends from it, by compare-and-swap. One that
//! cannot move is reported, and nothing is sent for it. A worktree that a directory of the remote has is never moved.

use std::cell::RefCell;

use vellum_host::ProgressMeter;
use vellum_types::SnapshotId;

use super::{Remote, RemoteRefs, TransferDirection};
use crate::annotation::copy_annotations;
use crate::error::{Result, VolumeError};
use crate::history::AncestorWalk;
use crate::keyring;
use crate::merge::ancestry::AncestrySearch;
use crate::refs::{NamedRefKind, RefKind, WorktreeHead};
use crate::settings::copy_settings;
use crate::snapshot_pin::copy_pins;
use crate::transfer::{TransferPlan, TransferReport, find_unforgotten, transfer_snapshots};
use crate::volume::{Volume, decode_tag_target, decode_worktree_head};

/// What is to be sent.
#[derive(Debug, Clone, Default)]
pub struct PushRequest {
    /// Worktrees whose heads are sent, by name.
    pub worktrees: Vec<String>,
    /// Tags that are sent, by name.
    pub tags: Vec<String>,
    /// Snapshots that are sent beside those.
    pub snapshots: Vec<SnapshotId>,
    /// Whether all snapshots are sent, except those that were forgotten there.
    pub is_everything: bool,
    /// Whether nothing is to be changed.
    pub is_dry_run: bool,
}

/// What became of a ref of the remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefPushOutcome {
    /// It was made.
    Created,
    /// It named this snapshot before.
    Moved(SnapshotId),
    /// It named the snapshot already.
    Unchanged,
    /// It names a snapshot that descends from the one that was to be sent.
    Ahead(SnapshotId),
    /// It names a snapshot from which the one that was to be sent does not descend.
    Diverged(SnapshotId),
    /// It is a tag of another snapshot.
    Taken(SnapshotId),
    /// It is a worktree that a directory of the remote's own has.
    Attached {
        /// The host of that directory.
        host: String,
        /// The directory.
        place: String,
    },
    /// The other kind of ref has this name.
    NameInUse,
}

impl RefPushOutcome {
    /// Whether the ref says what it was to say, or more.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match self {
            Self::Created | Self::Moved(_) | Self::Unchanged | Self::Ahead(_) => true,
            Self::Diverged(_) | Self::Taken(_) | Self::Attached { .. } | Self::NameInUse => false,
        }
    }

    fn is_change(&self) -> bool {
        matches!(self, Self::Created | Self::Moved(_))
    }
}

/// A ref that was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushedRef {
    /// Its kind.
    pub kind: NamedRefKind,
    /// Its name.
    pub name: String,
    /// What it was to name.
    pub snapshot: SnapshotId,
    /// What became of it.
    pub outcome: RefPushOutcome,
}

/// What a push did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushReport {
    /// What became of each ref.
    pub refs: Vec<PushedRef>,
    /// What was sent; in a dry run, the snapshots that would be.
    pub sent: TransferReport,
}

/// Sends what is requested. A remote that holds nothing yet is set up.
pub fn push_snapshots(
    volume: &Volume,
    remote: &Remote,
    request: &PushRequest,
    meter: &ProgressMeter,
) -> Result<PushReport> {
    let _mark =
        (!request.is_dry_run).then(|| volume.mark_transfer(remote, TransferDirection::Push)).flatten();
    let target = match volume.open_remote(remote)? {
        Some(target) => target,
        None if request.is_dry_run => return preview_first_push(volume, request),
        None => volume.open_or_create_remote(remote)?,
    };
    let pushed = push_to_volume(volume, &target, request, meter)?;
    if !request.is_dry_run {
        let before = volume.read_remote_refs(&remote.name)?;
        let known = volume.catalog.last_listed_ids()?;
        // Others may have pushed snapshots that were never fetched: what is noted here must be readable here.
        let found = RemoteRefs::read_from(&target)?.limit_to_known(&before, &known);
        volume.note_remote_refs(remote, &found)?;
    }
    Ok(pushed)
}

/// A ref of this volume that the remote is to have.
struct WantedRef {
    kind: NamedRefKind,
    name: String,
    snapshot: SnapshotId,
}

fn find_wanted_refs(volume: &Volume, request: &PushRequest) -> Result<Vec<WantedRef>> {
    let mut wanted = Vec::new();
    for name in &request.worktrees {
        let head = volume.require_worktree_head(name)?;
        // A worktree without a snapshot has nothing to send.
        if let Some(snapshot) = head.head {
            wanted.push(WantedRef { kind: NamedRefKind::Worktree, name: name.clone(), snapshot });
        }
    }
    for name in &request.tags {
        let missing = || VolumeError::NoSuchRef { kind: "tag", name: name.clone() };
        let tag = volume.refs.get_ref(RefKind::Tag, name)?.ok_or_else(missing)?;
        let snapshot = decode_tag_target(&tag)?;
        wanted.push(WantedRef { kind: NamedRefKind::Tag, name: name.clone(), snapshot });
    }
    Ok(wanted)
}

/// What would be sent to a store that holds nothing.
fn preview_first_push(volume: &Volume, request: &PushRequest) -> Result<PushReport> {
    let wanted = find_wanted_refs(volume, request)?;
    let heads: Vec<_> =
        wanted.iter().map(|wanted| wanted.snapshot).chain(request.snapshots.iter().copied()).collect();
    let missing = if request.is_everything {
        // Nothing was forgotten in a store that does not exist.
        volume.catalog.last_listed_ids()?.len() as u64
    } else {
        AncestorWalk::from_heads(&volume.catalog, heads)?.count() as u64
    };
    let created = |WantedRef { kind, name, snapshot }| PushedRef {
        kind,
        name,
        snapshot,
        outcome: RefPushOutcome::Created,
    };
    let refs = wanted.into_iter().map(created).collect();
    Ok(PushReport { refs, sent: TransferReport { snapshots: missing, ..TransferReport::default() } })
}

/// As [`push_snapshots`], to the volume in a store that is open already.
pub fn push_to_volume(
    volume: &Volume,
    target: &Volume,
    request: &PushRequest,
    meter: &ProgressMeter,
) -> Result<PushReport> {
    let wanted = find_wanted_refs(volume, request)?;
    let mut refs = Vec::with_capacity(wanted.len());
    for WantedRef { kind, name, snapshot } in wanted {
        // Judged before anything is sent: for a ref that cannot move, the transfer would be for nothing.
        let outcome = judge_ref(volume, target, kind, &name, snapshot)?;
        refs.push(PushedRef { kind, name, snapshot, outcome });
    }
    let moving = refs.iter().filter(|pushed| pushed.outcome.is_change()).map(|pushed| pushed.snapshot);
    let mut heads: Vec<_> = moving.chain(request.snapshots.iter().copied()).collect();
    if request.is_everything {
        heads.extend(find_unforgotten(volume, target)?);
    }
    if request.is_dry_run {
        let sent = TransferPlan::build(volume, target, &heads)?.preview();
        return Ok(PushReport { refs, sent });
    }
    // Before any snapshot is sent: a device that was revoked here must not open there what comes next.
    keyring::copy_key_slots(volume, target)?;
    let (sent, refs) = transfer_snapshots(volume, target, &heads, meter, || {
        let mut moved = refs;
        for pushed in moved.iter_mut().filter(|pushed| pushed.outcome.is_change()) {
            pushed.outcome = move_ref(volume, target, pushed)?;
        }
        // After the snapshots that they keep, and before a collection there could take these.
        copy_pins(volume, target)?;
        copy_annotations(volume, target)?;
        copy_settings(volume, target)?;
        Ok(moved)
    })?;
    Ok(PushReport { refs, sent })
}

/// What would become of a ref of the remote.
fn judge_ref(
    volume: &Volume,
    target: &Volume,
    kind: NamedRefKind,
    name: &str,
    snapshot: SnapshotId,
) -> Result<RefPushOutcome> {
    match kind {
        NamedRefKind::Worktree => {
            // A name that both kinds had could not be resolved there any more.
            if target.refs.get_ref(RefKind::Tag, name)?.is_some() {
                return Ok(RefPushOutcome::NameInUse);
            }
            judge_worktree(volume, target, target.read_worktree_head(name)?.as_ref(), snapshot)
        }
        NamedRefKind::Tag => match target.refs.get_ref(RefKind::Tag, name)? {
            Some(tag) => judge_tag(decode_tag_target(&tag)?, snapshot),
            None if target.refs.get_ref(RefKind::Worktree, name)?.is_some() => Ok(RefPushOutcome::NameInUse),
            None => Ok(RefPushOutcome::Created),
        },
    }
}

fn judge_tag(there: SnapshotId, snapshot: SnapshotId) -> Result<RefPushOutcome> {
    Ok(if there == snapshot { RefPushOutcome::Unchanged } else { RefPushOutcome::Taken(there) })
}

fn judge_worktree(
    volume: &Volume,
    target: &Volume,
    there: Option<&WorktreeHead>,
    snapshot: SnapshotId,
) -> Result<RefPushOutcome> {
    let Some(there) = there else { return Ok(RefPushOutcome::Created) };
    if there.head == Some(snapshot) {
        return Ok(RefPushOutcome::Unchanged);
    }
    // That directory would not follow a head that moves. Its next snapshot would undo what was pushed.
    if there.has_directory() {
        let WorktreeHead { host, place, .. } = there.clone();
        return Ok(RefPushOutcome::Attached { host, place });
    }
    match there.head {
        None => Ok(RefPushOutcome::Created),
        // The same merge, made elsewhere, holds the same: it is as good as an ancestor.
        Some(head) if AncestrySearch::new(&volume.catalog).has_ancestor(snapshot, head)? => {
            Ok(RefPushOutcome::Moved(head))
        }
        // What others pushed may not be known here.
        Some(head) if AncestrySearch::new(&target.catalog).has_ancestor(head, snapshot)? => {
            Ok(RefPushOutcome::Ahead(head))
        }
        Some(head) => Ok(RefPushOutcome::Diverged(head)),
    }
}

/// Moves a ref of the remote, unless somebody else moved it since so that it must not.
fn move_ref(volume: &Volume, target: &Volume, pushed: &PushedRef) -> Result<RefPushOutcome> {
    let PushedRef { kind, name, snapshot, .. } = pushed;
    // The change may run several times. What the last run judged is what was swapped in.
    let outcome = RefCell::new(RefPushOutcome::Unchanged);
    target.refs.update_ref((*kind).into(), name, |old| {
        let (judged, value) = match kind {
            NamedRefKind::Worktree => {
                let there = old.map(decode_worktree_head).transpose()?;
                // Judged again by the value that is about to be replaced: somebody may have pushed since the first
                // look.
                let judged = judge_worktree(volume, target, there.as_ref(), *snapshot)?;
                // No directory has it: it is where others find what was pushed.
                let new = there.unwrap_or_else(|| WorktreeHead::new(String::new(), String::new()));
                (judged, WorktreeHead { head: Some(*snapshot), ..new }.encode())
            }
            NamedRefKind::Tag => {
                let judged = match old {
                    Some(tag) => judge_tag(decode_tag_target(tag)?, *snapshot)?,
                    None => RefPushOutcome::Created,
                };
                (judged, snapshot.as_bytes().to_vec())
            }
        };
        let is_change = judged.is_change();
        outcome.replace(judged);
        // A ref that must not move is written with the value that it has: `None` would remove it.
        Ok(if is_change { Some(value) } else { old.map(|old| old.value.clone()) })
    })?;
    Ok(outcome.into_inner())
}

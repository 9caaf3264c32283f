//! Fetches snapshots from a remote, and their pins and notes. Nothing else here changes but what is known: the refs of the remote are
//! kept under its name.

use std::collections::BTreeMap;

use vellum_host::ProgressMeter;
use vellum_types::SnapshotId;

use super::{Remote, RemoteRefs, TransferDirection};
use crate::annotation::copy_annotations;
use crate::error::{Result, VolumeError};
use crate::refs::NamedRefKind;
use crate::settings::copy_settings;
use crate::snapshot_pin::copy_pins;
use crate::transfer::{
    TransferPlan, TransferReport, copy_source_content, find_unforgotten, transfer_records, transfer_snapshots,
};
use crate::volume::Volume;

/// What is to be fetched.
#[derive(Debug, Clone, Copy, Default)]
pub struct PullRequest {
    /// Whether snapshots that no worktree and no tag of the remote names are fetched, too.
    pub is_everything: bool,
    /// Whether nothing is to be changed.
    pub is_dry_run: bool,
}

/// A ref of the remote that is new, or says something else than when it was seen last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledRef {
    /// Its kind.
    pub kind: NamedRefKind,
    /// Its name.
    pub name: String,
    /// What it named when it was seen last; none if it is new.
    pub old: Option<SnapshotId>,
    /// What it names; none if it was removed.
    pub new: Option<SnapshotId>,
}

/// What a pull did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullReport {
    /// Refs that changed, by kind and name.
    pub refs: Vec<PulledRef>,
    /// What was fetched; in a dry run, the snapshots that would be.
    pub fetched: TransferReport,
}

/// Fetches what the remote has and this store lacks.
pub fn pull_snapshots(
    volume: &Volume,
    remote: &Remote,
    request: PullRequest,
    meter: &ProgressMeter,
) -> Result<PullReport> {
    let _mark =
        (!request.is_dry_run).then(|| volume.mark_transfer(remote, TransferDirection::Pull)).flatten();
    let Some(source) = volume.open_remote(remote)? else {
        return Err(VolumeError::EmptyRemote(remote.name.clone()));
    };
    // Refs of several kinds are read below, all from one listing.
    let _listing = source.refs.share_listing()?;
    let found = RemoteRefs::read_from(&source)?;
    let mut heads: Vec<_> = found.worktrees.values().chain(found.tags.values()).copied().collect();
    if request.is_everything {
        heads.extend(find_unforgotten(&source, volume)?);
    }
    let before = volume.read_remote_refs(&remote.name)?;
    let mut refs = compare_refs(NamedRefKind::Worktree, &before.worktrees, &found.worktrees);
    refs.extend(compare_refs(NamedRefKind::Tag, &before.tags, &found.tags));
    if request.is_dry_run {
        let fetched = TransferPlan::build(&source, volume, &heads)?.preview();
        return Ok(PullReport { refs, fetched });
    }
    let known = volume.catalog.list_ids()?;
    // Most often there is nothing new: then no session is needed.
    let heads: Vec<_> = heads.into_iter().filter(|id| known.binary_search(id).is_err()).collect();
    // The refs are noted when the records are here: a name of the remote must lead to a snapshot that can be read.
    let note_refs = || {
        copy_pins(&source, volume)?;
        copy_annotations(&source, volume)?;
        copy_settings(&source, volume)?;
        volume.note_remote_refs(remote, &found)
    };
    // From the source of its store a volume needs records only: it reads content there as it is.
    let is_source = volume.find_source()?.is_some_and(|location| location == remote.location);
    if !is_source {
        let (fetched, ()) = transfer_snapshots(&source, volume, &heads, meter, note_refs)?;
        return Ok(PullReport { refs, fetched });
    }
    let (mut fetched, ()) = transfer_records(&source, volume, &heads, meter, note_refs)?;
    // Another process may have made the volume independent of its source while the records were on their way.
    if volume.find_source()?.is_none() {
        fetched.add_content(pull_content(volume, meter)?);
    }
    Ok(PullReport { refs, fetched })
}

/// Copies all content that only the source of a volume's store has, and reads nothing from the source any more. Fails with
/// [`VolumeError::WholeStore`] if the store has no source.
pub fn pull_content(volume: &Volume, meter: &ProgressMeter) -> Result<TransferReport> {
    let Some(source) = volume.blobs.open_source()? else {
        return Err(VolumeError::WholeStore(volume.objects.describe_location()));
    };
    // Records that came before their content was wanted, too.
    source.refresh_index()?;
    let mut copied = TransferReport::default();
    loop {
        let round = copy_source_content(volume, source, meter)?;
        copied.add_content(round);
        if round.blobs > 0 {
            // Snapshots that were made meanwhile may need more.
            continue;
        }
        if volume.find_source()?.is_none() {
            return Ok(copied);
        }
        // Once more afterwards: whoever has read that there is a source may have stored a record in between.
        volume.remove_source()?;
    }
}

fn compare_refs(
    kind: NamedRefKind,
    before: &BTreeMap<String, SnapshotId>,
    found: &BTreeMap<String, SnapshotId>,
) -> Vec<PulledRef> {
    let changed = |name: &String| {
        let old = before.get(name).copied();
        let new = found.get(name).copied();
        (old != new).then(|| PulledRef { kind, name: name.clone(), old, new })
    };
    let gone = before.keys().filter(|name| !found.contains_key(*name));
    found.keys().chain(gone).filter_map(changed).collect()
}

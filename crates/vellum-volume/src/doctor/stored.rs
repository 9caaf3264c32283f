//! The store: its refs, its records, its index and packs, its clock, and the disks.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::statvfs;

use super::finding::{DoctorFinding, DoctorFindings, FindingSeverity};
use super::local::{list_old_files, report_leftovers};
use crate::error::{Result, VolumeError};
use crate::session::{CLOCK_TOLERANCE, current_time};
use crate::store_check::refuse_wrong_clock;
use crate::volume::{Volume, read_volume_config};

/// Free bytes of a disk below which snapshots may fail soon.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Free inodes of a filesystem below which the same holds.
const FREE_INODES_MIN: u64 = 1000;

pub(super) fn examine_refs(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    let (_, mut damaged) = volume.list_readable_worktrees()?;
    let (_, damaged_tags) = volume.list_readable_tags()?;
    damaged.extend(damaged_tags);
    for damaged in damaged {
        let hint = findings.hint(&damaged.error);
        findings.add(DoctorFinding::new(
            FindingSeverity::Problem,
            "damaged-ref",
            damaged.key.to_string(),
            damaged.error.to_string(),
            hint,
        ));
    }
    // Opening the volume of a service used the copy in the state directory.
    if volume.objects.is_remote() && read_volume_config(&*volume.objects)?.is_none() {
        findings.add(DoctorFinding::new(
            FindingSeverity::Problem,
            "lost-config",
            volume.objects.describe_location(),
            "the object 'config' is missing: no other machine can open the volume",
            "'vellum push' to another store copies what can be read",
        ));
    }
    Ok(())
}

/// Snapshots that are dated in the future.
pub(super) fn examine_records(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    let tolerance = i64::try_from(CLOCK_TOLERANCE.as_secs()).unwrap_or(i64::MAX);
    let limit = current_time().secs.saturating_add(tolerance);
    let count = volume.catalog.count_listed(|_, summary| summary.time.secs > limit)?;
    if count > 0 {
        let snapshots = if count == 1 { "a snapshot is".into() } else { format!("{count} snapshots are") };
        findings.add(DoctorFinding::new(
            FindingSeverity::Warning,
            "future-snapshots",
            "the history",
            format!("{snapshots} dated in the future: a clock was wrong, or that of this machine is"),
            "set the clock right if it is wrong; 'vellum forget' with rules keeps them until then",
        ));
    }
    Ok(())
}

pub(super) fn examine_index(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    volume.blobs.refresh_index()?;
    for problem in volume.blobs.index_problems() {
        findings.add(DoctorFinding::new(
            FindingSeverity::Problem,
            "damaged-index",
            "the index of the store",
            problem.to_string(),
            "'vellum verify --rebuild-index' makes it anew from the packs",
        ));
    }
    // A service is not listed for this: it loses nothing unnoticed, and each thousand packs take a request.
    if volume.objects.is_remote() {
        return Ok(());
    }
    let missing = volume.blobs.find_missing_packs()?.len();
    if missing > 0 {
        let packs = if missing == 1 { "a pack is".into() } else { format!("{missing} packs are") };
        findings.add(DoctorFinding::new(
            FindingSeverity::Problem,
            "lost-packs",
            volume.objects.describe_location(),
            format!("{packs} missing or too short"),
            "'vellum verify --all --repair' looks for their content elsewhere",
        ));
    }
    Ok(())
}

/// The clock of this machine against that of the store.
pub(super) fn examine_clock(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    if let Err(error @ VolumeError::WrongClock { .. }) = refuse_wrong_clock(&*volume.objects) {
        let hint = findings.hint(&error);
        let store = volume.objects.describe_location();
        let meaning = error.to_string();
        findings.add(DoctorFinding::new(FindingSeverity::Problem, "wrong-clock", store, meaning, hint));
        return Ok(());
    }
    if volume.objects.is_remote() {
        return Ok(());
    }
    // A directory has no clock that could be asked: what was written there last may be from the future.
    let newest = volume.objects.list_objects("refs")?.into_iter().filter_map(|info| info.modified).max();
    let lead = newest.and_then(|newest| newest.duration_since(SystemTime::now()).ok());
    if let Some(lead) = lead.filter(|lead| *lead > CLOCK_TOLERANCE) {
        findings.add(DoctorFinding::new(
            FindingSeverity::Warning,
            "wrong-clock",
            volume.objects.describe_location(),
            format!("something in it was written {} minutes in the future", lead.as_secs() / 60),
            "set the clock of this machine right, or that of the one that has the disk",
        ));
    }
    Ok(())
}

/// Objects that killed commands had not finished, in a directory.
pub(super) fn examine_leftovers(volume: &Volume, findings: &mut DoctorFindings) -> Result<()> {
    let Some(store) = volume.objects.local_dir() else { return Ok(()) };
    let unfinished = list_old_files(&store.join(vellum_store::LOCAL_TEMP_FOLDER))?;
    report_leftovers(unfinished, store, findings);
    Ok(())
}

pub(super) fn examine_disks(volume: &Volume, findings: &mut DoctorFindings) {
    let places = volume.objects.local_dir().into_iter().chain([volume.state.path()]);
    let mut filesystems = BTreeSet::new();
    for place in places {
        let Ok(disk) = statvfs(place) else { continue };
        // Store and state directory are on one disk mostly.
        if !filesystems.insert(disk.f_fsid) {
            continue;
        }
        // Not `f_bfree`, which includes blocks that only root may use.
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free < FREE_BYTES_MIN {
            findings.add(warn_low_space(place, format!("{} MiB", free >> 20)));
        }
        // Filesystems that make inodes as they are needed say 0 of 0.
        if disk.f_files > 0 && disk.f_favail < FREE_INODES_MIN {
            findings.add(warn_low_space(place, format!("{} inodes", disk.f_favail)));
        }
    }
}

fn warn_low_space(place: &Path, left: String) -> DoctorFinding {
    DoctorFinding::new(
        FindingSeverity::Warning,
        "low-space",
        place.display().to_string(),
        format!("{left} are left on its filesystem"),
        "'vellum forget' and 'vellum gc run' make room",
    )
}

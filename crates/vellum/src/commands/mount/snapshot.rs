//! Mounts of snapshots. What a mount shows stays readable, also if the snapshot is forgotten and collected.

use std::path::Path;
use std::sync::Arc;

use vellum_fuse::MountSource;
use vellum_library::{live, snapshot_hold};
use vellum_types::SnapshotId;
use vellum_volume::Volume;

use super::{Args, LOG_FILE, MountRetention, MountTarget, MountedTarget, ReadyMount, mount_target};
use crate::error::{CliError, Result};
use crate::mounting::log::MountLog;
use crate::mounting::mountpoint;

pub(super) fn mount_snapshot(
    args: &Args,
    volume: &Arc<Volume>,
    id: SnapshotId,
    mountpoint: &Path,
) -> Result<ReadyMount> {
    mountpoint::prepare_mountpoint(mountpoint)?;
    let dir = live::snapshot_log_dir(volume, &id);
    live::create_state_dir(&dir)?;
    let made = hold_and_mount(args, volume, id, mountpoint);
    made.inspect_err(|_| live::remove_snapshot_log_dir(volume, &id))
}

fn hold_and_mount(
    args: &Args,
    volume: &Arc<Volume>,
    id: SnapshotId,
    mountpoint: &Path,
) -> Result<ReadyMount> {
    let dir = live::snapshot_log_dir(volume, &id);
    let log = Arc::new(MountLog::open_log(&dir.join(LOG_FILE))?);
    // Before anybody can read from the mount.
    let hold = snapshot_hold::hold_snapshot(volume, id, move |warning| log.write_warning(warning));
    let hold = hold.map_err(|error| match error {
        vellum_library::Error::Volume(error) => error.into(),
        other => CliError::io_error("hold", "the snapshot")(std::io::Error::from(other)),
    })?;
    let shown = MountTarget {
        source: MountSource::Snapshot(id),
        worktree: None,
        snapshot: Some(id),
        dir,
        control: None,
        // Nothing of it can stay unpublished, and a store that does not answer shows in its requests.
        problems: Box::new(Vec::new),
        policies: Arc::default(),
        locks: None,
        gate: None,
    };
    let MountedTarget { mounted, signals, log, report } = mount_target(args, volume, mountpoint, shown)?;
    let keep = MountRetention::Nothing;
    Ok(ReadyMount {
        mounted,
        live: None,
        hold: Some(hold),
        client: None,
        standby: None,
        sharing: Arc::default(),
        signals,
        log,
        end: Arc::default(),
        keep,
        report,
    })
}

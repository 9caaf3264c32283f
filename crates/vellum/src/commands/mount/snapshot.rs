//! Mounts of snapshots, and what keeps their content meanwhile.
//!
//! Invariant: while the store takes it, the process of the mount has a session there that names the snapshot's tree: what
//! the mount shows stays readable, also if the snapshot is forgotten and collected.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use vellum_fuse::MountSource;
use vellum_library::live;
use vellum_store::RequestPurpose;
use vellum_types::SnapshotId;
use vellum_volume::session::ReadSession;
use vellum_volume::{Volume, VolumeError};

use super::{Args, LOG_FILE, MountRetention, MountTarget, MountedTarget, ReadyMount, mount_target};
use crate::error::{CliError, Result};
use crate::mounting::log::MountLog;
use crate::mounting::mountpoint;

/// How often it is looked whether the session is due, and how often a store is asked again that took none.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

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
    let hold = hold_snapshot(volume, id, log)?;
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

/// Keeps the content of what is mounted until it is dropped.
pub(super) struct TreeHold {
    /// Nothing is ever sent: its end is the signal. None while it is being dropped.
    end: Option<SyncSender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl TreeHold {
    /// Starts the thread that keeps it. `keep` returns when what it is given hangs up.
    pub fn start(keep: impl FnOnce(&Receiver<()>) + Send + 'static) -> Result<Self> {
        let (end, ended) = sync_channel(0);
        let keeper = std::thread::Builder::new()
            .name("tree-hold".into())
            .spawn(move || keep(&ended))
            .map_err(CliError::io_error("start", "a thread"))?;
        Ok(Self { end: Some(end), keeper: Some(keeper) })
    }
}

/// Puts a session into the store, and starts the thread that renews it. Fails if the snapshot was forgotten. A store that
/// cannot be written to, or that is away, takes the session later or never: it can be read all the same.
fn hold_snapshot(volume: &Arc<Volume>, id: SnapshotId, log: Arc<MountLog>) -> Result<TreeHold> {
    let session = begin_session(volume, id, &log)?;
    let volume = volume.clone();
    TreeHold::start(move |ended| keep_session(&volume, id, session, ended, &log))
}

impl Drop for TreeHold {
    fn drop(&mut self) {
        // The end of the sender wakes the thread, which otherwise sleeps until it has to renew the session.
        drop(self.end.take());
        if let Some(keeper) = self.keeper.take() {
            // A panic there has been told already.
            let _ = keeper.join();
        }
    }
}

/// The session, if the store takes it.
fn begin_session(volume: &Volume, id: SnapshotId, log: &MountLog) -> Result<Option<ReadSession>> {
    match volume.begin_read_session(id) {
        Ok(session) => Ok(Some(session)),
        // The snapshot was forgotten a moment ago: what it has may be deleted at any time.
        Err(error @ VolumeError::MissingRecord(_)) => Err(error.into()),
        Err(error) => {
            log.write_warning(&format!(
                "the store takes no session of this mount; if the snapshot is forgotten, 'vellum gc run' may delete what the \
                 mount shows: {error}"
            ));
            Ok(None)
        }
    }
}

/// Renews the session until `ended` hangs up, and begins another one if it was lost.
fn keep_session(
    volume: &Volume,
    id: SnapshotId,
    mut session: Option<ReadSession>,
    ended: &Receiver<()>,
    log: &MountLog,
) {
    RequestPurpose::Upkeep.set_for_thread();
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK_AGAIN) {
        match session.as_ref().map(ReadSession::renew_if_due) {
            // A machine that slept for a day is not heard of by the collector.
            Some(Err(VolumeError::SessionLost)) | None => {
                session = begin_session(volume, id, log).unwrap_or_else(|error| {
                    log.write_warning(&format!("what this mount shows is not kept any more: {error}"));
                    None
                });
            }
            // It is tried again soon; the session counts for a day.
            Some(Err(_)) | Some(Ok(())) => {}
        }
    }
}

//! What keeps the content of a snapshot in the store while a process shows it to others.
//!
//! Invariant: while the store takes it, this process has a session there that names the snapshot's tree: what is shown stays
//! readable, also if the snapshot is forgotten and collected. The session of a process that was killed is over for those on
//! its machine, and for others a day after it was renewed last; `vellum doctor` shows and removes it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use vellum_store::RequestPurpose;
use vellum_types::SnapshotId;
use vellum_volume::session::ReadSession;
use vellum_volume::{Volume, VolumeError};

use crate::error::{Error, Result};

/// How often it is looked whether the session is due, and how often a store is asked again that took none.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// Keeps the content of what is shown until it is dropped.
pub struct TreeHold {
    /// Nothing is ever sent: its end is the signal. None while it is being dropped.
    end: Option<SyncSender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl TreeHold {
    /// Starts the thread that keeps it. `keep` returns when what it is given hangs up.
    pub fn start(keep: impl FnOnce(&Receiver<()>) + Send + 'static) -> io::Result<Self> {
        let (end, ended) = sync_channel(0);
        let keeper = std::thread::Builder::new().name("tree-hold".into()).spawn(move || keep(&ended))?;
        Ok(Self { end: Some(end), keeper: Some(keeper) })
    }
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

/// Puts a session into the store, and starts the thread that renews it. Fails if the snapshot was forgotten. A store that
/// cannot be written to, or that is away, takes the session later or never: it can be read all the same, and `warn` is told.
pub fn hold_snapshot(
    volume: &Arc<Volume>,
    id: SnapshotId,
    warn: impl Fn(&str) + Send + 'static,
) -> Result<TreeHold> {
    let session = begin_session(volume, id, &warn)?;
    let volume = volume.clone();
    TreeHold::start(move |ended| keep_session(&volume, id, session, ended, &warn)).map_err(Error::Thread)
}

/// The session, if the store takes it.
fn begin_session(
    volume: &Volume,
    id: SnapshotId,
    warn: &dyn Fn(&str),
) -> Result<Option<ReadSession>, VolumeError> {
    match volume.begin_read_session(id) {
        Ok(session) => Ok(Some(session)),
        // The snapshot was forgotten a moment ago: what it has may be deleted at any time.
        Err(error @ VolumeError::MissingRecord(_)) => Err(error),
        Err(error) => {
            warn(&format!(
                "the store takes no session of this process; if the snapshot is forgotten, 'vellum gc run' may delete what \
                 is shown: {error}"
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
    warn: &dyn Fn(&str),
) {
    RequestPurpose::Upkeep.set_for_thread();
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK_AGAIN) {
        match session.as_ref().map(ReadSession::renew_if_due) {
            // A machine that slept for a day is not heard of by the collector.
            Some(Err(VolumeError::SessionLost)) | None => {
                session = begin_session(volume, id, warn).unwrap_or_else(|error| {
                    warn(&format!("what is shown is not kept any more: {error}"));
                    None
                });
            }
            // It is tried again soon; the session counts for a day.
            Some(Err(_)) | Some(Ok(())) => {}
        }
    }
}

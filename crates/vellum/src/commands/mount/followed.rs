//! Mounts of what another machine puts into the store of its worktree, read-only.
//!
//! Invariant: while the store takes it, the process of the mount has a session there that names the tree which it shows, and
//! begins the next one before it ends that.
//! Deliberately absent: a connection to the process that serves. Any number of these mounts costs that process nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use vellum_fuse::{FollowedTree, MountSource};
use vellum_host::error_chain::format_error_chain;
use vellum_library::{TreeHold, live};
use vellum_map::MapRoot;
use vellum_store::RequestPurpose;
use vellum_volume::session::ReadSession;
use vellum_volume::{Volume, VolumeError};

use super::shared::ClientMount;
use super::{Args, LOG_FILE, MountRetention, MountTarget, MountedTarget, ReadyMount, mount_target};
use crate::error::{CliError, Result};
use crate::mounting::log::MountLog;
use crate::mounting::mountpoint;
use crate::mounting::sharing::client::client_dir;

/// How often it is looked for a newer tree in a directory, where that costs a read of a small file.
const DIRECTORY_INTERVAL: Duration = Duration::from_secs(2);
/// The same in a service, where it costs a request: 120 an hour.
const SERVICE_INTERVAL: Duration = Duration::from_secs(30);
/// How long a store is not asked again that took no session for the tree that is shown.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// How often a tree that was replaced meanwhile is asked for again. A worktree is published once a second at most.
const ATTEMPTS: usize = 10;

/// Mounts what the worktree has in the store, and shows what is there later.
pub(super) fn mount_published(args: &Args, volume: &Arc<Volume>, mountpoint: &Path) -> Result<ReadyMount> {
    let name = args.sharing.shared.clone().unwrap_or_default();
    mountpoint::prepare_mountpoint(mountpoint)?;
    let dir = client_dir(volume);
    live::create_state_dir(&dir)?;
    // From here on: it removes the directory.
    let held = ClientMount { client: None, dir: dir.clone() };
    let log = Arc::new(MountLog::open_log(&dir.join(LOG_FILE))?);
    let mut follower =
        TreeFollower { volume: volume.clone(), worktree: name.clone(), log, failure: None, refused_at: None };
    // Before anybody can read from the mount.
    let shown = follower.hold_newest()?.ok_or_else(|| follower.nothing_published())?;
    let tree = Arc::new(FollowedTree::new(volume.open_tree(shown.root)));
    let target = MountTarget {
        source: MountSource::Followed(tree.clone()),
        worktree: Some(&name),
        snapshot: None,
        dir,
        // Commands that change a worktree are for its server.
        control: None,
        problems: Box::new(Vec::new),
        policies: Arc::default(),
        locks: None,
        gate: None,
    };
    let MountedTarget { mounted, signals, log, report } = mount_target(args, volume, mountpoint, target)?;
    let usual = if volume.objects.is_remote() { SERVICE_INTERVAL } else { DIRECTORY_INTERVAL };
    let interval = args.follow_interval.map_or(usual, Duration::from_secs);
    let hold = TreeHold::start(move |ended| follower.follow(&tree, shown, interval, ended));
    let hold = hold.map_err(CliError::io_error("start", "a thread"))?;
    Ok(ReadyMount {
        mounted,
        live: None,
        hold: Some(hold),
        client: Some(held),
        standby: None,
        sharing: Arc::default(),
        signals,
        log,
        end: Arc::default(),
        keep: MountRetention::Everything,
        report,
    })
}

/// A tree that is shown, and what keeps it in the store.
struct HeldTree {
    root: MapRoot,
    /// None: the store took none.
    session: Option<ReadSession>,
}

/// Looks for newer trees of a worktree.
struct TreeFollower {
    volume: Arc<Volume>,
    worktree: String,
    log: Arc<MountLog>,
    /// What was wrong when it looked last.
    failure: Option<String>,
    /// When the store took no session, last.
    refused_at: Option<Instant>,
}

impl TreeFollower {
    fn nothing_published(&self) -> CliError {
        CliError::usage_error(
            format!("the worktree '{}' has nothing in the store yet", self.worktree),
            "make a snapshot of it, or wait until the process that serves it has published",
        )
    }

    /// The tree that the worktree has in the store now, with a session; None: it has none.
    fn hold_newest(&mut self) -> Result<Option<HeldTree>> {
        for _ in 0..ATTEMPTS {
            let Some(root) = self.volume.read_published_root(&self.worktree)? else { return Ok(None) };
            match self.volume.begin_published_session(&self.worktree, root) {
                Ok(Some(session)) => return Ok(Some(HeldTree { root, session: Some(session) })),
                // The collector may have looked for sessions before this one was there: the next tree is safe.
                Ok(None) => {}
                Err(error @ VolumeError::NoSuchRef { .. }) => return Err(error.into()),
                // A store that cannot be written to can be read all the same. It is said once.
                Err(error) => {
                    if self.refused_at.replace(Instant::now()).is_some() {
                        return Ok(Some(HeldTree { root, session: None }));
                    }
                    self.log.write_warning(&format!(
                        "the store takes no session of this mount; once the worktree is published again, 'vellum gc run' \
                         may delete what the mount shows: {}",
                        format_error_chain(&error)
                    ));
                    return Ok(Some(HeldTree { root, session: None }));
                }
            }
        }
        // It is published faster than it can be held. What is shown for a moment needs no session.
        let root = self.volume.read_published_root(&self.worktree)?;
        Ok(root.map(|root| HeldTree { root, session: None }))
    }

    /// Shows each newer tree until `ended` hangs up.
    fn follow(mut self, tree: &FollowedTree, mut shown: HeldTree, interval: Duration, ended: &Receiver<()>) {
        RequestPurpose::Upkeep.set_for_thread();
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(interval) {
            let newer = self.find_newer(&shown);
            let failure = newer.as_ref().err().map(ToString::to_string);
            // Once, and not at each look for as long as the store is away: programs that read get their errors anyway.
            if let Some(failure) = failure.as_ref().filter(|failure| self.failure.as_ref() != Some(failure)) {
                self.log.write_warning(&format!("what this mount shows may be old: {failure}"));
            }
            self.failure = failure;
            if let Ok(Some(newer)) = newer {
                tree.replace_tree(self.volume.open_tree(newer.root));
                // Only now: until then, requests used the tree that its session keeps.
                shown = newer;
            }
        }
    }

    /// The tree of now, unless it is shown already.
    fn find_newer(&mut self, shown: &HeldTree) -> Result<Option<HeldTree>> {
        let root = self.volume.read_published_root(&self.worktree)?;
        if root == Some(shown.root) {
            return match shown.session.as_ref().map(ReadSession::renew_if_due) {
                // A machine that slept for a day is not heard of by the collector.
                Some(Err(VolumeError::SessionLost)) => self.hold_newest(),
                // The store has taken none: it is asked again after a while, and not at each look.
                None if self.refused_at.is_some_and(|at| at.elapsed() < ASK_AGAIN) => Ok(None),
                None => self.hold_newest(),
                Some(renewed) => Ok(renewed.map(|()| None)?),
            };
        }
        self.hold_newest()
    }
}

//! What is known of the remotes of a mount's volume, without asking them.
//!
//! Invariant: the screen never waits for it. A thread looks, since the store of the volume itself may be in a service that
//! does not answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use vellum_fuse::MountFile;
use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::remote::{Remote, RemoteStanding, TransferDirection, estimate_standing};
use vellum_volume::{StateDir, Volume};

/// How often remotes are looked at: what is under way is seen soon.
const EVERY: Duration = Duration::from_secs(1);
/// In how many of these rounds once the store of the volume is asked what the worktree stands on.
const ROUNDS_PER_HEAD: u32 = 10;

/// What is known of a remote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteFigures {
    /// Its name.
    pub name: String,
    /// Snapshots that were not pushed when it was seen last, and those that were not here; none if it was never seen.
    pub apart: Option<(u64, u64)>,
    /// When it was seen last, seconds since 1970.
    pub seen: Option<i64>,
    /// For how long a push has been under way on this machine.
    pub pushing: Option<Duration>,
    /// The same of a pull.
    pub pulling: Option<Duration>,
}

/// Looks at the remotes until it is dropped.
pub struct RemoteWatch {
    found: Arc<Mutex<Vec<RemoteFigures>>>,
    is_over: Arc<AtomicBool>,
}

impl RemoteWatch {
    /// Begins to look at the remotes of the volume of a mount. A mount of which nothing can be learnt has none.
    pub fn start(mountpoint: &Path) -> Self {
        let watch = Self { found: Arc::default(), is_over: Arc::default() };
        let text = std::fs::read(mountpoint.join(".vellum/mount.json")).unwrap_or_default();
        if let Ok(MountFile { state, worktree: Some(worktree), .. }) = serde_json::from_slice(&text) {
            let found = Arc::clone(&watch.found);
            let is_over = Arc::clone(&watch.is_over);
            // Not joined: it may wait for a service when the user leaves.
            std::thread::spawn(move || watch_remotes(Path::new(&state), &worktree, &found, &is_over));
        }
        watch
    }

    /// What was found last.
    pub fn read_figures(&self) -> Vec<RemoteFigures> {
        self.found.lock().clone()
    }
}

impl Drop for RemoteWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn watch_remotes(state: &Path, worktree: &str, found: &Mutex<Vec<RemoteFigures>>, is_over: &AtomicBool) {
    let Ok(state) = StateDir::find_enclosing(state) else { return };
    let mut known = KnownStandings::default();
    // Opened once: only a directory on this machine is looked at again each time.
    let Ok(volume) = Volume::open(&state).map(|volume| volume.with_worktree(worktree)) else { return };
    let mut head = None;
    for round in 0_u32.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let remotes = volume.list_remotes().unwrap_or_default();
        // The head is a ref in the store, and each look at it may be a request.
        if round.is_multiple_of(ROUNDS_PER_HEAD) && !remotes.is_empty() {
            // A store that does not answer leaves what was known: the screen shows figures that are a little old.
            head = volume.read_head().unwrap_or(head);
        }
        let figures = remotes.iter().map(|remote| known.look_at_remote(&volume, remote, head)).collect();
        *found.lock() = figures;
        std::thread::sleep(EVERY);
    }
}

/// How far apart the stores were found to be, by remote and by what both sides stood on: the history is not walked again
/// while nothing changes.
#[derive(Default)]
struct KnownStandings(Vec<KnownStanding>);

struct KnownStanding {
    remote: String,
    heads: [Option<SnapshotId>; 2],
    standing: RemoteStanding,
}

impl KnownStandings {
    fn look_at_remote(
        &mut self,
        volume: &Volume,
        remote: &Remote,
        here: Option<SnapshotId>,
    ) -> RemoteFigures {
        let refs = volume.read_remote_refs(&remote.name).unwrap_or_default();
        let there = refs.worktrees.get(&volume.worktree.worktree).copied();
        let standing = refs.seen.and_then(|_| self.find_standing(volume, remote, [here, there]));
        RemoteFigures {
            name: remote.name.clone(),
            apart: standing.map(|standing| (standing.ahead, standing.behind)),
            seen: refs.seen,
            pushing: volume.find_transfer(remote, TransferDirection::Push),
            pulling: volume.find_transfer(remote, TransferDirection::Pull),
        }
    }

    /// Compares the histories of the two heads, here and there.
    fn find_standing(
        &mut self,
        volume: &Volume,
        remote: &Remote,
        heads: [Option<SnapshotId>; 2],
    ) -> Option<RemoteStanding> {
        let is_known = |known: &&KnownStanding| known.remote == remote.name && known.heads == heads;
        if let Some(known) = self.0.iter().find(is_known) {
            return Some(known.standing);
        }
        let [here, there] = heads;
        let standing = estimate_standing(volume, here, there).ok()?;
        // Only the last one of each remote is kept, so that the list does not grow while heads move.
        self.0.retain(|known| known.remote != remote.name);
        self.0.push(KnownStanding { remote: remote.name.clone(), heads, standing });
        Some(standing)
    }
}

impl RemoteFigures {
    /// What is shown of it, in parts.
    pub fn describe(&self) -> Vec<String> {
        use crate::ui::format::{format_age, format_duration, format_number};
        let mut parts = vec![vellum_host::escape::format_path(self.name.as_bytes())];
        let under_way = |verb: &str, time: Duration| format!("{verb} for {}", format_duration(time));
        parts.extend(self.pushing.map(|time| under_way("pushing", time)));
        parts.extend(self.pulling.map(|time| under_way("pulling", time)));
        match self.apart {
            Some((0, 0)) => parts.push("nothing to push or pull".into()),
            Some((ahead, behind)) => {
                parts.push(format!("{} to push", format_number(ahead)));
                parts.push(format!("{} to pull", format_number(behind)));
            }
            None => {}
        }
        parts.push(match self.seen {
            Some(secs) => format!("seen {}", format_age(UnixTime { secs, nanos: 0 })),
            None => "never seen".into(),
        });
        parts
    }
}

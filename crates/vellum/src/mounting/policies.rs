//! The hydration policies of a mounted worktree: set by commands, kept in the folder of its live state, and carried out.
//!
//! Invariant: what is in the file is what the mount obeys. A path with the policy `always` has a pin of its own, which the
//! process of the mount renews when the published state has changed, once a minute at most; paths below it that have
//! policies of their own are not part of it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use vellum_fs::tree::head::LiveHead;
use vellum_fs::{FsError, LiveFilesystem};
use vellum_fuse::PathPolicies;
use vellum_host::ProgressMeter;
use vellum_host::error_chain::format_error_chain;
use vellum_host::escape::format_path;
use vellum_library::live::OpenError;
use vellum_store::RequestPurpose;
use vellum_volume::VolumeError;
use vellum_volume::hydration_policy::{HydrationPolicies, HydrationPolicy};
use vellum_volume::residence::NewPin;

use super::control::{ContentReply, join_shown};
use super::end::ShutdownSignal;
use super::log::MountLog;

/// Between two looks whether pins have to be renewed: each look at a change reads all names below the paths.
pub const RENEW_EVERY: Duration = Duration::from_secs(60);
/// Pins are renewed so often even if the worktree did not change: a collection of garbage elsewhere may have moved content
/// into other packs, and a user may have removed a pin.
const RENEW_UNCHANGED_EVERY: Duration = Duration::from_secs(3600);

/// The policy of a path, as the process of a mount tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PathPolicy {
    /// From the root.
    pub path: Vec<u8>,
    /// Its policy.
    pub policy: HydrationPolicy,
    /// The name of its pin, if it has one.
    pub pin: Option<String>,
}

/// Carries the policies of a worktree out.
pub struct PolicyKeeper {
    fs: Arc<LiveFilesystem>,
    policies: Arc<PathPolicies>,
    /// The folder of the live state.
    folder: PathBuf,
    /// Held while the file is replaced.
    change: Mutex<()>,
    /// Why pins are not fresh, at the moment.
    problem: Mutex<Option<String>>,
}

/// What the pins were renewed for.
#[derive(PartialEq, Eq)]
struct RenewedState {
    head: LiveHead,
    policies: Arc<HydrationPolicies>,
}

impl PolicyKeeper {
    /// Reads the policies of a worktree.
    pub fn open(fs: Arc<LiveFilesystem>, folder: PathBuf) -> Result<Self, VolumeError> {
        let policies = Arc::new(PathPolicies::new(HydrationPolicies::load_from(&folder)?));
        Ok(Self { fs, policies, folder, change: Mutex::default(), problem: Mutex::default() })
    }

    /// The policies, for the mount that obeys them.
    pub fn shared_policies(&self) -> Arc<PathPolicies> {
        self.policies.clone()
    }

    /// Why content that is always to be here may not be; None if all is well.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// All policies that are set.
    pub fn list_policies(&self) -> Vec<PathPolicy> {
        let policies = self.policies.current_policies();
        let list = policies.list_policies().map(|(path, policy)| PathPolicy {
            path: path.to_vec(),
            policy,
            pin: (policy == HydrationPolicy::Always).then(|| self.pin_name(path)),
        });
        list.collect()
    }

    /// Sets the policy of a path, and brings its content here if it is always to be here. Nothing is set if the store is on
    /// this machine, or if the content does not fit.
    pub fn set_policy(
        &self,
        path: &[u8],
        policy: HydrationPolicy,
        meter: &Arc<ProgressMeter>,
    ) -> Result<ContentReply, OpenError> {
        let before = self.policies.current_policies().policy_at(path);
        // A policy outlives what has it: it can be removed then, too.
        if before.is_none() || policy != HydrationPolicy::OnDemand {
            self.check_exists(path)?;
        }
        if self.fs.volume().blobs.local_copies().is_none() {
            return Ok(ContentReply { is_local: true, ..ContentReply::default() });
        }
        let was_always = before == Some(HydrationPolicy::Always);
        if policy != HydrationPolicy::Always {
            self.store_policy(path, policy)?;
            // After the policy is gone: a renewal that is under way then finds it gone, and removes the pin, too.
            if was_always {
                self.remove_pin(path)?;
            }
            return Ok(ContentReply::default());
        }
        let pinned = self.pin_path(path, meter).and_then(|pinned| {
            self.store_policy(path, policy)?;
            Ok(pinned)
        });
        // A path that was always here before keeps the pin that it had.
        if pinned.is_err() && !was_always {
            self.remove_pin(path)?;
        }
        pinned
    }

    fn check_exists(&self, path: &[u8]) -> Result<(), OpenError> {
        match self.fs.names().resolve_path(path) {
            Ok(_) => Ok(()),
            Err(FsError::Posix(Errno::NOENT | Errno::NOTDIR)) => {
                let place = format!("worktree '{}'", self.fs.worktree_name());
                Err(VolumeError::NoSuchPath { path: format_path(path), place }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn store_policy(&self, path: &[u8], policy: HydrationPolicy) -> Result<(), OpenError> {
        // Two commands that set policies at the same time would otherwise each write the list without what the other has
        // added.
        let _change = self.change.lock();
        let mut policies = HydrationPolicies::clone(&self.policies.current_policies());
        policies.set_policy(path, policy);
        // The file comes first: if it cannot be written, the mount goes on obeying what the file says.
        policies.store_in(&self.folder)?;
        self.policies.replace_policies(policies);
        Ok(())
    }

    /// The name of the pin of a path. No worktree's name has a colon, so that it differs from those of other pins.
    fn pin_name(&self, path: &[u8]) -> String {
        let name = self.fs.worktree_name();
        if path.is_empty() {
            format!("always:{name}")
        } else {
            format!("always:{name}/{}", format_path(path))
        }
    }

    fn pin_path(&self, path: &[u8], meter: &Arc<ProgressMeter>) -> Result<ContentReply, OpenError> {
        let excluded: HashSet<_> =
            self.policies.current_policies().list_paths_below(path).into_iter().collect();
        let pin = NewPin { name: self.pin_name(path), content: join_shown(&[path.to_vec()]) };
        Ok(ContentReply::for_hydration(self.fs.pin_path(path, &excluded, &pin, meter)?))
    }

    fn remove_pin(&self, path: &[u8]) -> Result<(), OpenError> {
        let Some(cache) = self.fs.volume().blobs.local_copies().and_then(|copies| copies.pack_cache()) else {
            return Ok(());
        };
        let failed = |source| OpenError::Io {
            action: "remove a pin from",
            path: cache.folder().to_path_buf(),
            source,
        };
        cache.remove_pin(&self.pin_name(path)).map(drop).map_err(failed)
    }

    /// Brings what is always to be here up to date. One path that fails does not keep the others from it.
    fn renew_pins(&self) -> Result<(), OpenError> {
        let paths = self.policies.current_policies().list_paths_with(HydrationPolicy::Always);
        let mut done = Ok(());
        for path in paths {
            let renewed = match self.pin_path(&path, &Arc::default()) {
                Ok(_) => Ok(()),
                // Nothing has the path at the moment, and the content of what had it may go.
                Err(OpenError::Fs(FsError::Volume(VolumeError::NoSuchPath { .. }))) => self.remove_pin(&path),
                Err(error) => Err(error),
            };
            // A command may have taken the policy away meanwhile.
            let is_always =
                self.policies.current_policies().policy_at(&path) == Some(HydrationPolicy::Always);
            let removed = if is_always { Ok(()) } else { self.remove_pin(&path) };
            done = done.and(renewed).and(removed);
        }
        done
    }

    /// Starts the thread that renews the pins. It ends with the mount.
    pub fn start_thread(
        self: Arc<Self>,
        end: Arc<ShutdownSignal>,
        log: Arc<MountLog>,
        interval: Duration,
    ) -> std::io::Result<()> {
        let keep = move || {
            RequestPurpose::ReadAhead.set_for_thread();
            let mut renewed: Option<(RenewedState, Instant)> = None;
            loop {
                let state = RenewedState {
                    // Taken before the pins are renewed: what changes meanwhile differs from it, and is renewed in the
                    // next round.
                    head: self.fs.live_map().lock_head().clone(),
                    policies: self.policies.current_policies(),
                };
                let is_fresh = renewed
                    .as_ref()
                    .is_some_and(|(before, at)| *before == state && at.elapsed() < RENEW_UNCHANGED_EVERY);
                if !is_fresh {
                    let problem = self.renew_pins().err().map(|error| format_error_chain(&error));
                    // After a failure nothing counts as renewed, so that the next round tries again although nothing has
                    // changed.
                    renewed = problem.is_none().then(|| (state, Instant::now()));
                    self.note_problem(problem, &log);
                }
                if end.wait_until_unmounted(interval) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("vellum-policies".into()).spawn(keep).map(drop)
    }

    /// Keeps a problem, and writes it to the log if it is a new one.
    fn note_problem(&self, problem: Option<String>, log: &MountLog) {
        let problem =
            problem.map(|error| format!("content that is always to be here is not renewed: {error}"));
        let mut current = self.problem.lock();
        if let Some(problem) = problem.as_ref().filter(|_| *current != problem) {
            log.write_warning(problem);
        }
        *current = problem;
    }
}

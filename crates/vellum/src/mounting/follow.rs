//! Lets a mounted worktree take over what other machines did, while nobody works on it.
//!
//! Invariants: nothing is merged while a program has a file of the mount open, or while something was written in the last
//! round; what is written while a merge is computed makes the merge wait, and is never replaced; a merge with conflicts
//! is left to the user. Deliberately absent: pushing to remotes, which publishes, and is the user's decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::tree::head::LiveHead;
use vellum_fs::{FsError, LiveFilesystem};
use vellum_host::ProgressMeter;
use vellum_host::error_chain::format_error_chain;
use vellum_store::RequestPurpose;
use vellum_types::SnapshotId;
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::{
    ConflictPolicies, MergeProgress, MergeStage, MergedTree, SiblingFinder, SiblingWorktree, SnapshotMerge,
    SnapshotRelation,
};
use vellum_volume::remote::{PullRequest, pull_snapshots};
use vellum_volume::{SnapshotOrigin, Volume, VolumeError};

use super::control::ControlService;
use super::holders;
use super::log::MountLog;
use super::table::FilesystemDevice;
use crate::ui::format;

/// How often a follower looks for what others did. A look into the store costs a listing of worktrees and a request for
/// each of them: in the first hour without news, 15 looks, and with the renewals of the lease at most 130 requests if
/// there are up to 5 worktrees.
#[derive(Debug, Clone, Copy)]
pub struct FollowIntervals {
    /// Before the next look into the volume's own store after news. Without news, it doubles.
    pub shortest: Duration,
    /// Before the next look into the store at most, and between two looks into remotes.
    pub longest: Duration,
}

impl Default for FollowIntervals {
    fn default() -> Self {
        Self { shortest: Duration::from_secs(30), longest: Duration::from_secs(5 * 60) }
    }
}

impl FollowIntervals {
    /// The same interval everywhere.
    pub fn every(interval: Duration) -> Self {
        Self { shortest: interval, longest: interval }
    }

    /// The time to the next look, so long after the last news.
    fn next_interval(&self, since_news: Duration) -> Duration {
        // As long again as nothing happened: what is quiet stays quiet.
        since_news.clamp(self.shortest, self.longest)
    }
}

/// Takes over what other machines did in their worktrees of the same name.
pub struct WorktreeFollower {
    /// What serves the worktree, and lets the kernel forget.
    pub service: Arc<ControlService>,
    /// The mount.
    pub device: FilesystemDevice,
    /// How often it looks.
    pub intervals: FollowIntervals,
}

/// What a follower shows to those who ask for the state of the mount.
#[derive(Debug, Default)]
pub struct FollowState {
    problem: Mutex<Option<String>>,
}

impl FollowState {
    /// Why it does not take over what others did; None if it does.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Keeps the problem, and returns whether it is a new one.
    fn set_problem(&self, problem: Option<String>) -> bool {
        let mut current = self.problem.lock();
        let is_new = *current != problem;
        *current = problem;
        is_new
    }
}

/// What the thread remembers between two rounds.
struct FollowMemory {
    /// The state of the worktree in the last round.
    head: Option<LiveHead>,
    /// What was found out about siblings, by name.
    seen: BTreeMap<String, SeenSibling>,
    finder: SiblingFinder,
    /// When somebody was seen to work here or elsewhere.
    news_at: Instant,
    pulled_at: Option<Instant>,
}

impl FollowMemory {
    fn new(worktree: &str) -> Self {
        let finder = SiblingFinder::new(worktree);
        Self { head: None, seen: BTreeMap::new(), finder, news_at: Instant::now(), pulled_at: None }
    }
}

/// A sibling that needs no further look as long as it and the worktree stand where they stood.
struct SeenSibling {
    theirs: SnapshotId,
    ours: SnapshotId,
    /// Why it was not taken over.
    conflict: Option<String>,
}

/// What became of a sibling.
#[derive(Debug, PartialEq, Eq)]
enum FollowOutcome {
    /// The worktree has everything of it.
    Contained,
    /// The worktree moved to it, or to a merge with it.
    TakenOver,
    /// A merge has so many conflicts.
    Conflicts(usize),
}

impl WorktreeFollower {
    /// Starts the thread. It ends with the mount.
    pub fn start_thread(self) -> std::io::Result<()> {
        let follow = move || {
            // What this thread asks the store for is counted apart from the requests of programs.
            RequestPurpose::Upkeep.set_for_thread();
            let mut memory = FollowMemory::new(self.fs().worktree_name());
            // The pause between two rounds is a wait for the end of the mount, so that an unmount is never delayed
            // by it.
            while !self
                .service
                .end
                .wait_until_unmounted(self.intervals.next_interval(memory.news_at.elapsed()))
            {
                let problem = match self.follow_round(&mut memory) {
                    Ok(problem) => problem,
                    Err(error) => Some(format_error_chain(&error)),
                };
                let is_new =
                    self.service.follow.as_ref().is_some_and(|state| state.set_problem(problem.clone()));
                if is_new && let Some(problem) = problem {
                    self.log().write_warning(&format!("following: {problem}"));
                }
            }
        };
        std::thread::Builder::new().name("vellum-follow".into()).spawn(follow).map(drop)
    }

    fn fs(&self) -> &Arc<LiveFilesystem> {
        &self.service.fs
    }

    fn log(&self) -> &MountLog {
        &self.service.log
    }

    /// Takes over what it can. Returns what the user has to decide.
    fn follow_round(&self, memory: &mut FollowMemory) -> Result<Option<String>, FsError> {
        if !self.is_idle(memory)? {
            // The problem of the last round stays: nothing was looked at, so that nothing is known to have become
            // better.
            return Ok(self.service.follow.as_ref().and_then(FollowState::problem));
        }
        let volume = self.fs().volume();
        // A remote that does not answer is no reason to leave what is in the store.
        let mut problem =
            self.pull_from_remotes(volume, memory).err().map(|error| format_error_chain(&error));
        for sibling in memory.finder.find_siblings(volume)? {
            match self.follow_sibling(&sibling, memory) {
                Ok(None) => {}
                Ok(conflict) => problem = conflict,
                // Somebody works on the mount again. A later round goes on.
                Err(FsError::ChangedMeanwhile) => break,
                Err(error) => return Err(error),
            }
        }
        // The round itself may have moved the worktree, which is not a user's work: it must not delay the next
        // round.
        memory.head = Some(self.fs().live_map().lock_head().clone());
        Ok(problem)
    }

    /// Takes over what a sibling has. Returns what the user has to decide.
    fn follow_sibling(
        &self,
        sibling: &SiblingWorktree,
        memory: &mut FollowMemory,
    ) -> Result<Option<String>, FsError> {
        let known = memory.seen.get(&sibling.name);
        if let Some(known) =
            known.filter(|known| known.theirs == sibling.head && Some(known.ours) == self.current_snapshot())
        {
            return Ok(known.conflict.clone());
        }
        memory.news_at = Instant::now();
        let name = &sibling.name;
        let conflict = match self.take_over(sibling)? {
            FollowOutcome::Contained | FollowOutcome::TakenOver => None,
            FollowOutcome::Conflicts(count) => {
                let conflicts = format::format_count(count as u64, "conflict");
                Some(format!("a merge of '{name}' has {conflicts}: 'vellum merge {name}' begins it"))
            }
        };
        // Remembered even without a conflict: a sibling that did not move needs no reading of its history in the
        // next round.
        if let Some(ours) = self.current_snapshot() {
            let seen = SeenSibling { theirs: sibling.head, ours, conflict: conflict.clone() };
            memory.seen.insert(name.clone(), seen);
        }
        Ok(conflict)
    }

    fn current_snapshot(&self) -> Option<SnapshotId> {
        self.fs().live_map().lock_head().snapshot.map(|last| last.id)
    }

    /// Whether nobody works on the mount: everything is in the store, which it is some seconds after the last change
    /// (5 minutes if the store is a service), nothing was changed since the last round, and no program has a file open. A shell that stands in a directory is
    /// no reason to wait.
    fn is_idle(&self, memory: &mut FollowMemory) -> Result<bool, FsError> {
        self.discard_interrupted_merge()?;
        let head = self.fs().live_map().lock_head().clone();
        // The first round has nothing to compare with, so that a mount is never considered idle before its second
        // round.
        let is_same = memory.head.replace(head.clone()) == Some(head);
        if !is_same {
            memory.news_at = Instant::now();
        }
        // A merge that waits for the user must not find that its files moved.
        let is_merging =
            vellum_volume::merge::check_no_merge_in(&self.fs().volume().state, self.fs().worktree_name())
                .is_err();
        let is_published = self.fs().publisher().unpublished_since()?.is_none();
        // The open files come last in this condition, because finding them reads the descriptors of every process.
        Ok(is_same && is_published && !is_merging && holders::list_open_nodes(self.device).is_empty())
    }

    /// Takes a merge out of the history that this thread had stored when the process died.
    fn discard_interrupted_merge(&self) -> Result<(), VolumeError> {
        let state = &self.fs().volume().state;
        // Looked for first, as it needs no store.
        if vellum_volume::merge::check_no_merge_in(state, self.fs().worktree_name()).is_ok() {
            return Ok(());
        }
        let volume = Volume::open(state)?.with_worktree(self.fs().worktree_name());
        // Another process that has the lock may be about to apply this merge, which is then no interrupted one.
        let Some(_lock) = volume.try_lock_merge()? else { return Ok(()) };
        // Read under the lock: the note that was seen without it may be gone.
        let Some(progress) = volume.read_merge_progress()? else { return Ok(()) };
        // A merge that waits for the user is the user's to end.
        if !progress.is_unapplied() {
            return Ok(());
        }
        // The process may have died after the worktree was moved to it.
        let is_taken_over = match self.current_snapshot() {
            Some(ours) => volume.has_in_history(ours, progress.merged)?,
            None => false,
        };
        if !is_taken_over {
            progress.list_results().try_for_each(|id| volume.forget_merge_result(id))?;
        }
        volume.remove_merge_progress()
    }

    fn pull_from_remotes(&self, volume: &Volume, memory: &mut FollowMemory) -> Result<(), VolumeError> {
        if memory.pulled_at.is_some_and(|pulled| pulled.elapsed() < self.intervals.longest) {
            return Ok(());
        }
        // Noted before the attempt: a remote that cannot be reached is tried again at the usual interval, and not
        // in every round.
        memory.pulled_at = Some(Instant::now());
        for remote in volume.list_remotes()? {
            let request = PullRequest { is_everything: false, is_dry_run: false };
            pull_snapshots(volume, &remote, request, &ProgressMeter::default())?;
        }
        Ok(())
    }

    /// Moves the worktree to a sibling's snapshot, or to a merge with it.
    fn take_over(&self, sibling: &SiblingWorktree) -> Result<FollowOutcome, FsError> {
        let fs = self.fs();
        // Opened anew, for the worktree that is mounted: it sees what others stored meanwhile, and its memory is given
        // back after the merge.
        let volume = Volume::open(&fs.volume().state)?.with_worktree(fs.worktree_name());
        // A merge of the user's is under way, or begins: a later round goes on.
        let Some(_lock) = volume.try_lock_merge()? else { return Err(FsError::ChangedMeanwhile) };
        volume.check_no_merge()?;
        let theirs = self.read_entry(&volume, sibling.head)?;
        let relation = match self.current_snapshot() {
            Some(ours) => volume.relate_snapshots(ours, theirs.id)?,
            None => SnapshotRelation::Diverged,
        };
        if matches!(relation, SnapshotRelation::Same | SnapshotRelation::Contains) {
            return Ok(FollowOutcome::Contained);
        }
        // Saved only now that there is something to take over: a round that finds nothing must leave no snapshot.
        let ours = self.save_changes(sibling)?;
        // A merge reads the trees of both sides from the store.
        fs.publisher().publish_pending()?;
        // Our side may be another snapshot than before: the one that has just saved the changes.
        let relation = volume.relate_snapshots(ours, theirs.id)?;
        let target = match relation {
            SnapshotRelation::Same | SnapshotRelation::Contains => return Ok(FollowOutcome::Contained),
            // All machines that made the same merge keep the one with the lower id.
            SnapshotRelation::Twins if ours < theirs.id => return Ok(FollowOutcome::Contained),
            SnapshotRelation::Twins | SnapshotRelation::IsContained => theirs.id,
            SnapshotRelation::Diverged => match self.merge(&volume, ours, &theirs, sibling)? {
                MergedSibling::Stored(merged) => merged,
                MergedSibling::Conflicts(count) => return Ok(FollowOutcome::Conflicts(count)),
            },
        };
        if let Err(error) = self.service.advance_snapshot(target, ours) {
            if relation == SnapshotRelation::Diverged {
                // Nothing needs the merge, and another is made when the mount is idle again.
                volume.forget_merge_result(&target)?;
                volume.remove_merge_progress()?;
            }
            return Err(error);
        }
        volume.remove_merge_progress()?;
        // The others learn of it without waiting for the next change here.
        self.service.publisher.request_publish();
        self.log().write_line(&format!("following: took over {} of '{}'", theirs.id, sibling.name));
        Ok(FollowOutcome::TakenOver)
    }

    fn read_entry(&self, volume: &Volume, id: SnapshotId) -> Result<HistoryEntry, VolumeError> {
        Ok(HistoryEntry { id, record: volume.catalog.get_record(&id)? })
    }

    /// The snapshot that the worktree stands on, after what no snapshot holds was saved in one.
    fn save_changes(&self, sibling: &SiblingWorktree) -> Result<SnapshotId, FsError> {
        match self.current_snapshot() {
            Some(ours) if !self.fs().is_changed()? => Ok(ours),
            Some(_) | None => self.fs().create_snapshot(&LiveSnapshotRequest {
                note: format!("before the merge of {}", sibling.name),
                tags: Vec::new(),
                origin: SnapshotOrigin::Safety,
            }),
        }
    }

    fn merge(
        &self,
        volume: &Volume,
        ours: SnapshotId,
        theirs: &HistoryEntry,
        sibling: &SiblingWorktree,
    ) -> Result<MergedSibling, FsError> {
        let ours = self.read_entry(volume, ours)?;
        let policies = ConflictPolicies::default();
        let merge = SnapshotMerge { ours: &ours, theirs, base: None, policies: &policies };
        // A merge with conflicts must leave no snapshot behind, as it would be made again after each change.
        let preview = volume.preview_merge(&merge)?;
        if !preview.conflicts.is_empty() {
            return Ok(MergedSibling::Conflicts(preview.conflicts.len()));
        }
        let note = format!("merge of {}", sibling.name);
        // Written before the result is in the history, so that `discard_interrupted_merge` finds it if the process dies
        // in between.
        let announce = |id, _: &MergedTree| {
            volume.write_merge_progress(&MergeProgress {
                name: sibling.name.clone(),
                before: merge.ours.id,
                ours: merge.ours.id,
                theirs: theirs.id,
                base: None,
                merged: id,
                resolved: None,
                leftovers: Vec::new(),
                note: note.clone(),
                stage: MergeStage::Storing,
                conflicts: Vec::new(),
            })
        };
        let stored = volume.store_merge(&merge, |_| note.clone(), announce)?;
        Ok(MergedSibling::Stored(stored.entry.id))
    }
}

/// What a merge came to.
enum MergedSibling {
    /// The snapshot of the result.
    Stored(SnapshotId),
    /// So many conflicts, and no result.
    Conflicts(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_news_looks_fifteen_times_in_an_hour() {
        let intervals = FollowIntervals::default();
        let mut time = Duration::ZERO;
        let mut looks = Vec::new();
        loop {
            time += intervals.next_interval(time);
            if time > Duration::from_secs(3600) {
                break;
            }
            looks.push(time.as_secs());
        }
        assert_eq!(looks.len(), 15, "{looks:?}");
        assert_eq!(looks[..6], [30, 60, 120, 240, 480, 780]);
    }
}

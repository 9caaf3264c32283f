//! A directory of another host as a side: one connection reads entries from it, another writes entries to it.
//!
//! Invariant: an entry that is replaced or deleted there is the one that the plan was made for. The connection that
//! writes makes its own listing, and a step whose old entry has changed is not sent. Deliberately absent: the protocol
//! (see `session`).

use parking_lot::Mutex;

use vellum_host::ProgressMeter;

use crate::ends::remote::RemoteEnd;
use crate::ends::{ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, SyncSide, WantedFile};
use crate::error::{Result, SyncError};
use crate::local::receive::{DestinationEnd, SyncJob, SyncProblem, SyncReport};
use crate::model::listing::{ContentDigests, ListingEntry, ListingEntryId, TreeListing};
use crate::plan::{StepAction, SyncPlan, SyncStep, WriteMethod};

use super::run::{ConnectionHealth, TwoWayEnd};

/// A directory of another host.
pub struct FarDirectory {
    reads: RemoteEnd,
    writes: RemoteEnd,
    /// The request of the last listing.
    wish: Mutex<Option<ListingRequest>>,
}

impl FarDirectory {
    /// Makes the side of two connections to the same place: a source and a destination.
    #[must_use]
    pub fn new(reads: RemoteEnd, writes: RemoteEnd) -> Self {
        Self { reads, writes, wish: Mutex::new(None) }
    }
}

impl TwoWayEnd for FarDirectory {
    fn list_without_replacing(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        // Each listing on a connection replaces the one that entry numbers refer to, on both sides of it.
        // This listing is only looked into, so it gets a connection of its own.
        self.reads.connect_duplicate()?.list_entries(wish, meter)
    }

    fn connection_health(&self) -> ConnectionHealth {
        let lines = |remote: &RemoteEnd| ConnectionHealth {
            cuts: remote.count_disconnects(),
            is_lost: remote.is_lost(),
        };
        lines(&self.reads) + lines(&self.writes)
    }
}

impl SyncEnd for FarDirectory {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        // The connection that writes lists again with the same request when the plan is executed.
        *self.wish.lock() = Some(wish.clone());
        self.reads.list_entries(wish, meter)
    }

    fn hash_files(
        &self,
        listing: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        self.reads.hash_files(listing, files, meter)
    }
}

impl SourceEnd for FarDirectory {
    fn announce_files(&self, listing: &TreeListing, files: &[WantedFile]) {
        self.reads.announce_files(listing, files);
    }

    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        self.reads.open_content(file, old)
    }
}

impl DestinationEnd for FarDirectory {
    fn execute_plan(&self, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport> {
        let wish = self.wish.lock().clone();
        let Some(wish) = wish else { return Err(SyncError::Changed) };
        // The server of the writing connection knows entries only by the numbers of a listing that it made
        // itself, as a destination. The plan was made with the listing of the reading connection, so each
        // step is translated by its path.
        let now = self.writes.list_entries(&ListingRequest { side: SyncSide::Destination, ..wish }, meter)?;
        let mut sent = SentSteps { job, now: &now, problems: Vec::new() };
        // Steps stay in their order. Leaving one out is safe: a step that depends on it fails on the server
        // and is reported there.
        let steps = job.plan.steps.iter().filter_map(|step| sent.adapt_step(*step)).collect();
        let plan = SyncPlan { steps, ..job.plan.clone() };
        let problems = sent.problems;
        let mut report = self.writes.execute_plan(&SyncJob { plan: &plan, to: &now, ..*job }, meter)?;
        report.problems.extend(problems);
        Ok(report)
    }
}

/// The steps as they are sent: with entry numbers of the listing that the other side holds now.
struct SentSteps<'a> {
    job: &'a SyncJob<'a>,
    now: &'a TreeListing,
    problems: Vec<SyncProblem>,
}

impl SentSteps<'_> {
    fn adapt_step(&mut self, step: SyncStep) -> Option<SyncStep> {
        let Some(old) = step.old.map(|old| self.job.to.entry(old)) else { return Some(step) };
        let path = old.path();
        match self.now.find_path(&path) {
            Some(now) if is_same_version(&old, &now) => Some(SyncStep { old: Some(now.id()), ..step }),
            // Gone already.
            None if step.action == StepAction::Delete => None,
            // The old entry is gone. What would have replaced it is written as a new entry, which the server
            // creates without replacing; what would only have changed it has no object any more. Either way,
            // the next run sees the result.
            None => match step.action {
                StepAction::Write(_) => {
                    Some(SyncStep { old: None, action: StepAction::Write(WriteMethod::Whole), ..step })
                }
                StepAction::Attributes | StepAction::Rename | StepAction::Delete => None,
                StepAction::MakeDir
                | StepAction::Symlink
                | StepAction::Special
                | StepAction::Link
                | StepAction::LinkBasis(_)
                | StepAction::CopyBasis(_) => Some(SyncStep { old: None, ..step }),
            },
            Some(_) => {
                let message = SyncError::Changed.to_string();
                self.problems.push(SyncProblem { path, message, vanished: false });
                None
            }
        }
    }
}

fn is_same_version(old: &ListingEntry<'_>, now: &ListingEntry<'_>) -> bool {
    let [before, after] = [old, now].map(|entry| entry.listing().change_stamp(entry.id()));
    // A stamp of 0 means that a server did not report one. Then size and time have to do.
    let untouched = before == 0 || after == 0 || before == after;
    old.kind() == now.kind()
        && (old.is_dir() || (old.size(), old.mtime()) == (now.size(), now.mtime()) && untouched)
}

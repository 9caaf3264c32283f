//! A directory of another host as a side: entries come from it over one connection, and go to it over another.
//!
//! Invariant: what is replaced or deleted there is what the plan was made for. The connection that writes lists anew, and
//! a step whose old entry is not as it was is not sent. Deliberately absent: the conversation (see `session`).

use std::sync::{Mutex, PoisonError};

use vellum_volume::Meter;

use crate::error::{Result, SyncError};
use crate::listing::{Digest, Entry, EntryId, Listing};
use crate::plan::{Action, How, Plan, Step};
use crate::receive::{Destination, Job, Problem, Report};
use crate::remote::Remote;
use crate::source::{Content, End, OldVersion, Side, Source, Wanted, Wish};

use super::run::{BothWays, Lines};

/// A directory of another host.
pub struct Far {
    reads: Remote,
    writes: Remote,
    /// What was asked of the last listing.
    wish: Mutex<Option<Wish>>,
}

impl Far {
    /// Two connections to one place: a source and a destination.
    #[must_use]
    pub fn new(reads: Remote, writes: Remote) -> Self {
        Self { reads, writes, wish: Mutex::new(None) }
    }
}

impl BothWays for Far {
    fn peek(&self, wish: &Wish, meter: &Meter) -> Result<Listing> {
        self.reads.another()?.list(wish, meter)
    }

    fn lines(&self) -> Lines {
        let lines = |remote: &Remote| Lines { cuts: remote.cuts(), is_lost: remote.is_lost() };
        lines(&self.reads) + lines(&self.writes)
    }
}

impl End for Far {
    fn list(&self, wish: &Wish, meter: &Meter) -> Result<Listing> {
        *self.wish.lock().unwrap_or_else(PoisonError::into_inner) = Some(wish.clone());
        self.reads.list(wish, meter)
    }

    fn digest(&self, listing: &Listing, files: &[EntryId], meter: &Meter) -> Result<Vec<Option<Digest>>> {
        self.reads.digest(listing, files, meter)
    }
}

impl Source for Far {
    fn expect(&self, listing: &Listing, files: &[Wanted]) {
        self.reads.expect(listing, files);
    }

    fn open(&self, file: Entry<'_>, old: Option<OldVersion<'_>>) -> Result<Content> {
        self.reads.open(file, old)
    }
}

impl Destination for Far {
    fn carry_out(&self, job: &Job<'_>, meter: &Meter) -> Result<Report> {
        let wish = self.wish.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(wish) = wish else { return Err(SyncError::Changed) };
        let now = self.writes.list(&Wish { side: Side::Destination, ..wish }, meter)?;
        let mut sent = Sent { job, now: &now, problems: Vec::new() };
        let steps = job.plan.steps.iter().filter_map(|step| sent.step(*step)).collect();
        let plan = Plan { steps, ..job.plan.clone() };
        let problems = sent.problems;
        let mut report = self.writes.carry_out(&Job { plan: &plan, to: &now, ..*job }, meter)?;
        report.problems.extend(problems);
        Ok(report)
    }
}

/// Steps as they are sent: with the numbers of the listing that the other side has now.
struct Sent<'a> {
    job: &'a Job<'a>,
    now: &'a Listing,
    problems: Vec<Problem>,
}

impl Sent<'_> {
    fn step(&mut self, step: Step) -> Option<Step> {
        let Some(old) = step.old.map(|old| self.job.to.entry(old)) else { return Some(step) };
        let path = old.path();
        match self.now.find(&path) {
            Some(now) if is_same(&old, &now) => Some(Step { old: Some(now.id()), ..step }),
            // Gone already.
            None if step.action == Action::Delete => None,
            None => match step.action {
                Action::Write(_) => Some(Step { old: None, action: Action::Write(How::Whole), ..step }),
                Action::Attributes | Action::Rename | Action::Delete => None,
                Action::MakeDir
                | Action::Symlink
                | Action::Special
                | Action::Link
                | Action::LinkBasis(_)
                | Action::CopyBasis(_) => Some(Step { old: None, ..step }),
            },
            Some(_) => {
                let message = SyncError::Changed.to_string();
                self.problems.push(Problem { path, message, vanished: false });
                None
            }
        }
    }
}

fn is_same(old: &Entry<'_>, now: &Entry<'_>) -> bool {
    let [before, after] = [old, now].map(|entry| entry.listing().stamp(entry.id()));
    let untouched = before == 0 || after == 0 || before == after;
    old.kind() == now.kind()
        && (old.is_dir() || (old.size(), old.mtime()) == (now.size(), now.mtime()) && untouched)
}

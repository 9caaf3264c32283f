//! Retention: which snapshots a policy keeps, and why.
//!
//! Each worktree's line is judged by itself, and its safety snapshots apart from the others. Snapshots are ordered by
//! their place in the line; their times only tell to which hour, day, week, month or year they belong.
//!
//! Invariant: the answer depends on the records, the refs, the policy and the moment alone: never on the time zone of
//! the machine, nor on the order in which a store lists.

mod bucket;
mod joins;
mod select;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::tz::TimeZone;
use vellum_types::{SnapshotId, UnixTime};

use crate::error::{Result, VolumeError};
use crate::history::{HistoryEntry, list_history};
use crate::record::SnapshotOrigin;
use crate::volume::Volume;

/// A unit of the calendar of which a policy keeps one snapshot each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetentionPeriod {
    /// An hour of the local day.
    Hour,
    /// A calendar day.
    Day,
    /// A week by ISO 8601, from Monday.
    Week,
    /// A calendar month.
    Month,
    /// A calendar year.
    Year,
}

impl RetentionPeriod {
    /// All of them, the shortest first.
    pub const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The word for a rule that keeps one snapshot of each.
    #[must_use]
    pub fn rule_word(self) -> &'static str {
        match self {
            Self::Hour => "hourly",
            Self::Day => "daily",
            Self::Week => "weekly",
            Self::Month => "monthly",
            Self::Year => "yearly",
        }
    }
}

/// For how many periods a policy keeps the newest snapshot of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeriodRule {
    /// The newest periods that have snapshots; 0 for none.
    pub count: u32,
    /// All periods of this long, back from the newest snapshot.
    pub within: Option<Duration>,
}

/// What is kept of a line.
#[derive(Debug, Clone)]
pub struct RetentionPolicy {
    /// The newest snapshots, by number.
    pub last: u32,
    /// All snapshots of this long, back from the newest one.
    pub within: Option<Duration>,
    /// One snapshot of each period.
    pub periods: BTreeMap<RetentionPeriod, PeriodRule>,
    /// Snapshots with one of these tags.
    pub tags: BTreeSet<String>,
    /// The zone whose calendar counts.
    pub zone: TimeZone,
}

impl RetentionPolicy {
    /// A policy without any rule.
    #[must_use]
    pub fn new(zone: TimeZone) -> Self {
        Self { last: 0, within: None, periods: BTreeMap::new(), tags: BTreeSet::new(), zone }
    }

    /// Whether it has no rule, so that it would keep nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_unset = |rule: &PeriodRule| rule.count == 0 && rule.within.is_none();
        self.last == 0 && self.within.is_none() && self.tags.is_empty() && self.periods.values().all(is_unset)
    }
}

/// What is kept of the safety snapshots of a line, whatever a policy says of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SafetyPolicy {
    /// The newest ones, by number.
    pub last: u32,
    /// All of this long, back from the newest one.
    pub within: Option<Duration>,
}

impl Default for SafetyPolicy {
    /// What is kept where nobody has set anything else.
    fn default() -> Self {
        Self { last: 3, within: Some(Duration::from_secs(14 * 24 * 60 * 60)) }
    }
}

/// Why a snapshot is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeepReason {
    /// This worktree stands on it.
    Head(String),
    /// It has this tag.
    Tag(String),
    /// It is pinned; by whom, and why.
    Pinned(String),
    /// Somebody reads its tree: by which process, and where.
    InUse(String),
    /// It is the newest of its line.
    Newest,
    /// Two worktrees descend from it: a merge of them compares both with it.
    MergeBase,
    /// It was made later than now, by a clock that was ahead. It counts for no rule.
    Future,
    /// It is one of the newest.
    Last,
    /// It is not older than the policy says.
    Within,
    /// It has a tag that the policy names.
    KeptTag(String),
    /// It is the newest of its period.
    Period(RetentionPeriod),
    /// It is the newest of its period, which is not older than the policy says.
    PeriodWithin(RetentionPeriod),
    /// The line has fewer periods than the policy wants, and this is its oldest snapshot.
    Oldest(RetentionPeriod),
}

impl KeepReason {
    /// Whether the policy gives it, and not what the snapshot is used for.
    #[must_use]
    pub fn is_rule(&self) -> bool {
        match self {
            Self::Head(_)
            | Self::Tag(_)
            | Self::Pinned(_)
            | Self::InUse(_)
            | Self::Newest
            | Self::MergeBase
            | Self::Future => false,
            Self::Last
            | Self::Within
            | Self::KeptTag(_)
            | Self::Period(_)
            | Self::PeriodWithin(_)
            | Self::Oldest(_) => true,
        }
    }
}

/// What becomes of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionDecision {
    /// The snapshot.
    pub entry: HistoryEntry,
    /// Why it is kept; empty if it is to be forgotten.
    pub reasons: Vec<KeepReason>,
    /// Whether it is dated before one of its parents, as a clock had it that was ahead then, or behind later.
    pub is_before_parent: bool,
}

impl RetentionDecision {
    /// Whether it stays.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.reasons.is_empty()
    }
}

/// What a policy is applied to.
#[derive(Debug, Clone)]
pub struct RetentionRequest {
    /// The rules for snapshots that somebody asked for.
    pub policy: RetentionPolicy,
    /// The rules for safety snapshots.
    pub safety: SafetyPolicy,
    /// The worktrees whose lines are judged; None for all lines, also of worktrees that were removed.
    pub worktrees: Option<BTreeSet<String>>,
    /// Tags keep snapshots only if the policy names them.
    pub ignores_tags: bool,
    /// The present.
    pub now: UnixTime,
}

/// What a policy keeps and forgets: by worktree, the newest first.
#[derive(Debug, Clone, Default)]
pub struct RetentionPlan {
    /// Each snapshot of the lines that were judged.
    pub decisions: Vec<RetentionDecision>,
    /// Worktrees of which the rules alone keep no snapshot: a mistake, more often than not.
    pub emptied: Vec<String>,
}

/// The snapshots that are judged together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RetentionLine {
    worktree: String,
    is_safety: bool,
}

/// The tags of each snapshot that has some.
type TagsBySnapshot = HashMap<SnapshotId, Vec<String>>;

impl Volume {
    /// Judges the snapshots of some lines. Fails with [`VolumeError::NoRetentionRule`] if the policy has no rule, with
    /// [`VolumeError::UnknownRetentionTag`] if it keeps a tag that does not exist, and with
    /// [`VolumeError::NoSnapshotOfWorktree`] if a worktree is named that has no snapshot.
    pub fn plan_retention(&self, request: &RetentionRequest) -> Result<RetentionPlan> {
        if request.policy.is_empty() {
            return Err(VolumeError::NoRetentionRule);
        }
        let tags = self.find_tags_by_snapshot(&request.policy)?;
        let entries = list_history(&self.catalog)?;
        let lines = group_lines(&entries, request)?;
        let times: HashMap<_, _> = entries.iter().map(|entry| (entry.id, entry.record.time)).collect();
        let mut uses = self.find_uses(&tags, request)?;
        self.add_readers(&entries, &mut uses)?;
        let mut plan = RetentionPlan::default();
        for (line, entries) in lines {
            let policy = if line.is_safety {
                // Periods and tags are rules for snapshots that somebody asked for.
                let SafetyPolicy { last, within } = request.safety;
                RetentionPolicy { last, within, ..RetentionPolicy::new(request.policy.zone.clone()) }
            } else {
                request.policy.clone()
            };
            let by_rule = select::select_snapshots(&entries, &policy, &tags, request.now);
            // Safety snapshots have rules that nobody typed.
            if !line.is_safety && by_rule.iter().flatten().all(|reason| !reason.is_rule()) {
                plan.emptied.push(line.worktree.clone());
            }
            for (index, (entry, rules)) in entries.into_iter().zip(by_rule).enumerate() {
                // Each snapshot is in one line, so that its uses are not asked for again.
                let mut reasons = uses.remove(&entry.id).unwrap_or_default();
                // The last of a line is never forgotten, whatever the rules say.
                if index == 0 && !line.is_safety {
                    reasons.push(KeepReason::Newest);
                }
                reasons.extend(rules);
                let mut parents = entry.record.parents.iter().filter_map(|parent| times.get(parent));
                let is_before_parent = parents.any(|time| *time > entry.record.time);
                plan.decisions.push(RetentionDecision { entry, reasons, is_before_parent });
            }
        }
        Ok(plan)
    }

    /// Returns the tags of each snapshot. Fails if the policy names one that does not exist: a mistyped name would keep
    /// nothing.
    fn find_tags_by_snapshot(&self, policy: &RetentionPolicy) -> Result<TagsBySnapshot> {
        let all = self.list_tags()?;
        if let Some(unknown) = policy.tags.iter().find(|wanted| all.iter().all(|(name, _)| name != *wanted)) {
            return Err(VolumeError::UnknownRetentionTag(unknown.clone()));
        }
        let mut tags = TagsBySnapshot::new();
        for (name, id) in all {
            tags.entry(id).or_default().push(name);
        }
        Ok(tags)
    }

    /// Adds what processes read. A session names a tree: all snapshots that have it stay.
    fn add_readers(
        &self,
        entries: &[HistoryEntry],
        uses: &mut HashMap<SnapshotId, Vec<KeepReason>>,
    ) -> Result<()> {
        for reader in self.list_tree_readers()? {
            for entry in entries.iter().filter(|entry| entry.record.root == reader.root) {
                uses.entry(entry.id).or_default().push(KeepReason::InUse(reader.to_string()));
            }
        }
        Ok(())
    }

    /// Returns what snapshots are used for, which no policy overrules.
    fn find_uses(
        &self,
        tags: &TagsBySnapshot,
        request: &RetentionRequest,
    ) -> Result<HashMap<SnapshotId, Vec<KeepReason>>> {
        let mut uses: HashMap<_, Vec<_>> = HashMap::new();
        let mut heads = BTreeSet::new();
        for (name, head) in self.list_worktrees()? {
            if let Some(id) = head.head {
                heads.insert(id);
                uses.entry(id).or_default().push(KeepReason::Head(name));
            }
        }
        if !request.ignores_tags {
            for (id, names) in tags {
                uses.entry(*id).or_default().extend(names.iter().cloned().map(KeepReason::Tag));
            }
        }
        // Also if tags are ignored: a pin is there to overrule whatever policy somebody types.
        for (id, pin) in self.find_pinned_snapshots(request.now)? {
            uses.entry(id).or_default().push(KeepReason::Pinned(pin.describe()));
        }
        for id in joins::find_line_joins(&self.catalog, &heads)? {
            uses.entry(id).or_default().push(KeepReason::MergeBase);
        }
        Ok(uses)
    }
}

/// Sorts the snapshots into lines, the newest first in each.
fn group_lines(
    entries: &[HistoryEntry],
    request: &RetentionRequest,
) -> Result<BTreeMap<RetentionLine, Vec<HistoryEntry>>> {
    let mut lines: BTreeMap<RetentionLine, Vec<HistoryEntry>> = BTreeMap::new();
    for entry in entries {
        let worktree = entry.record.worktree.clone();
        if request.worktrees.as_ref().is_some_and(|wanted| !wanted.contains(&worktree)) {
            continue;
        }
        let is_safety = match entry.record.origin {
            SnapshotOrigin::User => false,
            SnapshotOrigin::Safety => true,
        };
        lines.entry(RetentionLine { worktree, is_safety }).or_default().push(entry.clone());
    }
    if let Some(wanted) = &request.worktrees {
        let has_line = |name: &String| lines.keys().any(|line| line.worktree == *name);
        // A mistyped name would otherwise look like a line of which everything is kept.
        if let Some(unknown) = wanted.iter().find(|name| !has_line(name)) {
            return Err(VolumeError::NoSnapshotOfWorktree(unknown.clone()));
        }
    }
    for line in lines.values_mut() {
        // Not by time: a clock that jumped back must not turn the line around.
        line.sort_by_key(|entry| std::cmp::Reverse((entry.record.counter, entry.record.time, entry.id)));
    }
    Ok(lines)
}

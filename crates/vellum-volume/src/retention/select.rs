//! Applies the rules of a policy to one line.

use std::collections::HashSet;
use std::time::Duration;

use vellum_types::UnixTime;

use super::bucket::PeriodBucket;
use super::{KeepReason, PeriodRule, RetentionPeriod, RetentionPolicy, TagsBySnapshot};
use crate::history::HistoryEntry;
use crate::session::CLOCK_TOLERANCE;

/// Returns for each snapshot of a line, which begins with the newest, the rules that keep it.
pub(super) fn select_snapshots(
    line: &[HistoryEntry],
    policy: &RetentionPolicy,
    tags: &TagsBySnapshot,
    now: UnixTime,
) -> Vec<Vec<KeepReason>> {
    let mut reasons = vec![Vec::new(); line.len()];
    let latest = add_duration(now, CLOCK_TOLERANCE);
    let mut counted = Vec::with_capacity(line.len());
    for (index, entry) in line.iter().enumerate() {
        // A clock that was ahead must not let one snapshot stand for the newest hour, day, week, month and year.
        if entry.record.time > latest {
            reasons[index].push(KeepReason::Future);
        } else {
            counted.push(index);
        }
    }
    for index in counted.iter().take(usize::try_from(policy.last).unwrap_or(usize::MAX)) {
        reasons[*index].push(KeepReason::Last);
    }
    let times: Vec<_> = counted.iter().map(|index| line[*index].record.time).collect();
    // Not from now on: a machine that is switched off for a month keeps what it had.
    let is_within = |index: usize, limit: Duration| {
        let newest = times.iter().max();
        newest.is_some_and(|newest| add_duration(line[index].record.time, limit) >= *newest)
    };
    if let Some(limit) = policy.within {
        for index in counted.iter().filter(|index| is_within(**index, limit)) {
            reasons[*index].push(KeepReason::Within);
        }
    }
    let buckets: Vec<_> = times.iter().map(|time| PeriodBucket::find_buckets(*time, &policy.zone)).collect();
    for (place, period) in RetentionPeriod::ALL.into_iter().enumerate() {
        let rule = policy.periods.get(&period).copied().unwrap_or_default();
        let periods = buckets.iter().map(|all| all[place]);
        let chosen = choose_newest(&counted, periods, rule, is_within);
        for index in chosen.counted {
            reasons[index].push(KeepReason::Period(period));
        }
        for index in chosen.within {
            reasons[index].push(KeepReason::PeriodWithin(period));
        }
        if let Some(index) = chosen.oldest {
            reasons[index].push(KeepReason::Oldest(period));
        }
    }
    for (index, entry) in line.iter().enumerate() {
        let own = tags.get(&entry.id).into_iter().flatten();
        reasons[index].extend(own.filter(|tag| policy.tags.contains(*tag)).cloned().map(KeepReason::KeptTag));
    }
    reasons
}

/// The snapshots that one rule keeps, by their places in the line.
#[derive(Default)]
struct ChosenSnapshots {
    counted: Vec<usize>,
    within: Vec<usize>,
    oldest: Option<usize>,
}

/// Chooses the newest snapshot of each period, as a rule wants it.
fn choose_newest(
    counted: &[usize],
    buckets: impl Iterator<Item = PeriodBucket>,
    rule: PeriodRule,
    is_within: impl Fn(usize, Duration) -> bool,
) -> ChosenSnapshots {
    let mut chosen = ChosenSnapshots::default();
    let wanted = usize::try_from(rule.count).unwrap_or(usize::MAX);
    // All that were met, not only the last: a clock that jumped back leads into a period a second time.
    let mut met = HashSet::new();
    for (index, bucket) in counted.iter().zip(buckets) {
        if !met.insert(bucket) {
            continue;
        }
        if chosen.counted.len() < wanted {
            chosen.counted.push(*index);
        }
        if rule.within.is_some_and(|limit| is_within(*index, limit)) {
            chosen.within.push(*index);
        }
    }
    // While a history is shorter than the policy looks back, its beginning is worth more than another day in between.
    if chosen.counted.len() < wanted {
        chosen.oldest = counted.last().copied().filter(|oldest| !chosen.counted.contains(oldest));
    }
    chosen
}

fn add_duration(time: UnixTime, duration: Duration) -> UnixTime {
    let secs = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    UnixTime { secs: time.secs.saturating_add(secs), nanos: time.nanos }
}

#[cfg(test)]
mod tests;

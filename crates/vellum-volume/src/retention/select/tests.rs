//! Rules on lines whose times are chosen: gaps, clocks that are wrong, nights on which clocks change.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use vellum_map::MapRoot;
use vellum_types::{BlobId, SnapshotId};

use super::*;
use crate::record::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics};

const DAY: u64 = 24 * 60 * 60;

fn at(text: &str) -> UnixTime {
    let time: DateTime = text.parse().unwrap();
    UnixTime { secs: time.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second(), nanos: 0 }
}

/// A line that was made at these moments, the oldest first; returned with the newest first.
fn line_of(times: &[UnixTime]) -> Vec<HistoryEntry> {
    let mut line: Vec<_> = times
        .iter()
        .enumerate()
        .map(|(number, time)| {
            let record = SnapshotRecord {
                nonce: Default::default(),
                root: MapRoot(BlobId([7; 32])),
                parents: Vec::new(),
                counter: number as u64 + 1,
                time: *time,
                worktree: "main".into(),
                author: String::new(),
                host: String::new(),
                note: number.to_string(),
                origin: SnapshotOrigin::User,
                paths: Vec::new(),
                statistics: SnapshotStatistics::default(),
            };
            let mut id = [0; 32];
            id[..8].copy_from_slice(&(number as u64).to_be_bytes());
            HistoryEntry { id: SnapshotId(id), record: Arc::new(record) }
        })
        .collect();
    line.reverse();
    line
}

fn policy(rules: &[(RetentionPeriod, u32)]) -> RetentionPolicy {
    let periods =
        rules.iter().map(|(period, count)| (*period, PeriodRule { count: *count, within: None })).collect();
    RetentionPolicy { periods, ..RetentionPolicy::new(TimeZone::UTC) }
}

/// The numbers of the snapshots that stay, the oldest first.
fn kept(times: &[UnixTime], policy: &RetentionPolicy, now: UnixTime) -> Vec<usize> {
    let line = line_of(times);
    let reasons = select_snapshots(&line, policy, &TagsBySnapshot::new(), now);
    let stay = |index: &usize| !reasons[times.len() - 1 - index].is_empty();
    (0..times.len()).filter(stay).collect()
}

#[test]
fn the_newest_of_each_day_stays_and_days_without_snapshots_do_not_count() {
    let times = [
        at("2026-01-01 09:00"),
        at("2026-01-01 18:00"),
        at("2026-03-01 09:00"),
        at("2026-03-02 08:00"),
        at("2026-03-02 20:00"),
    ];
    let now = at("2026-03-02 21:00");
    assert_eq!(kept(&times, &policy(&[(RetentionPeriod::Day, 2)]), now), [2, 4]);
    // A snapshot may be the newest of its day and of its month.
    let both = policy(&[(RetentionPeriod::Day, 1), (RetentionPeriod::Month, 2)]);
    assert_eq!(kept(&times, &both, now), [1, 4]);
}

#[test]
fn a_history_shorter_than_the_policy_keeps_its_beginning() {
    let times = [at("2026-01-01 09:00"), at("2026-01-01 18:00"), at("2026-01-02 09:00")];
    let reasons = select_snapshots(
        &line_of(&times),
        &policy(&[(RetentionPeriod::Day, 7)]),
        &TagsBySnapshot::new(),
        at("2026-01-02 10:00"),
    );
    let daily = KeepReason::Period(RetentionPeriod::Day);
    assert_eq!(reasons, [vec![daily.clone()], vec![daily], vec![KeepReason::Oldest(RetentionPeriod::Day)]]);
}

#[test]
fn a_clock_that_was_ahead_counts_for_no_rule() {
    let times =
        [at("2024-05-01 09:00"), at("2025-05-01 09:00"), at("2026-05-01 09:00"), at("2099-01-01 00:00")];
    let yearly = policy(&[(RetentionPeriod::Year, 2)]);
    // It stays, and the years before it are kept as if it were not there.
    assert_eq!(kept(&times, &yearly, at("2026-05-02 09:00")), [1, 2, 3]);
    let last = RetentionPolicy { last: 1, ..RetentionPolicy::new(TimeZone::UTC) };
    assert_eq!(kept(&times, &last, at("2026-05-02 09:00")), [2, 3]);
    // Clocks of two machines differ by minutes.
    assert_eq!(kept(&times[..3], &last, at("2026-05-01 08:56")), [2]);
}

#[test]
fn a_clock_that_jumped_back_does_not_count_a_day_twice() {
    let times =
        [at("2026-01-03 09:00"), at("2026-01-04 09:00"), at("2026-01-03 10:00"), at("2026-01-04 10:00")];
    let now = at("2026-01-05 09:00");
    assert_eq!(kept(&times, &policy(&[(RetentionPeriod::Day, 2)]), now), [2, 3]);
}

#[test]
fn what_is_within_a_time_is_measured_from_the_newest_snapshot() {
    let times =
        [at("2026-01-01 09:00"), at("2026-01-08 09:00"), at("2026-01-10 08:00"), at("2026-01-10 09:00")];
    let within =
        RetentionPolicy { within: Some(Duration::from_secs(2 * DAY)), ..RetentionPolicy::new(TimeZone::UTC) };
    // A year later it is the same: a machine that was off loses nothing.
    for now in [at("2026-01-10 10:00"), at("2027-01-10 10:00")] {
        assert_eq!(kept(&times, &within, now), [1, 2, 3]);
    }
    let mut daily = policy(&[]);
    let rule = PeriodRule { count: 0, within: Some(Duration::from_secs(2 * DAY)) };
    daily.periods.insert(RetentionPeriod::Day, rule);
    assert_eq!(kept(&times, &daily, at("2026-01-10 10:00")), [1, 3]);
}

#[test]
fn the_hour_that_is_repeated_when_summer_time_ends_is_two_hours() {
    let berlin = TimeZone::get("Europe/Berlin").unwrap();
    // 02:30 summer time, 02:30 winter time, 03:30.
    let times = [at("2026-10-25 00:30"), at("2026-10-25 01:30"), at("2026-10-25 02:30")];
    let hourly = RetentionPolicy { zone: berlin.clone(), ..policy(&[(RetentionPeriod::Hour, 3)]) };
    assert_eq!(kept(&times, &hourly, at("2026-10-26 00:00")), [0, 1, 2]);
    let daily = RetentionPolicy { zone: berlin, ..policy(&[(RetentionPeriod::Day, 1)]) };
    assert_eq!(kept(&times, &daily, at("2026-10-26 00:00")), [2]);
}

#[test]
fn weeks_begin_on_mondays_and_days_where_the_policy_says() {
    // A Friday of the 53rd week of 2026, and the Monday after it.
    let times = [at("2026-12-31 12:00"), at("2027-01-01 12:00"), at("2027-01-04 00:30")];
    let now = at("2027-01-05 00:00");
    assert_eq!(kept(&times, &policy(&[(RetentionPeriod::Week, 2)]), now), [1, 2]);
    assert_eq!(kept(&times, &policy(&[(RetentionPeriod::Year, 2)]), now), [0, 2]);
    // In New York it is Sunday still.
    let there = TimeZone::get("America/New_York").unwrap();
    let weekly = RetentionPolicy { zone: there, ..policy(&[(RetentionPeriod::Week, 1)]) };
    assert_eq!(kept(&times, &weekly, now), [2]);
}

#[test]
fn tags_that_the_policy_names_keep_their_snapshots() {
    let line = line_of(&[at("2026-01-01 09:00"), at("2026-01-02 09:00")]);
    let tags = TagsBySnapshot::from([(line[1].id, vec!["v1".to_owned(), "old".to_owned()])]);
    let policy = RetentionPolicy { tags: ["v1".to_owned()].into(), ..RetentionPolicy::new(TimeZone::UTC) };
    let reasons = select_snapshots(&line, &policy, &tags, at("2026-01-03 09:00"));
    assert_eq!(reasons, [vec![], vec![KeepReason::KeptTag("v1".into())]]);
}

#[test]
fn times_that_no_calendar_has_are_judged() {
    let times = [i64::MIN, -62_135_596_801, 0, i64::MAX].map(|secs| UnixTime { secs, nanos: 0 });
    let all = policy(&RetentionPeriod::ALL.map(|period| (period, 10)));
    assert_eq!(kept(&times, &all, at("2026-01-01 00:00")), [0, 1, 2, 3]);
}

proptest! {
    /// A rule keeps no more periods than it says, and always the newest snapshot; a rule that asks for more keeps what the
    /// other kept.
    #[test]
    fn rules_keep_what_they_say(
        steps in prop::collection::vec(0..40 * DAY, 1..60),
        count in 1..20u32,
        more in 0..10u32,
        which in 0..RetentionPeriod::ALL.len(),
    ) {
        let mut secs = 1_700_000_000;
        let times: Vec<_> = steps.iter().map(|step| {
            secs += i64::try_from(*step).unwrap();
            UnixTime { secs, nanos: 0 }
        }).collect();
        let now = UnixTime { secs, nanos: 0 };
        let period = RetentionPeriod::ALL[which];
        let few = kept(&times, &policy(&[(period, count)]), now);
        prop_assert!(few.contains(&(times.len() - 1)));
        prop_assert!(few.len() <= count as usize + 1, "the periods, and the oldest snapshot");
        let many = kept(&times, &policy(&[(period, count + more)]), now);
        // The beginning of a short history may give way to what the longer rule reaches.
        prop_assert!(few.iter().filter(|number| **number != 0).all(|number| many.contains(number)));
        let buckets: HashSet<_> = times.iter().map(|time| PeriodBucket::find_buckets(*time, &TimeZone::UTC)[which]).collect();
        if few.len() < count as usize {
            let is_newest = |number: &usize| {
                times.get(number + 1).is_none_or(|next| {
                    PeriodBucket::find_buckets(*next, &TimeZone::UTC)[which]
                        != PeriodBucket::find_buckets(times[*number], &TimeZone::UTC)[which]
                })
            };
            prop_assert_eq!(few.iter().filter(|number| is_newest(number)).count(), buckets.len());
        }
    }
}

//! Policies on volumes: what snapshots are used for overrules them, and what they forget can be collected.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::retention::{
    KeepReason, PeriodRule, RetentionPeriod, RetentionPlan, RetentionPolicy, RetentionRequest, SafetyPolicy,
};
use vellum_volume::{SnapshotOrigin, SnapshotRecord, Volume, VolumeError};

use crate::world::{PLAIN, SEALED, World, assert_clean, record, record_on, refused};

const DAY: i64 = 24 * 60 * 60;

fn request(last: u32) -> RetentionRequest {
    RetentionRequest {
        policy: RetentionPolicy { last, ..RetentionPolicy::new(TimeZone::UTC) },
        safety: SafetyPolicy::default(),
        worktrees: None,
        ignores_tags: false,
        now: UnixTime { secs: 1000 * DAY, nanos: 0 },
    }
}

fn commit_at(volume: &Volume, day: i64, note: &str) -> SnapshotId {
    let time = UnixTime { secs: day * DAY, nanos: 0 };
    volume.commit_snapshot(SnapshotRecord { time, ..record(volume, volume.empty_root(), note) }).unwrap()
}

fn notes(plan: &RetentionPlan, is_kept: bool) -> Vec<String> {
    let chosen = plan.decisions.iter().filter(|decision| decision.is_kept() == is_kept);
    chosen.map(|decision| decision.entry.record.note.clone()).collect()
}

fn reasons(plan: &RetentionPlan, note: &str) -> Vec<KeepReason> {
    plan.decisions.iter().find(|decision| decision.entry.record.note == note).unwrap().reasons.clone()
}

#[test]
fn heads_tags_and_the_newest_stay_whatever_the_rules_say() {
    let world = World::new(SEALED);
    let ids: Vec<_> = (0..6).map(|day| commit_at(&world.volume, day, &day.to_string())).collect();
    world.volume.add_tag("v1", ids[1]).unwrap();
    // As after a restore of an old snapshot.
    world.volume.set_head(ids[3]).unwrap();
    let plan = world.volume.plan_retention(&request(1)).unwrap();
    assert_eq!(notes(&plan, true), ["5", "3", "1"]);
    assert_eq!(reasons(&plan, "5"), [KeepReason::Newest, KeepReason::Last]);
    assert_eq!(reasons(&plan, "3"), [KeepReason::Head("main".into())]);
    assert_eq!(reasons(&plan, "1"), [KeepReason::Tag("v1".into())]);
    assert_eq!(plan.emptied, [] as [String; 0]);
    let untagged = RetentionRequest { ignores_tags: true, ..request(1) };
    assert_eq!(notes(&world.volume.plan_retention(&untagged).unwrap(), true), ["5", "3"]);
}

#[test]
fn safety_snapshots_have_rules_of_their_own() {
    let world = World::new(PLAIN);
    for day in 0..30 {
        let time = UnixTime { secs: day * DAY, nanos: 0 };
        let origin = if day % 2 == 0 { SnapshotOrigin::Safety } else { SnapshotOrigin::User };
        let made = record(&world.volume, world.volume.empty_root(), &day.to_string());
        world.volume.commit_snapshot(SnapshotRecord { time, origin, ..made }).unwrap();
    }
    let plan = world.volume.plan_retention(&request(2)).unwrap();
    assert_eq!(notes(&plan, true), ["29", "27", "28", "26", "24", "22", "20", "18", "16", "14"]);
}

#[test]
fn the_snapshot_from_which_two_worktrees_descend_stays() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let ids: Vec<_> = (0..4).map(|day| commit_at(volume, day, &day.to_string())).collect();
    volume.add_worktree("side", Some(ids[1]), "/side").unwrap();
    let plan = volume.plan_retention(&request(1)).unwrap();
    assert_eq!(reasons(&plan, "1"), [KeepReason::Head("side".into()), KeepReason::MergeBase]);
    let aside = record_on(volume, Some(ids[1]), volume.empty_root(), "aside");
    let aside =
        SnapshotRecord { worktree: "side".into(), time: UnixTime { secs: 5 * DAY, nanos: 0 }, ..aside };
    volume.commit_snapshot(aside).unwrap();
    let plan = volume.plan_retention(&request(1)).unwrap();
    assert_eq!(notes(&plan, false), ["2", "0"]);
    assert_eq!(reasons(&plan, "1"), [KeepReason::MergeBase]);
    assert_eq!(
        reasons(&plan, "aside"),
        [KeepReason::Head("side".into()), KeepReason::Newest, KeepReason::Last]
    );
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let world = World::new(PLAIN);
    commit_at(&world.volume, 1, "one");
    let volume = &world.volume;
    assert!(matches!(refused(volume.plan_retention(&request(0))), VolumeError::NoRetentionRule));
    let mut unknown = request(1);
    unknown.policy.tags.insert("v9".into());
    assert!(
        matches!(refused(volume.plan_retention(&unknown)), VolumeError::UnknownRetentionTag(tag) if tag == "v9")
    );
    let nobody = RetentionRequest { worktrees: Some(BTreeSet::from(["nobody".into()])), ..request(1) };
    assert!(matches!(refused(volume.plan_retention(&nobody)), VolumeError::NoSnapshotOfWorktree(_)));
    // Rules that keep nothing but what always stays are named.
    volume.add_tag("v1", commit_at(volume, 2, "two")).unwrap();
    commit_at(volume, 3, "three");
    let mut tagged = request(0);
    tagged.policy.tags.insert("v1".into());
    assert_eq!(volume.plan_retention(&tagged).unwrap().emptied, [] as [String; 0]);
    volume.add_worktree("side", Some(commit_at(volume, 4, "four")), "/side").unwrap();
    let aside = record(volume, volume.empty_root(), "aside");
    let aside =
        SnapshotRecord { worktree: "side".into(), time: UnixTime { secs: 5 * DAY, nanos: 0 }, ..aside };
    volume.commit_snapshot(aside).unwrap();
    assert_eq!(volume.plan_retention(&tagged).unwrap().emptied, ["side"]);
}

#[test]
fn many_snapshots_are_forgotten_together() {
    let world = World::new(SEALED);
    for day in 0..40 {
        commit_at(&world.volume, day, &day.to_string());
    }
    let plan = world.volume.plan_retention(&request(5)).unwrap();
    let unkept: Vec<_> = plan
        .decisions
        .iter()
        .filter(|decision| !decision.is_kept())
        .map(|decision| decision.entry.id)
        .collect();
    assert_eq!(unkept.len(), 35);
    // One of them was forgotten by somebody else meanwhile.
    world.volume.forget_snapshot(&unkept[3]).unwrap();
    assert_eq!(world.volume.forget_snapshots(&unkept).unwrap().len(), 34);
    assert_eq!(world.volume.forget_snapshots(&unkept).unwrap(), []);
    let again = world.again();
    assert_eq!(notes(&again.plan_retention(&request(5)).unwrap(), true), ["39", "38", "37", "36", "35"]);
    assert_clean(&again);
}

#[test]
fn a_snapshot_that_is_dated_before_its_parent_is_judged_by_its_own_time_and_marked() {
    let world = World::new(PLAIN);
    // Far ahead of the clock of any machine that runs this.
    for (day, note) in [(900, "right"), (50_000, "ahead"), (901, "behind 1"), (901, "behind 2")] {
        commit_at(&world.volume, day, note);
    }
    let later = RetentionRequest { now: UnixTime { secs: 60_000 * DAY, nanos: 0 }, ..request(1) };
    let mut policy = later.policy.clone();
    policy.periods.insert(RetentionPeriod::Day, PeriodRule { count: 9, within: None });
    let plan = world.volume.plan_retention(&RetentionRequest { policy, ..later }).unwrap();
    let marked: Vec<_> = plan.decisions.iter().map(|decision| decision.is_before_parent).collect();
    assert_eq!(marked, [false, true, false, false]);
    assert_eq!(notes(&plan, true), ["behind 2", "ahead", "right"]);
    assert_eq!(reasons(&plan, "ahead"), [KeepReason::Period(RetentionPeriod::Day)]);
}

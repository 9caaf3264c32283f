//! Pins of snapshots: they outlive forgetting, policies and collections, in each store of the volume.

use jiff::tz::TimeZone;
use vellum_host::ProgressMeter;
use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::remote::{PushRequest, push_to_volume};
use vellum_volume::retention::{KeepReason, RetentionPolicy, RetentionRequest, SafetyPolicy};
use vellum_volume::session::current_time;
use vellum_volume::snapshot_pin::{NewSnapshotPin, PIN_REASON_MAX};
use vellum_volume::{Volume, VolumeError};

use crate::model::small;
use crate::rotation::rotate;
use crate::world::{PLAIN, SEALED, World, assert_clean, refused, snapshot};

fn because(reason: &str) -> NewSnapshotPin {
    NewSnapshotPin { reason: reason.into(), until: None }
}

fn in_seconds(secs: i64) -> UnixTime {
    UnixTime { secs: current_time().secs + secs, nanos: 0 }
}

/// A line of three snapshots; gives the first two.
fn commit_line(volume: &Volume) -> [SnapshotId; 2] {
    let ids = [snapshot(volume, &small(1), "one"), snapshot(volume, &small(2), "two")];
    snapshot(volume, &small(3), "three");
    ids
}

fn policy(last: u32) -> RetentionRequest {
    RetentionRequest {
        policy: RetentionPolicy { last, ..RetentionPolicy::new(TimeZone::UTC) },
        safety: SafetyPolicy::default(),
        worktrees: None,
        ignores_tags: true,
        now: current_time(),
    }
}

#[test]
fn a_pinned_snapshot_is_neither_forgotten_nor_collected() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let [one, two] = commit_line(&world.volume);
        world.volume.pin_snapshot(one, because("audit")).unwrap();
        let other = world.worktree("other");
        let VolumeError::InUse { reason, .. } = refused(other.forget_snapshots(&[one, two])) else {
            panic!("it is in use")
        };
        assert!(reason.contains(": audit"), "{reason}");
        let plan = other.plan_retention(&policy(1)).unwrap();
        let kept = plan.decisions.iter().find(|decision| decision.entry.id == one).unwrap();
        assert!(matches!(kept.reasons.as_slice(), [KeepReason::Pinned(why)] if why.ends_with(": audit")));
        other.forget_snapshots(&[two]).unwrap();
        assert_clean(&world.again());
        world.volume.unpin_snapshot(one).unwrap();
        other.forget_snapshots(&[one]).unwrap();
        assert_clean(&world.again());
    }
}

#[test]
fn a_pin_ends_at_its_time_and_can_then_be_made_anew() {
    let world = World::new(SEALED);
    world.ram.keep_dates();
    let [one, two] = commit_line(&world.volume);
    let volume = &world.volume;
    let refusal =
        refused(volume.pin_snapshot(one, NewSnapshotPin { until: Some(in_seconds(-5)), ..because("") }));
    assert!(matches!(refusal, VolumeError::BadPin(_)));
    let soon = NewSnapshotPin { until: Some(in_seconds(60)), ..because("") };
    volume.pin_snapshot(one, soon.clone()).unwrap();
    volume.pin_snapshot(one, soon).unwrap();
    assert!(matches!(refused(volume.pin_snapshot(one, because("x"))), VolumeError::PinnedAlready { .. }));
    let later = UnixTime { secs: current_time().secs + 61, nanos: 0 };
    // The store's clock says that the moment has not come.
    assert_eq!(volume.find_pinned_snapshots(later).unwrap().len(), 1);
    let brief = UnixTime { secs: current_time().secs, nanos: 0 };
    volume.pin_snapshot(two, NewSnapshotPin { until: Some(in_seconds(1)), ..because("") }).unwrap();
    while current_time().secs <= brief.secs + 1 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(volume.find_pinned_snapshots(current_time()).unwrap().keys().collect::<Vec<_>>(), [&one]);
    volume.pin_snapshot(two, because("again")).unwrap();
    volume.unpin_snapshot(two).unwrap();
    assert!(matches!(refused(volume.unpin_snapshot(two)), VolumeError::NotPinned(_)));
    volume.forget_snapshots(&[two]).unwrap();
    assert!(matches!(refused(volume.pin_snapshot(two, because(""))), VolumeError::MissingRecord(_)));
    assert_eq!(volume.find_pinned_snapshots(current_time()).unwrap().len(), 1);
}

#[test]
fn reasons_that_could_deceive_are_refused() {
    let world = World::new(PLAIN);
    let [one, _] = commit_line(&world.volume);
    for reason in ["a\nb", "\x1b[2J", "a\u{202e}b"] {
        assert!(matches!(refused(world.volume.pin_snapshot(one, because(reason))), VolumeError::BadPin(_)));
    }
    let long = "x".repeat(PIN_REASON_MAX + 1);
    assert!(matches!(refused(world.volume.pin_snapshot(one, because(&long))), VolumeError::TooLong { .. }));
    world.volume.pin_snapshot(one, because(&long[1..])).unwrap();
}

#[test]
fn what_was_said_last_about_a_pin_goes_along_with_a_push() {
    let world = World::new(SEALED);
    let [one, two] = commit_line(&world.volume);
    let target = world.seen_in(crate::remotes::empty_copy(&world));
    world.volume.pin_snapshot(one, because("audit")).unwrap();
    let push = || {
        let request = PushRequest { worktrees: vec!["main".into()], ..PushRequest::default() };
        push_to_volume(&world.volume, &target, &request, &ProgressMeter::default()).unwrap();
        target.find_pinned_snapshots(current_time()).unwrap().into_keys().collect::<Vec<_>>()
    };
    assert_eq!(push(), [one]);
    // What is pinned there only stays so.
    target.pin_snapshot(two, because("there")).unwrap();
    world.volume.unpin_snapshot(one).unwrap();
    assert_eq!(push(), [two]);
    assert_clean(&target);
}

#[test]
fn a_damaged_pin_stops_forgetting_until_it_is_removed() {
    let world = World::new(SEALED);
    let [one, two] = commit_line(&world.volume);
    world.volume.pin_snapshot(one, because("audit")).unwrap();
    let key = world.ram.keys("refs/pin/").pop().unwrap();
    world.ram.force(&key, b"damaged");
    assert!(world.volume.forget_snapshots(&[two]).is_err());
    assert_eq!(world.volume.list_readable_pins().unwrap().1.len(), 1);
    assert!(!world.volume.remove_damaged_pin(&format!("refs/pin/{two}")).unwrap());
    assert!(world.volume.remove_damaged_pin(key.as_str()).unwrap());
    world.volume.forget_snapshots(&[one, two]).unwrap();
}

#[test]
fn pins_are_sealed_anew_when_the_key_changes() {
    let world = World::new(SEALED);
    let [one, two] = commit_line(&world.volume);
    world.volume.pin_snapshot(one, because("audit")).unwrap();
    rotate(&world.volume).unwrap();
    let newcomer = world.seen_in(world.ram.clone());
    assert_eq!(
        newcomer.find_pinned_snapshots(current_time()).unwrap().into_keys().collect::<Vec<_>>(),
        [one]
    );
    newcomer.forget_snapshots(&[two]).unwrap();
    assert!(matches!(refused(newcomer.forget_snapshots(&[one])), VolumeError::InUse { .. }));
}

//! Disks that are full or fail: what was not acknowledged is not there, and nothing is acknowledged in doubt.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::embedded::hooks::DurabilityHooks;
use crate::embedded::sim::{SimFault, SimFolder, SimLoss};

fn fresh() -> (Arc<SimFolder>, EmbeddedEngine) {
    let folder = SimFolder::with_files(BTreeMap::new());
    let engine = open(&folder).unwrap();
    put(&engine, b"before", b"1").unwrap();
    engine.wait_until_durable(u64::MAX).unwrap();
    (folder, engine)
}

#[test]
fn a_full_disk_refuses_and_poisons_nothing() {
    let (folder, engine) = fresh();
    let before = state(&engine).unwrap();
    folder.inject_fault(0, SimFault::Full, true);
    for _ in 0..3 {
        let refused = put(&engine, b"refused", &[7; 1000]).unwrap_err();
        assert_eq!(refused.kind(), vellum_types::ErrorKind::NoSpace, "{refused}");
        assert_eq!(state(&engine).unwrap(), before, "a refused transaction changes nothing");
    }
    assert_eq!(
        state(&open(&SimFolder::with_files(folder.file_contents())).unwrap()).unwrap(),
        before,
        "nor on the disk"
    );
    folder.clear_fault();
    put(&engine, b"after", b"2").unwrap();
    engine.wait_until_durable(u64::MAX).unwrap();
    let after = state(&engine).unwrap();
    drop(engine);
    assert_eq!(state(&open(&folder).unwrap()).unwrap(), after);
}

#[test]
fn nothing_is_settled_without_space_for_the_mark() {
    let (folder, engine) = fresh();
    let last = put(&engine, b"a", b"1").unwrap();
    folder.inject_fault(1, SimFault::Full, true);
    engine.wait_until_durable(last).expect("one sync needs no space");
    assert_eq!(engine.wait_until_confirmed(last).unwrap_err().kind(), vellum_types::ErrorKind::NoSpace);
    folder.clear_fault();
    engine.wait_until_confirmed(last).unwrap();
}

#[test]
fn a_failed_sync_poisons() {
    let (folder, engine) = fresh();
    put(&engine, b"in doubt", b"1").unwrap();
    folder.inject_fault(0, SimFault::Broken, false);
    assert!(matches!(engine.wait_until_durable(u64::MAX), Err(LiveError::Poisoned(_))));
    assert!(
        matches!(engine.wait_until_durable(u64::MAX), Err(LiveError::Poisoned(_))),
        "a second sync is not believed"
    );
    engine.wait_until_durable(1).expect("what was durable stays so");
    assert!(matches!(put(&engine, b"a", b""), Err(LiveError::Poisoned(_))));
    assert!(matches!(checkpoint(&engine), Err(LiveError::Poisoned(_))));
    assert!(matches!(engine.freeze_prefix(b"l"), Err(LiveError::Poisoned(_))));
    assert!(engine.fork_to_folder(&*SimFolder::with_files(BTreeMap::new())).is_err());
    assert!(state(&engine).unwrap().contains_key(&b"in doubt"[..]), "reads go on");
}

#[test]
fn a_failed_write_poisons_and_is_not_seen() {
    let (folder, engine) = fresh();
    folder.inject_fault(0, SimFault::Broken, false);
    assert!(matches!(put(&engine, b"lost", b"1"), Err(LiveError::Io { .. })));
    assert!(matches!(put(&engine, b"later", b"1"), Err(LiveError::Poisoned(_))));
    assert_eq!(state(&engine).unwrap().len(), 1);
    drop(engine);
    assert_eq!(state(&open(&folder).unwrap()).unwrap().len(), 1, "half a record does not count");
}

/// Fails at every operation in turn, once or for good: the next process that opens the store finds what was
/// acknowledged.
fn fail_everywhere(fault: SimFault, lasting: bool) {
    for after in 0.. {
        let folder = SimFolder::with_files(BTreeMap::new());
        let engine = open(&folder).unwrap();
        folder.inject_fault(after, fault, lasting);
        let mut acknowledged = State::new();
        for number in 0..6 {
            let key = key(number, "x");
            if put(&engine, &key, &[number + 1; 100]).is_ok() {
                acknowledged.insert(key, vec![number + 1; 100]);
            }
            let _ = engine.freeze_prefix(&layer(number));
            if number > 2 && drop_prefix(&engine, &layer(number - 2)).is_ok() {
                acknowledged.retain(|key, _| !key.starts_with(&layer(number - 2)));
            }
            let _ = engine.wait_until_durable(u64::MAX);
            let _ = engine.run_maintenance();
            assert_eq!(state(&engine).unwrap(), acknowledged, "operation {after}");
        }
        drop(engine);
        let came = folder.clear_fault();
        let engine = open(&folder).unwrap_or_else(|error| panic!("operation {after}: {error}"));
        assert_eq!(state(&engine).unwrap(), acknowledged, "operation {after}, opened again");
        if !came {
            assert!(after > 100, "{after} operations");
            return;
        }
    }
}

#[test]
fn any_operation_may_find_the_disk_full() {
    fail_everywhere(SimFault::Full, false);
    fail_everywhere(SimFault::Full, true);
}

#[test]
fn any_operation_may_fail() {
    fail_everywhere(SimFault::Broken, false);
    fail_everywhere(SimFault::Broken, true);
}

/// Something that entries point to, and that fails or is lost.
#[derive(Clone, Default)]
struct Companion {
    fails: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
}

impl DurabilityHooks for Companion {
    fn before_sync(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    fn is_intact(&self, _key: &[u8], value: &[u8]) -> bool {
        !self.lost.load(Ordering::Relaxed) || value != b"pointer"
    }
}

#[test]
fn what_points_to_nothing_is_left_out_and_so_is_what_follows() {
    let folder = SimFolder::with_files(BTreeMap::new());
    let companion = Companion::default();
    let open = || EmbeddedEngine::open_folder(folder.clone(), Box::new(companion.clone()), LIMITS).unwrap();
    let engine = open();
    put(&engine, b"durable", b"pointer").unwrap();
    engine.wait_until_durable(u64::MAX).unwrap();
    put(&engine, b"a", b"").unwrap();
    put(&engine, b"b", b"pointer").unwrap();
    put(&engine, b"c", b"").unwrap();
    drop(engine);
    companion.lost.store(true, Ordering::Relaxed);
    let engine = open();
    let names: Vec<_> = state(&engine).unwrap().into_keys().collect();
    assert_eq!(names, [&b"a"[..], b"durable"], "what was durable is not asked for");
    put(&engine, b"d", b"").unwrap();
    drop(engine);
    companion.lost.store(false, Ordering::Relaxed);
    let names: Vec<_> = state(&open()).unwrap().into_keys().collect();
    assert_eq!(names, [&b"a"[..], b"d", b"durable"], "what was left out does not come back");
}

/// What is durable may be known to be so by a mark that is not: then the hooks are asked, and have to know.
#[test]
fn what_is_settled_is_not_asked_for() {
    for settled in [false, true] {
        let folder = SimFolder::with_files(BTreeMap::new());
        let companion = Companion::default();
        let engine =
            EmbeddedEngine::open_folder(folder.clone(), Box::new(companion.clone()), LIMITS).unwrap();
        put(&engine, b"a", b"pointer").unwrap();
        put(&engine, b"a", b"published").unwrap();
        engine.wait_until_durable(u64::MAX).unwrap();
        if settled {
            engine.wait_until_confirmed(u64::MAX).unwrap();
        }
        companion.lost.store(true, Ordering::Relaxed);
        let files = folder.simulate_crash(folder.operation_count(), SimLoss::Everything, &mut SimRandom(1));
        let engine =
            EmbeddedEngine::open_folder(SimFolder::with_files(files), Box::new(companion), LIMITS).unwrap();
        assert_eq!(state(&engine).unwrap().contains_key(&b"a"[..]), settled);
    }
}

#[test]
fn what_entries_point_to_must_become_durable_first() {
    let folder = SimFolder::with_files(BTreeMap::new());
    let companion = Companion::default();
    let engine = EmbeddedEngine::open_folder(folder.clone(), Box::new(companion.clone()), LIMITS).unwrap();
    put(&engine, b"a", b"pointer").unwrap();
    companion.fails.store(true, Ordering::Relaxed);
    let before = folder.operation_count();
    assert!(matches!(engine.wait_until_durable(u64::MAX), Err(LiveError::Poisoned(_))));
    assert_eq!(folder.operation_count(), before, "the journal is not synced without it");
}

#[test]
fn frozen_keys_cannot_change() {
    let (_, engine) = fresh();
    put(&engine, &key(1, "a"), b"1").unwrap();
    engine.freeze_prefix(&layer(1)).unwrap();
    let before = state(&engine).unwrap();
    assert!(matches!(put(&engine, &key(1, "b"), b""), Err(LiveError::Frozen(_))));
    assert!(matches!(drop_prefix(&engine, &key(1, "a")), Err(LiveError::Frozen(_))));
    let deleted = engine.run_transaction(&mut |txn| {
        txn.delete_key(&key(1, "a"));
        Ok(())
    });
    assert!(matches!(deleted, Err(LiveError::Frozen(_))));
    assert_eq!(state(&engine).unwrap(), before);
}

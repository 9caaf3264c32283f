//! Many threads at once: writers, readers, those who wait, and those who freeze, check and fork.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vellum_live::{DurabilityHooks, EmbeddedStore, EngineLimits, LiveStore, NoDurabilityHooks};
use vellum_map::KeySpan;

use crate::transact;

const WRITERS: u8 = 4;
const ROUNDS: u32 = 500;

#[test]
fn all_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("live");
    let store =
        EmbeddedStore::open_with(&path, NoDurabilityHooks, EngineLimits { journal: 50_000, run: 1000 })
            .unwrap();
    let done = AtomicBool::new(false);
    let shared = &store;
    let ended = &done;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|number| scope.spawn(move || write(shared, number))).collect();
        scope.spawn(|| maintain(shared, dir.path(), ended));
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                look(shared);
                std::thread::yield_now();
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Release);
    });
    let statistics = store.statistics();
    assert!(statistics.transactions >= u64::from(WRITERS) * u64::from(ROUNDS), "{statistics:?}");
    look(&store);
    drop(store);
    look(&EmbeddedStore::open(&path, NoDurabilityHooks).unwrap());
}

/// Adds to a sum and moves a unit from one key to another, in one transaction; waits now and then.
fn write(store: &EmbeddedStore, number: u8) {
    for round in 0..ROUNDS {
        let sequence = transact(store, |txn| {
            let sum =
                txn.get(b"sum").unwrap().map_or(0, |bytes| u32::from_be_bytes(*bytes.first_chunk().unwrap()));
            txn.set_key(b"sum", (sum + 1).to_be_bytes().into());
            txn.set_key(&[&b"unit"[..], &sum.to_be_bytes()].concat(), [number].into());
            txn.set_key(&[&b"top-layer"[..], &[number], &round.to_be_bytes()].concat(), [number; 50].into());
        });
        if round % 100 == 0 {
            store.wait_until_durable(sequence.unwrap()).unwrap();
        }
    }
}

/// Layers come, are frozen and go; forks are made.
fn maintain(store: &EmbeddedStore, dir: &std::path::Path, done: &AtomicBool) {
    for number in 0_u64.. {
        let prefix = [&b"m"[..], &number.to_be_bytes()].concat();
        let fill = transact(store, |txn| {
            (0..100_u8).for_each(|i| txn.set_key(&[&prefix[..], &[i]].concat(), [i; 40].into()));
        });
        fill.unwrap();
        store.freeze_prefix(&prefix).unwrap();
        if number % 8 == 3 {
            let fork = dir.join(format!("fork-{number}"));
            store.fork_into(&fork).unwrap();
            look(&EmbeddedStore::open(&fork, NoDurabilityHooks).unwrap());
        }
        transact(store, |txn| txn.delete_prefix(&prefix)).unwrap();
        if done.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Whatever the moment: the sum counts the units, and a layer is there whole or not at all.
fn look(store: &EmbeddedStore) {
    let mut units = 0;
    let mut sum = 0;
    let mut layer = 0;
    let visited = store.scan(&KeySpan::all_keys(), &mut |key, value| {
        match key {
            b"sum" => sum = u32::from_be_bytes(*value.first_chunk().unwrap()),
            [b'u', ..] => units += 1,
            [b'm', ..] => layer += 1,
            _ => {}
        }
        ControlFlow::Continue(())
    });
    visited.unwrap();
    assert_eq!(units, sum);
    assert!(layer == 0 || layer == 100, "{layer} entries");
}

/// A disk whose flush does not end before all who want one have written.
struct Slow(Arc<AtomicU64>);

impl DurabilityHooks for Slow {
    fn before_sync(&self) -> std::io::Result<()> {
        while self.0.load(Ordering::SeqCst) < u64::from(WAITERS) {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn is_intact(&self, _key: &[u8], _value: &[u8]) -> bool {
        true
    }
}

/// Who waits for a flush.
const WAITERS: u8 = 8;

#[test]
fn however_many_wait_two_flushes_are_for_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let store = EmbeddedStore::open(&dir.path().join("live"), Slow(Arc::clone(&written))).unwrap();
    std::thread::scope(|scope| {
        for number in 0..WAITERS {
            let store = &store;
            let written = &written;
            scope.spawn(move || {
                let sequence = transact(store, |txn| txn.set_key(&[number], [number].into())).unwrap();
                written.fetch_add(1, Ordering::SeqCst);
                store.wait_until_durable(sequence).unwrap();
            });
        }
    });
    // One that began before the last of them wrote, and one for all who came too late for it.
    let flushes = store.statistics().syncs;
    assert!((1..=2).contains(&flushes), "{flushes}");
}

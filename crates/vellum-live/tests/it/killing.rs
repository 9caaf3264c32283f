//! The process is killed at random moments under load: what it acknowledged is there, and what is there is a prefix.

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use vellum_live::{EmbeddedStore, EngineLimits, LiveStore, NoDurabilityHooks};
use vellum_map::KeySpan;

use crate::transact;

const VARIABLE: &str = "VELLUM_LIVE_TEST_WRITER";
const ROUNDS: u64 = 25;
/// Transactions of one layer.
const LAYER: u64 = 200;
/// Layers that are kept: older ones are dropped, whole.
const KEPT: u64 = 3;

fn key(number: u64, part: u8) -> Vec<u8> {
    [&prefix(number / LAYER)[..], &number.to_be_bytes(), &[part]].concat()
}

fn prefix(layer: u64) -> Vec<u8> {
    [&b"l"[..], &layer.to_be_bytes()].concat()
}

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open_with(dir, NoDurabilityHooks, EngineLimits { journal: 10_000, run: 1000 }).unwrap()
}

/// The child's part: does nothing unless it was started by the test below. Each transaction is two keys; the number
/// of each that returned goes to the pipe. A layer is frozen when the next begins.
#[test]
fn writer_process() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    let (first, path) = task.split_once(':').unwrap();
    let store = open(path.as_ref());
    let first: u64 = first.parse().unwrap();
    let mut out = std::io::stdout().lock();
    drop_old(&store, first / LAYER);
    for number in first.. {
        let write = transact(&store, |txn| {
            (0..2).for_each(|part| txn.set_key(&key(number, part), number.to_be_bytes().into()));
        });
        writeln!(out, "did {number}").unwrap();
        out.flush().unwrap();
        if number.is_multiple_of(LAYER) && number > 0 {
            store.freeze_prefix(&prefix(number / LAYER - 1)).unwrap();
            drop_old(&store, number / LAYER);
        }
        if number.is_multiple_of(50) {
            store.wait_until_durable(write.unwrap()).unwrap();
        }
    }
}

fn drop_old(store: &EmbeddedStore, layer: u64) {
    let old = 0..(layer + 1).saturating_sub(KEPT);
    transact(store, |txn| old.clone().for_each(|old| txn.delete_prefix(&prefix(old)))).unwrap();
}

/// The numbers that a store holds: of each both keys, and no gap between the first and the last.
fn numbers(store: &EmbeddedStore) -> std::ops::RangeInclusive<u64> {
    let mut found = Vec::new();
    let visited = store.scan(&KeySpan::all_keys(), &mut |key, value| {
        assert!(key.ends_with(&[&value[..], &[found.len() as u8 % 2]].concat()));
        found.push(u64::from_be_bytes(*value.first_chunk().unwrap()));
        ControlFlow::Continue(())
    });
    visited.unwrap();
    let first = *found.first().unwrap();
    let last = *found.last().unwrap();
    let whole: Vec<_> = (first..=last).flat_map(|number| [number, number]).collect();
    assert_eq!(found, whole, "a prefix, but for what was dropped from its start");
    first..=last
}

#[test]
fn what_a_killed_process_acknowledged_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut next = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "killing::writer_process"])
            .env(VARIABLE, format!("{next}:{}", dir.path().display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let lines = pipe.lines().map_while(Result::ok);
            lines.filter_map(|line| line.split_once("did ")?.1.parse::<u64>().ok()).last()
        });
        std::thread::sleep(Duration::from_millis(20 + round * 37 % 150));
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = reader.join().unwrap();
        let store = open(dir.path());
        if let Some(acknowledged) = acknowledged {
            let there = numbers(&store);
            assert!(there.contains(&acknowledged), "{acknowledged} is not in {there:?}");
            assert!(*there.end() <= acknowledged + 1, "one transaction at most was under way");
            // One more if it was killed between a layer's first transaction and the one that drops.
            assert!(there.start() / LAYER + KEPT >= acknowledged / LAYER, "dropped layers stay away");
            next = there.end() + 1;
        }
    }
    assert!(next > LAYER * KEPT, "only {next} transactions in all rounds");
}

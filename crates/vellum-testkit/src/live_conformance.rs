//! A suite of the requirements on every store of live metadata.
//!
//! Each function panics with the requirement that was violated. The store must be empty at the start, and is empty at
//! the end.

use std::ops::ControlFlow;

use vellum_live::{CommitSequence, LiveError, LiveStore, StoreTransaction, ValueBytes};
use vellum_map::KeySpan;

/// Threads that increment one key.
const RACERS: u32 = 4;
/// Increments by each thread.
const ROUNDS: u32 = 50;

/// Runs the whole suite.
///
/// # Panics
/// Panics if the store violates a requirement.
pub fn check_live_store(store: &dyn LiveStore) {
    // In this order: some checks go on with what those before them have stored.
    check_put_and_get(store);
    check_abandoned_changes(store);
    check_own_changes(store);
    check_scans(store);
    check_prefix_scans(store);
    check_frozen_views(store);
    check_durability(store);
    check_races(store);
    check_atomic_reads(store);
    run_transaction(store, &mut |txn| txn.delete_prefix(b""));
    assert!(scan_keys(store, &KeySpan::all_keys()).is_empty(), "the empty prefix is every key's");
}

fn run_transaction(store: &dyn LiveStore, body: &mut dyn FnMut(&mut dyn StoreTransaction)) -> CommitSequence {
    let done = store.run_transaction(&mut |txn| {
        body(txn);
        Ok(())
    });
    done.expect("a transaction")
}

fn to_value(text: &[u8]) -> ValueBytes {
    text.into()
}

fn get_value(store: &dyn LiveStore, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).expect("get").map(|bytes| bytes.to_vec())
}

fn scan_keys(store: &dyn LiveStore, span: &KeySpan) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visited = store.scan(span, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    visited.expect("scan");
    keys
}

fn scan_keys_in(txn: &dyn StoreTransaction, span: &KeySpan) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visited = txn.scan(span, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    visited.expect("scan");
    keys
}

fn check_put_and_get(store: &dyn LiveStore) {
    assert_eq!(get_value(store, b"a"), None, "an absent key has no value");
    // A length that does not fit into one byte.
    let long = vec![b'k'; 300];
    let large = vec![7; 100_000];
    run_transaction(store, &mut |txn| {
        txn.set_key(b"a", to_value(b"1"));
        txn.set_key(b"empty", to_value(b""));
        txn.set_key(&long, to_value(&large));
        txn.set_key(b"b", to_value(b"2"));
        txn.set_key(b"b", to_value(b"3"));
    });
    assert_eq!(get_value(store, b"a").as_deref(), Some(&b"1"[..]), "what was put is got");
    assert_eq!(get_value(store, b"empty").as_deref(), Some(&b""[..]), "an empty value is a value");
    assert_eq!(get_value(store, &long), Some(large), "long keys and large values");
    assert_eq!(get_value(store, b"b").as_deref(), Some(&b"3"[..]), "the last of several puts counts");
    run_transaction(store, &mut |txn| {
        txn.set_key(b"a", to_value(b"new"));
        txn.delete_key(b"b");
        txn.delete_key(b"absent");
    });
    assert_eq!(get_value(store, b"a").as_deref(), Some(&b"new"[..]), "a put replaces");
    assert_eq!(get_value(store, b"b"), None, "what was deleted is gone");
    assert!(store.memory_size() > 0, "entries take memory");
}

fn check_abandoned_changes(store: &dyn LiveStore) {
    let before = scan_keys(store, &KeySpan::all_keys());
    let failed = store.run_transaction(&mut |txn| {
        txn.set_key(b"never", to_value(b"x"));
        txn.delete_key(b"a");
        txn.delete_prefix(b"e");
        Err(LiveError::Abandoned)
    });
    assert!(matches!(failed, Err(LiveError::Abandoned)), "the body's error comes back");
    assert_eq!(scan_keys(store, &KeySpan::all_keys()), before, "an abandoned transaction changes nothing");
    // Callers wait for the sequence that they were given, without knowing whether there was a change.
    let nothing = run_transaction(store, &mut |_| {});
    store.wait_until_durable(nothing).expect("a transaction without changes can be waited for");
}

fn check_own_changes(store: &dyn LiveStore) {
    run_transaction(store, &mut |txn| {
        let get =
            |txn: &dyn StoreTransaction, key: &[u8]| txn.get(key).expect("get").map(|bytes| bytes.to_vec());
        assert_eq!(get(txn, b"a").as_deref(), Some(&b"new"[..]), "committed values are seen");
        txn.set_key(b"a", to_value(b"mine"));
        txn.set_key(b"c", to_value(b"too"));
        txn.delete_key(b"empty");
        assert_eq!(get(txn, b"a").as_deref(), Some(&b"mine"[..]), "own puts are seen");
        assert_eq!(get(txn, b"empty"), None, "own deletions are seen");
        let seen = scan_keys_in(txn, &KeySpan::from_bounds(b"a", b"f"));
        assert_eq!(seen, [&b"a"[..], b"c"], "scans see own changes");
        txn.delete_prefix(b"c");
        txn.set_key(b"d", to_value(b"4"));
        assert_eq!(get(txn, b"c"), None, "own puts go with their prefix");
        assert_eq!(scan_keys_in(txn, &KeySpan::from_bounds(b"a", b"f")), [&b"a"[..], b"d"]);
        let mut first = None;
        let visited = txn.scan(&KeySpan::all_keys(), &mut |key, _| {
            first = Some(key.to_vec());
            ControlFlow::Break(())
        });
        visited.expect("scan");
        assert_eq!(first.as_deref(), Some(&b"a"[..]), "a scan that is broken off has ended");
    });
    assert_eq!(get_value(store, b"d").as_deref(), Some(&b"4"[..]));
    // The scans that are checked next begin with nothing.
    run_transaction(store, &mut |txn| txn.delete_prefix(b""));
}

/// Keys whose order is easily wrong.
const ORDERED: &[&[u8]] = &[
    b"a",
    b"a\0",
    b"a\0\0\0\0\0\0\0\0",
    b"a\0\0\0\0\0\0\0\0\0",
    b"a\0\0\0\0\0\0\0\x01",
    b"a\0\0\0\0\0\0\0\x01zz",
    b"a\0\0\0\0\0\0\0\x02",
    b"ab",
    b"a\xff\xff\xff\xff\xff\xff\xff\xff",
    b"a\xff\xff\xff\xff\xff\xff\xff\xff\0",
    b"a\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"b",
    b"\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
];

fn check_scans(store: &dyn LiveStore) {
    // In reverse, so that the order of a scan cannot be that of the puts.
    run_transaction(store, &mut |txn| ORDERED.iter().rev().for_each(|key| txn.set_key(key, to_value(key))));
    assert_eq!(scan_keys(store, &KeySpan::all_keys()), ORDERED, "scans are in the order of the keys");
    for (i, start) in ORDERED.iter().enumerate() {
        assert_eq!(scan_keys(store, &KeySpan::from_start(start)), &ORDERED[i..], "from a key on");
        assert_eq!(
            scan_keys(store, &KeySpan::all_keys().after_key(start)),
            &ORDERED[i + 1..],
            "behind a key"
        );
        for (j, end) in ORDERED.iter().enumerate() {
            // A span that ends before it begins is empty.
            let wanted = ORDERED.get(i..j).unwrap_or_default();
            let span = KeySpan::from_bounds(start, end);
            assert_eq!(scan_keys(store, &span), wanted, "from a key to below another");
            run_transaction(store, &mut |txn| {
                assert_eq!(scan_keys_in(txn, &span), wanted, "in a transaction")
            });
        }
    }
    let mut count = 0;
    let visited = store.scan(&KeySpan::all_keys(), &mut |key, found| {
        assert_eq!(key, &**found, "each key with its value");
        count += 1;
        if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    visited.expect("scan");
    assert_eq!(count, 3, "a scan ends when it is broken off");
}

fn check_prefix_scans(store: &dyn LiveStore) {
    // A prefix that ends with bytes of 0xff has no successor of its length, and the empty one has none at
    // all.
    for prefix in
        [&b"a\0\0\0\0\0\0\0\x01"[..], b"a\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"a\0", b"nothing", b"a", b""]
    {
        let wanted: Vec<_> = scan_keys(store, &KeySpan::all_keys())
            .into_iter()
            .filter(|key| !key.starts_with(prefix))
            .collect();
        run_transaction(store, &mut |txn| {
            txn.delete_prefix(prefix);
            assert_eq!(scan_keys_in(txn, &KeySpan::all_keys()), wanted, "a dropped prefix is not seen");
        });
        assert_eq!(
            scan_keys(store, &KeySpan::all_keys()),
            wanted,
            "all keys with the prefix {prefix:?} went, no others"
        );
    }
}

fn check_frozen_views(store: &dyn LiveStore) {
    let layer = |number: u8| [b'l', 0, 0, 0, 0, 0, 0, 0, number];
    let key = |number: u8, i: u32| [&layer(number)[..], &i.to_be_bytes()].concat();
    for number in 1..=3 {
        run_transaction(store, &mut |txn| {
            (0..500).for_each(|i| txn.set_key(&key(number, i), to_value(&[number; 100])));
        });
    }
    let before = scan_keys(store, &KeySpan::all_keys());
    store.freeze_prefix(&layer(1)).expect("freeze");
    store.freeze_prefix(&layer(2)).expect("freeze");
    store.freeze_prefix(&layer(2)).expect("what is frozen can be frozen");
    store.freeze_prefix(&layer(9)).expect("what is not there can be frozen");
    assert_eq!(scan_keys(store, &KeySpan::all_keys()), before, "freezing changes nothing");
    assert_eq!(get_value(store, &key(1, 499)), Some(vec![1; 100]));
    assert_eq!(get_value(store, &key(1, 500)), None);
    assert_eq!(
        scan_keys(store, &KeySpan::from_bounds(key(1, 498), key(2, 2))).len(),
        4,
        "scans cross layers"
    );
    run_transaction(store, &mut |txn| {
        // In a layer that is not frozen.
        txn.set_key(&key(3, 0), to_value(b"changed"));
        assert_eq!(scan_keys_in(txn, &KeySpan::from_bounds(key(1, 498), key(2, 2))).len(), 4);
        assert_eq!(txn.get(&key(2, 7)).expect("get").as_deref(), Some(&[2; 100][..]));
    });
    run_transaction(store, &mut |txn| txn.delete_prefix(&layer(1)));
    assert_eq!(scan_keys(store, &KeySpan::all_keys()), &before[500..], "a frozen layer goes by its prefix");
    assert_eq!(get_value(store, &key(1, 0)), None);
    run_transaction(store, &mut |txn| txn.set_key(&key(1, 5), to_value(b"again")));
    assert_eq!(get_value(store, &key(1, 5)).as_deref(), Some(&b"again"[..]), "and can come back");
    run_transaction(store, &mut |txn| txn.delete_prefix(b"l"));
    assert!(scan_keys(store, &KeySpan::all_keys()).is_empty());
}

fn check_durability(store: &dyn LiveStore) {
    let first = run_transaction(store, &mut |txn| txn.set_key(b"1", to_value(b"1")));
    let second = run_transaction(store, &mut |txn| txn.set_key(b"2", to_value(b"2")));
    assert!(first < second, "sequences grow");
    // The later one first: the earlier one is durable by then, and waiting for it has to end at once.
    store.wait_until_durable(second).expect("wait");
    store.wait_until_durable(first).expect("what is durable stays durable");
    store.wait_until_confirmed(second).expect("settle");
    store.wait_until_confirmed(first).expect("what is settled stays settled");
}

fn check_races(store: &dyn LiveStore) {
    let increment = || {
        run_transaction(store, &mut |txn| {
            // A transaction that does not see the one before counts from an old number.
            let count = txn.get(b"count").expect("get").map_or(0, |bytes| decode_number(&bytes));
            txn.set_key(b"count", to_value(&(count + 1).to_be_bytes()));
            // A key for each number: two transactions that have read the same one would share it.
            txn.set_key(&[b"n".as_slice(), &count.to_be_bytes()].concat(), to_value(b""));
        })
    };
    let mut sequences: Vec<_> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS)
            .map(|_| {
                scope.spawn(|| {
                    let sequences: Vec<_> = (0..ROUNDS).map(|_| increment()).collect();
                    // Within the race, so that flushes fall between the transactions of the others.
                    store.wait_until_durable(*sequences.last().expect("some")).expect("wait");
                    sequences
                })
            })
            .collect();
        racers.into_iter().flat_map(|racer| racer.join().expect("a racer")).collect()
    });
    let count = get_value(store, b"count").map(|bytes| decode_number(&bytes));
    assert_eq!(count, Some(RACERS * ROUNDS), "no increment is lost");
    assert_eq!(
        scan_keys(store, &KeySpan::from_prefix(b"n")).len() as u32,
        RACERS * ROUNDS,
        "each read another count"
    );
    sequences.sort_unstable();
    sequences.dedup();
    assert_eq!(sequences.len() as u32, RACERS * ROUNDS, "each transaction has a sequence of its own");
}

/// Two keys of one transaction are visible together, to gets in transactions and to scans.
fn check_atomic_reads(store: &dyn LiveStore) {
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..300_u32 {
                let bytes = to_value(&i.to_be_bytes());
                run_transaction(store, &mut |txn| {
                    txn.set_key(b"m-first-part", ValueBytes::clone(&bytes));
                    txn.set_key(b"m-second-part", ValueBytes::clone(&bytes));
                });
            }
        });
        // Reads run against the writer for as long as it writes, so that many of them fall between its two
        // keys.
        while !writer.is_finished() {
            let mut seen = Vec::new();
            let visited = store.scan(&KeySpan::from_prefix(b"m-"), &mut |_, found| {
                seen.push(decode_number(found));
                ControlFlow::Continue(())
            });
            visited.expect("scan");
            assert!(
                seen.is_empty() || seen.len() == 2 && seen.first() == seen.last(),
                "a scan sees one moment"
            );
            // A transaction may see what was committed since the scan, so that the two are not compared with
            // each other.
            run_transaction(store, &mut |txn| {
                let first = txn.get(b"m-first-part").expect("get");
                assert_eq!(first, txn.get(b"m-second-part").expect("get"), "a transaction sees one moment");
            });
        }
        writer.join().expect("the writer");
    });
}

fn decode_number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

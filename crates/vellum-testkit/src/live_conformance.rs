//! What every store of live metadata must do, as one suite.
//!
//! Each function panics with the sentence that was broken. The store must be empty at the start, and is at the end.

use std::ops::ControlFlow;

use vellum_live::{CommitSequence, LiveError, LiveStore, StoreTransaction, ValueBytes};
use vellum_map::KeySpan;

/// Threads that count one key up.
const RACERS: u32 = 4;
/// Increments that each of them makes.
const ROUNDS: u32 = 50;

/// Runs the whole suite.
///
/// # Panics
/// When the store breaks a rule.
pub fn check(store: &dyn LiveStore) {
    puts_and_gets(store);
    abandoned(store);
    own_changes(store);
    scans(store);
    prefixes(store);
    frozen(store);
    durability(store);
    races(store);
    moments(store);
    transact(store, &mut |txn| txn.delete_prefix(b""));
    assert!(keys(store, &KeySpan::all()).is_empty(), "the empty prefix is every key's");
}

fn transact(store: &dyn LiveStore, body: &mut dyn FnMut(&mut dyn StoreTransaction)) -> CommitSequence {
    let done = store.transact(&mut |txn| {
        body(txn);
        Ok(())
    });
    done.expect("a transaction")
}

fn value(text: &[u8]) -> ValueBytes {
    text.into()
}

fn get(store: &dyn LiveStore, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).expect("get").map(|bytes| bytes.to_vec())
}

fn keys(store: &dyn LiveStore, span: &KeySpan) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visited = store.scan(span, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    visited.expect("scan");
    keys
}

fn keys_within(txn: &dyn StoreTransaction, span: &KeySpan) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visited = txn.scan(span, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    visited.expect("scan");
    keys
}

fn puts_and_gets(store: &dyn LiveStore) {
    assert_eq!(get(store, b"a"), None, "an absent key has no value");
    let long = vec![b'k'; 300];
    let large = vec![7; 100_000];
    transact(store, &mut |txn| {
        txn.put(b"a", value(b"1"));
        txn.put(b"empty", value(b""));
        txn.put(&long, value(&large));
        txn.put(b"b", value(b"2"));
        txn.put(b"b", value(b"3"));
    });
    assert_eq!(get(store, b"a").as_deref(), Some(&b"1"[..]), "what was put is got");
    assert_eq!(get(store, b"empty").as_deref(), Some(&b""[..]), "an empty value is a value");
    assert_eq!(get(store, &long), Some(large), "long keys and large values");
    assert_eq!(get(store, b"b").as_deref(), Some(&b"3"[..]), "the last of several puts counts");
    transact(store, &mut |txn| {
        txn.put(b"a", value(b"new"));
        txn.delete(b"b");
        txn.delete(b"absent");
    });
    assert_eq!(get(store, b"a").as_deref(), Some(&b"new"[..]), "a put replaces");
    assert_eq!(get(store, b"b"), None, "what was deleted is gone");
    assert!(store.memory() > 0, "entries take memory");
}

fn abandoned(store: &dyn LiveStore) {
    let before = keys(store, &KeySpan::all());
    let failed = store.transact(&mut |txn| {
        txn.put(b"never", value(b"x"));
        txn.delete(b"a");
        txn.delete_prefix(b"e");
        Err(LiveError::Abandoned)
    });
    assert!(matches!(failed, Err(LiveError::Abandoned)), "the body's error comes back");
    assert_eq!(keys(store, &KeySpan::all()), before, "an abandoned transaction changes nothing");
    let nothing = transact(store, &mut |_| {});
    store.wait_durable(nothing).expect("a transaction without changes can be waited for");
}

fn own_changes(store: &dyn LiveStore) {
    transact(store, &mut |txn| {
        let get =
            |txn: &dyn StoreTransaction, key: &[u8]| txn.get(key).expect("get").map(|bytes| bytes.to_vec());
        assert_eq!(get(txn, b"a").as_deref(), Some(&b"new"[..]), "committed values are seen");
        txn.put(b"a", value(b"mine"));
        txn.put(b"c", value(b"too"));
        txn.delete(b"empty");
        assert_eq!(get(txn, b"a").as_deref(), Some(&b"mine"[..]), "own puts are seen");
        assert_eq!(get(txn, b"empty"), None, "own deletions are seen");
        let seen = keys_within(txn, &KeySpan::between(b"a", b"f"));
        assert_eq!(seen, [&b"a"[..], b"c"], "scans see own changes");
        txn.delete_prefix(b"c");
        txn.put(b"d", value(b"4"));
        assert_eq!(get(txn, b"c"), None, "own puts go with their prefix");
        assert_eq!(keys_within(txn, &KeySpan::between(b"a", b"f")), [&b"a"[..], b"d"]);
        let mut first = None;
        let visited = txn.scan(&KeySpan::all(), &mut |key, _| {
            first = Some(key.to_vec());
            ControlFlow::Break(())
        });
        visited.expect("scan");
        assert_eq!(first.as_deref(), Some(&b"a"[..]), "a scan that is broken off has ended");
    });
    assert_eq!(get(store, b"d").as_deref(), Some(&b"4"[..]));
    transact(store, &mut |txn| txn.delete_prefix(b""));
}

/// Keys whose order is easily got wrong.
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

fn scans(store: &dyn LiveStore) {
    transact(store, &mut |txn| ORDERED.iter().rev().for_each(|key| txn.put(key, value(key))));
    assert_eq!(keys(store, &KeySpan::all()), ORDERED, "scans are in the order of the keys");
    for (i, start) in ORDERED.iter().enumerate() {
        assert_eq!(keys(store, &KeySpan::from(start)), &ORDERED[i..], "from a key on");
        assert_eq!(keys(store, &KeySpan::all().after(start)), &ORDERED[i + 1..], "behind a key");
        for (j, end) in ORDERED.iter().enumerate() {
            let wanted = ORDERED.get(i..j).unwrap_or_default();
            let span = KeySpan::between(start, end);
            assert_eq!(keys(store, &span), wanted, "from a key to below another");
            transact(store, &mut |txn| assert_eq!(keys_within(txn, &span), wanted, "in a transaction"));
        }
    }
    let mut count = 0;
    let visited = store.scan(&KeySpan::all(), &mut |key, found| {
        assert_eq!(key, &**found, "each key with its value");
        count += 1;
        if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    visited.expect("scan");
    assert_eq!(count, 3, "a scan ends when it is broken off");
}

fn prefixes(store: &dyn LiveStore) {
    for prefix in
        [&b"a\0\0\0\0\0\0\0\x01"[..], b"a\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"a\0", b"nothing", b"a", b""]
    {
        let wanted: Vec<_> =
            keys(store, &KeySpan::all()).into_iter().filter(|key| !key.starts_with(prefix)).collect();
        transact(store, &mut |txn| {
            txn.delete_prefix(prefix);
            assert_eq!(keys_within(txn, &KeySpan::all()), wanted, "a dropped prefix is not seen");
        });
        assert_eq!(
            keys(store, &KeySpan::all()),
            wanted,
            "all keys with the prefix {prefix:?} went, no others"
        );
    }
}

fn frozen(store: &dyn LiveStore) {
    let layer = |number: u8| [b'l', 0, 0, 0, 0, 0, 0, 0, number];
    let key = |number: u8, i: u32| [&layer(number)[..], &i.to_be_bytes()].concat();
    for number in 1..=3 {
        transact(store, &mut |txn| {
            (0..500).for_each(|i| txn.put(&key(number, i), value(&[number; 100])));
        });
    }
    let before = keys(store, &KeySpan::all());
    store.freeze(&layer(1)).expect("freeze");
    store.freeze(&layer(2)).expect("freeze");
    store.freeze(&layer(2)).expect("what is frozen can be frozen");
    store.freeze(&layer(9)).expect("what is not there can be frozen");
    assert_eq!(keys(store, &KeySpan::all()), before, "freezing changes nothing");
    assert_eq!(get(store, &key(1, 499)), Some(vec![1; 100]));
    assert_eq!(get(store, &key(1, 500)), None);
    assert_eq!(keys(store, &KeySpan::between(key(1, 498), key(2, 2))).len(), 4, "scans cross layers");
    transact(store, &mut |txn| {
        txn.put(&key(3, 0), value(b"changed"));
        assert_eq!(keys_within(txn, &KeySpan::between(key(1, 498), key(2, 2))).len(), 4);
        assert_eq!(txn.get(&key(2, 7)).expect("get").as_deref(), Some(&[2; 100][..]));
    });
    transact(store, &mut |txn| txn.delete_prefix(&layer(1)));
    assert_eq!(keys(store, &KeySpan::all()), &before[500..], "a frozen layer goes by its prefix");
    assert_eq!(get(store, &key(1, 0)), None);
    transact(store, &mut |txn| txn.put(&key(1, 5), value(b"again")));
    assert_eq!(get(store, &key(1, 5)).as_deref(), Some(&b"again"[..]), "and can come back");
    transact(store, &mut |txn| txn.delete_prefix(b"l"));
    assert!(keys(store, &KeySpan::all()).is_empty());
}

fn durability(store: &dyn LiveStore) {
    let first = transact(store, &mut |txn| txn.put(b"1", value(b"1")));
    let second = transact(store, &mut |txn| txn.put(b"2", value(b"2")));
    assert!(first < second, "sequences grow");
    store.wait_durable(second).expect("wait");
    store.wait_durable(first).expect("what is durable stays durable");
    store.settle(second).expect("settle");
    store.settle(first).expect("what is settled stays settled");
}

fn races(store: &dyn LiveStore) {
    let increment = || {
        transact(store, &mut |txn| {
            let count = txn.get(b"count").expect("get").map_or(0, |bytes| number(&bytes));
            txn.put(b"count", value(&(count + 1).to_be_bytes()));
            txn.put(&[b"n".as_slice(), &count.to_be_bytes()].concat(), value(b""));
        })
    };
    let mut sequences: Vec<_> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS)
            .map(|_| {
                scope.spawn(|| {
                    let sequences: Vec<_> = (0..ROUNDS).map(|_| increment()).collect();
                    store.wait_durable(*sequences.last().expect("some")).expect("wait");
                    sequences
                })
            })
            .collect();
        racers.into_iter().flat_map(|racer| racer.join().expect("a racer")).collect()
    });
    let count = get(store, b"count").map(|bytes| number(&bytes));
    assert_eq!(count, Some(RACERS * ROUNDS), "no increment is lost");
    assert_eq!(keys(store, &KeySpan::prefix(b"n")).len() as u32, RACERS * ROUNDS, "each read another count");
    sequences.sort_unstable();
    sequences.dedup();
    assert_eq!(sequences.len() as u32, RACERS * ROUNDS, "each transaction has a sequence of its own");
}

/// What two keys of one transaction say is seen together, by gets in transactions and by scans.
fn moments(store: &dyn LiveStore) {
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..300_u32 {
                let bytes = value(&i.to_be_bytes());
                transact(store, &mut |txn| {
                    txn.put(b"m-first-part", ValueBytes::clone(&bytes));
                    txn.put(b"m-second-part", ValueBytes::clone(&bytes));
                });
            }
        });
        while !writer.is_finished() {
            let mut seen = Vec::new();
            let visited = store.scan(&KeySpan::prefix(b"m-"), &mut |_, found| {
                seen.push(number(found));
                ControlFlow::Continue(())
            });
            visited.expect("scan");
            assert!(
                seen.is_empty() || seen.len() == 2 && seen.first() == seen.last(),
                "a scan sees one moment"
            );
            transact(store, &mut |txn| {
                let first = txn.get(b"m-first-part").expect("get");
                assert_eq!(first, txn.get(b"m-second-part").expect("get"), "a transaction sees one moment");
            });
        }
        writer.join().expect("the writer");
    });
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

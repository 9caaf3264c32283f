//! Any sequence of operations, against a map of the standard library.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use vellum_live::{EmbeddedStore, EngineLimits, LiveError, LiveStore, NoDurabilityHooks, StoreTransaction};
use vellum_map::KeySpan;

use crate::transact;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// One step of a transaction.
#[derive(Debug, Clone)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Get(Vec<u8>),
    Scan(KeySpan),
    Drop(Vec<u8>),
}

/// One thing that is done with a store.
#[derive(Debug, Clone)]
enum Action {
    Transact(Vec<Step>),
    Abandon(Vec<Step>),
    Freeze(Vec<u8>),
    Sync,
    Reopen,
    Fork,
}

/// Few keys in few groups, some of them short, some long.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let layered = (0_u8..3, vec(0_u8..3, 0..4), prop_oneof![9 => Just(0_usize), 1 => Just(60)]);
    prop_oneof![
        8 => layered.prop_map(|(layer, rest, padding)| {
            [&[b'l', 0, 0, 0, 0, 0, 0, 0, layer][..], &rest, &vec![1; padding]].concat()
        }),
        2 => vec(prop_oneof![Just(0_u8), Just(b'l'), Just(255)], 0..4),
    ]
}

fn prefix() -> impl Strategy<Value = Vec<u8>> {
    (key(), 0_usize..12).prop_map(|(key, len)| key.into_iter().take(len).collect())
}

fn span() -> impl Strategy<Value = KeySpan> {
    (key(), proptest::option::of(key())).prop_map(|(start, end)| KeySpan { start, end })
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![9 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 3000..5000)];
    prop_oneof![
        10 => (key(), value).prop_map(|(key, value)| Step::Put(key, value)),
        4 => key().prop_map(Step::Delete),
        4 => key().prop_map(Step::Get),
        3 => span().prop_map(Step::Scan),
        1 => prefix().prop_map(Step::Drop),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        20 => vec(step(), 0..12).prop_map(Action::Transact),
        2 => vec(step(), 0..12).prop_map(Action::Abandon),
        3 => prefix().prop_map(Action::Freeze),
        1 => Just(Action::Sync),
        2 => Just(Action::Reopen),
        1 => Just(Action::Fork),
    ]
}

fn within<'m>(model: &'m Model, span: &KeySpan) -> Vec<(&'m [u8], &'m [u8])> {
    let entries = model.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
    entries.filter(|(key, _)| span.contains(key)).collect()
}

/// Carries out a step on both and compares what they say.
fn take(txn: &mut dyn StoreTransaction, model: &mut Model, step: &Step) {
    match step {
        Step::Put(key, value) => {
            txn.set_key(key, value.as_slice().into());
            model.insert(key.clone(), value.clone());
        }
        Step::Delete(key) => {
            txn.delete_key(key);
            model.remove(key);
        }
        Step::Get(key) => {
            assert_eq!(txn.get(key).unwrap().as_deref(), model.get(key).map(Vec::as_slice));
        }
        Step::Scan(span) => {
            let mut wanted = within(model, span).into_iter();
            let visited = txn.scan(span, &mut |key, value| {
                assert_eq!(Some((key, &**value)), wanted.next());
                ControlFlow::Continue(())
            });
            visited.unwrap();
            assert_eq!(wanted.next(), None);
        }
        Step::Drop(prefix) => {
            txn.delete_prefix(prefix);
            model.retain(|key, _| !key.starts_with(prefix));
        }
    }
}

fn compare(store: &EmbeddedStore, model: &Model) {
    let mut found = Model::new();
    let visited = store.scan(&KeySpan::all_keys(), &mut |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    visited.unwrap();
    assert_eq!(&found, model);
    for (key, value) in model {
        assert_eq!(store.get(key).unwrap().as_deref(), Some(value.as_slice()));
        let longer = [key.as_slice(), &[0]].concat();
        assert_eq!(store.get(&longer).unwrap().as_deref(), model.get(&longer).map(Vec::as_slice));
        let mut from = within(model, &KeySpan::from_start(key)).into_iter().map(|(key, _)| key);
        let visited = store.scan(&KeySpan::from_start(key), &mut |key, _| {
            assert_eq!(Some(key), from.next());
            ControlFlow::Continue(())
        });
        visited.unwrap();
    }
}

fn open(path: &Path) -> EmbeddedStore {
    EmbeddedStore::open_with(path, NoDurabilityHooks, EngineLimits { journal: 2000, run: 0 }).unwrap()
}

fn play(actions: &[Action]) {
    let dir = tempfile::tempdir().unwrap();
    let path = |number: usize| dir.path().join(number.to_string());
    let mut model = Model::new();
    let mut store = open(&path(0));
    for (number, action) in actions.iter().enumerate() {
        match action {
            Action::Transact(steps) => {
                let mut changed = model.clone();
                let done = store.run_transaction(&mut |txn| {
                    changed = model.clone();
                    steps.iter().for_each(|step| take(txn, &mut changed, step));
                    Ok(())
                });
                match done {
                    Ok(_) => model = changed,
                    Err(error) => assert!(matches!(error, LiveError::Frozen(_)), "{error}"),
                }
            }
            Action::Abandon(steps) => {
                let mut changed = model.clone();
                let failed = store.run_transaction(&mut |txn| {
                    steps.iter().for_each(|step| take(txn, &mut changed, step));
                    Err(LiveError::Abandoned)
                });
                assert!(matches!(failed, Err(LiveError::Abandoned)));
            }
            Action::Freeze(prefix) => store.freeze_prefix(prefix).unwrap(),
            Action::Sync => {
                let last = transact(&store, |_| {}).unwrap();
                store.wait_until_durable(last).unwrap();
            }
            Action::Reopen => {
                let current = actions[..number].iter().rposition(|action| matches!(action, Action::Fork));
                drop(store);
                store = open(&path(current.map_or(0, |fork| fork + 1)));
            }
            Action::Fork => {
                store.fork_into(&path(number + 1)).unwrap();
                store = open(&path(number + 1));
            }
        }
        compare(&store, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_is_a_map(actions in vec(action(), 1..25)) {
        play(&actions);
    }
}

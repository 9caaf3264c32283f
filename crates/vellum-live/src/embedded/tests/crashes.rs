//! A crash after every single operation on files: what is opened afterwards is a state that existed, with all that was
//! durable, and it is so again if opening crashes, too.

use std::sync::Arc;

use super::*;
use crate::embedded::sim::{LOSSES, SimFolder, SimLoss};

/// A store at work, with what is known of every moment.
struct Story {
    folder: Arc<SimFolder>,
    /// After transaction number `i`.
    states: Vec<State>,
    /// Operations on files and the last transaction that had returned by then.
    committed: Vec<(usize, u64)>,
    /// The same for those that were durable.
    durable: Vec<(usize, u64)>,
}

impl Story {
    fn new(folder: Arc<SimFolder>, first: State) -> Self {
        Self { folder, states: vec![first], committed: Vec::new(), durable: Vec::new() }
    }

    fn transact(
        &mut self,
        engine: &EmbeddedEngine,
        change: impl Fn(&mut State),
        body: &mut crate::TransactionBody<'_>,
    ) {
        let mut state = self.states.last().unwrap().clone();
        change(&mut state);
        self.states.push(state);
        let sequence = engine.run_transaction(body).unwrap();
        assert_eq!(sequence as usize, self.states.len() - 1);
        self.committed.push((self.folder.operation_count(), sequence));
    }

    fn put(&mut self, engine: &EmbeddedEngine, keys: &[Vec<u8>], value: &[u8]) {
        let change = |state: &mut State| {
            keys.iter().for_each(|key| drop(state.insert(key.clone(), value.to_vec())));
        };
        self.transact(engine, change, &mut |txn| {
            keys.iter().for_each(|key| txn.set_key(key, value.into()));
            Ok(())
        });
    }

    fn delete(&mut self, engine: &EmbeddedEngine, key: &[u8]) {
        self.transact(engine, |state| drop(state.remove(key)), &mut |txn| {
            txn.delete_key(key);
            Ok(())
        });
    }

    fn drop_prefix(&mut self, engine: &EmbeddedEngine, prefix: &[u8]) {
        self.transact(engine, |state| state.retain(|key, _| !key.starts_with(prefix)), &mut |txn| {
            txn.delete_prefix(prefix);
            Ok(())
        });
    }

    fn sync(&mut self, engine: &EmbeddedEngine) {
        let sequence = self.states.len() as u64 - 1;
        engine.wait_until_durable(sequence).unwrap();
        self.durable.push((self.folder.operation_count(), sequence));
    }

    /// What a worktree does: changes, a sealed layer that is frozen, more changes, layers that are published and go.
    fn live(&mut self, random: &mut SimRandom) {
        let engine = open(&self.folder).unwrap();
        for top in 1..=4_u8 {
            for step in 0..8 {
                let names: Vec<_> =
                    (0..=random.next_below(3)).map(|_| format!("name {}", random.next_below(9))).collect();
                let keys: Vec<_> = names.iter().map(|name| key(top, name)).collect();
                let len = if random.next_below(6) == 0 { 2000 } else { 20 };
                self.put(&engine, &keys, &vec![step + 10 * top; len]);
                match random.next_below(8) {
                    0 => self.sync(&engine),
                    1 => self.delete(&engine, &keys[0]),
                    2 => self.put(&engine, &[vec![b'o', 1, step]], b""),
                    3 => self.drop_prefix(&engine, b"o"),
                    _ => {}
                }
            }
            match random.next_below(4) {
                0 => self.sync(&engine),
                1 => checkpoint(&engine).unwrap(),
                _ => engine.freeze_prefix(&layer(top)).unwrap(),
            }
            if top > 2 {
                self.drop_prefix(&engine, &layer(top - 2));
                self.put(&engine, &[key(top - 2, "again")], b"again");
            }
            engine.run_maintenance().unwrap();
        }
    }

    /// The transactions of which the last must, and may, be there after a crash.
    fn bounds(&self, ops: usize, loss: SimLoss) -> (usize, usize) {
        let last = |list: &[(usize, u64)]| {
            list.iter().rev().find(|(at, _)| *at <= ops).map_or(0, |(_, sequence)| *sequence as usize)
        };
        let committed = last(&self.committed);
        let least = if loss == SimLoss::Nothing { committed } else { last(&self.durable) };
        (least, (committed + 1).min(self.states.len() - 1))
    }
}

/// Opens a store and returns which of the states it is in.
fn recover(folder: &Arc<SimFolder>, states: &[State], (least, most): (usize, usize), what: &str) -> usize {
    let engine = open(folder).unwrap_or_else(|error| panic!("{what}: {error}"));
    let sequence = engine.written.load(std::sync::atomic::Ordering::Acquire) as usize;
    assert!((least..=most).contains(&sequence), "{what}: {sequence} is not within {least} to {most}");
    let found = state(&engine).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(found == states[sequence], "{what}: {found:?} is not state {sequence}: {:?}", states[sequence]);
    sequence
}

/// Goes on in what was recovered, and crashes at every moment of that.
fn crash_again(image: &Arc<SimFolder>, states: &[State], least: usize, most: usize, random: &mut SimRandom) {
    let start = image.operation_count();
    let engine = open(image).unwrap();
    let before = engine.written.load(std::sync::atomic::Ordering::Acquire) as usize;
    let opened = image.operation_count();
    put(&engine, b"new", b"new").unwrap();
    engine.wait_until_durable(u64::MAX).unwrap();
    engine.run_maintenance().unwrap();
    drop(engine);
    let mut states = states[..=before].to_vec();
    let mut last = states[before].clone();
    last.insert(b"new".to_vec(), b"new".to_vec());
    states.push(last);
    for ops in start..=image.operation_count() {
        let loss = LOSSES[random.next_below(5) as usize];
        let folder = SimFolder::with_files(image.simulate_crash(ops, loss, random));
        let most = if ops > opened { before + 1 } else { before.min(most) };
        // What was not durable before the first crash may go in the second, for all that opening saw of it.
        recover(&folder, &states, (least.min(before), most), &format!("second crash at {ops} with {loss:?}"));
    }
    let folder = SimFolder::with_files(image.file_contents());
    recover(&folder, &states, (before + 1, before + 1), "after a clean end");
}

fn tell(seed: u64) {
    let mut random = SimRandom(seed);
    let mut story = Story::new(SimFolder::with_files(BTreeMap::new()), State::new());
    story.live(&mut random);
    for ops in 0..=story.folder.operation_count() {
        for loss in LOSSES {
            let bounds = story.bounds(ops, loss);
            let files = story.folder.simulate_crash(ops, loss, &mut random);
            let what = format!("seed {seed}, crash at {ops} with {loss:?}");
            recover(&SimFolder::with_files(files.clone()), &story.states, bounds, &what);
            if random.next_below(6) == 0 {
                let (lasting, _) = story.bounds(ops, SimLoss::Everything);
                let image = match loss {
                    SimLoss::Nothing => story.folder.folder_after_kill(ops),
                    _ => SimFolder::with_files(files),
                };
                crash_again(&image, &story.states, lasting, bounds.1, &mut random);
            }
        }
    }
}

#[test]
fn whatever_crashes_when_a_prefix_with_all_that_was_durable_is_there() {
    (1..=12).for_each(|seed| tell(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15)));
}

#[test]
fn a_fork_is_there_whole_or_empty() {
    let folder = SimFolder::with_files(BTreeMap::new());
    let engine = open(&folder).unwrap();
    for number in 0..20 {
        put(&engine, &key(1, &format!("{number}")), &[number; 50]).unwrap();
    }
    engine.freeze_prefix(&layer(1)).unwrap();
    put(&engine, &key(2, "top"), b"top").unwrap();
    let whole = state(&engine).unwrap();
    let to = SimFolder::with_files(BTreeMap::new());
    engine.fork_to_folder(&*to).unwrap();
    let mut random = SimRandom(1);
    for ops in 0..=to.operation_count() {
        for loss in LOSSES {
            let fork = open(&SimFolder::with_files(to.simulate_crash(ops, loss, &mut random))).unwrap();
            let found = state(&fork).unwrap();
            assert!(
                found == whole || found.is_empty() && ops < to.operation_count(),
                "crash at {ops} with {loss:?}"
            );
        }
    }
    put(&engine, &key(2, "later"), b"not in the fork").unwrap();
    drop_prefix(&engine, &layer(1)).unwrap();
    engine.wait_until_durable(u64::MAX).unwrap();
    engine.run_maintenance().unwrap();
    let fork = open(&to).unwrap();
    assert_eq!(state(&fork).unwrap(), whole, "what happens to the original is not seen in the fork");
    put(&fork, b"fork", b"fork").unwrap();
    assert!(!state(&engine).unwrap().contains_key(&b"fork"[..]));
}

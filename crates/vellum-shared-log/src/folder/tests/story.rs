//! The embedded engine on files that are in a log, cut at every place: what is opened there is a state that existed, with
//! everything that was acknowledged, and it goes on.

use std::io;
use std::ops::ControlFlow;

use parking_lot::Mutex;
use vellum_live::sim::SimRandom;
use vellum_live::{CommitSequence, DurabilityHooks, EmbeddedStore, EngineLimits, LiveStore};
use vellum_map::KeySpan;

use super::*;

/// Everything that is frozen moves into runs, and checkpoints are frequent.
const LIMITS: EngineLimits = EngineLimits { journal: 2000, run: 0 };

type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// A write log of a few lines: a value that begins with `@` names a range of a segment, all bytes of which are its last.
#[derive(Clone)]
struct Segments {
    folder: Arc<dyn EngineFolder>,
    end: Arc<Mutex<(u64, u64)>>,
}

impl Segments {
    fn new(folder: Arc<dyn EngineFolder>, segment: u64) -> Self {
        Self { folder, end: Arc::new(Mutex::new((segment, 0))) }
    }

    fn file(&self, segment: u64) -> io::Result<Arc<dyn EngineFile>> {
        let name = format!("{segment}.log");
        self.folder.open_file(&name).or_else(|_| self.folder.create_file(&name))
    }

    /// Appends bytes, and returns the value that names them.
    fn append(&self, byte: u8, len: u64) -> Vec<u8> {
        let mut end = self.end.lock();
        let (segment, offset) = *end;
        self.file(segment).unwrap().write_at(&vec![byte; len as usize], offset).unwrap();
        end.1 += len;
        format!("@ {segment} {offset} {len} {byte}").into_bytes()
    }

    fn next_segment(&self) {
        let mut end = self.end.lock();
        *end = (end.0 + 1, 0);
    }

    fn is_named_data_there(&self, value: &[u8]) -> bool {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let Some(text) = text.strip_prefix("@ ") else { return true };
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        let [segment, offset, len, byte] = numbers[..] else { panic!("{text}") };
        let Ok(file) = self.folder.open_file(&format!("{segment}.log")) else { return false };
        let mut found = vec![0; len as usize];
        let count = file.read_at(&mut found, offset).unwrap();
        count as u64 == len && found.iter().all(|found| u64::from(*found) == byte)
    }
}

impl DurabilityHooks for Segments {
    fn before_sync(&self) -> io::Result<()> {
        for name in self.folder.list_files()? {
            self.folder.open_file(&name)?.sync_file()?;
        }
        self.folder.sync_folder()
    }

    fn is_intact(&self, _key: &[u8], value: &[u8]) -> bool {
        self.is_named_data_there(value)
    }
}

fn read_state(store: &EmbeddedStore) -> State {
    let mut state = State::new();
    store
        .scan(&KeySpan::all_keys(), &mut |key, value| {
            state.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    state
}

fn layer_key(layer: u8, name: u64) -> Vec<u8> {
    [&[b'l', 0, 0, 0, 0, 0, 0, 0, layer][..], &name.to_be_bytes()].concat()
}

/// A worktree at work.
struct Story<'a> {
    log: &'a Arc<MemoryLog>,
    states: Vec<State>,
    /// Where the log ended when a state was known to be durable.
    acknowledged: Vec<(u64, usize)>,
    segments: Segments,
    store: EmbeddedStore,
}

impl<'a> Story<'a> {
    fn open(log: &'a Arc<MemoryLog>, files: &SharedFiles, segment: u64) -> Self {
        let segments = Segments::new(files.folder(LoggedFolder::WriteLog), segment);
        let meta = files.folder(LoggedFolder::Metadata);
        let store = EmbeddedStore::open_in_folder(meta, segments.clone(), LIMITS).unwrap();
        let states = vec![read_state(&store)];
        Self { log, states, acknowledged: Vec::new(), segments, store }
    }

    fn put(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) {
        let mut state = self.states.last().unwrap().clone();
        state.extend(entries.iter().cloned());
        self.states.push(state);
        self.store
            .run_transaction(&mut |txn| {
                entries.iter().for_each(|(key, value)| txn.set_key(key, value.as_slice().into()));
                Ok(())
            })
            .unwrap();
    }

    fn drop_layer(&mut self, layer: u8) {
        let prefix = layer_key(layer, 0)[..9].to_vec();
        let mut state = self.states.last().unwrap().clone();
        state.retain(|key, _| !key.starts_with(&prefix));
        self.states.push(state);
        self.store
            .run_transaction(&mut |txn| {
                txn.delete_prefix(&prefix);
                // So that there is a change, whatever is in the layer.
                txn.set_key(b"x", b"x".as_slice().into());
                Ok(())
            })
            .unwrap();
        self.states.last_mut().unwrap().insert(b"x".to_vec(), b"x".to_vec());
    }

    fn sync(&mut self) {
        let state = self.states.len() - 1;
        self.store.wait_until_durable(CommitSequence(u64::MAX)).unwrap();
        self.acknowledged.push((self.log.end(), state));
    }

    /// Removes segments that nothing names any more.
    fn remove_segments(&self) {
        self.store.wait_until_confirmed(CommitSequence(u64::MAX)).unwrap();
        let state = self.states.last().unwrap();
        let current = self.segments.end.lock().0;
        for name in self.segments.folder.list_files().unwrap() {
            let number: u64 = name.strip_suffix(".log").unwrap().parse().unwrap();
            let named = format!("@ {number} ");
            let is_named = state.values().any(|value| value.starts_with(named.as_bytes()));
            if number != current && !is_named {
                self.segments.folder.remove_file(&name).unwrap();
            }
        }
    }

    /// Works on six layers. A layer that was frozen never changes again: `first` is one that was not there yet.
    fn live(&mut self, random: &mut SimRandom, first: u8) {
        for layer in first..first + 6 {
            for step in 0..10_u8 {
                let name = random.next_below(6);
                match random.next_below(8) {
                    0..=2 => {
                        let value = self.segments.append(step + 1, 1 + random.next_below(700));
                        self.put(&[(layer_key(layer, name), value)]);
                    }
                    3 | 4 => self.put(&[
                        (layer_key(layer, name), vec![step; 30]),
                        (layer_key(layer, name + 9), vec![step; 900]),
                    ]),
                    5 => self.sync(),
                    6 => self.segments.next_segment(),
                    _ => self.store.run_maintenance().unwrap(),
                }
            }
            match random.next_below(3) {
                0 => self.sync(),
                _ => self.store.freeze_prefix(&layer_key(layer, 0)[..9]).unwrap(),
            }
            if layer >= first + 2 {
                self.drop_layer(layer - 2);
                self.remove_segments();
            }
            self.store.run_maintenance().unwrap();
        }
    }

    /// Opens what the log made when it ended somewhere. Returns which state that is.
    fn check_cut(&self, end: u64, from: usize) -> usize {
        let (past, claim) = self.log.at_moment(end);
        let (disk, _) = replay(&past, &claim, 0).unwrap_or_else(|error| panic!("cut at {end}: {error}"));
        let segments = Segments::new(disk.folder(LoggedFolder::WriteLog), 1 << 30);
        let meta = disk.folder(LoggedFolder::Metadata);
        let store = EmbeddedStore::open_in_folder(meta, segments.clone(), LIMITS);
        let store = store.unwrap_or_else(|error| panic!("cut at {end}: {error}"));
        let found = read_state(&store);
        let least = self.acknowledged.iter().rev().find(|(at, _)| *at <= end).map_or(0, |(_, state)| *state);
        let least = least.max(from);
        let which = (least..self.states.len()).find(|number| self.states[*number] == found);
        let which = which.unwrap_or_else(|| panic!("cut at {end}: no state from {least} on: {found:?}"));
        assert!(
            found.values().all(|value| segments.is_named_data_there(value)),
            "cut at {end}: what state {which} names is there"
        );
        which
    }
}

fn tell(seed: u64) {
    let mut random = SimRandom(seed);
    let log = MemoryLog::new();
    let disk = Disk::new();
    let (files, _held) = begin(&disk, &log, small_limits());
    let opened = log.end();
    let mut story = Story::open(&log, &files, 0);
    story.live(&mut random, 1);
    story.sync();
    let last = story.states.len() - 1;
    let mut before = 0;
    for end in log.append_ends().into_iter().filter(|end| *end >= opened) {
        let which = story.check_cut(end, before);
        // A longer log is never an older state.
        before = which;
    }
    assert!(story.states[before] == story.states[last], "all of it");
    // The engine notes what was durable, and syncs the note with what comes next.
    files.sync_all().unwrap();
    let (other, ..) = take_over(&log, 2);
    assert!(other.contents() == disk.contents(), "the files are the same");
}

#[test]
fn wherever_the_log_ends_a_state_with_everything_acknowledged_is_there() {
    (1..=8).for_each(|seed| tell(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15)));
}

#[test]
fn many_machines_after_each_other_have_one_history() {
    let mut random = SimRandom(0x1234_5678_9abc);
    let log = MemoryLog::new();
    let disk = Disk::new();
    let (files, _held) = begin(&disk, &log, small_limits());
    let mut story = Story::open(&log, &files, 0);
    story.live(&mut random, 1);
    story.sync();
    let mut state = story.states.last().unwrap().clone();
    drop(story);
    // Each dies without a word, with what it had not synced.
    for number in 2..8_u8 {
        let (disk, replayed, held) = take_over(&log, number);
        let files = SharedFiles::from_replay(parts(&disk, &held, small_limits()), &replayed).unwrap();
        let mut story = Story::open(&log, &files, u64::from(number) << 20);
        assert!(story.states[0] == state, "machine {number}");
        story.live(&mut random, 10 * number);
        story.sync();
        state = story.states.last().unwrap().clone();
    }
}

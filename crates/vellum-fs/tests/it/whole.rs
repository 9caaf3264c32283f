//! The whole of a live worktree, on the embedded engine, a write log and a store, against a model: random operations
//! with snapshots, restores, forks, publishes, a store that goes away, and crashes among them.
//!
//! After a crash the worktree is in a state that it was in, not before what was synced; after the death of the
//! process alone, in the last one. Every snapshot that was acknowledged is there.

use std::collections::BTreeMap;

use vellum_fs::publish::PublishProgress;
use vellum_fs::tree::head::{AncestorSnapshot, LiveHead};
use vellum_fs::{AllocateMode, FsError, LiveFilesystem};
use vellum_live::sim::{LOSSES, SimLoss};
use vellum_map::MapRoot;
use vellum_testkit::model::{ModelAttributes, ModelFileId, ModelFilesystem, RenderedEntry};
use vellum_types::{FileKind, Ino, SnapshotId};
use vellum_volume::tree::FileReader;
use vellum_volume::{SnapshotStatistics, Volume};

use crate::check::{check, check_content};
use crate::machine::{Machine, Wreck, bounds};
use crate::model::{Pair, agree, difference, render, times_disagree};
use crate::stand::{CALLER, request};
use vellum_fs::StateReader;
use vellum_testkit::random::{TestRandom, choose_seed, scale_rounds};

/// Operations on one volume.
const STEPS: usize = 5000;
/// Volumes in a run.
const VOLUMES: usize = 20;
/// Operations after which the trees are compared.
const COMPARE: usize = 400;

#[test]
fn whatever_happens_is_what_happens_in_the_model() {
    let seed = choose_seed();
    let volumes = scale_rounds(VOLUMES);
    // Two at a time: each has a machine of its own.
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                for number in (0..volumes).filter(|number| number % 2 == half) {
                    let seed = seed.wrapping_add(number as u64);
                    println!("volume {number}: VELLUM_SEED={seed}");
                    World::new(seed).run();
                }
            });
        }
    });
}

/// What the worktree was at some moment.
#[derive(Clone)]
struct Moment {
    /// Operations on the machine by then.
    ops: usize,
    model: ModelFilesystem,
    inos: BTreeMap<ModelFileId, Ino>,
}

/// A snapshot, and what it holds.
#[derive(Clone)]
struct Kept {
    id: SnapshotId,
    ops: usize,
    model: ModelFilesystem,
    inos: BTreeMap<ModelFileId, Ino>,
}

struct World {
    machine: Machine,
    pair: Pair,
    random: TestRandom,
    /// The moments since the last crash.
    history: Vec<Moment>,
    /// Operations on the machine, and the moment that was durable by then.
    durable: Vec<(usize, usize)>,
    snapshots: Vec<Kept>,
    forks: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let (machine, stand) = Machine::new();
        let pair = Pair::new(stand, seed);
        let random = TestRandom::new(!seed);
        let history = Vec::new();
        let durable = Vec::new();
        let snapshots = Vec::new();
        let mut world = Self { machine, pair, random, history, durable, snapshots, forks: 0 };
        world.remember();
        world.durable.push((0, 0));
        world
    }

    fn run(&mut self) {
        for step in 1..=STEPS {
            self.step();
            if step % COMPARE == 0 {
                self.pair.compare();
            }
        }
        self.pair.close_all();
        self.pair.compare();
        // What a restore brought back and has no name goes now.
        self.pair.stand.publisher().publish_all().unwrap();
        check(&self.pair.stand.fs);
        for number in 0..self.snapshots.len() {
            self.check_snapshot(&self.snapshots[number].clone());
        }
    }

    fn step(&mut self) {
        match self.random.next_below(1000) {
            0..=19 => self.sync(),
            20..=27 => self.snapshot(),
            28..=33 => self.restore(),
            34..=45 => self.publish(),
            46..=49 => self.pair.stand.publisher().publish_all().unwrap(),
            50..=55 => self.publish_to_a_store_that_goes_away(),
            56..=58 => self.machine.live.run_maintenance().unwrap(),
            59 => self.fork(),
            60..=61 => self.check_any_snapshot(),
            62..=66 => return self.crash(),
            67..=150 => self.content(),
            151 => self.restore_to_and_fro(),
            _ => self.pair.step(),
        }
        self.remember();
    }

    /// Notes how it is now.
    fn remember(&mut self) {
        let model = self.pair.model.clone();
        let inos = self.pair.inos.clone();
        self.history.push(Moment { ops: self.machine.disk.operation_count(), model, inos });
    }

    /// What was done so far survives everything.
    fn is_durable(&mut self) {
        self.remember();
        self.durable.push((self.machine.disk.operation_count(), self.history.len() - 1));
    }

    fn sync(&mut self) {
        self.pair.stand.content().sync_all().unwrap();
        self.is_durable();
    }

    fn keep(&mut self, id: SnapshotId) {
        let model = self.pair.model.clone();
        let inos = self.pair.inos.clone();
        self.snapshots.push(Kept { id, ops: self.machine.disk.operation_count(), model, inos });
    }

    fn snapshot(&mut self) {
        let id = self.pair.stand.create_snapshot(&request()).unwrap();
        self.keep(id);
        self.is_durable();
    }

    fn restore(&mut self) {
        self.restore_one_of(self.snapshots.len());
    }

    /// Stands on one snapshot after another while none of them is published, with a little work in between.
    fn restore_to_and_fro(&mut self) {
        for _ in 0..3 + self.random.next_below(4) {
            self.pair.step();
            // A crash can come between the two.
            self.remember();
            self.content();
            self.remember();
            if self.random.is_one_in(2) {
                self.snapshot();
            }
            self.restore_one_of(4);
        }
    }

    /// Restores one of the last snapshots.
    fn restore_one_of(&mut self, last: usize) {
        let among = self.snapshots.len().min(last);
        if among == 0 {
            return;
        }
        // What is open afterwards is another test's affair.
        self.pair.close_all();
        self.remember();
        let back = 1 + self.random.next_below(among as u64) as usize;
        let target = self.snapshots[self.snapshots.len() - back].clone();
        if let Some(saved) = self.pair.stand.restore_snapshot(target.id, self.random.is_one_in(2)).unwrap() {
            self.keep(saved);
        }
        self.stand_on(target.model, target.inos);
        check_content(&self.pair.stand.fs);
        self.is_durable();
    }

    /// The worktree is in another state.
    fn stand_on(&mut self, mut model: ModelFilesystem, mut inos: BTreeMap<ModelFileId, Ino>) {
        model.close_all_files();
        // Numbers of what is gone may be given out again. And what was open and had no name when a snapshot was made
        // is there until that is published.
        inos.retain(|id, _| model.file(*id).is_ok());
        (self.pair.model, self.pair.inos) = (model, inos);
    }

    fn publish(&mut self) {
        let _: PublishProgress = self.pair.stand.publisher().publish_oldest().unwrap();
    }

    fn publish_to_a_store_that_goes_away(&mut self) {
        let after = self.random.next_below(12);
        self.machine.store.fail(after, self.random.is_one_in(2));
        match self.pair.stand.publisher().publish_all() {
            Ok(()) => {}
            Err(FsError::Volume(_) | FsError::Map(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
        self.machine.store.heal();
        if self.random.is_one_in(3) {
            self.pair.stand.publisher().publish_all().unwrap();
        }
    }

    /// A new worktree stands on a snapshot, goes its own way, and leaves the first one alone.
    fn fork(&mut self) {
        let Some(kept) = self.snapshots.last().cloned() else { return };
        self.pair.stand.publisher().publish_pending().unwrap();
        let volume = &self.machine.volume;
        let name = format!("fork-{}", self.forks);
        self.forks += 1;
        volume.add_worktree(&name, Some(kept.id), &name).unwrap();
        let record = volume.catalog.get_record(&kept.id).unwrap();
        let ancestor = AncestorSnapshot { id: kept.id, counter: record.counter, time: record.time };
        let counted = SnapshotStatistics { changed: 0, stored: 0, ..record.statistics };
        let fork = self.machine.open(&name, &LiveHead::new(record.root, counted, Some(ancestor)));
        compare(&name, render(&fork).into_iter().map(|(shown, _)| shown).collect(), &kept.model);
        fork.names().mkdir(Ino::ROOT, b"of the fork alone", 0o755, CALLER).unwrap();
        fork.publisher().publish_all().unwrap();
        check(&fork);
    }

    fn check_any_snapshot(&mut self) {
        if !self.snapshots.is_empty() {
            let number = self.random.next_below(self.snapshots.len() as u64) as usize;
            self.check_snapshot(&self.snapshots[number].clone());
        }
    }

    /// A snapshot, in the store, holds what the worktree held.
    fn check_snapshot(&self, kept: &Kept) {
        self.pair.stand.publisher().publish_pending().unwrap();
        let record = self.machine.volume.catalog.fetch_record(&kept.id).unwrap();
        let files =
            kept.model.render_entries().iter().filter(|(shown, _)| shown.kind == FileKind::File).count();
        assert!(record.statistics.files as usize <= files, "hard links count once");
        compare("a snapshot", stored(&self.machine.volume, record.root), &kept.model);
    }

    /// Operations on content that the pair does not know.
    fn content(&mut self) {
        let (id, ino) = self.pair.file(|kind| kind == FileKind::File);
        let Ok(file) = self.pair.model.file(id).cloned() else { return };
        if file.kind != FileKind::File {
            return;
        }
        let fs = &self.pair.stand.fs;
        let model = &mut self.pair.model;
        let size = file.content.len();
        let far = if self.random.is_one_in(4) { 60_000 } else { 6000 };
        let at = self.random.next_below(far) as usize;
        let len = 1 + self.random.next_below(far) as usize;
        match self.random.next_below(8) {
            0 => {
                let data = noise(&mut self.random, len);
                agree(
                    &("append", id),
                    fs.content().append_to_file(ino, &data, false),
                    model.write(id, size, &data),
                );
            }
            1 | 2 => {
                let data = noise(&mut self.random, len);
                agree(
                    &("write", id),
                    fs.content().write(ino, at as u64, &data, false),
                    model.write(id, at, &data),
                );
            }
            3 => {
                let set = ModelAttributes { size: Some(at), mtime: true, ..ModelAttributes::default() };
                agree(&("truncate", id), fs.content().truncate(ino, at as u64), model.setattr(id, &set));
            }
            4 => {
                let mode = AllocateMode { punch_hole: true, keep_size: true, ..AllocateMode::default() };
                let zeros = vec![0; size.saturating_sub(at).min(len)];
                let done = fs.content().fallocate(ino, mode, at as u64, len as u64);
                agree(&("punch", id), done, model.write(id, at.min(size), &zeros));
            }
            5 => {
                let mode = AllocateMode { zero_range: true, ..AllocateMode::default() };
                let done = fs.content().fallocate(ino, mode, at as u64, len as u64);
                agree(&("zero", id), done, model.write(id, at, &vec![0; len]));
            }
            6 => self.copy((id, ino), at, len),
            _ => {
                let read = fs.read(ino, at as u64, len).unwrap();
                assert_eq!(read, file.content[at.min(size)..(at + len).min(size)]);
            }
        }
    }

    fn copy(&mut self, (id, ino): (ModelFileId, Ino), at: usize, len: usize) {
        let (source, from) = self.pair.file(|kind| kind == FileKind::File);
        let Ok(file) = self.pair.model.file(source) else { return };
        if file.kind != FileKind::File || source == id {
            return;
        }
        let start = self.random.next_below(4000) as usize;
        let bytes =
            file.content[start.min(file.content.len())..].iter().take(len).copied().collect::<Vec<_>>();
        let copied =
            self.pair.stand.content().copy_range(from, start as u64, ino, at as u64, len as u64).unwrap();
        // It may stop early, and says so.
        assert!(copied as usize <= bytes.len() && (copied > 0 || bytes.is_empty()));
        if copied > 0 {
            self.pair.model.write(id, at, &bytes[..copied as usize]).unwrap();
        }
    }

    /// The process dies, or the power goes, now or at any moment since the last time.
    fn crash(&mut self) {
        let now = self.machine.disk.operation_count();
        let earliest = match self.random.next_below(4) {
            0 => self.history[0].ops,
            1 => self.history[self.history.len().saturating_sub(4)].ops,
            _ => now,
        };
        let ops = earliest + self.random.next_below((now - earliest) as u64 + 1) as usize;
        let loss = self.random.pick_item(&LOSSES);
        let mut chance = vellum_live::sim::SimRandom(self.random.next_number() | 1);
        let wreck = self.machine.crash(ops, loss, &mut chance);
        self.recover(wreck, ops, loss);
    }

    fn recover(&mut self, wreck: Wreck, ops: usize, loss: SimLoss) {
        let (machine, stand) = self.machine.boot(wreck);
        let found = render(&stand.fs);
        let moments: Vec<_> = self.history.iter().map(|moment| moment.ops).collect();
        let (least, most) = bounds(&moments, &self.durable, ops, loss);
        let is_it = |moment: &&Moment| is_state(&stand.fs, &found, moment);
        let Some(moment) = self.history[least..=most].iter().rev().find(is_it).cloned() else {
            let other = self.history.iter().rposition(|moment| is_state(&stand.fs, &found, moment));
            panic!("{loss:?} after {ops}: state {other:?}, not one of {least} to {most}");
        };
        stand.publisher().publish_all().unwrap();
        check(&stand.fs);
        self.machine = machine;
        self.pair.stand = stand;
        self.pair.open.clear();
        self.stand_on(moment.model, moment.inos);
        self.snapshots.retain(|kept| kept.ops <= ops);
        self.snapshots.iter_mut().for_each(|kept| kept.ops = 0);
        self.history.clear();
        self.remember();
        self.durable = vec![(0, 0)];
        self.pair.compare();
        if let Some(last) = self.snapshots.last().cloned() {
            self.check_snapshot(&last);
            self.check_any_snapshot();
            self.remember();
        }
    }
}

/// Whether a worktree shows what it showed at a moment, with the same inodes.
fn is_state(fs: &LiveFilesystem, found: &[(RenderedEntry, Ino)], moment: &Moment) -> bool {
    let mut model = moment.model.clone();
    model.close_all_files();
    let mut expected = model.render_entries();
    let mut found: Vec<_> = found.iter().collect();
    expected.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    found.len() == expected.len()
        && found
            .iter()
            .zip(&expected)
            .all(|((shown, ino), (other, id))| shown == other && moment.inos.get(id) == Some(ino))
        // Some changes show in nothing but times.
        && times_disagree(fs, &model, &moment.inos).is_none()
}

#[track_caller]
fn compare(what: &str, mut found: Vec<RenderedEntry>, model: &ModelFilesystem) {
    let mut expected: Vec<_> = model.render_entries().into_iter().map(|(shown, _)| shown).collect();
    expected.sort_unstable();
    found.sort_unstable();
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found == expected, "{what}: {}", difference(found, expected));
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

/// All names of a published tree.
fn stored(volume: &Volume, root: MapRoot) -> Vec<RenderedEntry> {
    let tree = volume.open_tree(root);
    let mut shown = Vec::new();
    let mut waiting = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = waiting.pop() {
        let inode = tree.read_inode(ino).unwrap();
        let mut content = inode.attr.target.clone();
        if inode.attr.kind == FileKind::File {
            content.extend(FileReader::new(volume, &inode).unwrap().read_to_end().unwrap());
        }
        let below = inode.entries.iter().map(|(name, entry)| ([&path[..], b"/", name].concat(), entry.ino));
        waiting.extend(below.collect::<Vec<_>>());
        let attr = inode.attr;
        shown.push(RenderedEntry {
            path,
            kind: attr.kind,
            mode: attr.mode,
            owner: (attr.uid, attr.gid),
            links: u64::from(attr.nlink),
            rdev: attr.rdev,
            content,
            xattrs: inode.xattrs,
        });
    }
    shown
}

/// Bytes that do not compress, so that they are cut where they are.
fn noise(random: &mut TestRandom, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(random.next_number().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

//! Small workloads, all of one operation and a sample of those of two, each followed by some way to make it durable;
//! and a crash after every single operation on the disk or the store that they cause.
//!
//! Published bugs of filesystems mostly need no more than that.

use std::fmt::Debug;

use vellum_fs::{AllocateMode, AttributeChanges, Epoch, LiveFilesystem, XattrFlags};
use vellum_live::sim::{LOSSES, SimLoss};
use vellum_testkit::model::RenderedEntry;
use vellum_types::Ino;

use crate::check::check;
use crate::machine::{Machine, Wreck, bounds};
use crate::model::render;
use crate::stand::{CALLER, EXCHANGE, MOVE, ROOT, Stand, request};
use vellum_testkit::random::{TestRandom, choose_seed, scale_rounds};

/// Workloads of two operations in a run.
const PAIRS: usize = 400;

/// An operation on what [`prepare`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Mkdir,
    Create,
    WriteNew,
    Append,
    Overwrite,
    OverwritePublished,
    Truncate,
    Lengthen,
    RenameOver,
    RenameDir,
    Exchange,
    Link,
    Unlink,
    UnlinkOpen,
    Rmdir,
    Symlink,
    SetXattr,
    RemoveXattr,
    Chmod,
    Punch,
    Zero,
    Copy,
}

const WORKS: [Work; 22] = [
    Work::Mkdir,
    Work::Create,
    Work::WriteNew,
    Work::Append,
    Work::Overwrite,
    Work::OverwritePublished,
    Work::Truncate,
    Work::Lengthen,
    Work::RenameOver,
    Work::RenameDir,
    Work::Exchange,
    Work::Link,
    Work::Unlink,
    Work::UnlinkOpen,
    Work::Rmdir,
    Work::Symlink,
    Work::SetXattr,
    Work::RemoveXattr,
    Work::Chmod,
    Work::Punch,
    Work::Zero,
    Work::Copy,
];

/// What follows an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    SyncFile,
    SyncDir,
    Sync,
    Snapshot,
    Publish,
}

const THENS: [Then; 6] =
    [Then::Nothing, Then::SyncFile, Then::SyncDir, Then::Sync, Then::Snapshot, Then::Publish];

/// Bytes that differ from place to place and from file to file.
fn bytes(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 * 7 + salt * 101) as u8).collect()
}

/// Two files in the store, one in the write log, a small one; a directory with something in it, an empty one.
fn prepare() -> (Machine, Wreck) {
    let (machine, stand) = Machine::new();
    stand.populate(&["d/", "d/e/", "d/e/f", "d/empty/", "d/a", "d/b", "d/c"]);
    stand.content().write(stand.at("d/c").ino, 0, &bytes(50_000, 1), false).unwrap();
    stand.content().write(stand.at("d/e/f").ino, 0, &bytes(9000, 2), false).unwrap();
    stand.publisher().publish_all().unwrap();
    stand.content().write(stand.at("d/a").ino, 0, &bytes(300, 3), false).unwrap();
    stand.content().write(stand.at("d/b").ino, 0, &bytes(20_000, 4), false).unwrap();
    stand.attributes().setxattr(stand.at("d/b").ino, b"user.x", b"old", XattrFlags::default()).unwrap();
    stand.content().sync_all().unwrap();
    let ops = machine.disk.operation_count();
    let wreck = machine.crash(ops, SimLoss::Nothing, &mut vellum_live::sim::SimRandom(1));
    drop(stand);
    (machine, wreck)
}

impl Work {
    /// Does it. What a workload's first operation took away, its second one may miss.
    /// Calls `between` between two changes.
    fn run(self, stand: &Stand, between: &mut dyn FnMut()) -> vellum_fs::Result<()> {
        let fs = &stand.fs;
        let at = |path: &str| stand.names().resolve_path(path.as_bytes()).map(|node| node.ino);
        let hole = AllocateMode { punch_hole: true, keep_size: true, ..AllocateMode::default() };
        let zero = AllocateMode { zero_range: true, ..AllocateMode::default() };
        match self {
            Self::Mkdir => fs.names().mkdir(at("d")?, b"new", 0o755, CALLER).map(drop),
            Self::Create => fs.names().create(at("d")?, b"new", 0o644, CALLER).map(drop),
            Self::WriteNew => {
                let ino = fs.names().create(at("d")?, b"written", 0o644, CALLER)?.ino;
                between();
                fs.content().write(ino, 0, &bytes(12_000, 5), false).map(drop)
            }
            Self::Append => fs.content().append_to_file(at("d/a")?, &bytes(5000, 6), false).map(drop),
            Self::Overwrite => fs.content().write(at("d/b")?, 3000, &bytes(9000, 7), false).map(drop),
            Self::OverwritePublished => {
                fs.content().write(at("d/c")?, 10_000, &bytes(700, 8), false).map(drop)
            }
            Self::Truncate => fs.content().truncate(at("d/b")?, 100),
            Self::Lengthen => fs.content().truncate(at("d/a")?, 100_000),
            Self::RenameOver => fs.names().rename(at("d")?, b"a", at("d")?, b"b", MOVE),
            Self::RenameDir => fs.names().rename(at("d")?, b"e", ROOT, b"moved", MOVE),
            Self::Exchange => fs.names().rename(at("d")?, b"c", at("d")?, b"e", EXCHANGE),
            Self::Link => fs.names().link(at("d/c")?, at("d/empty")?, b"link").map(drop),
            Self::Unlink => fs.names().unlink(at("d")?, b"b", 0),
            Self::UnlinkOpen => {
                let ino = at("d/b")?;
                fs.epochs().hold_inode(Epoch::default(), ino)?;
                fs.names().unlink(at("d")?, b"b", 0)?;
                fs.epochs().release_inode(Epoch::default(), ino, 1)
            }
            Self::Rmdir => fs.names().rmdir(at("d")?, b"empty", 0),
            Self::Symlink => fs.names().symlink(at("d")?, b"symlink", b"e/f", CALLER).map(drop),
            Self::SetXattr => {
                fs.attributes().setxattr(at("d/b")?, b"user.x", &bytes(300, 9), XattrFlags::default())
            }
            Self::RemoveXattr => fs.attributes().removexattr(at("d/b")?, b"user.x"),
            Self::Chmod => {
                let set = AttributeChanges { mode: Some(0o600), uid: Some(7), ..AttributeChanges::default() };
                fs.attributes().setattr(at("d/c")?, &set, CALLER).map(drop)
            }
            Self::Punch => fs.content().fallocate(at("d/c")?, hole, 8192, 16_384),
            Self::Zero => fs.content().fallocate(at("d/b")?, zero, 15_000, 30_000),
            Self::Copy => fs.content().copy_range(at("d/c")?, 100, at("d/b")?, 4096, 30_000).map(drop),
        }
    }
}

type State = Vec<(RenderedEntry, Ino)>;

fn state(fs: &LiveFilesystem) -> State {
    let mut state = render(fs);
    state.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    state
}

/// What differs at first sight: names, links and sizes.
fn show(state: &State) -> Vec<String> {
    let line = |(shown, ino): &(RenderedEntry, Ino)| {
        let name = String::from_utf8_lossy(&shown.path).into_owned();
        format!(
            "{name} {ino} links {} size {} xattrs {}",
            shown.links,
            shown.content.len(),
            shown.xattrs.len()
        )
    };
    state.iter().map(line).collect()
}

/// A workload that has run.
struct Story {
    machine: Machine,
    /// Operations on the machine, and what the worktree held by then.
    moments: Vec<(usize, State)>,
    durable: Vec<(usize, usize)>,
    stand: Stand,
}

impl Story {
    fn tell(machine: &Machine, wreck: &Wreck, steps: &[(Work, Then)]) -> Self {
        let (machine, stand) = machine.boot(wreck.clone());
        let moments = vec![(machine.disk.operation_count(), state(&stand.fs))];
        let mut story = Self { machine, moments, durable: vec![(0, 0)], stand };
        for (work, then) in steps {
            // A name that the first operation took away or made is missed, or in the way: then nothing happens.
            let mut between = Vec::new();
            let done = work.run(&story.stand, &mut || {
                between.push((story.machine.disk.operation_count(), state(&story.stand.fs)));
            });
            story.moments.extend(between);
            match done {
                Ok(()) | Err(vellum_fs::FsError::Posix(_)) => {}
                Err(error) => panic!("{work:?}: {error}"),
            }
            story.remember();
            story.end(*then);
        }
        story
    }

    fn remember(&mut self) {
        self.moments.push((self.machine.disk.operation_count(), state(&self.stand.fs)));
    }

    fn end(&mut self, then: Then) {
        let fs = &self.stand.fs;
        let sync =
            |path: &str| fs.names().resolve_path(path.as_bytes()).and_then(|_| fs.content().sync_all());
        match then {
            Then::Nothing => return,
            // What is durable is everything before: which file is asked for makes no difference.
            Then::SyncFile => sync("d/c").or_else(|_| sync("d/e/f")).unwrap(),
            Then::SyncDir => sync("d").unwrap(),
            Then::Sync => fs.content().sync_all().unwrap(),
            Then::Snapshot => drop(fs.create_snapshot(&request()).unwrap()),
            Then::Publish => fs.publisher().publish_all().unwrap(),
        }
        self.remember();
        self.durable.push((self.machine.disk.operation_count(), self.moments.len() - 1));
    }

    /// What is found after a crash is what it may be; whoever goes on there finds it sound.
    fn crash(&self, ops: usize, loss: SimLoss, random: &mut TestRandom, what: &dyn Debug) {
        let mut chance = vellum_live::sim::SimRandom(random.next_number() | 1);
        let wreck = self.machine.crash(ops, loss, &mut chance);
        let (machine, stand) = self.machine.boot(wreck);
        let found = state(&stand.fs);
        let ends: Vec<_> = self.moments.iter().map(|(at, _)| *at).collect();
        let (least, most) = bounds(&ends, &self.durable, ops, loss);
        let place = self.moments.iter().rposition(|(_, state)| *state == found);
        let is_there = self.moments[least..=most].iter().any(|(_, state)| *state == found);
        assert!(
            is_there,
            "{what:?}, {loss:?} after {ops}: {place:?} is not within {least} to {most}: {:#?}",
            show(&found)
        );
        check(&stand.fs);
        if random.is_one_in(8) {
            go_on(&machine, &stand, &found);
        }
    }
}

/// Changes something, publishes it and loses power: all is there.
fn go_on(machine: &Machine, stand: &Stand, found: &State) {
    stand.mkdir("later").unwrap();
    stand.publisher().publish_all().unwrap();
    let mut random = vellum_live::sim::SimRandom(1);
    let wreck = machine.crash(machine.disk.operation_count(), SimLoss::Everything, &mut random);
    let (_, stand) = machine.boot(wreck);
    stand.rmdir("later").unwrap();
    assert_eq!(state(&stand.fs), *found);
    check(&stand.fs);
}

fn crash_everywhere(
    machine: &Machine,
    wreck: &Wreck,
    steps: &[(Work, Then)],
    losses: usize,
    random: &mut TestRandom,
) {
    let story = Story::tell(machine, wreck, steps);
    for ops in story.moments[0].0..=story.machine.disk.operation_count() {
        let first = random.next_below(LOSSES.len() as u64) as usize;
        for loss in LOSSES.iter().cycle().skip(first).take(losses) {
            story.crash(ops, *loss, random, &steps);
        }
    }
}

#[test]
fn one_operation_and_a_crash_anywhere() {
    let seed = choose_seed();
    let (machine, wreck) = prepare();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let machine = &machine;
            let wreck = &wreck;
            scope.spawn(move || {
                let mut random = TestRandom::new(seed.wrapping_add(half as u64));
                for work in WORKS.iter().skip(half).step_by(2) {
                    for then in THENS {
                        // Publishing has many places to crash at.
                        let losses = if then == Then::Publish { 1 } else { LOSSES.len() };
                        crash_everywhere(machine, wreck, &[(*work, then)], losses, &mut random);
                    }
                }
            });
        }
    });
}

#[test]
fn two_operations_and_a_crash_anywhere() {
    let seed = choose_seed();
    let (machine, wreck) = prepare();
    let mut random = TestRandom::new(seed);
    for _ in 0..scale_rounds(PAIRS) {
        let mut step = || (random.pick_item(&WORKS), random.pick_item(&THENS));
        let steps = [step(), step()];
        crash_everywhere(&machine, &wreck, &steps, 1, &mut random);
    }
}

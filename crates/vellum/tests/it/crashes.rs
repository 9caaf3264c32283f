//! The process behind a mount killed, and the power of its disk cut, while programs write: nothing that was
//! acknowledged is missing, and the rest is what was done up to some moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::mounting::{Mount, kill, sh, wait_until};
use crate::world::{World, run};

/// Programs that write at once.
const WRITERS: u64 = 4;
/// How often the process is killed, and how often in a long run.
const KILLS: (u64, u64) = (12, 100);
/// The same of losses of power, on each kind of filesystem.
const CUTS: (u64, u64) = (3, 10);

/// So many rounds, or in a long run so many.
fn rounds((usual, long): (u64, u64)) -> u64 {
    if std::env::var_os("PROPTEST_CASES").is_some() { long } else { usual }
}

/// A seed, printed so that it can be found what was done.
fn seed() -> u64 {
    let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("VELLUM_SEED").map_or_else(|_| clock(), |text| text.parse().unwrap());
    println!("VELLUM_SEED={seed}");
    seed
}

/// xorshift64, as Marsaglia gave it.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A change of names in a writer's directory, each one whole or not at all.
#[derive(Debug, Clone, Copy)]
enum Change {
    Create(u64),
    Rename(u64),
    Remove(u64),
}

/// A change, with the moments before and after it.
#[derive(Debug)]
struct Step {
    change: Change,
    start: u64,
    end: Option<u64>,
}

/// What a writer did.
struct Writer {
    dir: String,
    number: u64,
    steps: Vec<Step>,
    /// Files whose content was written, and when that was done.
    written: BTreeMap<u64, u64>,
    /// Files that were synced.
    synced: Vec<Synced>,
}

/// A file that was synced, and the moments before and after it.
#[derive(Debug, Clone, Copy)]
struct Synced {
    file: u64,
    start: u64,
    end: u64,
}

/// A snapshot, and the moments before and after it.
struct Snapshot {
    id: String,
    start: u64,
    end: u64,
}

fn first_name(file: u64) -> String {
    format!("f{file}")
}

fn second_name(file: u64) -> String {
    format!("g{file}")
}

/// The content of a file: no zeros, and none like another.
fn content(writer: u64, file: u64) -> Vec<u8> {
    let mut random = Random(writer * 1_000_003 + file + 1);
    let len = if file.is_multiple_of(5) { random.below(200_000) } else { random.below(6000) };
    (0..len).map(|at| (at * 7 + at / 253 + writer * 31 + file) as u8 | 1).collect()
}

impl Writer {
    /// Writes until something fails. What it has synced is counted.
    fn work(mount: &Path, dir: String, seed: u64, (clock, synced): (&AtomicU64, &AtomicUsize)) -> Self {
        let now = || clock.fetch_add(1, Ordering::SeqCst);
        let mut random = Random(seed | 1);
        let mut writer =
            Self { dir, number: seed, steps: Vec::new(), written: BTreeMap::new(), synced: Vec::new() };
        let path = mount.join(&writer.dir);
        let mut next = 0;
        let mut new = Vec::new();
        let mut old = Vec::new();
        loop {
            let take = |list: &mut Vec<u64>, random: &mut Random| match list.len() as u64 {
                0 => None,
                len => Some(list.swap_remove(random.below(len) as usize)),
            };
            let change = match random.below(10) {
                0..=1 => take(&mut new, &mut random).map(Change::Rename),
                2 => take(&mut old, &mut random).map(Change::Remove),
                _ => None,
            };
            let change = change.unwrap_or(Change::Create(next));
            let start = now();
            writer.steps.push(Step { change, start, end: None });
            let at = |name: String| path.join(name);
            let done = match change {
                Change::Create(file) => File::create_new(at(first_name(file))).map(Some),
                Change::Rename(file) => {
                    fs::rename(at(first_name(file)), at(second_name(file))).map(|()| None)
                }
                Change::Remove(file) => fs::remove_file(at(second_name(file))).map(|()| None),
            };
            let Ok(file) = done else { return writer };
            writer.steps.last_mut().unwrap().end = Some(now());
            match change {
                Change::Create(number) => {
                    (next, _) = (next + 1, new.push(number));
                    if writer.fill(file.unwrap(), number, &now, random.below(3) == 0).is_err() {
                        return writer;
                    }
                    synced.fetch_max(writer.synced.len(), Ordering::SeqCst);
                }
                Change::Rename(file) => old.push(file),
                Change::Remove(_) => {}
            }
        }
    }

    fn fill(
        &mut self,
        mut file: File,
        number: u64,
        now: &impl Fn() -> u64,
        sync: bool,
    ) -> std::io::Result<()> {
        file.write_all(&content(self.number, number))?;
        self.written.insert(number, now());
        if sync {
            let start = now();
            file.sync_all()?;
            self.synced.push(Synced { file: number, start, end: now() });
        }
        Ok(())
    }

    /// Checks what is in the writer's directory: after some number of its steps, between two bounds. Gives the least
    /// and the greatest number that it can be.
    #[track_caller]
    fn check(
        &self,
        root: &Path,
        (least, most): (usize, usize),
        whole: impl Fn(u64) -> bool,
    ) -> (usize, usize) {
        let path = root.join(&self.dir);
        let list = fs::read_dir(&path).unwrap();
        let found: BTreeSet<_> =
            list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let mut names = BTreeSet::new();
        let mut fits = Vec::new();
        for done in 0..=most {
            if done >= least && names == found {
                fits.push(done);
            }
            match self.steps.get(done).map(|step| step.change) {
                Some(Change::Create(file)) => drop(names.insert(first_name(file))),
                Some(Change::Rename(file)) => {
                    names.remove(&first_name(file));
                    names.insert(second_name(file));
                }
                Some(Change::Remove(file)) => drop(names.remove(&second_name(file))),
                None => {}
            }
        }
        let (Some(first), Some(last)) = (fits.first(), fits.last()) else {
            let missing: Vec<_> = names.difference(&found).collect();
            let more: Vec<_> = found.difference(&names).collect();
            panic!(
                "{}: the names are not those after {least} to {most} steps; after the last, {missing:?} are missing and \
                 {more:?} too many",
                path.display()
            );
        };
        for name in &found {
            let file = name[1..].parse().unwrap();
            let is = fs::read(path.join(name)).unwrap();
            let should_be = content(self.number, file);
            let soft =
                || is.len() <= should_be.len() && is.iter().zip(&should_be).all(|(a, b)| a == b || *a == 0);
            let is_right = if whole(file) { is == should_be } else { soft() };
            assert!(is_right, "{}: {} bytes of {}", path.join(name).display(), is.len(), should_be.len());
        }
        (*first, *last)
    }

    fn ended_before(&self, moment: u64) -> usize {
        self.steps.iter().take_while(|step| step.end.is_some_and(|end| end < moment)).count()
    }

    fn begun_before(&self, moment: u64) -> usize {
        self.steps.iter().take_while(|step| step.start < moment).count()
    }
}

/// What all did until something happened.
struct Round {
    writers: Vec<Writer>,
    snapshots: Vec<Snapshot>,
    /// The moment before it happened.
    struck: u64,
}

impl Round {
    /// Lets programs write, and `strike` after a while.
    fn run(mount: &Path, number: u64, seed: u64, strike: impl FnOnce()) -> Self {
        let clock = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        let synced = AtomicUsize::new(0);
        let mut random = Random(seed.wrapping_add(number) | 1);
        let dirs: Vec<_> = (0..WRITERS).map(|writer| format!("round-{number}-writer-{writer}")).collect();
        dirs.iter().for_each(|dir| fs::create_dir(mount.join(dir)).unwrap());
        File::open(mount).unwrap().sync_all().unwrap();
        std::thread::scope(|scope| {
            let clock = &clock;
            let over = &over;
            let synced = &synced;
            let threads: Vec<_> = dirs
                .into_iter()
                .map(|dir| {
                    let seed = random.below(1 << 40);
                    scope.spawn(move || Writer::work(mount, dir, seed, (clock, synced)))
                })
                .collect();
            let snapshots = scope.spawn(move || take_snapshots(mount, clock, over));
            // A round in which nothing happens proves nothing. (Not a panic: the writers only end with the mount.)
            let begun = Instant::now();
            while synced.load(Ordering::SeqCst) < 3 && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(random.below(700)));
            let struck = clock.load(Ordering::SeqCst);
            strike();
            over.store(true, Ordering::SeqCst);
            let writers = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let round = Self { writers, snapshots: snapshots.join().unwrap(), struck };
            round.report();
            round
        })
    }

    /// Says how much was done.
    fn report(&self) {
        let steps: usize = self.writers.iter().map(|writer| writer.steps.len()).sum();
        let synced: usize = self.writers.iter().map(|writer| writer.synced.len()).sum();
        println!("{steps} steps, {synced} files synced, {} snapshots", self.snapshots.len());
        assert!(synced > 0);
    }

    /// Checks a worktree. `all`: what was done and not synced is there as well. Where the power went, only what was
    /// promised before counts: the machine goes on, and what ext4 flushes in that moment it says to be durable, though it
    /// could not record where.
    fn check(&self, mount: &Path, all: bool) {
        let syncs = self.writers.iter().flat_map(|writer| &writer.synced).map(|sync| (sync.start, sync.end));
        let snapshots = self.snapshots.iter().map(|snapshot| (snapshot.start, snapshot.end));
        let counts = |(_, end): &(u64, u64)| all || *end < self.struck;
        let durable = syncs.chain(snapshots).filter(counts).map(|(start, _)| start).max().unwrap_or(0);
        let mut lost = u64::MAX;
        let mut survived = 0;
        for writer in &self.writers {
            let least = writer.ended_before(if all { u64::MAX } else { durable });
            let counted = writer.synced.iter().filter(|sync| counts(&(sync.start, sync.end)));
            let synced: BTreeSet<_> = counted.map(|sync| sync.file).collect();
            let (first, last) =
                writer.check(mount, (least, writer.steps.len()), |file| synced.contains(&file));
            lost = lost.min(writer.steps.get(last).and_then(|step| step.end).unwrap_or(u64::MAX));
            survived = survived.max(first.checked_sub(1).map_or(0, |last| writer.steps[last].start));
        }
        assert!(survived < lost, "something is there that was begun after something that is not was done");
    }

    /// Checks the snapshots that were acknowledged. `all`: also those that were afterwards.
    fn check_snapshots(&self, mount: &Path, all: bool) {
        for snapshot in self.snapshots.iter().filter(|snapshot| all || snapshot.end < self.struck) {
            let root = mount.join(".vellum/snapshots").join(&snapshot.id);
            for writer in &self.writers {
                let bounds = (writer.ended_before(snapshot.start), writer.begun_before(snapshot.end));
                let whole = |file| writer.written.get(&file).is_some_and(|done| *done < snapshot.start);
                writer.check(&root, bounds, whole);
            }
        }
    }
}

fn take_snapshots(mount: &Path, clock: &AtomicU64, over: &AtomicBool) -> Vec<Snapshot> {
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    let mut taken = Vec::new();
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(120));
        let start = now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
        let ran = command.arg("-C").arg(mount).args(["snapshot", "-q"]).output().unwrap();
        if !ran.status.success() {
            break;
        }
        let id = String::from_utf8(ran.stdout).unwrap().trim().into();
        taken.push(Snapshot { id, start, end: now() });
    }
    taken
}

#[test]
fn killed_at_any_moment_it_has_everything_that_was_done() {
    let seed = seed();
    let world = World::new();
    let mount = Mount::new(&world, "work");
    for number in 0..rounds(KILLS) {
        let pid = mount.pid();
        let round = Round::run(&mount.path, number, seed, || kill(pid, "-KILL"));
        wait_until("it is dead", || mount.is_dead());
        mount.again(&[]).ok();
        round.check(&mount.path, true);
        run(&mount.path, &["flush"], Stdio::null()).ok();
        round.check_snapshots(&mount.path, true);
    }
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

/// Nobody may have collected it yet.
fn is_dead(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn cut_power_on(kind: &str) {
    let seed = seed();
    let disk = Disk::new(kind, 600);
    let world = World::on(&disk.path());
    world.run(&["init", "--plain"]).ok();
    // The mountpoint stays where it is.
    let outside = tempfile::tempdir().unwrap();
    let mount = Mount { world: &world, path: outside.path().join("work") };
    fs::create_dir(&mount.path).unwrap();
    mount.again(&[]).ok();
    for number in 0..rounds(CUTS) {
        let pid = mount.pid();
        let round = Round::run(&mount.path, number, seed, || {
            disk.cut_power();
            kill(pid, "-KILL");
        });
        Command::new("umount").arg("-l").arg(&mount.path).status().unwrap();
        wait_until("it is dead", || is_dead(pid));
        disk.mount_again();
        mount.again(&[]).ok();
        round.check(&mount.path, false);
        run(&mount.path, &["flush"], Stdio::null()).ok();
        round.check_snapshots(&mount.path, false);
    }
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_loss_of_power_on_ext4_leaves_what_was_synced_and_all_before_it() {
    cut_power_on("ext4");
}

#[test]
fn a_loss_of_power_on_xfs_leaves_what_was_synced_and_all_before_it() {
    cut_power_on("xfs");
}

/// Snapshots are forgotten, which renames their records, while the power goes: what was acknowledged stays forgotten, and of
/// all others nothing is missing.
fn cut_power_while_records_are_renamed(kind: &str) {
    const SNAPSHOTS: usize = 12;
    let disk = Disk::new(kind, 600);
    let world = World::on(&disk.path());
    world.run(&["init", "--plain"]).ok();
    let mut left: Vec<_> = (0..SNAPSHOTS)
        .map(|number| {
            world.write("file", format!("content {number}\n"));
            world.run(&["snapshot", "-q", "-m", &number.to_string()]).ok().out.trim().to_owned()
        })
        .collect();
    let head = left.pop().unwrap();
    let mut gone: BTreeSet<String> = BTreeSet::new();
    for number in 0..rounds(CUTS) as usize {
        if left.is_empty() {
            break;
        }
        let acknowledged = AtomicUsize::new(0);
        let batch: Vec<_> = left.drain(..left.len().min(SNAPSHOTS / 3)).collect();
        let forgotten = std::thread::scope(|scope| {
            let forgetting = scope.spawn(|| {
                let forget = |id: &&String| {
                    let ran = run(&world.tree(), &["forget", id], Stdio::null());
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                    ran.code == 0
                };
                batch.iter().take_while(forget).cloned().collect::<Vec<_>>()
            });
            wait_until("some are forgotten", || acknowledged.load(Ordering::SeqCst) > number % batch.len());
            disk.cut_power();
            forgetting.join().unwrap()
        });
        disk.mount_again();
        gone.extend(forgotten);
        let history = world.json(&["history", "--all", "-n", "0"]);
        let there: BTreeSet<_> =
            history["snapshots"].as_array().unwrap().iter().map(|it| it["id"].to_string()).collect();
        let is_there = |id: &String| there.contains(&format!("\"{id}\""));
        assert!(is_there(&head) && left.iter().all(is_there), "{there:?}");
        assert!(!gone.iter().any(is_there), "what was acknowledged is undone: {gone:?} {there:?}");
        for id in batch.iter().filter(|id| is_there(id)) {
            world.run(&["cat", id, "file"]).ok();
            left.push(id.clone());
        }
        world.run(&["verify", "--all"]).ok();
        world.run(&["operations", "--verify"]).ok();
    }
    // What was half done is done by the next command.
    for id in &left {
        world.run(&["forget", id]).ok();
    }
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
    world.run(&["cat", "HEAD", "file"]).ok().says("content 11");
}

#[test]
fn a_loss_of_power_on_ext4_takes_no_record_that_is_renamed() {
    cut_power_while_records_are_renamed("ext4");
}

#[test]
fn a_loss_of_power_on_xfs_takes_no_record_that_is_renamed() {
    cut_power_while_records_are_renamed("xfs");
}

/// A database that commits until the process behind its mount is killed.
fn commit_until_killed(journal: &str) {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let acknowledged = world.path("acknowledged");
    let program = format!(
        "import sqlite3, sys
db = sqlite3.connect('db', isolation_level=None)
db.execute('pragma journal_mode={journal}')
db.execute('pragma synchronous=full')
db.execute('create table if not exists t (n integer primary key, other integer, bytes blob)')
first = db.execute('select coalesce(max(n), 0) from t').fetchone()[0] + 1
out = open('{}', 'a', buffering=1)
for n in range(first, 1 << 30):
    db.execute('begin')
    db.execute('insert into t values (?, ?, randomblob(?))', (n, -n, n * 37 % 5000))
    db.execute('update t set bytes = randomblob(300) where n = ?', (max(1, n // 2),))
    db.execute('commit')
    out.write(f'{{n}}\\n')
",
        acknowledged.display()
    );
    for round in 0..4 {
        let begun = Instant::now();
        let mut child = Command::new("python3")
            .args(["-c", &program])
            .current_dir(&mount.path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = || fs::read_to_string(&acknowledged).unwrap_or_default().lines().count();
        let before = lines();
        wait_until("it commits", || lines() > before + 3);
        std::thread::sleep(Duration::from_millis(100 + round * 170).saturating_sub(begun.elapsed()));
        kill(mount.pid(), "-KILL");
        assert!(!child.wait().unwrap().success());
        mount.again(&[]).ok();
        let check = "import sqlite3; db = sqlite3.connect('db')
assert db.execute('pragma integrity_check').fetchall() == [('ok',)]
print(*db.execute('select count(*), max(n), sum(n + other) from t').fetchone())";
        let found = sh(&mount.path, &format!("python3 -c \"{check}\""));
        let found: Vec<usize> = found.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let promised = lines();
        assert!(found[0] == found[1] && found[2] == 0, "{found:?}");
        assert!(found[0] == promised || found[0] == promised + 1, "{found:?}, acknowledged {promised}");
        // What was committed and not told counts from now on.
        if found[0] > promised {
            writeln!(File::options().append(true).open(&acknowledged).unwrap(), "{}", found[0]).unwrap();
        }
    }
}

#[test]
fn a_database_with_a_rollback_journal_keeps_what_was_committed() {
    commit_until_killed("delete");
}

#[test]
fn a_database_with_a_write_ahead_log_keeps_what_was_committed() {
    commit_until_killed("wal");
}

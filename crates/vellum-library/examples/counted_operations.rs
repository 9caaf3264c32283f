//! The operations that `make counts` counts.
//!
//! `counted_operations DIR prepare` makes a volume; `counted_operations DIR NAME TIMES` opens it and does one operation so
//! many times. Two runs with different TIMES differ by what the operation takes.

use std::path::Path;
use std::process::ExitCode;

use vellum_library::{Result, Snapshot, Tree, Volume};

/// Files of the directory `many`, and snapshots of the volume.
const FILES: u64 = 1000;
const SNAPSHOTS: u64 = 50;
const DEEP: &str = "a/b/c/d/e/f/g/h/i";

/// A volume that operations are done in, and the snapshot in the middle of its history.
struct Prepared<'p> {
    dir: &'p Path,
    volume: Volume,
    snapshot: Snapshot,
}

/// One operation; its number is another one each time.
type Operation = fn(&Prepared<'_>, u64) -> Result<()>;

const OPERATIONS: [(&str, Operation); 10] = [
    ("open-volume", |on, _| Volume::open(on.dir).map(drop)),
    ("list-snapshots-50", |on, _| on.volume.list_snapshots().map(drop)),
    ("open-snapshot-by-tag", |on, _| on.volume.open_snapshot("middle").map(drop)),
    ("stat", |on, number| on.snapshot.stat(file_name(number)).map(drop)),
    ("stat-deep", |on, _| on.snapshot.stat(format!("{DEEP}/file")).map(drop)),
    ("stat-absent", |on, _| on.snapshot.exists("many/absent").map(drop)),
    ("list-1000", |on, _| on.snapshot.read_dir("many").map(drop)),
    ("walk-1000", |on, _| on.snapshot.walk("many").try_for_each(|entry| entry.map(drop))),
    ("read", |on, number| on.snapshot.read(file_name(number)).map(drop)),
    ("read-range", |on, number| {
        let mut part = [0; 4096];
        on.snapshot.open("large")?.read_at(&mut part, number % FILES).map(drop)
    }),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match &words[..] {
        [dir, word] if word == "prepare" => prepare(Path::new(dir)),
        [dir, name, times] => {
            let found = OPERATIONS.iter().find(|(known, _)| known == name);
            let (Some((_, operation)), Ok(times)) = (found, times.parse()) else { return refuse_arguments() };
            repeat(Path::new(dir), *operation, times)
        }
        _ => return refuse_arguments(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("counted_operations: {error}");
            ExitCode::FAILURE
        }
    }
}

fn refuse_arguments() -> ExitCode {
    let names: Vec<_> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: counted_operations DIR prepare | DIR NAME TIMES, with a NAME of: {}", names.join(" "));
    ExitCode::from(2)
}

fn file_name(number: u64) -> String {
    format!("many/file-{}", number % FILES)
}

fn prepare(dir: &Path) -> Result<()> {
    let volume = Volume::create(dir)?.volume;
    let work = volume.create_worktree("work", None)?;
    work.mkdir_all(DEEP)?;
    work.write(format!("{DEEP}/file"), "x")?;
    work.write("large", vec![7; 1 << 20])?;
    work.mkdir("many")?;
    (0..FILES).try_for_each(|number| work.write(file_name(number), format!("{number}")))?;
    for number in 0..SNAPSHOTS {
        work.write("changed", format!("{number}"))?;
        let tags: &[&str] = if number == SNAPSHOTS / 2 { &["middle"] } else { &[] };
        work.create_snapshot_with_tags("", tags)?;
    }
    work.flush()
}

fn repeat(dir: &Path, operation: Operation, times: u64) -> Result<()> {
    let volume = Volume::open(dir)?;
    let snapshot = volume.open_snapshot("middle")?;
    let on = Prepared { dir, volume, snapshot };
    // The first fills caches, and is in both runs that are compared.
    (0..=times).try_for_each(|number| operation(&on, number))
}

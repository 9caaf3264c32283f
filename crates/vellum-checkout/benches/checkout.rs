//! Measures the scan and the making of files on real trees. Run by hand:
//! `cargo bench --bench checkout -- make DIR DIRS FILES | scan DIR [THREADS] | once DIR STATE THREADS | create DIR FILES`.

#![allow(clippy::disallowed_methods, reason = "tests and measurements make the trees that the code works on")]
#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use vellum_checkout::beneath::{Dir, Replace, Staging};
use vellum_checkout::scan::{Options, Tree, scan};
use vellum_checkout::statcache::{Recorded, Stamp, StatCache, write_tree};
use vellum_types::{BlobId, Ino};

/// Repetitions of which the best and the median are told.
const ROUNDS: usize = 11;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["make", dir, dirs, files] => make(Path::new(dir), dirs.parse().unwrap(), files.parse().unwrap()),
        ["scan", dir] => measure_scan(Path::new(dir), 0),
        ["scan", dir, threads] => measure_scan(Path::new(dir), threads.parse().unwrap()),
        ["once", dir, state, threads] => {
            scan_once(Path::new(dir), Path::new(state), threads.parse().unwrap())
        }
        ["create", dir, files] => measure_create(Path::new(dir), files.parse().unwrap()),
        _ => println!(
            "usage: make DIR DIRS FILES | scan DIR [THREADS] | once DIR STATE THREADS | create DIR FILES"
        ),
    }
}

/// `dirs` directories with `files` small files each.
fn make(path: &Path, dirs: usize, files: usize) {
    std::fs::create_dir_all(path).unwrap();
    for dir in 0..dirs {
        let dir = path.join(format!("directory-{dir:05}"));
        std::fs::create_dir(&dir).unwrap();
        for file in 0..files {
            std::fs::write(dir.join(format!("some-file-{file:07}.txt")), b"content").unwrap();
        }
    }
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("{what}: best {:?}, median {:?}", times[0], times[times.len() / 2]);
}

fn repeat<T>(what: &str, mut work: impl FnMut() -> T) -> T {
    let mut last = None;
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        last = Some(work());
        start.elapsed()
    });
    tell(what, times.collect());
    last.unwrap()
}

fn remember(tree: &Tree, state: &Dir) {
    let stamp = Stamp::take(state).unwrap();
    let mut next = 1;
    let recorded = |_: vellum_checkout::scan::EntryRef<'_>| {
        next += 1;
        Some(Recorded { ino: Ino(next), stat: None })
    };
    write_tree((state, b"cache"), (BlobId([0; 32]), stamp), tree, Ino::ROOT, recorded).unwrap();
}

fn measure_scan(path: &Path, threads: usize) {
    let root = Dir::open_root(path).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let state = Dir::open_root(temp.path()).unwrap();
    let resident = resident_bytes();
    let tree =
        repeat("scan without a cache", || scan(&root, Options { threads, ..Options::default() }).unwrap());
    let entries = tree.entry_count();
    println!("{entries} entries, {:.1} bytes each by count", tree.memory() as f64 / entries as f64);
    let before = resident_bytes();
    let second = scan(&root, Options { threads, ..Options::default() }).unwrap();
    let after = resident_bytes();
    println!("resident: {resident} at start, {before} with one tree, {after} with two");
    drop(second);
    repeat("write the cache", || remember(&tree, &state));
    repeat("load the cache", || StatCache::load(&state, b"cache").unwrap());
    println!("cache: {} bytes", state.stat(b"cache").unwrap().size);
    let tree = repeat("load and scan with it", || {
        let cache = StatCache::load(&state, b"cache").ok();
        scan(&root, Options { cache, threads, ..Options::default() }).unwrap()
    });
    let unchanged = tree.walk().filter(vellum_checkout::scan::EntryRef::is_unchanged).count();
    println!("unchanged: {unchanged} of {entries}");
    repeat("walk the tree, asking the cache for each", || {
        tree.walk().filter_map(|entry| entry.cached()).count()
    });
}

/// One scan with the cache in `state`, which is made if it is missing: to be timed as a process, in turns with `find`.
fn scan_once(path: &Path, state: &Path, threads: usize) {
    let root = Dir::open_root(path).unwrap();
    let state = Dir::open_root(state).unwrap();
    let cache = StatCache::load(&state, b"cache").ok();
    let had_cache = cache.is_some();
    let tree = scan(&root, Options { cache, threads, ..Options::default() }).unwrap();
    let unchanged = tree.walk().filter(vellum_checkout::scan::EntryRef::is_unchanged).count();
    if !had_cache {
        remember(&tree, &state);
    }
    println!("{unchanged} of {} unchanged", tree.entry_count());
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Makes small files in three manners, in turns, in directories of 1,000.
fn measure_create(path: &Path, files: usize) {
    let root = Dir::open_root(path).unwrap();
    for round in 0..3 {
        for manner in ["direct", "named", "anonymous"] {
            let start = Instant::now();
            for group in 0..files / 1000 {
                let name = format!("{manner}-{round}-{group}");
                root.make_dir(name.as_bytes(), 0o700).unwrap();
                let dir = root.open_dir(name.as_bytes()).unwrap();
                (0..1000).for_each(|file| create(&dir, manner, format!("file-{file:06}").as_bytes()));
            }
            println!("create {files} files, {manner}: {:?}", start.elapsed());
        }
    }
}

fn create(dir: &Dir, manner: &str, name: &[u8]) {
    let content = [b'x'; 1000];
    let staging = match manner {
        "direct" => {
            dir.create_file(name, 0o600).unwrap().write_all(&content).unwrap();
            return;
        }
        "named" => Staging::Named,
        _ => Staging::Anonymous,
    };
    let file = dir.new_file_staged(staging).unwrap();
    file.file().unwrap().write_all(&content).unwrap();
    file.commit(name, Replace::Never).unwrap();
}

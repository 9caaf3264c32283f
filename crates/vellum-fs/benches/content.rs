//! What writing and reading cost without a kernel: `cargo bench -p vellum-fs --bench content [-- PART…]`.
//!
//! The live metadata are in the engine of this machine, all in a temporary directory (`VELLUM_BENCH_DIR` sets another
//! place). Figures are the best of a few rounds, for one operation: by the clock, and in processor time of the one
//! thread that works.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use vellum_fs::head::Head;
use vellum_fs::log::LogHooks;
use vellum_fs::{Caller, Fs, OpenFlags, Options, WriteLog};
use vellum_live::Embedded;
use vellum_types::Ino;
use vellum_volume::volume::NewWorktree;
use vellum_volume::{StateDir, Statistics, Volume};

const ROUNDS: usize = 5;
/// Operations of a round.
const TIMES: u64 = 10_000;
const PAGE: usize = 4096;
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };

type Part = fn(&Bench);

fn main() {
    let parts: [(&str, Part); 6] = [
        ("inline", Bench::inline),
        ("append", Bench::append),
        ("overwrite", Bench::overwrite),
        ("big", Bench::big),
        ("published", Bench::published),
        ("fsync", Bench::fsync),
    ];
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            part(&Bench::new());
        }
    }
}

struct Bench {
    _dir: TempDir,
    fs: Fs,
}

impl Bench {
    fn new() -> Self {
        let place = std::env::var_os("VELLUM_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let dir = tempfile::tempdir_in(place).unwrap();
        let root = dir.path().join("worktree");
        std::fs::create_dir(&root).unwrap();
        let state = StateDir::create(&root).unwrap();
        let new = NewWorktree { store: None, name: "main".into(), encrypted: true };
        let volume = Volume::init(&state, &new, || panic!("a new volume asks for nothing")).unwrap().volume;
        let log = Arc::new(WriteLog::open(&dir.path().join("log"), u64::MAX).unwrap());
        let live = Arc::new(Embedded::open(&dir.path().join("live"), LogHooks(log.clone())).unwrap());
        let head = Head::new(volume.empty_root(), Statistics::default(), None);
        let fs = Fs::open(Arc::new(volume), live, log, &head, Options::default()).unwrap();
        Self { _dir: dir, fs }
    }

    fn file(&self, name: &str) -> Ino {
        self.fs.create(Ino::ROOT, name.as_bytes(), 0o644, CALLER).unwrap().ino
    }

    /// A file of random bytes, so that nothing is compressed and no chunk is there twice.
    fn filled(&self, name: &str, size: u64) -> Ino {
        let ino = self.file(name);
        let mut random = Random(7);
        let mut block = vec![0; 1 << 20];
        for at in (0..size).step_by(block.len()) {
            block.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next().to_le_bytes()));
            self.fs.write(ino, at, &block, false).unwrap();
        }
        ino
    }

    fn inline(&self) {
        let ino = self.file("inline");
        let data = [1; 1000];
        measure("write 1000 bytes of a small file", TIMES, |_| {
            self.fs.write(ino, 0, &data, false).unwrap();
        });
        measure("read them", TIMES, |_| {
            self.fs.read(ino, 0, PAGE).unwrap();
        });
    }

    fn append(&self) {
        let ino = self.file("append");
        let data = [1; PAGE];
        measure("append 4 KiB", TIMES, |_| {
            self.fs.append(ino, &data).unwrap();
        });
        measure("read 4 KiB of them in sequence", TIMES, |number| {
            self.fs.read(ino, number * PAGE as u64, PAGE).unwrap();
        });
    }

    fn overwrite(&self) {
        const SIZE: u64 = 64 << 20;
        let ino = self.filled("overwrite", SIZE);
        let data = [1; PAGE];
        let mut random = Random(1);
        let mut place = move || random.next() % (SIZE / PAGE as u64) * PAGE as u64;
        measure("overwrite 4 KiB anywhere in 64 MiB", TIMES, |_| {
            self.fs.write(ino, place(), &data, false).unwrap();
        });
        measure("read 4 KiB anywhere in them", TIMES, |_| {
            self.fs.read(ino, place(), PAGE).unwrap();
        });
    }

    fn big(&self) {
        let block = vec![1; 1 << 20];
        for len in [128 << 10, 1 << 20] {
            let ino = self.file(&len.to_string());
            let times = (256 << 20) / len as u64;
            measure(&format!("append {} KiB", len >> 10), times, |_| {
                self.fs.append(ino, &block[..len]).unwrap();
            });
            measure(&format!("read {} KiB of them in sequence", len >> 10), times, |number| {
                self.fs.read(ino, number * len as u64, len).unwrap();
            });
        }
    }

    fn published(&self) {
        const SIZE: u64 = 64 << 20;
        let ino = self.filled("published", SIZE);
        self.fs.flush().unwrap();
        let handle = self.fs.open_file(ino, OpenFlags::default()).unwrap();
        let len = 128 << 10;
        let start = Instant::now();
        for number in 0..SIZE / len {
            self.fs.read(ino, number * len, len as usize).unwrap();
        }
        tell("read 128 KiB in sequence from chunks, cold", start.elapsed() / (SIZE / len) as u32, None);
        self.fs.release(handle).unwrap();
        let mut random = Random(1);
        let mut place = move || random.next() % (8 << 20 >> 12) * PAGE as u64;
        measure("read 4 KiB anywhere in 8 MiB of chunks", TIMES, |_| {
            self.fs.read(ino, place(), PAGE).unwrap();
        });
    }

    fn fsync(&self) {
        const WRITERS: u64 = 8;
        const EACH: u64 = 200;
        let start = Instant::now();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    for number in 0..EACH {
                        let ino = self.file(&format!("{writer}-{number}"));
                        self.fs.write(ino, 0, &[1; PAGE], false).unwrap();
                        self.fs.fsync(ino, false).unwrap();
                    }
                });
            }
        });
        let each = start.elapsed() / (WRITERS * EACH) as u32;
        tell("create, write 4 KiB and flush, 8 writers at once", each, None);
    }
}

fn measure(what: &str, times: u64, mut each: impl FnMut(u64)) {
    let (mut best, mut best_busy) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let (start, busy_before) = (Instant::now(), busy());
        (0..times).for_each(&mut each);
        best = best.min(start.elapsed());
        best_busy = best_busy.min(busy() - busy_before);
    }
    tell(what, best / times as u32, Some(best_busy / times as u32));
}

fn tell(what: &str, each: Duration, busy: Option<Duration>) {
    let busy = busy.map_or(String::new(), |busy| format!(", busy {busy:.2?}"));
    println!("{what}: {each:.2?}{busy}");
}

/// Processor time of this thread.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

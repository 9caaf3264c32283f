//! Mixes of reads and writes, with the cache of inodes and names and without, and how often a cache of some size answers.
//!
//! Files are chosen as programs choose them: few are asked for often (Zipf's law), the same in every run. An iteration is
//! one operation. Hit rates do not depend on the machine.

use std::cell::LazyCell;

use tempfile::TempDir;
use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{BenchClock, RandomData, create_scratch_dir, record_figure, thread_time_criterion};
use vellum_library::{Tree, Volume, Worktree};

/// How much more often the most wanted files are asked for: the exponent of Zipf's law.
const SKEW: f64 = 0.9;
/// Bytes that a cached file takes, with its name; what the bench of the inode cache finds (`inode/memory`).
const CACHED_FILE: usize = 400;
/// Bytes of the whole cache as it is by default.
const DEFAULT_CACHE: usize = 64 << 20;
/// Operations after which a hit rate is told; the first half fills the cache.
const LOOKUPS: usize = 40_000;
/// How many files fit into the cache, and how many there are.
const CACHES: [(usize, usize); 6] =
    [(10, 100), (100, 100), (100, 1000), (1000, 1000), (1000, 5000), (5000, 5000)];

fn main() {
    let mut criterion = thread_time_criterion();
    bench_mixes(&mut criterion);
    record_hit_rates();
}

/// A published worktree with files in directories of a hundred.
struct Files {
    work: Worktree,
    names: Vec<String>,
    _dir: TempDir,
}

impl Files {
    fn new(count: usize) -> Self {
        let dir = create_scratch_dir();
        let volume = Volume::create(dir.path()).expect("a volume").volume;
        let work = volume.create_worktree("work", None).expect("a worktree");
        let names: Vec<_> =
            (0..count).map(|number| format!("directory-{}/file-{number}", number / 100)).collect();
        for directory in 0..count.div_ceil(100) {
            work.mkdir(format!("directory-{directory}")).expect("made");
        }
        names.iter().for_each(|name| work.write(name, "some content").expect("written"));
        work.flush().expect("published");
        Self { work, names, _dir: dir }
    }
}

/// Numbers below a limit, of which the first come most often.
struct ZipfNumbers {
    /// For each number, the weight of itself and of all before it.
    sums: Vec<f64>,
    random: RandomData,
}

impl ZipfNumbers {
    fn new(below: usize) -> Self {
        let weights = (1..=below).map(|rank| (rank as f64).powf(-SKEW));
        let sums = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        Self { sums, random: RandomData(9) }
    }

    fn next_number(&mut self) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let wanted = all * (self.random.next_number() >> 11) as f64 / (1_u64 << 53) as f64;
        self.sums.partition_point(|sum| *sum <= wanted).min(self.sums.len() - 1)
    }
}

/// What is done to a file: the name, and the number of the operation.
type Operation = fn(&Worktree, &str, u64);

/// A mix: how many files there are, and what is done to them.
struct Mix {
    name: &'static str,
    files: usize,
    /// Whether all files are taken in turns, as by who scans a tree, and not by Zipf's law.
    in_turns: bool,
    operation: Operation,
}

const MIXES: [Mix; 4] = [
    Mix {
        name: "80-of-100-read",
        files: 1000,
        in_turns: false,
        operation: |work, name, number| match number % 10 {
            0 | 5 => work.chmod(name, 0o600).expect("changed"),
            _ => drop(work.stat(name).expect("there")),
        },
    },
    Mix {
        name: "web-server",
        files: 1000,
        in_turns: false,
        operation: |work, name, number| match number % 20 {
            0 => work.write(name, "other content").expect("written"),
            _ => drop(work.read(name).expect("read")),
        },
    },
    Mix {
        name: "build",
        files: 5000,
        in_turns: true,
        operation: |work, name, number| match number % 100 {
            0 => work.write(name, "other content").expect("written"),
            _ => drop(work.stat(name).expect("there")),
        },
    },
    Mix {
        name: "watcher",
        files: 500,
        in_turns: true,
        operation: |work, name, _| drop(work.stat(name).expect("there")),
    },
];

fn bench_mixes(criterion: &mut Criterion<BenchClock>) {
    for mix in MIXES {
        let files = LazyCell::new(|| Files::new(mix.files));
        let mut group = criterion.benchmark_group(format!("mix/{}", mix.name));
        for (name, cache) in [("cached", DEFAULT_CACHE), ("not-cached", 0)] {
            group.bench_function(name, |bencher| {
                let Files { work, names, .. } = &*files;
                work.resize_cache(cache);
                let mut numbers = ZipfNumbers::new(names.len());
                let mut done = 0;
                bencher.iter(|| {
                    let turn = usize::try_from(done).unwrap_or_default() % names.len();
                    let chosen = if mix.in_turns { turn } else { numbers.next_number() };
                    (mix.operation)(work, &names[chosen], done);
                    done += 1;
                });
            });
        }
        group.finish();
    }
}

/// Of a hundred questions, how many a cache answers that has room for some of the files.
fn record_hit_rates() {
    if !vellum_benchkit::is_measuring() {
        return;
    }
    for (room, count) in CACHES {
        let files = Files::new(count);
        let work = &files.work;
        work.clear_cache();
        work.resize_cache(room * CACHED_FILE);
        let mut numbers = ZipfNumbers::new(count);
        let mut look_up = || {
            (0..LOOKUPS / 2)
                .for_each(|_| drop(work.stat(&files.names[numbers.next_number()]).expect("there")));
            work.cache_statistics()
        };
        let (filled, after) = (look_up(), look_up());
        let hits = (after.hits - filled.hits) as f64;
        let all = hits + (after.misses - filled.misses) as f64;
        record_figure(&format!("mix/hits/room-for-{room}-of-{count}"), "of 100", 100.0 * hits / all, "count");
    }
}

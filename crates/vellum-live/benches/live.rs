//! What the embedded engine costs: `cargo bench -p vellum-live`.
//!
//! A transaction is what creating a file takes: two gets, three puts of about a hundred bytes. The directory is
//! `VELLUM_BENCH_DIR`, or else one beneath the system's for temporary files: for the durable figures it has to be on a
//! disk. `VELLUM_BENCH_TXNS` sets another number of transactions. Processor time is that of the whole process, the
//! best of a few rounds; waiting is measured by the clock.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use vellum_live::{Embedded, LiveStore, NoHooks, Sequence};
use vellum_map::Span;

const ROUNDS: usize = 3;
/// For each measurement with waiting.
const PERIOD: Duration = Duration::from_secs(3);

fn main() {
    let count = std::env::var("VELLUM_BENCH_TXNS").map_or(200_000, |text| text.parse().expect("a number"));
    let base = std::env::var_os("VELLUM_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(base).expect("a directory");
    transactions(dir.path(), count);
    reads(&dir.path().join("transact-0"), count, "in memory");
    frozen(&dir.path().join("transact-0"), count);
    for threads in [1, 8] {
        durable(&dir.path().join(format!("durable-{threads}")), threads);
    }
}

fn open(path: &Path) -> Embedded {
    Embedded::open(path, NoHooks).expect("a store")
}

fn layer_key(inode: u64, tag: u8, rest: &[u8]) -> Vec<u8> {
    [&b"l\0\0\0\0\0\0\0\x01"[..], &inode.to_be_bytes(), &[tag], rest].concat()
}

fn dentry(number: u64) -> Vec<u8> {
    layer_key(1 + number / 1000, 1, format!("file-{number:08}.txt").as_bytes())
}

/// Creates a file: attributes of the directory and of the file, and a name.
fn create(store: &Embedded, number: u64) -> Sequence {
    let parent = layer_key(1 + number / 1000, 0, b"");
    let (name, child) = (dentry(number), layer_key(1_000_000 + number, 0, b""));
    let done = store.transact(&mut |txn| {
        let _ = (txn.get(&parent)?, txn.get(&name)?);
        txn.put(&parent, [3; 120].into());
        txn.put(&name, [4; 10].into());
        txn.put(&child, [5; 120].into());
        Ok(())
    });
    done.expect("a transaction")
}

fn transactions(dir: &Path, count: u64) {
    let mut best = Duration::MAX;
    for round in 0..ROUNDS {
        let store = open(&dir.join(format!("transact-{round}")));
        let start = busy();
        for number in 0..count {
            create(&store, number);
        }
        best = best.min(busy() - start);
        if round == 0 {
            let statistics = store.statistics();
            println!("memory: {} bytes/transaction", statistics.memory / count);
            println!("journal: {} bytes/transaction", statistics.journalled / count);
        }
    }
    println!("transact: {:.2} us of processor time", micros(best, count));
}

fn reads(path: &Path, count: u64, place: &str) {
    let start = Instant::now();
    let store = open(path);
    println!("reopen, {place}: {:.0} ms for {count} transactions", start.elapsed().as_secs_f64() * 1e3);
    let names: Vec<_> = (0..count).map(|number| dentry(number.wrapping_mul(7919) % count)).collect();
    let absent: Vec<_> = names.iter().map(|name| [name.as_slice(), b"x"].concat()).collect();
    for (what, keys) in [("get", &names), ("get of what is absent", &absent)] {
        let found = what == "get";
        let took = best(|| assert!(keys.iter().all(|key| store.get(key).expect("a get").is_some() == found)));
        println!("{what}, {place}: {:.2} us", micros(took, count));
    }
    let mut entries = 0;
    let took = best(|| {
        entries = 0;
        let visited = store.scan(&Span::all(), &mut |_, _| {
            entries += 1;
            ControlFlow::Continue(())
        });
        visited.expect("a scan");
    });
    println!("scan, {place}: {:.0} ns/entry of {entries}", took.as_nanos() as f64 / f64::from(entries));
}

fn frozen(path: &Path, count: u64) {
    let store = open(path);
    let start = Instant::now();
    store.freeze(b"l\0\0\0\0\0\0\0\x01").expect("freezing");
    println!("freeze: {:.0} ms, then {:?}", start.elapsed().as_secs_f64() * 1e3, store.statistics());
    let start = Instant::now();
    store.fork_into(&path.with_extension("fork")).expect("a fork");
    println!("fork: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    drop(store);
    reads(path, count, "frozen");
}

/// Transactions that are waited for, by several threads at once.
fn durable(path: &Path, threads: u64) {
    let store = open(path);
    let start = Instant::now();
    let counts: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    let mut took = Vec::new();
                    while start.elapsed() < PERIOD {
                        let before = Instant::now();
                        let sequence = create(store, (thread << 32) + took.len() as u64);
                        store.wait_durable(sequence).expect("durable");
                        took.push(before.elapsed());
                    }
                    took
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    });
    let mut sorted = counts;
    sorted.sort_unstable();
    let at = |part: usize| sorted.get(sorted.len() * part / 1000).copied().unwrap_or_default();
    println!(
        "durable, {threads} threads: {:.0}/s, half within {:.0?}, 99.9 % within {:.1?}, {} syncs",
        sorted.len() as f64 / start.elapsed().as_secs_f64(),
        at(500),
        at(999),
        store.statistics().syncs,
    );
}

fn micros(took: Duration, count: u64) -> f64 {
    took.as_secs_f64() * 1e6 / count as f64
}

fn best(mut run: impl FnMut()) -> Duration {
    let rounds = (0..ROUNDS).map(|_| {
        let start = busy();
        run();
        busy() - start
    });
    rounds.min().unwrap_or_default()
}

/// Processor time of this process so far.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

//! Throughput of the blob store on a local directory, printed as MB/s and operations per second.
//!
//! Run with `cargo bench -p vellum-store`; `VELLUM_BENCH_DIR` chooses the filesystem,
//! `VELLUM_BENCH_COMMITS` the number of small commits. One thread, unless it says
//! otherwise. Blobs have the chunker's target length.
#![expect(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_store::{BlobStore, LocalDir, ObjectStore, Options};
use vellum_types::{BlobId, BlobKind, VolumeId};

const BLOB: usize = 64 << 10;
const TOTAL: usize = 512 << 20;
const LOOKUPS: u64 = 4_000_000;

struct Bench {
    dir: tempfile::TempDir,
    keys: Arc<VolumeKeys>,
}

impl Bench {
    fn new() -> Self {
        let base = std::env::var_os("VELLUM_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let keys = VolumeKeys::sealed(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16]));
        Self { dir: tempfile::tempdir_in(base).unwrap(), keys: Arc::new(keys) }
    }

    fn open(&self, name: &str) -> BlobStore {
        let objects = Arc::new(LocalDir::create(self.dir.path().join(name)).unwrap());
        let local = self.dir.path().join(format!("{name}-index"));
        BlobStore::open(objects, self.keys.clone(), &local, Options::default()).unwrap()
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

fn timed<T>(what: &str, amount: f64, unit: &str, work: impl FnOnce() -> T) -> T {
    let (start, busy) = (Instant::now(), cpu_seconds());
    let result = work();
    let (seconds, busy) = (start.elapsed().as_secs_f64(), cpu_seconds() - busy);
    println!("{what:<46} {:>12.1} {unit:<5} {:>12.1} {unit} of CPU", amount / seconds, amount / busy);
    result
}

/// What this thread has computed, seconds: a figure that other programs on the machine disturb less.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn throughput(bench: &Bench) {
    let data = noise(1, TOTAL);
    let store = bench.open("noise");
    let ids = timed("put, incompressible", megabytes(TOTAL), "MB/s", || put_all(&store, &data));
    timed("put, all duplicates", megabytes(TOTAL), "MB/s", || put_all(&store, &data));
    timed("read, incompressible", megabytes(TOTAL), "MB/s", || read_all(&store, &ids));
    timed("fetch 16 at a time, incompressible", megabytes(TOTAL), "MB/s", || fetch_all(&store, &ids));
    let text: Vec<u8> = (0_u64..)
        .flat_map(|i| format!("{:x} lorem {} ipsum\n", i * 7919, i % 97).into_bytes())
        .take(TOTAL / 4)
        .collect();
    let store = bench.open("text");
    let ids = timed("put, compressible", megabytes(text.len()), "MB/s", || put_all(&store, &text));
    timed("read, compressible", megabytes(text.len()), "MB/s", || read_all(&store, &ids));
}

fn put_all(store: &BlobStore, data: &[u8]) -> Vec<BlobId> {
    let writer = store.writer();
    let ids = data.chunks(BLOB).map(|chunk| writer.put(BlobKind::Chunk, chunk).unwrap()).collect();
    writer.finish().unwrap();
    ids
}

fn read_all(store: &BlobStore, ids: &[BlobId]) {
    for id in ids {
        black_box(store.read(BlobKind::Chunk, id).unwrap());
    }
}

fn fetch_all(store: &BlobStore, ids: &[BlobId]) {
    for some in ids.chunks(16) {
        let wanted: Vec<_> = some.iter().map(|id| (BlobKind::Chunk, *id)).collect();
        let fetched = store.fetch(&wanted).unwrap();
        (0..fetched.len()).for_each(|i| drop(black_box(fetched.open(i).unwrap())));
    }
}

fn tiny_commits(bench: &Bench) {
    let store = bench.open("tiny");
    let commits = std::env::var("VELLUM_BENCH_COMMITS").map_or(500, |count| count.parse().unwrap());
    timed("commits of one 4 KiB blob", commits as f64, "/s", || {
        for i in 0..commits {
            let writer = store.writer();
            writer.put(BlobKind::Node, &noise(i, 4096)).unwrap();
            writer.finish().unwrap();
        }
    });
    drop(store);
    timed("open after these", 1.0, "/s", || bench.open("tiny"));
    let objects = LocalDir::open(bench.dir.path().join("tiny")).unwrap();
    println!("{:<46} {:>12}", "index objects after these", objects.list_names("index").unwrap().len());
}

fn lookups(bench: &Bench) {
    let store = bench.open("many");
    let id = |i: u64| bench.keys.blob_id(BlobKind::Node, &i.to_le_bytes());
    let writer = store.writer();
    let present: Vec<_> = (0..1_000_000_u64).map(id).collect();
    timed("put of 1,000,000 blobs of 8 bytes", 1e6, "/s", || {
        for (i, id) in (0_u64..).zip(&present) {
            writer.put_with_id(BlobKind::Node, id, &i.to_le_bytes()).unwrap();
        }
        writer.finish().unwrap();
    });
    let absent: Vec<_> = (1_000_000..2_000_000_u64).map(id).collect();
    for (what, ids) in [("contains, present among 1,000,000", &present), ("contains, absent", &absent)] {
        timed(what, LOOKUPS as f64, "/s", || {
            let cycle = ids.iter().cycle().take(LOOKUPS as usize);
            black_box(cycle.filter(|id| store.contains(id)).count())
        });
    }
}

fn main() {
    let bench = Bench::new();
    throughput(&bench);
    tiny_commits(&bench);
    lookups(&bench);
}

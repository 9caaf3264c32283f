//! The blob store on a local directory. `VELLUM_BENCH_DIR` chooses the filesystem.
//!
//! One thread, in its processor time: packs are put by threads in the background. Commits wait for the disk and are
//! measured in real time. Blobs have the chunker's target length.
#![expect(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use std::cell::LazyCell;
use std::sync::{Arc, Once};

use tempfile::TempDir;
use vellum_benchkit::criterion::{BatchSize, Criterion, SamplingMode, Throughput};
use vellum_benchkit::{
    BenchClock, RenewedFixture, create_scratch_dir, generate_text, random_bytes, record_figure, setup_size,
    thread_time_criterion, wall_time_criterion,
};
use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_store::{BlobOptions, BlobStore, LocalStore, ObjectStore};
use vellum_types::{BlobId, BlobKind, VolumeId};

const BLOB: usize = 64 << 10;
/// What one session puts.
const SESSION: usize = 16 << 20;
/// Small commits on one store, after which its index has many objects.
const COMMITS: u64 = 500;

fn main() {
    let mut criterion = thread_time_criterion();
    bench_puts(&mut criterion);
    bench_reads(&mut criterion);
    bench_lookups(&mut criterion);
    bench_commits(&mut wall_time_criterion());
}

/// A store in a directory of its own.
struct Place {
    dir: TempDir,
    store: BlobStore,
}

impl Place {
    fn new() -> Self {
        let dir = create_scratch_dir();
        let store = open_bench_store(&dir);
        Self { dir, store }
    }

    fn with_data(data: &[u8]) -> (Self, Vec<BlobId>) {
        let place = Self::new();
        let ids = put_all_blobs(&place.store, data);
        (place, ids)
    }
}

fn open_bench_store(dir: &TempDir) -> BlobStore {
    let keys = VolumeKeys::for_encrypted(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16]));
    let objects = Arc::new(LocalStore::create(dir.path().join("store")).unwrap());
    BlobStore::open(objects, Arc::new(keys), &dir.path().join("index"), BlobOptions::default()).unwrap()
}

/// Id, compress, seal, pack: a session that puts 16 MiB and ends.
fn bench_puts(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("store/put");
    group.sample_size(10).sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(SESSION as u64));
    for (name, make) in bench_contents() {
        let data = LazyCell::new(make);
        group.bench_function(name, |bencher| {
            let put = |place: &mut Place| put_all_blobs(&place.store, &data);
            bencher.iter_batched_ref(Place::new, put, BatchSize::PerIteration);
        });
    }
    let held = LazyCell::new(|| (Place::with_data(&random_bytes(1, SESSION)).0, random_bytes(1, SESSION)));
    group.bench_function("duplicates", |bencher| {
        let (place, data) = &*held;
        bencher.iter(|| put_all_blobs(&place.store, data));
    });
    group.finish();
}

/// A kind of content, and how it is made.
type Content = (&'static str, fn() -> Vec<u8>);

fn bench_contents() -> [Content; 2] {
    [("incompressible", || random_bytes(1, SESSION)), ("text", || generate_text(SESSION))]
}

fn put_all_blobs(store: &BlobStore, data: &[u8]) -> Vec<BlobId> {
    let writer = store.create_writer();
    let ids = data.chunks(BLOB).map(|chunk| writer.put_blob(BlobKind::Chunk, chunk).unwrap()).collect();
    writer.finish().unwrap();
    ids
}

fn bench_reads(criterion: &mut Criterion<BenchClock>) {
    let mut group = criterion.benchmark_group("store/read");
    for (name, make) in bench_contents() {
        let held = LazyCell::new(|| Place::with_data(&make()));
        group.throughput(Throughput::Bytes(BLOB as u64));
        group.bench_function(name, |bencher| {
            let (place, ids) = &*held;
            let mut ids = ids.iter().cycle();
            bencher.iter(|| place.store.read_blob(BlobKind::Chunk, ids.next().unwrap()).unwrap());
        });
        group.throughput(Throughput::Bytes(16 * BLOB as u64));
        group.bench_function(format!("{name}-16-at-once"), |bencher| {
            let (place, ids) = &*held;
            let wanted: Vec<_> = ids.iter().map(|id| (BlobKind::Chunk, *id)).collect();
            let mut parts = wanted.chunks_exact(16).cycle();
            bencher.iter(|| {
                let fetched = place.store.fetch_blobs(parts.next().unwrap()).unwrap();
                (0..fetched.len()).map(|i| fetched.open_blob(i).unwrap().len()).sum::<usize>()
            });
        });
    }
    group.finish();
}

/// Which blobs are there is asked for each chunk that is written.
fn bench_lookups(criterion: &mut Criterion<BenchClock>) {
    let blobs = setup_size("VELLUM_BENCH_BLOBS", 200_000);
    let keys = VolumeKeys::for_encrypted(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16]));
    let id = |number: u64| keys.compute_blob_id(BlobKind::Node, &number.to_le_bytes());
    let held = LazyCell::new(|| {
        let place = Place::new();
        let writer = place.store.create_writer();
        let ids = (0..blobs).map(id);
        ids.zip(0_u64..)
            .for_each(|(id, i)| writer.put_blob_with_id(BlobKind::Node, &id, &i.to_le_bytes()).unwrap());
        writer.finish().unwrap();
        place
    });
    let mut group = criterion.benchmark_group("store/contains");
    for (name, first) in [("present", 0), ("absent", blobs)] {
        group.bench_function(name, |bencher| {
            let place = &*held;
            let ids: Vec<_> = (first..first + blobs).map(id).collect();
            let mut ids = ids.iter().cycle();
            bencher.iter(|| assert_eq!(place.store.contains(ids.next().unwrap()), first == 0));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("store/put-tiny");
    let mut places = RenewedFixture::new(blobs, || {
        let place = Place::new();
        let writer = place.store.create_writer();
        (writer, place)
    });
    group.bench_function("8-bytes", |bencher| {
        bencher.iter_custom(|times| {
            places.measure_operations(
                times,
                |work| BenchClock::Thread.measure(work),
                |(writer, _), number| {
                    writer.put_blob(BlobKind::Node, &number.to_le_bytes()).unwrap();
                },
            )
        });
    });
    group.finish();
}

/// A commit of one small blob: what a snapshot of one changed file costs at least. And what many of them leave.
fn bench_commits(criterion: &mut Criterion<BenchClock>) {
    let commit = |store: &BlobStore, number: u64| {
        let writer = store.create_writer();
        writer.put_blob(BlobKind::Node, &random_bytes(number, 4096)).unwrap();
        writer.finish().unwrap();
    };
    let mut group = criterion.benchmark_group("store/commit");
    group.sample_size(10);
    let mut places = RenewedFixture::new(COMMITS, Place::new);
    group.bench_function("4KiB", |bencher| {
        bencher.iter_custom(|times| {
            places.measure_operations(
                times,
                |work| BenchClock::Wall.measure(work),
                |place, number| commit(&place.store, number),
            )
        });
    });
    let printed = Once::new();
    let many = LazyCell::new(|| {
        let place = Place::new();
        (0..setup_size("VELLUM_BENCH_COMMITS", COMMITS)).for_each(|number| commit(&place.store, number));
        place.dir
    });
    group.bench_function("open-after-500", |bencher| {
        printed.call_once(|| {
            let objects = LocalStore::open(many.path().join("store")).unwrap();
            let count = objects.list_keys("index").unwrap().len();
            record_figure("store/commit/open-after-500", "index objects", count as f64, "count");
        });
        bencher.iter(|| open_bench_store(&many));
    });
    group.finish();
}

//! The blob store on a local directory. `VELLUM_BENCH_DIR` chooses the filesystem.
//!
//! One thread, in its processor time: packs are put by threads in the background. Commits wait for the disk and are
//! measured in real time. Blobs have the chunker's target length.
#![expect(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use std::cell::LazyCell;
use std::sync::{Arc, Once};

use tempfile::TempDir;
use vellum_benchkit::criterion::measurement::WallTime;
use vellum_benchkit::criterion::{BatchSize, Criterion, SamplingMode, Throughput};
use vellum_benchkit::{
    ProcessorTime, RenewedFixture, busy, elapsed, figure, noise, scale, scratch, text, waiting,
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
    let mut criterion = busy();
    puts(&mut criterion);
    reads(&mut criterion);
    lookups(&mut criterion);
    commits(&mut waiting());
}

/// A store in a directory of its own.
struct Place {
    dir: TempDir,
    store: BlobStore,
}

impl Place {
    fn new() -> Self {
        let dir = scratch();
        let store = open(&dir);
        Self { dir, store }
    }

    fn with(data: &[u8]) -> (Self, Vec<BlobId>) {
        let place = Self::new();
        let ids = put_all(&place.store, data);
        (place, ids)
    }
}

fn open(dir: &TempDir) -> BlobStore {
    let keys = VolumeKeys::sealed(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16]));
    let objects = Arc::new(LocalStore::create(dir.path().join("store")).unwrap());
    BlobStore::open(objects, Arc::new(keys), &dir.path().join("index"), BlobOptions::default()).unwrap()
}

/// Id, compress, seal, pack: a session that puts 16 MiB and ends.
fn puts(criterion: &mut Criterion<ProcessorTime>) {
    let mut group = criterion.benchmark_group("store/put");
    group.sample_size(10).sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(SESSION as u64));
    for (name, make) in contents() {
        let data = LazyCell::new(make);
        group.bench_function(name, |bencher| {
            let put = |place: &mut Place| put_all(&place.store, &data);
            bencher.iter_batched_ref(Place::new, put, BatchSize::PerIteration);
        });
    }
    let held = LazyCell::new(|| (Place::with(&noise(1, SESSION)).0, noise(1, SESSION)));
    group.bench_function("duplicates", |bencher| {
        let (place, data) = &*held;
        bencher.iter(|| put_all(&place.store, data));
    });
    group.finish();
}

/// A kind of content, and how it is made.
type Content = (&'static str, fn() -> Vec<u8>);

fn contents() -> [Content; 2] {
    [("incompressible", || noise(1, SESSION)), ("text", || text(SESSION))]
}

fn put_all(store: &BlobStore, data: &[u8]) -> Vec<BlobId> {
    let writer = store.writer();
    let ids = data.chunks(BLOB).map(|chunk| writer.put(BlobKind::Chunk, chunk).unwrap()).collect();
    writer.finish().unwrap();
    ids
}

fn reads(criterion: &mut Criterion<ProcessorTime>) {
    let mut group = criterion.benchmark_group("store/read");
    for (name, make) in contents() {
        let held = LazyCell::new(|| Place::with(&make()));
        group.throughput(Throughput::Bytes(BLOB as u64));
        group.bench_function(name, |bencher| {
            let (place, ids) = &*held;
            let mut ids = ids.iter().cycle();
            bencher.iter(|| place.store.read(BlobKind::Chunk, ids.next().unwrap()).unwrap());
        });
        group.throughput(Throughput::Bytes(16 * BLOB as u64));
        group.bench_function(format!("{name}-16-at-once"), |bencher| {
            let (place, ids) = &*held;
            let wanted: Vec<_> = ids.iter().map(|id| (BlobKind::Chunk, *id)).collect();
            let mut parts = wanted.chunks_exact(16).cycle();
            bencher.iter(|| {
                let fetched = place.store.fetch(parts.next().unwrap()).unwrap();
                (0..fetched.len()).map(|i| fetched.open(i).unwrap().len()).sum::<usize>()
            });
        });
    }
    group.finish();
}

/// Which blobs are there is asked for each chunk that is written.
fn lookups(criterion: &mut Criterion<ProcessorTime>) {
    let blobs = scale("VELLUM_BENCH_BLOBS", 200_000);
    let keys = VolumeKeys::sealed(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16]));
    let id = |number: u64| keys.blob_id(BlobKind::Node, &number.to_le_bytes());
    let held = LazyCell::new(|| {
        let place = Place::new();
        let writer = place.store.writer();
        let ids = (0..blobs).map(id);
        ids.zip(0_u64..)
            .for_each(|(id, i)| writer.put_with_id(BlobKind::Node, &id, &i.to_le_bytes()).unwrap());
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
        let writer = place.store.writer();
        (writer, place)
    });
    group.bench_function("8-bytes", |bencher| {
        bencher.iter_custom(|times| {
            places.time(
                times,
                |work| ProcessorTime::THREAD.time(work),
                |(writer, _), number| {
                    writer.put(BlobKind::Node, &number.to_le_bytes()).unwrap();
                },
            )
        });
    });
    group.finish();
}

/// A commit of one small blob: what a snapshot of one changed file costs at least. And what many of them leave.
fn commits(criterion: &mut Criterion<WallTime>) {
    let commit = |store: &BlobStore, number: u64| {
        let writer = store.writer();
        writer.put(BlobKind::Node, &noise(number, 4096)).unwrap();
        writer.finish().unwrap();
    };
    let mut group = criterion.benchmark_group("store/commit");
    group.sample_size(10);
    let mut places = RenewedFixture::new(COMMITS, Place::new);
    group.bench_function("4KiB", |bencher| {
        bencher
            .iter_custom(|times| places.time(times, elapsed, |place, number| commit(&place.store, number)));
    });
    let told = Once::new();
    let many = LazyCell::new(|| {
        let place = Place::new();
        (0..scale("VELLUM_BENCH_COMMITS", COMMITS)).for_each(|number| commit(&place.store, number));
        place.dir
    });
    group.bench_function("open-after-500", |bencher| {
        told.call_once(|| {
            let objects = LocalStore::open(many.path().join("store")).unwrap();
            let count = objects.list_names("index").unwrap().len();
            figure("store/commit/open-after-500", "index objects", count as f64, "count");
        });
        bencher.iter(|| open(&many));
    });
    group.finish();
}

//! Sealing and opening, and the cost of one passphrase try.

use std::hint::black_box;

use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{BenchClock, thread_time_criterion, wall_time_criterion};
use vellum_crypto::{KdfParams, KeySlot, MasterKey, RecordDomain, SlotSecret, VolumeKeys};
use vellum_types::{BlobKind, VolumeId};

const CHUNK: RecordDomain = RecordDomain::Blob(BlobKind::Chunk);
const VOLUME: VolumeId = VolumeId([1; 16]);
const SIZES_KIB: [usize; 5] = [1, 4, 64, 256, 1024];

fn main() {
    let mut criterion = thread_time_criterion();
    let sealed = VolumeKeys::for_encrypted(&MasterKey::generate(), VOLUME);
    let plain = VolumeKeys::for_plain(VOLUME);
    for (mode, keys) in [("sealed", &sealed), ("plain", &plain)] {
        bench_seal(&mut criterion, mode, keys);
        bench_open(&mut criterion, mode, keys);
    }
    bench_slot(&mut wall_time_criterion());
}

fn bench_seal(criterion: &mut Criterion<BenchClock>, mode: &str, keys: &VolumeKeys) {
    let mut group = criterion.benchmark_group(format!("seal/{mode}"));
    for kib in SIZES_KIB {
        let content = vec![7; kib << 10];
        let id = keys.compute_blob_id(BlobKind::Chunk, &content);
        let mut out = Vec::new();
        group.throughput(Throughput::Bytes(content.len() as u64));
        group.bench_function(format!("{kib}KiB"), |bencher| {
            bencher.iter(|| {
                out.clear();
                keys.seal_record(CHUNK, id.as_bytes(), black_box(&content), &mut out);
            });
        });
    }
    group.finish();
}

fn bench_open(criterion: &mut Criterion<BenchClock>, mode: &str, keys: &VolumeKeys) {
    let mut group = criterion.benchmark_group(format!("open/{mode}"));
    for kib in SIZES_KIB {
        let content = vec![7; kib << 10];
        let id = keys.compute_blob_id(BlobKind::Chunk, &content);
        let mut sealed = Vec::new();
        keys.seal_record(CHUNK, id.as_bytes(), &content, &mut sealed);
        let mut out = Vec::new();
        group.throughput(Throughput::Bytes(content.len() as u64));
        group.bench_function(format!("{kib}KiB"), |bencher| {
            bencher.iter(|| {
                out.clear();
                keys.open_record(CHUNK, id.as_bytes(), black_box(&sealed), &mut out).expect("it opens");
            });
        });
    }
    group.finish();
}

/// Stretching a passphrase uses all processors, so it is the time that passes which counts.
fn bench_slot(criterion: &mut Criterion<BenchClock>) {
    let master = MasterKey::generate();
    let mut group = criterion.benchmark_group("slot");
    group.sample_size(10);
    group.bench_function("create", |bencher| {
        bencher.iter(|| {
            KeySlot::create(SlotSecret::Passphrase(b"x"), &master, VOLUME, "", KdfParams::DEFAULT)
                .expect("it can be made")
        });
    });
    group.finish();
}

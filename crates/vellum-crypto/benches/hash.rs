//! The keyed id of a blob, which everything that is stored passes through.

use std::hint::black_box;

use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{BenchClock, thread_time_criterion};
use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_types::{BlobKind, VolumeId};

const VOLUME: VolumeId = VolumeId([1; 16]);

fn main() {
    let mut criterion = thread_time_criterion();
    bench_ids(&mut criterion);
}

fn bench_ids(criterion: &mut Criterion<BenchClock>) {
    let sealed = VolumeKeys::for_encrypted(&MasterKey::generate(), VOLUME);
    let plain = VolumeKeys::for_plain(VOLUME);
    for (mode, keys) in [("sealed", &sealed), ("plain", &plain)] {
        let mut group = criterion.benchmark_group(format!("hash/{mode}"));
        for kib in [4, 64, 256] {
            let content = vec![7; kib << 10];
            group.throughput(Throughput::Bytes(content.len() as u64));
            group.bench_function(format!("{kib}KiB"), |bencher| {
                bencher.iter(|| keys.compute_blob_id(BlobKind::Chunk, black_box(&content)));
            });
        }
        group.finish();
    }
}

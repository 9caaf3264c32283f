//! The keyed id of a blob, which everything that is stored passes through.

use std::hint::black_box;

use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{ProcessorTime, busy};
use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_types::{BlobKind, VolumeId};

const VOLUME: VolumeId = VolumeId([1; 16]);

fn main() {
    let mut criterion = busy();
    ids(&mut criterion);
}

fn ids(criterion: &mut Criterion<ProcessorTime>) {
    let sealed = VolumeKeys::sealed(&MasterKey::random(), VOLUME);
    let plain = VolumeKeys::plain(VOLUME);
    for (mode, keys) in [("sealed", &sealed), ("plain", &plain)] {
        let mut group = criterion.benchmark_group(format!("hash/{mode}"));
        for kib in [4, 64, 256] {
            let content = vec![7; kib << 10];
            group.throughput(Throughput::Bytes(content.len() as u64));
            group.bench_function(format!("{kib}KiB"), |bencher| {
                bencher.iter(|| keys.blob_id(BlobKind::Chunk, black_box(&content)));
            });
        }
        group.finish();
    }
}

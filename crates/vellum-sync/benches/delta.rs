//! What a delta costs: the signature of an old file, and looking for its blocks in a new one.

use std::cell::LazyCell;
use std::hint::black_box;

use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{ProcessorTime, busy, noise};
use vellum_sync::delta::{FileSignature, SignatureMatcher};

const SIZE: usize = 32 << 20;

fn main() {
    let mut criterion = busy();
    delta(&mut criterion);
}

fn delta(criterion: &mut Criterion<ProcessorTime>) {
    let old = LazyCell::new(|| noise(6, SIZE));
    let new = LazyCell::new(|| noise(7, SIZE));
    let matcher = LazyCell::new(|| SignatureMatcher::new(signature(&old)));
    let mut group = criterion.benchmark_group("delta");
    group.throughput(Throughput::Bytes(SIZE as u64));
    group.bench_function("signature", |bencher| bencher.iter(|| signature(&old)));
    group.bench_function("scan/known", |bencher| bencher.iter(|| scan(&matcher, &old)));
    group.bench_function("scan/unknown", |bencher| bencher.iter(|| scan(&matcher, &new)));
    group.finish();
}

fn signature(bytes: &[u8]) -> FileSignature {
    let read = FileSignature::read(&mut black_box(bytes), bytes.len() as u64);
    read.expect("memory is read").expect("the file is not too large")
}

fn scan(matcher: &SignatureMatcher, mut bytes: &[u8]) {
    let len = bytes.len() as u64;
    matcher
        .scan(&mut bytes, len, &mut |op| {
            black_box(op);
            Ok(())
        })
        .expect("memory is read");
}

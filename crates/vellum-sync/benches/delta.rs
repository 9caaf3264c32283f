//! What a delta costs: the signature of an old file, and looking for its blocks in a new one.

use std::cell::LazyCell;
use std::hint::black_box;

use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{BenchClock, random_bytes, thread_time_criterion};
use vellum_sync::remote::delta::{FileSignature, SignatureMatcher};

const SIZE: usize = 32 << 20;

fn main() {
    let mut criterion = thread_time_criterion();
    bench_delta(&mut criterion);
}

fn bench_delta(criterion: &mut Criterion<BenchClock>) {
    let old = LazyCell::new(|| random_bytes(6, SIZE));
    let new = LazyCell::new(|| random_bytes(7, SIZE));
    let matcher = LazyCell::new(|| SignatureMatcher::new(compute_signature(&old)));
    let mut group = criterion.benchmark_group("delta");
    group.throughput(Throughput::Bytes(SIZE as u64));
    group.bench_function("signature", |bencher| bencher.iter(|| compute_signature(&old)));
    group.bench_function("scan/known", |bencher| bencher.iter(|| scan_bytes(&matcher, &old)));
    group.bench_function("scan/unknown", |bencher| bencher.iter(|| scan_bytes(&matcher, &new)));
    group.finish();
}

fn compute_signature(bytes: &[u8]) -> FileSignature {
    let read = FileSignature::from_reader(&mut black_box(bytes), bytes.len() as u64);
    read.expect("memory is read").expect("the file is not too large")
}

fn scan_bytes(matcher: &SignatureMatcher, mut bytes: &[u8]) {
    let len = bytes.len() as u64;
    matcher
        .scan_file(&mut bytes, len, &mut |op| {
            black_box(op);
            Ok(())
        })
        .expect("memory is read");
}

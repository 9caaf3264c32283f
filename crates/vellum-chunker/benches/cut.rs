//! Cutting: random bytes, text-like bytes, zeros.

use std::cell::LazyCell;
use std::hint::black_box;
use std::sync::Once;

use vellum_benchkit::criterion::{Criterion, Throughput};
use vellum_benchkit::{BenchClock, random_bytes, record_figure, thread_time_criterion};
use vellum_chunker::{ChunkSizes, Chunker};

const SIZE: usize = 8 << 20;

fn main() {
    let mut criterion = thread_time_criterion();
    bench_cut(&mut criterion);
}

fn bench_cut(criterion: &mut Criterion<BenchClock>) {
    let chunker = Chunker::new(ChunkSizes::DEFAULT, &[7; 32]);
    let random = LazyCell::new(|| random_bytes(1, SIZE));
    let text = || random.iter().map(|byte| b"etaoin shrdlu\ncmf"[usize::from(byte % 17)]).collect::<Vec<_>>();
    let text = LazyCell::new(text);
    let zeros = LazyCell::new(|| vec![0; SIZE]);
    let mut group = criterion.benchmark_group("chunker/cut");
    group.throughput(Throughput::Bytes(SIZE as u64));
    let kinds: [(&str, &dyn Fn() -> usize); 3] = [
        ("random", &|| count_chunks(&chunker, &random)),
        ("text", &|| count_chunks(&chunker, &text)),
        ("zeros", &|| count_chunks(&chunker, &zeros)),
    ];
    for (name, cut) in kinds {
        let printed = Once::new();
        group.bench_function(name, |bencher| {
            printed.call_once(|| {
                let average = SIZE as f64 / cut() as f64;
                record_figure(&format!("chunker/cut/{name}"), "average chunk", average, "bytes");
            });
            bencher.iter(cut);
        });
    }
    group.finish();
}

/// Cuts all of it, and says into how many.
fn count_chunks(chunker: &Chunker, data: &[u8]) -> usize {
    let mut rest = data;
    let mut chunks = 0;
    while let Some(len) = chunker.find_chunk_end(black_box(rest), true) {
        rest = &rest[len..];
        chunks += 1;
    }
    chunks
}

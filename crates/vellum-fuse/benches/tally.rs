//! The cost of counting and timing a request, while no process reads the access log and while one does.
//!
//! To be compared with the request itself: a 4 KiB read through a mount (`bench/run.py measuring`).

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::sync::Arc;

use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{BenchClock, create_scratch_dir, thread_time_criterion};
use vellum_fuse::metrics::{RequestMetrics, ServedRequest};
use vellum_fuse::wire::{FuseOperation, RequestHeader};

fn main() {
    let mut criterion = thread_time_criterion();
    let metrics = RequestMetrics::default();
    bench_observe(&mut criterion, "tally/request/log-not-read", &metrics);
    bench_read_log(&mut criterion, &metrics);
}

fn bench_observe(criterion: &mut Criterion<BenchClock>, id: &str, metrics: &RequestMetrics) {
    let head = RequestHeader { opcode: 15, unique: 1, node: 17, uid: 1000, gid: 1000, pid: 4403 };
    let what = FuseOperation::Read { offset: 8192, len: 4096, direct: false };
    criterion.bench_function(id, |bench| {
        bench.iter(|| {
            metrics
                .observe_request(ServedRequest { head: &head, operation: &what }, || Ok(black_box(4096_u32)))
        });
    });
}

/// The same while the log is read. If the reader is too slow, lines are recorded and dropped.
fn bench_read_log(criterion: &mut Criterion<BenchClock>, metrics: &RequestMetrics) {
    let dir = create_scratch_dir();
    let path = dir.path().join("accesslog");
    let served = Arc::clone(&metrics.log).serve_pipe(&path).expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut pipe = File::open(&path).expect("the pipe");
        let mut bytes = vec![0; 1 << 16];
        while pipe.read(&mut bytes).is_ok_and(|read| read > 0) {}
    });
    while !metrics.log.has_reader() {
        std::thread::yield_now();
    }
    bench_observe(criterion, "tally/request/log-read", metrics);
    drop(served);
    reader.join().expect("the reader");
}

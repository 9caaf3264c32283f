//! What it costs that a request is counted and timed, while nobody reads the access log and while somebody does.
//!
//! To be set beside the request itself: a 4 KiB read through a mount (`bench/measuring.py`).

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::sync::Arc;

use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{ProcessorTime, create_scratch_dir, thread_time_criterion};
use vellum_fuse::metrics::{RequestMetrics, ServedRequest};
use vellum_fuse::wire::{FuseOperation, RequestHeader};

fn main() {
    let mut criterion = thread_time_criterion();
    let tally = RequestMetrics::default();
    bench_observe(&mut criterion, "tally/request/log-not-read", &tally);
    bench_read_log(&mut criterion, &tally);
}

fn bench_observe(criterion: &mut Criterion<ProcessorTime>, id: &str, tally: &RequestMetrics) {
    let head = RequestHeader { opcode: 15, unique: 1, node: 17, uid: 1000, gid: 1000, pid: 4403 };
    let what = FuseOperation::Read { offset: 8192, len: 4096, direct: false };
    criterion.bench_function(id, |bench| {
        bench.iter(|| {
            tally.observe_request(ServedRequest { head: &head, operation: &what }, || Ok(black_box(4096_u32)))
        });
    });
}

/// The same, and a line is made of it. Who reads may be too slow: then lines are made and dropped.
fn bench_read_log(criterion: &mut Criterion<ProcessorTime>, tally: &RequestMetrics) {
    let dir = create_scratch_dir();
    let path = dir.path().join("accesslog");
    let served = Arc::clone(&tally.log).serve_pipe(&path).expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut pipe = File::open(&path).expect("the pipe");
        let mut bytes = vec![0; 1 << 16];
        while pipe.read(&mut bytes).is_ok_and(|read| read > 0) {}
    });
    while !tally.log.has_reader() {
        std::thread::yield_now();
    }
    bench_observe(criterion, "tally/request/log-read", tally);
    drop(served);
    reader.join().expect("the reader");
}

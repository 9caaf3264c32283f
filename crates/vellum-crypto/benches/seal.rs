//! Throughput of hashing, sealing and opening on one core, and the cost of one passphrase try.
//! The best of many short rounds, so that other work on the machine disturbs it little.

use std::hint::black_box;
use std::time::Instant;

use vellum_crypto::{Domain, KdfParams, MasterKey, Secret, Slot, VolumeKeys};
use vellum_types::{BlobKind, VolumeId};

const CHUNK: Domain = Domain::Blob(BlobKind::Chunk);
const VOLUME: VolumeId = VolumeId([1; 16]);
/// Bytes worked on in one round.
const ROUND: usize = 2 << 20;
const ROUNDS: usize = 200;
/// Slots made, each of which takes long.
const SLOTS: usize = 5;

fn main() {
    let sealed = VolumeKeys::sealed(&MasterKey::random(), VOLUME);
    let plain = VolumeKeys::plain(VOLUME);
    for size in [4 << 10, 64 << 10, 256 << 10] {
        println!("{} KiB records", size >> 10);
        measure_records("sealed", &sealed, size);
        measure_records("plain", &plain, size);
    }
    measure_slot();
}

fn measure_records(mode: &str, keys: &VolumeKeys, size: usize) {
    let content = vec![7; size];
    let id = keys.blob_id(BlobKind::Chunk, &content);
    let mut out = Vec::new();
    report(&format!("  {mode} blob_id"), size, || {
        black_box(keys.blob_id(BlobKind::Chunk, black_box(&content)));
    });
    report(&format!("  {mode} seal"), size, || {
        out.clear();
        keys.seal(CHUNK, id.as_bytes(), black_box(&content), &mut out);
    });
    let sealed = out.clone();
    report(&format!("  {mode} open"), size, || {
        out.clear();
        keys.open(CHUNK, id.as_bytes(), black_box(&sealed), &mut out).expect("it opens");
    });
}

fn report(what: &str, size: usize, mut work: impl FnMut()) {
    let repeat = ROUND / size;
    let seconds = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..repeat).for_each(|_| work());
        start.elapsed().as_secs_f64()
    };
    let best = (0..ROUNDS).map(|_| seconds(&mut work)).fold(f64::MAX, f64::min);
    println!("{what}: {:.0} MB/s", ROUND as f64 / 1e6 / best);
}

fn measure_slot() {
    let master = MasterKey::random();
    let seconds = || {
        let start = Instant::now();
        let slot = Slot::create(Secret::Passphrase(b"x"), &master, VOLUME, "", KdfParams::DEFAULT);
        black_box(slot).expect("it can be made");
        start.elapsed().as_secs_f64()
    };
    let best = (0..SLOTS).map(|_| seconds()).fold(f64::MAX, f64::min);
    println!("a slot with default costs: {:.0} ms", best * 1e3);
}

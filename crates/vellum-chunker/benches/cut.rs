//! Throughput of cutting, in MB/s on one core: random bytes, text-like bytes, zeros.
//! The best of many short rounds, so that other work on the machine disturbs it little.

use std::hint::black_box;
use std::time::Instant;

use vellum_chunker::{Chunker, Params};

const SIZE: usize = 8 << 20;
const ROUNDS: usize = 100;

fn main() {
    let chunker = Chunker::new(Params::DEFAULT, &[7; 32]);
    let mut random = vec![0; SIZE];
    blake3::Hasher::new().finalize_xof().fill(&mut random);
    let text: Vec<u8> = random.iter().map(|byte| b"etaoin shrdlu\ncmf"[usize::from(byte % 17)]).collect();
    for (name, data) in [("random", &random), ("text", &text), ("zeros", &vec![0; SIZE])] {
        let rounds: Vec<_> = (0..ROUNDS).map(|_| measure(&chunker, data)).collect();
        let best = rounds.iter().map(|round| round.0).fold(0.0, f64::max);
        let chunks = rounds.first().map_or(1, |round| round.1);
        println!("cut {name}: {best:.0} MB/s, average chunk {} bytes", data.len() / chunks);
    }
}

fn measure(chunker: &Chunker, data: &[u8]) -> (f64, usize) {
    let start = Instant::now();
    let (mut rest, mut chunks) = (data, 0);
    while let Some(len) = chunker.cut(black_box(rest), true) {
        rest = &rest[len..];
        chunks += 1;
    }
    (data.len() as f64 / 1e6 / start.elapsed().as_secs_f64(), chunks)
}

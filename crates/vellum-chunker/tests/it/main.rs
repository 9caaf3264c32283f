//! Properties of boundaries, a reference implementation that follows the format's text, and golden boundaries.

mod golden;
mod properties;
mod reference;

use vellum_chunker::{ChunkSizes, Chunker};

/// Small sizes, so that a test has many chunks: 1 KiB, 8 KiB, 32 KiB.
fn small() -> ChunkSizes {
    ChunkSizes::new(1 << 10, 8 << 10, 32 << 10).expect("the sizes are in range")
}

/// Bytes that look random and are the same in every run.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Lengths of all chunks of a whole file.
fn lengths(chunker: &Chunker, mut data: &[u8]) -> Vec<usize> {
    let mut all = Vec::new();
    while let Some(len) = chunker.find_chunk_end(data, true) {
        all.push(len);
        data = &data[len..];
    }
    all
}

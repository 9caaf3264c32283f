//! Chunking, hashing, compressing and the reverse, sealing, and all of it, on bytes that compress about as well as text.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vellum_chunker::{ChunkSizes, Chunker};
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_store::BlobOptions;
use vellum_types::BlobKind;
use vellum_volume::ProgressMeter;

use super::{keys, store};
use crate::error::{BenchError, Result, go_on};
use crate::gang::together;
use crate::report::BenchReport;

const MIB: f64 = (1 << 20) as f64;

/// A stage is repeated for at least this long.
const LEAST: Duration = Duration::from_millis(40);

/// All rows of one size.
pub fn run(size: u64, threads: usize, report: &mut BenchReport, meter: &ProgressMeter) -> Result<()> {
    let data = text(usize::try_from(size).unwrap_or(usize::MAX), 0);
    let (keys, shown) = (keys(), shown(size));
    let chunker = Chunker::new(ChunkSizes::DEFAULT, &keys.chunker_key());
    let chunks = cut(&chunker, &data);
    let mut stage = |name: &str, work: &mut dyn FnMut() -> Result<()>| {
        go_on(meter)?;
        let (start, mut times) = (Instant::now(), 0_u32);
        while times == 0 || start.elapsed() < LEAST {
            work()?;
            times += 1;
        }
        meter.add(1, size * u64::from(times));
        let mebibytes = size as f64 * f64::from(times) / MIB;
        report.rate(&format!("{name} {shown}"), "MiB/s", mebibytes, start.elapsed().as_secs_f64());
        Ok::<_, BenchError>(())
    };
    stage("chunk", &mut || {
        black_box(cut(&chunker, black_box(&data)));
        Ok(())
    })?;
    stage("hash", &mut || {
        for chunk in &chunks {
            black_box(keys.blob_id(BlobKind::Chunk, chunk));
        }
        Ok(())
    })?;
    stage("compress", &mut || compress(&chunks))?;
    let compressed = compressed(&chunks)?;
    stage("decompress", &mut || decompress(&compressed))?;
    stage("seal", &mut || {
        seal(&keys, &chunks);
        Ok(())
    })?;
    whole(size, &format!("whole {shown}"), 1, report, meter)?;
    whole(size, &format!("whole {shown}, {threads} threads"), threads, report, meter)
}

fn cut<'d>(chunker: &Chunker, mut rest: &'d [u8]) -> Vec<&'d [u8]> {
    let mut chunks = Vec::new();
    while let Some((chunk, after)) = chunker.cut(rest, true).and_then(|len| rest.split_at_checked(len)) {
        chunks.push(chunk);
        rest = after;
    }
    chunks
}

fn compress(chunks: &[&[u8]]) -> Result<()> {
    let mut compressor = compressor()?;
    for chunk in chunks {
        black_box(compressor.compress(chunk).map_err(failed("compress"))?);
    }
    Ok(())
}

/// Each chunk, compressed, with the length that it had.
fn compressed(chunks: &[&[u8]]) -> Result<Vec<(Vec<u8>, usize)>> {
    let mut compressor = compressor()?;
    let mut one = |chunk: &&[u8]| Ok((compressor.compress(chunk).map_err(failed("compress"))?, chunk.len()));
    chunks.iter().map(&mut one).collect()
}

fn decompress(chunks: &[(Vec<u8>, usize)]) -> Result<()> {
    let mut decompressor = zstd::bulk::Decompressor::new().map_err(failed("decompress"))?;
    for (chunk, len) in chunks {
        black_box(decompressor.decompress(chunk, *len).map_err(failed("decompress"))?);
    }
    Ok(())
}

fn compressor() -> Result<zstd::bulk::Compressor<'static>> {
    zstd::bulk::Compressor::new(BlobOptions::default().level).map_err(failed("compress"))
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
    BenchError::io(what, "a chunk")
}

fn seal(keys: &VolumeKeys, chunks: &[&[u8]]) {
    let mut out = Vec::new();
    for chunk in chunks {
        out.clear();
        keys.seal(RecordDomain::Blob(BlobKind::Chunk), b"", chunk, &mut out);
        black_box(&out);
    }
}

/// Everything, of several threads at once; each time with new bytes, so that nothing is known already.
fn whole(
    size: u64,
    name: &str,
    threads: usize,
    report: &mut BenchReport,
    meter: &ProgressMeter,
) -> Result<()> {
    let keys = keys();
    let (store, _local) = store(&keys)?;
    let chunker = Chunker::new(ChunkSizes::DEFAULT, &keys.chunker_key());
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    let rounds = (4 * (1 << 20) / size.max(1)).clamp(1, 64);
    let pieces: Vec<Vec<Vec<u8>>> = (0..threads as u64)
        .map(|thread| (0..rounds).map(|round| text(len, 1 + thread * rounds + round)).collect())
        .collect();
    let writer = store.writer();
    let gang = together(threads, |thread| {
        for piece in pieces.get(thread).into_iter().flatten() {
            go_on(meter)?;
            for chunk in cut(&chunker, piece) {
                writer.put(BlobKind::Chunk, chunk)?;
            }
            meter.add(1, size);
        }
        Ok(())
    })?;
    let start = Instant::now();
    writer.finish()?;
    let mebibytes = size as f64 * (rounds * threads as u64) as f64 / MIB;
    report.rate(name, "MiB/s", mebibytes, gang.seconds() + start.elapsed().as_secs_f64());
    Ok(())
}

/// Bytes like text: few letters, some more often than others, and words that come again.
fn text(len: usize, series: u64) -> Vec<u8> {
    const LETTERS: &[u8; 32] = b"eeeeettttaaaoooiiinnssrrhhdlu   ";
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ series.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
    let mut text = Vec::with_capacity(len + 8);
    while text.len() < len {
        // xorshift64, Marsaglia.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let letters = (0..8)
            .map(|at| LETTERS.get((state >> (at * 5)) as usize % LETTERS.len()).copied().unwrap_or(b' '));
        text.extend(letters);
    }
    text.truncate(len);
    text
}

fn shown(size: u64) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{:.0} KiB", size as f64 / 1024.0),
        _ => format!("{:.0} MiB", size as f64 / MIB),
    }
}

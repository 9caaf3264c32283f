//! Chunking, hashing, compressing and the reverse, sealing, and all of it, on bytes that compress about as well as text.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vellum_chunker::{ChunkSizes, Chunker};
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_host::ProgressMeter;
use vellum_store::BlobOptions;
use vellum_types::BlobKind;

use super::{new_bench_keys, new_discarding_store};
use crate::error::{BenchError, Result, check_interrupted};
use crate::report::BenchReport;
use crate::thread_group::run_in_threads;

const MIB: f64 = (1 << 20) as f64;

/// A stage is repeated for at least this long.
const LEAST: Duration = Duration::from_millis(40);

/// All rows of one size.
pub fn run_stage_benches(
    size: u64,
    threads: usize,
    report: &mut BenchReport,
    meter: &ProgressMeter,
) -> Result<()> {
    let data = generate_text(usize::try_from(size).unwrap_or(usize::MAX), 0);
    let keys = new_bench_keys();
    let shown = format_block_size(size);
    let chunker = Chunker::new(ChunkSizes::DEFAULT, &keys.chunker_key());
    let chunks = split_chunks(&chunker, &data);
    let mut stage = |name: &str, work: &mut dyn FnMut() -> Result<()>| {
        check_interrupted(meter)?;
        let start = Instant::now();
        let mut times = 0_u32;
        // Once at least, however slow the machine is.
        while times == 0 || start.elapsed() < LEAST {
            work()?;
            times += 1;
        }
        meter.add_progress(1, size * u64::from(times));
        let mebibytes = size as f64 * f64::from(times) / MIB;
        report.add_rate(&format!("{name} {shown}"), "MiB/s", mebibytes, start.elapsed().as_secs_f64());
        Ok::<_, BenchError>(())
    };
    stage("chunk", &mut || {
        // Without this the compiler may leave out work whose result nobody uses.
        black_box(split_chunks(&chunker, black_box(&data)));
        Ok(())
    })?;
    stage("hash", &mut || {
        for chunk in &chunks {
            black_box(keys.compute_blob_id(BlobKind::Chunk, chunk));
        }
        Ok(())
    })?;
    stage("compress", &mut || compress_chunks(&chunks))?;
    // Not measured: it is the input of the next stage.
    let compressed = collect_compressed_chunks(&chunks)?;
    stage("decompress", &mut || decompress_chunks(&compressed))?;
    stage("seal", &mut || {
        seal_chunks(&keys, &chunks);
        Ok(())
    })?;
    measure_whole_pipeline(size, &format!("whole {shown}"), 1, report, meter)?;
    measure_whole_pipeline(size, &format!("whole {shown}, {threads} threads"), threads, report, meter)
}

fn split_chunks<'d>(chunker: &Chunker, mut rest: &'d [u8]) -> Vec<&'d [u8]> {
    let mut chunks = Vec::new();
    while let Some((chunk, after)) =
        chunker.find_chunk_end(rest, true).and_then(|len| rest.split_at_checked(len))
    {
        chunks.push(chunk);
        rest = after;
    }
    chunks
}

fn compress_chunks(chunks: &[&[u8]]) -> Result<()> {
    let mut compressor = new_compressor()?;
    for chunk in chunks {
        black_box(compressor.compress(chunk).map_err(compression_error("compress"))?);
    }
    Ok(())
}

/// Each chunk, compressed, with the length that it had.
fn collect_compressed_chunks(chunks: &[&[u8]]) -> Result<Vec<(Vec<u8>, usize)>> {
    let mut compressor = new_compressor()?;
    let mut one =
        |chunk: &&[u8]| Ok((compressor.compress(chunk).map_err(compression_error("compress"))?, chunk.len()));
    chunks.iter().map(&mut one).collect()
}

fn decompress_chunks(chunks: &[(Vec<u8>, usize)]) -> Result<()> {
    let mut decompressor = zstd::bulk::Decompressor::new().map_err(compression_error("decompress"))?;
    for (chunk, len) in chunks {
        black_box(decompressor.decompress(chunk, *len).map_err(compression_error("decompress"))?);
    }
    Ok(())
}

fn new_compressor() -> Result<zstd::bulk::Compressor<'static>> {
    zstd::bulk::Compressor::new(BlobOptions::default().level).map_err(compression_error("compress"))
}

fn compression_error(what: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
    BenchError::io_error(what, "a chunk")
}

fn seal_chunks(keys: &VolumeKeys, chunks: &[&[u8]]) {
    // One buffer for all chunks, so that no allocations are measured.
    let mut out = Vec::new();
    for chunk in chunks {
        out.clear();
        keys.seal_record(RecordDomain::Blob(BlobKind::Chunk), b"", chunk, &mut out);
        black_box(&out);
    }
}

/// Everything, of several threads at once; each time with new bytes, so that nothing is known already.
fn measure_whole_pipeline(
    size: u64,
    name: &str,
    threads: usize,
    report: &mut BenchReport,
    meter: &ProgressMeter,
) -> Result<()> {
    let keys = new_bench_keys();
    let (store, _local) = new_discarding_store(&keys)?;
    let chunker = Chunker::new(ChunkSizes::DEFAULT, &keys.chunker_key());
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    // Small pieces are repeated: a single one would be done before the clock has moved on by much.
    let rounds = (4 * (1 << 20) / size.max(1)).clamp(1, 64);
    // Made before the clock starts, since making text is not a part of the pipeline.
    let pieces: Vec<Vec<Vec<u8>>> = (0..threads as u64)
        .map(|thread| (0..rounds).map(|round| generate_text(len, 1 + thread * rounds + round)).collect())
        .collect();
    let writer = store.create_writer();
    let group = run_in_threads(threads, |thread| {
        for piece in pieces.get(thread).into_iter().flatten() {
            check_interrupted(meter)?;
            for chunk in split_chunks(&chunker, piece) {
                writer.put_blob(BlobKind::Chunk, chunk)?;
            }
            meter.add_progress(1, size);
        }
        Ok(())
    })?;
    let start = Instant::now();
    // Completing the last pack belongs to the work, though to none of the threads.
    writer.finish()?;
    let mebibytes = size as f64 * (rounds * threads as u64) as f64 / MIB;
    report.add_rate(name, "MiB/s", mebibytes, group.elapsed_seconds() + start.elapsed().as_secs_f64());
    Ok(())
}

/// Bytes like text: few letters, some more often than others, and words that come again.
fn generate_text(len: usize, series: u64) -> Vec<u8> {
    const LETTERS: &[u8; 32] = b"eeeeettttaaaoooiiinnssrrhhdlu   ";
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ series.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
    // Eight letters are added at once, of which the last ones may be cut off.
    let mut text = Vec::with_capacity(len + 8);
    while text.len() < len {
        // xorshift64, Marsaglia.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Five bits choose one of 32 letters, and eight letters take 40 of the 64 bits.
        let letters = (0..8)
            .map(|at| LETTERS.get((state >> (at * 5)) as usize % LETTERS.len()).copied().unwrap_or(b' '));
        text.extend(letters);
    }
    text.truncate(len);
    text
}

fn format_block_size(size: u64) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{:.0} KiB", size as f64 / 1024.0),
        _ => format!("{:.0} MiB", size as f64 / MIB),
    }
}

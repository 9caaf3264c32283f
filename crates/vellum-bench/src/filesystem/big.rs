//! Big files: one of each thread, written and read from beginning to end.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise, fsync};
use vellum_host::beneath::HeldDir;

use super::FilesystemBenchStep;
use super::payload::{ThreadPayload, verify_block};
use crate::error::{BenchError, Result};
use crate::report::{BenchCurve, BenchReport};
use crate::thread_group::{ThreadGroupResult, run_in_threads};

const MIB: f64 = (1 << 20) as f64;

/// Points of a throughput curve: as many as a chart can show apart.
const POINTS: u32 = 60;

/// What one thread did by when.
struct WriteProgress {
    done: Vec<(Instant, u64)>,
    /// When the last byte was handed over; the flush comes after it.
    handed: Instant,
}

/// All steps of one run.
pub fn run_big_file_steps(step: &FilesystemBenchStep<'_>, report: &mut BenchReport) -> Result<()> {
    let folder = step.ground.create_dir("bench-big")?;
    let mebibytes = step.total_of_threads(step.parameters.big_file_size) / MIB;
    let written = run_in_threads(step.parameters.threads, |thread| write_big_file(step, &folder, thread))?;
    // The slowest thread counts, since the rate is that of the bytes of all threads.
    let handed = written.results.iter().map(|one| one.handed).max().unwrap_or(written.start);
    let seconds = handed.duration_since(written.start).as_secs_f64();
    report.add_rate("big write", "MiB/s", mebibytes, seconds);
    report.add_rate("big write, flushed", "MiB/s", mebibytes, written.elapsed_seconds());
    let mut timelines = vec![throughput_curve("big write", &written, |one| &one.done)];
    // The cold read comes first, and leaves those pages in the cache that the warm one finds.
    for (name, cold) in [("big read, cold", true), ("big read, warm", false)] {
        let read =
            run_in_threads(step.parameters.threads, |thread| read_big_file(step, &folder, thread, cold))?;
        let seconds = net_read_seconds(&read);
        report.add_rate(name, "MiB/s", mebibytes, seconds);
        timelines.push(throughput_curve(name, &read, |one| &one.done));
    }
    // Curves are not averaged: those of the last run replace the earlier ones.
    report.timelines = timelines;
    step.ground.remove_contents()
}

fn big_file_name(thread: usize) -> String {
    format!("bench-big-{thread}")
}

fn big_file_series(step: &FilesystemBenchStep<'_>, thread: usize) -> u64 {
    // Each run of each thread has bytes of its own, so that a filesystem that shares equal content gains
    // nothing.
    (step.run as u64) << 32 | thread as u64
}

fn write_big_file(step: &FilesystemBenchStep<'_>, folder: &HeldDir, thread: usize) -> Result<WriteProgress> {
    let name = big_file_name(thread);
    let mut payload = ThreadPayload::new(block_len(step), big_file_series(step, thread));
    let file =
        folder.create_file(name.as_bytes(), 0o644).map_err(|error| step.ground.to_bench_error(error))?;
    let done = for_each_block(step, |number, offset, len| {
        let block = payload.fill_block(number, len);
        file.write_all_at(block, offset).map_err(BenchError::io_error("write", name.clone()))
    })?;
    // Before the flush, so that one pass gives both figures.
    let handed = Instant::now();
    fsync(&file).map_err(|errno| BenchError::io_error("flush", name)(errno.into()))?;
    Ok(WriteProgress { done, handed })
}

/// What one thread read: from when, and what by when.
struct ReadProgress {
    start: Instant,
    done: Vec<(Instant, u64)>,
}

fn read_big_file(
    step: &FilesystemBenchStep<'_>,
    folder: &HeldDir,
    thread: usize,
    cold: bool,
) -> Result<ReadProgress> {
    let name = big_file_name(thread);
    let file = open_bench_file(step, folder, &name)?;
    if cold {
        drop_page_cache(&file)?;
    }
    let mut buffer = vec![0; block_len(step)];
    let start = Instant::now();
    let done = for_each_block(step, |number, offset, len| {
        let wanted = buffer.get_mut(..len).unwrap_or_default();
        file.read_exact_at(wanted, offset).map_err(BenchError::io_error("read", name.clone()))?;
        verify_block(wanted, big_file_series(step, thread), number, &name)
    })?;
    Ok(ReadProgress { start, done })
}

/// From the first byte that was asked for to the last that came: what it takes to empty the cache does not count.
fn net_read_seconds(group: &ThreadGroupResult<ReadProgress>) -> f64 {
    let start = group.results.iter().map(|one| one.start).min().unwrap_or(group.start);
    (group.start + group.elapsed).duration_since(start).as_secs_f64()
}

pub(super) fn open_bench_file(step: &FilesystemBenchStep<'_>, folder: &HeldDir, name: &str) -> Result<File> {
    folder
        .open_file(name.as_bytes())
        .map(|opened| opened.file)
        .map_err(|error| step.ground.to_bench_error(error))
}

/// Takes a file's pages out of the kernel's cache.
pub(super) fn drop_page_cache(file: &File) -> Result<()> {
    // The kernel drops clean pages only: the file was flushed when it was written.
    fadvise(file, 0, None, Advice::DontNeed)
        .map_err(|errno| BenchError::io_error("empty the cache of", "a file")(errno.into()))
}

fn block_len(step: &FilesystemBenchStep<'_>) -> usize {
    // A file that is smaller than a block is written and read at once.
    usize::try_from(step.parameters.io_size.min(step.parameters.big_file_size)).unwrap_or(usize::MAX)
}

/// Does something with every block of a big file: its number, where it begins, its length.
fn for_each_block(
    step: &FilesystemBenchStep<'_>,
    mut work: impl FnMut(u64, u64, usize) -> Result<()>,
) -> Result<Vec<(Instant, u64)>> {
    let size = step.parameters.big_file_size;
    let block = block_len(step) as u64;
    let every = (size / u64::from(POINTS)).max(block);
    let mut done = Vec::with_capacity(POINTS as usize + 1);
    let mut noted = 0;
    for number in 0..size.div_ceil(block) {
        let offset = number * block;
        let len = block.min(size - offset);
        work(number, offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        step.record_operation(len)?;
        // A point for each block would take memory with the size of the file, and a chart could not show them
        // apart.
        if offset + len >= noted + every || offset + len == size {
            done.push((Instant::now(), offset + len - noted));
            noted = offset + len;
        }
    }
    Ok(done)
}

/// Throughput of all threads together while time passes.
fn throughput_curve<T>(
    name: &str,
    group: &ThreadGroupResult<T>,
    done: impl Fn(&T) -> &Vec<(Instant, u64)>,
) -> BenchCurve {
    let end = group.results.iter().flat_map(&done).map(|(when, _)| *when).max().unwrap_or(group.start);
    // At least a microsecond, since rates are divided by it.
    let width = (end.duration_since(group.start) / POINTS).max(Duration::from_micros(1));
    let mut bytes = vec![0_u64; POINTS as usize];
    for (when, amount) in group.results.iter().flat_map(&done) {
        let place = when.duration_since(group.start).as_secs_f64() / width.as_secs_f64();
        // The end belongs to the last one.
        if let Some(slot) = bytes.get_mut((place as usize).min(POINTS as usize - 1)) {
            *slot += amount;
        }
    }
    let width = width.as_secs_f64();
    // Each point stands in the middle of the time that it sums up.
    let point = |(place, bytes): (usize, &u64)| ((place as f64 + 0.5) * width, *bytes as f64 / MIB / width);
    let points = bytes.iter().enumerate().map(point).collect();
    BenchCurve { name: name.into(), x_unit: "s".into(), y_unit: "MiB/s".into(), points }
}

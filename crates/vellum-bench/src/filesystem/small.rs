//! Small files: each thread writes, reads and looks at its own, in a directory of its own.

use std::io::{Read, Write};

use vellum_host::beneath::HeldDir;

use super::FilesystemBenchStep;
use super::big::{drop_page_cache, open_bench_file};
use super::payload::{ThreadPayload, verify_block};
use crate::error::{BenchError, Result};
use crate::report::BenchReport;
use crate::thread_group::run_in_threads;

/// All steps of one run.
pub fn run_small_file_steps(step: &FilesystemBenchStep<'_>, report: &mut BenchReport) -> Result<()> {
    let threads = step.parameters.threads;
    let folders = create_thread_dirs(step, "bench-small")?;
    let files = step.total_of_threads(step.parameters.small_file_count);
    let mut timed = |name: &str, unit: &str, work: &(dyn Fn(usize, &HeldDir) -> Result<()> + Sync)| {
        let group = run_in_threads(threads, |thread| {
            folders.get(thread).map_or(Ok(()), |folder| work(thread, folder))
        })?;
        report.add_rate(name, unit, files, group.elapsed_seconds());
        Ok::<_, BenchError>(())
    };
    timed("small write", "files/s", &|thread, folder| write_small_files(step, folder, thread))?;
    // Not measured, and therefore done by one thread: it only prepares the cold reads.
    for folder in &folders {
        for_each_small_file(step, |name, _| {
            let file = open_bench_file(step, folder, name)?;
            // Only clean pages can be dropped.
            rustix::fs::fsync(&file).map_err(|errno| BenchError::io_error("flush", name)(errno.into()))?;
            drop_page_cache(&file)
        })?;
    }
    timed("small read, cold", "files/s", &|thread, folder| read_small_files(step, folder, thread))?;
    // The reads before have brought the files into the cache.
    timed("small read, warm", "files/s", &|thread, folder| read_small_files(step, folder, thread))?;
    timed("stat", "op/s", &|_, folder| {
        for_each_small_file(step, |name, _| {
            folder.stat(name.as_bytes()).map(drop).map_err(|error| step.ground.to_bench_error(error))
        })
    })?;
    step.ground.remove_contents()
}

/// A directory of each thread.
pub(super) fn create_thread_dirs(step: &FilesystemBenchStep<'_>, stem: &str) -> Result<Vec<HeldDir>> {
    (0..step.parameters.threads).map(|thread| step.ground.create_dir(&format!("{stem}-{thread}"))).collect()
}

/// Does something with the name and the number of every small file of a thread.
pub(super) fn for_each_small_file(
    step: &FilesystemBenchStep<'_>,
    mut work: impl FnMut(&str, u64) -> Result<()>,
) -> Result<()> {
    let mut name = String::new();
    for number in 0..step.parameters.small_file_count {
        use std::fmt::Write;
        // One buffer for all names, so that no allocations are measured.
        name.clear();
        // Writing into a String does not fail.
        let _ = write!(name, "bench-{number}");
        work(&name, number)?;
        step.record_operation(0)?;
    }
    Ok(())
}

fn small_file_series(step: &FilesystemBenchStep<'_>, thread: usize) -> u64 {
    // The highest bit sets these bytes apart from those of big files.
    1 << 63 | (step.run as u64) << 32 | thread as u64
}

fn small_file_len(step: &FilesystemBenchStep<'_>) -> usize {
    usize::try_from(step.parameters.small_file_size).unwrap_or(usize::MAX)
}

fn write_small_files(step: &FilesystemBenchStep<'_>, folder: &HeldDir, thread: usize) -> Result<()> {
    let mut payload = ThreadPayload::new(small_file_len(step), small_file_series(step, thread));
    for_each_small_file(step, |name, number| {
        let mut file =
            folder.create_file(name.as_bytes(), 0o644).map_err(|error| step.ground.to_bench_error(error))?;
        for piece in payload.fill_block(number, small_file_len(step)).chunks(io_size(step)) {
            file.write_all(piece).map_err(BenchError::io_error("write", name))?;
        }
        Ok(())
    })
}

fn read_small_files(step: &FilesystemBenchStep<'_>, folder: &HeldDir, thread: usize) -> Result<()> {
    let mut buffer = vec![0; small_file_len(step)];
    for_each_small_file(step, |name, number| {
        let mut file = open_bench_file(step, folder, name)?;
        for piece in buffer.chunks_mut(io_size(step)) {
            file.read_exact(piece).map_err(BenchError::io_error("read", name))?;
        }
        verify_block(&buffer, small_file_series(step, thread), number, name)
    })
}

fn io_size(step: &FilesystemBenchStep<'_>) -> usize {
    usize::try_from(step.parameters.io_size).unwrap_or(usize::MAX)
}

//! Names without content: made, listed, renamed and removed by each thread in a directory of its own; and what it
//! costs to make one small write durable.

use std::os::unix::fs::FileExt;

use rustix::fs::fsync;
use vellum_host::beneath::{BeneathError, HeldDir};

use super::FilesystemBenchStep;
use super::small::{create_thread_dirs, for_each_small_file};
use crate::error::{BenchError, Result};
use crate::report::BenchReport;
use crate::thread_group::run_in_threads;

/// Most flushes of a thread: each waits for the disk.
const FLUSHES_MAX: u64 = 100;

/// Bytes that are written before each flush.
const FLUSHED: usize = 4096;

type NamesOutcome = Result<(), BeneathError>;

/// All steps of one run.
pub fn run_name_steps(step: &FilesystemBenchStep<'_>, report: &mut BenchReport) -> Result<()> {
    let folders = create_thread_dirs(step, "bench-names")?;
    let count = step.total_of_threads(step.parameters.small_file_count);
    let every = |work: &(dyn Fn(&HeldDir, &str) -> NamesOutcome + Sync)| {
        run_in_threads(step.parameters.threads, |thread| {
            // There is one for each thread, which the type does not say.
            let Some(folder) = folders.get(thread) else { return Ok(()) };
            for_each_small_file(step, |name, _| {
                work(folder, name).map_err(|error| step.ground.to_bench_error(error))
            })
        })
        .map(|group| group.elapsed_seconds())
    };
    report.add_rate("create", "op/s", count, every(&create_empty_file)?);
    report.add_rate(
        "mkdir",
        "op/s",
        count,
        every(&|folder, name| folder.create_dir(dir_name(name).as_bytes(), 0o755))?,
    );
    report.add_rate(
        "rename",
        "op/s",
        count,
        every(&|folder, name| folder.rename(name.as_bytes(), folder, renamed_name(name).as_bytes()))?,
    );
    // The directories from above are listed, too. So the rate is that of the names that were found.
    let listed = run_in_threads(step.parameters.threads, |thread| {
        folders
            .get(thread)
            .map_or(Ok(0), |folder| folder.read_names().map(|names| names.len()))
            .map_err(|error| step.ground.to_bench_error(error))
    })?;
    report.add_rate(
        "readdir",
        "names/s",
        listed.results.iter().sum::<usize>() as f64,
        listed.elapsed_seconds(),
    );
    report.add_rate(
        "unlink",
        "op/s",
        count,
        every(&|folder, name| folder.unlink(renamed_name(name).as_bytes()))?,
    );
    report.add_rate(
        "rmdir",
        "op/s",
        count,
        every(&|folder, name| folder.remove_dir(dir_name(name).as_bytes()))?,
    );
    let flushes = step.parameters.small_file_count.min(FLUSHES_MAX);
    let flushed = run_in_threads(step.parameters.threads, |thread| {
        folders.get(thread).map_or(Ok(()), |folder| write_and_fsync(step, folder, flushes))
    })?;
    report.add_rate("fsync", "op/s", step.total_of_threads(flushes), flushed.elapsed_seconds());
    step.ground.remove_contents()
}

fn create_empty_file(folder: &HeldDir, name: &str) -> NamesOutcome {
    folder.create_file(name.as_bytes(), 0o644).map(drop)
}

fn dir_name(name: &str) -> String {
    format!("{name}-d")
}

fn renamed_name(name: &str) -> String {
    format!("{name}-r")
}

fn write_and_fsync(step: &FilesystemBenchStep<'_>, folder: &HeldDir, flushes: u64) -> Result<()> {
    let file =
        folder.create_file(b"bench-flushed", 0o644).map_err(|error| step.ground.to_bench_error(error))?;
    for number in 0..flushes {
        // Other bytes in another place each time: without a change a flush would have nothing to wait for.
        let bytes = [u8::try_from(number % 251).unwrap_or_default(); FLUSHED];
        file.write_all_at(&bytes, number * FLUSHED as u64)
            .map_err(BenchError::io_error("write", "a file"))?;
        fsync(&file).map_err(|errno| BenchError::io_error("flush", "a file")(errno.into()))?;
        step.record_operation(FLUSHED as u64)?;
    }
    Ok(())
}

//! Names without content: made, listed, renamed and removed by each thread in a directory of its own; and what it
//! costs to make one small write durable.

use std::os::unix::fs::FileExt;

use rustix::fs::fsync;
use vellum_checkout::beneath::{BeneathError, HeldDir};

use super::FilesystemBenchStep;
use super::small::{each, folders};
use crate::error::{BenchError, Result};
use crate::gang::together;
use crate::report::BenchReport;

/// Most flushes of a thread: each waits for the disk.
const FLUSHES_MAX: u64 = 100;

/// Bytes that are written before each flush.
const FLUSHED: usize = 4096;

type NamesOutcome = std::result::Result<(), BeneathError>;

/// All steps of one run.
pub fn run(step: &FilesystemBenchStep<'_>, report: &mut BenchReport) -> Result<()> {
    let folders = folders(step, "bench-names")?;
    let count = step.all(step.parameters.small_file_count);
    let every = |work: &(dyn Fn(&HeldDir, &str) -> NamesOutcome + Sync)| {
        together(step.parameters.threads, |thread| {
            let Some(folder) = folders.get(thread) else { return Ok(()) };
            each(step, |name, _| work(folder, name).map_err(|error| step.ground.blame(error)))
        })
        .map(|gang| gang.seconds())
    };
    report.rate("create", "op/s", count, every(&create)?);
    report.rate(
        "mkdir",
        "op/s",
        count,
        every(&|folder, name| folder.make_dir(directory(name).as_bytes(), 0o755))?,
    );
    report.rate(
        "rename",
        "op/s",
        count,
        every(&|folder, name| folder.rename(name.as_bytes(), folder, renamed(name).as_bytes()))?,
    );
    let listed = together(step.parameters.threads, |thread| {
        folders
            .get(thread)
            .map_or(Ok(0), |folder| folder.names().map(|names| names.len()))
            .map_err(|error| step.ground.blame(error))
    })?;
    report.rate("readdir", "names/s", listed.results.iter().sum::<usize>() as f64, listed.seconds());
    report.rate("unlink", "op/s", count, every(&|folder, name| folder.unlink(renamed(name).as_bytes()))?);
    report.rate(
        "rmdir",
        "op/s",
        count,
        every(&|folder, name| folder.remove_dir(directory(name).as_bytes()))?,
    );
    let flushes = step.parameters.small_file_count.min(FLUSHES_MAX);
    let flushed = together(step.parameters.threads, |thread| {
        folders.get(thread).map_or(Ok(()), |folder| flush(step, folder, flushes))
    })?;
    report.rate("fsync", "op/s", step.all(flushes), flushed.seconds());
    step.ground.empty()
}

fn create(folder: &HeldDir, name: &str) -> NamesOutcome {
    folder.create_file(name.as_bytes(), 0o644).map(drop)
}

fn directory(name: &str) -> String {
    format!("{name}-d")
}

fn renamed(name: &str) -> String {
    format!("{name}-r")
}

fn flush(step: &FilesystemBenchStep<'_>, folder: &HeldDir, flushes: u64) -> Result<()> {
    let file = folder.create_file(b"bench-flushed", 0o644).map_err(|error| step.ground.blame(error))?;
    for number in 0..flushes {
        let bytes = [u8::try_from(number % 251).unwrap_or_default(); FLUSHED];
        file.write_all_at(&bytes, number * FLUSHED as u64).map_err(BenchError::io("write", "a file"))?;
        fsync(&file).map_err(|errno| BenchError::io("flush", "a file")(errno.into()))?;
        step.did(FLUSHED as u64)?;
    }
    Ok(())
}

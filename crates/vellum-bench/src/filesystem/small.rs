//! Small files: each thread writes, reads and looks at its own, in a directory of its own.

use std::io::{Read, Write};

use vellum_checkout::beneath::HeldDir;

use super::FilesystemBenchStep;
use super::big::{forget, open};
use super::payload::{ThreadPayload, check};
use crate::error::{BenchError, Result};
use crate::gang::together;
use crate::report::BenchReport;

/// All steps of one run.
pub fn run(step: &FilesystemBenchStep<'_>, report: &mut BenchReport) -> Result<()> {
    let threads = step.parameters.threads;
    let folders = folders(step, "bench-small")?;
    let files = step.all(step.parameters.small_file_count);
    let mut timed = |name: &str, unit: &str, work: &(dyn Fn(usize, &HeldDir) -> Result<()> + Sync)| {
        let gang =
            together(threads, |thread| folders.get(thread).map_or(Ok(()), |folder| work(thread, folder)))?;
        report.rate(name, unit, files, gang.seconds());
        Ok::<_, BenchError>(())
    };
    timed("small write", "files/s", &|thread, folder| write(step, folder, thread))?;
    for folder in &folders {
        each(step, |name, _| {
            let file = open(step, folder, name)?;
            rustix::fs::fsync(&file).map_err(|errno| BenchError::io("flush", name)(errno.into()))?;
            forget(&file)
        })?;
    }
    timed("small read, cold", "files/s", &|thread, folder| read(step, folder, thread))?;
    timed("small read, warm", "files/s", &|thread, folder| read(step, folder, thread))?;
    timed("stat", "op/s", &|_, folder| {
        each(step, |name, _| folder.stat(name.as_bytes()).map(drop).map_err(|error| step.ground.blame(error)))
    })?;
    step.ground.empty()
}

/// A directory of each thread.
pub(super) fn folders(step: &FilesystemBenchStep<'_>, stem: &str) -> Result<Vec<HeldDir>> {
    (0..step.parameters.threads).map(|thread| step.ground.folder(&format!("{stem}-{thread}"))).collect()
}

/// Does something with the name and the number of every small file of a thread.
pub(super) fn each(
    step: &FilesystemBenchStep<'_>,
    mut work: impl FnMut(&str, u64) -> Result<()>,
) -> Result<()> {
    let mut name = String::new();
    for number in 0..step.parameters.small_file_count {
        use std::fmt::Write;
        name.clear();
        // Writing into a String does not fail.
        let _ = write!(name, "bench-{number}");
        work(&name, number)?;
        step.did(0)?;
    }
    Ok(())
}

fn series(step: &FilesystemBenchStep<'_>, thread: usize) -> u64 {
    1 << 63 | (step.run as u64) << 32 | thread as u64
}

fn len(step: &FilesystemBenchStep<'_>) -> usize {
    usize::try_from(step.parameters.small_file_size).unwrap_or(usize::MAX)
}

fn write(step: &FilesystemBenchStep<'_>, folder: &HeldDir, thread: usize) -> Result<()> {
    let mut payload = ThreadPayload::new(len(step), series(step, thread));
    each(step, |name, number| {
        let mut file =
            folder.create_file(name.as_bytes(), 0o644).map_err(|error| step.ground.blame(error))?;
        for piece in payload.block(number, len(step)).chunks(io(step)) {
            file.write_all(piece).map_err(BenchError::io("write", name))?;
        }
        Ok(())
    })
}

fn read(step: &FilesystemBenchStep<'_>, folder: &HeldDir, thread: usize) -> Result<()> {
    let mut buffer = vec![0; len(step)];
    each(step, |name, number| {
        let mut file = open(step, folder, name)?;
        for piece in buffer.chunks_mut(io(step)) {
            file.read_exact(piece).map_err(BenchError::io("read", name))?;
        }
        check(&buffer, series(step, thread), number, name)
    })
}

fn io(step: &FilesystemBenchStep<'_>) -> usize {
    usize::try_from(step.parameters.io_size).unwrap_or(usize::MAX)
}

//! How cost grows: with the number of files in a directory, and with the bytes of a file. One thread, once.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::FilesystemBenchStep;
use super::payload::ThreadPayload;
use crate::error::{BenchError, Result};
use crate::report::BenchCurve;

/// From one point to the next.
const STEP: u64 = 4;

/// Most files: enough to see a directory's growth, and soon made.
const FILES_MAX: u64 = 4096;

/// Fewest and most bytes.
const BYTES_MIN: u64 = 4 << 10;
const BYTES_MAX: u64 = 256 << 20;

/// The curves that the parameters allow.
pub fn run_scaling_steps(step: &FilesystemBenchStep<'_>) -> Result<Vec<BenchCurve>> {
    let parameters = step.parameters;
    let mut curves = Vec::new();
    if parameters.small_file_count > 0 {
        // One step beyond the number of the bench, since growth only shows over a range.
        let counts = geometric_series(1, parameters.small_file_count.saturating_mul(STEP).min(FILES_MAX));
        let points = counts
            .map(|count| Ok((count as f64, measure_file_creation(step, count)?)))
            .collect::<Result<_>>()?;
        curves.push(new_scaling_curve("create files", "files", points));
    }
    if parameters.big_file_size >= BYTES_MIN {
        let sizes = geometric_series(BYTES_MIN, parameters.big_file_size.min(BYTES_MAX));
        let points =
            sizes.map(|size| Ok((size as f64, measure_file_write(step, size)?))).collect::<Result<_>>()?;
        curves.push(new_scaling_curve("write and flush a file", "bytes", points));
    }
    Ok(curves)
}

fn new_scaling_curve(name: &str, unit: &str, points: Vec<(f64, f64)>) -> BenchCurve {
    BenchCurve { name: name.into(), x_unit: unit.into(), y_unit: "s".into(), points }
}

fn geometric_series(first: u64, last: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), |number| number.checked_mul(STEP))
        .take_while(move |number| *number <= last)
}

/// Seconds to make a number of files in one directory.
fn measure_file_creation(step: &FilesystemBenchStep<'_>, count: u64) -> Result<f64> {
    let folder = step.ground.create_dir("bench-scale")?;
    let start = Instant::now();
    for number in 0..count {
        let name = format!("bench-{number}");
        folder.create_file(name.as_bytes(), 0o644).map_err(|error| step.ground.to_bench_error(error))?;
        step.record_operation(0)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    // After the clock was read: only the making is measured.
    step.ground.remove_contents()?;
    Ok(seconds)
}

/// Seconds to write and flush a file of some length.
fn measure_file_write(step: &FilesystemBenchStep<'_>, size: u64) -> Result<f64> {
    let block = size.min(step.parameters.io_size).max(1);
    let len = usize::try_from(block).unwrap_or(usize::MAX);
    // This bit sets the bytes apart from those of all other steps: small files have the highest one, and big
    // files neither.
    let mut payload = ThreadPayload::new(len, 1 << 62 | size);
    let file = step
        .ground
        .dir()
        .create_file(b"bench-scale", 0o644)
        .map_err(|error| step.ground.to_bench_error(error))?;
    let start = Instant::now();
    for number in 0..size / block {
        let bytes = payload.fill_block(number, len);
        file.write_all_at(bytes, number * block).map_err(BenchError::io_error("write", "a file"))?;
        step.record_operation(block)?;
    }
    rustix::fs::fsync(&file).map_err(|errno| BenchError::io_error("flush", "a file")(errno.into()))?;
    let seconds = start.elapsed().as_secs_f64();
    step.ground.remove_contents()?;
    Ok(seconds)
}

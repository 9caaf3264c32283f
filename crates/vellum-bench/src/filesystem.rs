//! What a filesystem does with big files, small files and names; on any directory.
//!
//! Every run does all steps, in a directory of its own. Cold reads are of files whose pages were just taken out of the
//! kernel's cache (`posix_fadvise`), which touches no others; caches beneath, of a disk or of a process that serves a
//! mount, stay as they are.

mod big;
mod names;
pub(crate) mod payload;
mod scaling;
mod small;

use std::path::Path;

use vellum_host::ProgressMeter;

use crate::error::{BenchError, Result, check_interrupted};
use crate::expectation;
use crate::ground::{self, BenchDirectory};
use crate::report::BenchReport;
use crate::thread_group::THREADS_MAX;

/// The numbers of one bench. A size or count of 0 leaves out what it is of.
#[derive(Debug, Clone, Copy)]
pub struct FilesystemBenchParameters {
    /// Number of threads, each with its own files.
    pub threads: usize,
    /// Bytes of each thread's big file.
    pub big_file_size: u64,
    /// Bytes of each small file.
    pub small_file_size: u64,
    /// Small files, and names, of each thread.
    pub small_file_count: u64,
    /// Bytes of one read or write.
    pub io_size: u64,
    /// How often everything is done.
    pub runs: usize,
}

/// Largest read or write, bytes: more than any program asks for at once.
const IO_MAX: u64 = 1 << 30;

/// Most runs: the report keeps every figure.
const RUNS_MAX: usize = 1000;

/// Most small files of a thread.
const COUNT_MAX: u64 = 100_000_000;

impl Default for FilesystemBenchParameters {
    fn default() -> Self {
        Self {
            threads: 1,
            big_file_size: 1 << 30,
            small_file_size: 128 << 10,
            small_file_count: 100,
            io_size: 1 << 20,
            runs: 3,
        }
    }
}

impl FilesystemBenchParameters {
    /// Refuses numbers that make no sense.
    fn validate(&self) -> Result<()> {
        let Self { threads, io_size, runs, small_file_count, small_file_size, .. } = *self;
        let wrong = if !(1..=THREADS_MAX).contains(&threads) {
            format!("a bench has 1 to {THREADS_MAX} threads, not {threads}")
        } else if !(1..=IO_MAX).contains(&io_size) || small_file_size > IO_MAX {
            "reads, writes and small files have 1 GiB at most, and reads and writes at least a byte".into()
        } else if !(1..=RUNS_MAX).contains(&runs) {
            format!("a bench runs 1 to {RUNS_MAX} times, not {runs}")
        } else if small_file_count > COUNT_MAX {
            format!("a thread has {COUNT_MAX} small files at most")
        } else if self.big_file_size == 0 && small_file_count == 0 {
            "without big and small files there is nothing to measure".into()
        } else {
            return Ok(());
        };
        Err(BenchError::Parameter(wrong))
    }

    /// Bytes that are on the disk at once.
    fn required_space(&self) -> u64 {
        let small = self.small_file_size.saturating_mul(self.small_file_count);
        // Not the sum: each step removes its files before the next one begins.
        self.big_file_size.max(small).saturating_mul(self.threads as u64)
    }
}

/// What a step of a run is given.
struct FilesystemBenchStep<'a> {
    ground: &'a BenchDirectory,
    parameters: &'a FilesystemBenchParameters,
    meter: &'a ProgressMeter,
    /// Which run it is, so that no two write the same bytes.
    run: usize,
}

impl FilesystemBenchStep<'_> {
    /// Called between two operations: counts, and stops on request.
    fn record_operation(&self, bytes: u64) -> Result<()> {
        self.meter.add_progress(1, bytes);
        check_interrupted(self.meter)
    }

    /// How many there are of all threads together.
    fn total_of_threads(&self, of_each: u64) -> f64 {
        of_each as f64 * self.parameters.threads as f64
    }
}

/// Measures the directory at `path`.
pub fn run_filesystem_bench(
    path: &Path,
    parameters: &FilesystemBenchParameters,
    meter: &ProgressMeter,
) -> Result<BenchReport> {
    parameters.validate()?;
    let ground = BenchDirectory::create_in(path, parameters.required_space())?;
    let mut report =
        BenchReport::new("filesystem", ground::describe_target(path), &list_parameters(parameters));
    for run in 0..parameters.runs {
        let step = FilesystemBenchStep { ground: &ground, parameters, meter, run };
        if parameters.big_file_size > 0 {
            big::run_big_file_steps(&step, &mut report)?;
        }
        if parameters.small_file_count > 0 {
            small::run_small_file_steps(&step, &mut report)?;
            names::run_name_steps(&step, &mut report)?;
        }
    }
    // Curves are measured once, after all runs: they show how cost grows, and are not compared.
    report.scaling = scaling::run_scaling_steps(&FilesystemBenchStep {
        ground: &ground,
        parameters,
        meter,
        run: parameters.runs,
    })?;
    // Not left to its drop, which could not report a failure.
    ground.remove_dir()?;
    expectation::grade_report(&mut report);
    Ok(report)
}

fn list_parameters(parameters: &FilesystemBenchParameters) -> [(&'static str, u64); 6] {
    [
        ("threads", parameters.threads as u64),
        ("big_file_size", parameters.big_file_size),
        ("small_file_size", parameters.small_file_size),
        ("small_file_count", parameters.small_file_count),
        ("io_size", parameters.io_size),
        ("runs", parameters.runs as u64),
    ]
}

//! From bytes to sealed packs: each stage and the whole, by size; and what chunking, sharing and compressing save on
//! files that are at hand.
//!
//! Nothing is stored: packs go nowhere ([`void`]), so that the figures are the processor's and not a disk's.

pub mod kinds;
mod stages;
mod void;

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_host::ProgressMeter;
use vellum_store::{BlobOptions, BlobStore};
use vellum_types::VolumeId;

use crate::error::{BenchError, Result};
use crate::report::BenchReport;
use crate::thread_group::THREADS_MAX;

pub use kinds::FileKindSavings;

/// The numbers of one bench.
#[derive(Debug, Clone)]
pub struct PipelineParameters {
    /// Bytes that go through at once.
    pub sizes: Vec<u64>,
    /// Threads of the rows that have several.
    pub threads: usize,
    /// Number of runs.
    pub runs: usize,
    /// Files and directories to look at by kind.
    pub paths: Vec<PathBuf>,
}

/// Largest piece, bytes: it is in memory whole.
const SIZE_MAX: u64 = 1 << 30;

impl PipelineParameters {
    fn validate(&self) -> Result<()> {
        let sizes = self.sizes.iter().all(|size| (1..=SIZE_MAX).contains(size));
        if sizes && (1..=THREADS_MAX).contains(&self.threads) && self.runs > 0 {
            return Ok(());
        }
        Err(BenchError::Parameter(format!(
            "sizes are 1 byte to 1 GiB, there are 1 to {THREADS_MAX} threads, and at least one run"
        )))
    }
}

/// What was found.
#[derive(Debug, Serialize)]
pub struct PipelineFindings {
    /// The figures of the stages.
    #[serde(flatten)]
    pub report: BenchReport,
    /// What is saved, by kind of file.
    pub kinds: Vec<FileKindSavings>,
    /// Files that could not be read.
    pub unread: u64,
}

/// Measures.
pub fn run_pipeline_bench(
    parameters: &PipelineParameters,
    meter: &ProgressMeter,
) -> Result<PipelineFindings> {
    parameters.validate()?;
    let mut listed = vec![("threads", parameters.threads as u64), ("runs", parameters.runs as u64)];
    // A parameter is one number. The other sizes can be seen in the names of the rows.
    listed.extend(parameters.sizes.iter().max().map(|size| ("largest_size", *size)));
    let mut report = BenchReport::new("pipeline", Default::default(), &listed);
    for _ in 0..parameters.runs {
        for size in &parameters.sizes {
            stages::run_stage_benches(*size, parameters.threads, &mut report, meter)?;
        }
    }
    let mut found = PipelineFindings { report, kinds: Vec::new(), unread: 0 };
    if !parameters.paths.is_empty() {
        (found.kinds, found.unread) = kinds::measure_file_kinds(&parameters.paths, meter)?;
    }
    Ok(found)
}

/// Keys of a volume that does not exist.
fn new_bench_keys() -> Arc<VolumeKeys> {
    // Always the same keys: chunks then end in the same places in each bench, and reports can be compared.
    Arc::new(VolumeKeys::for_encrypted(&MasterKey::from_bytes([1; 32]), VolumeId([2; 16])))
}

/// A blob store that forgets what it is given.
fn new_discarding_store(keys: &Arc<VolumeKeys>) -> Result<(BlobStore, TemporaryIndexDir)> {
    let local = TemporaryIndexDir::create_temporary()?;
    let store = BlobStore::open(
        Arc::new(void::DiscardingStore::new()),
        keys.clone(),
        &local.0,
        BlobOptions::default(),
    )?;
    Ok((store, local))
}

/// A folder for an index, which goes when this is dropped.
struct TemporaryIndexDir(PathBuf);

impl TemporaryIndexDir {
    fn create_temporary() -> Result<Self> {
        let path = std::env::temp_dir().join(crate::ground::random_name("vellum-bench")?);
        std::fs::create_dir(&path).map_err(BenchError::io_error("make", path.display().to_string()))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryIndexDir {
    fn drop(&mut self) {
        // Nobody else knows its name. What cannot be removed is in a directory for what is temporary.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_measured_for_every_size() {
        let parameters =
            PipelineParameters { sizes: vec![4096, 300_000], threads: 2, runs: 1, paths: Vec::new() };
        let found = run_pipeline_bench(&parameters, &ProgressMeter::default()).unwrap();
        assert_eq!(found.report.rows.len(), 2 * 7);
        assert!(found.report.rows.iter().all(|row| row.runs.iter().all(|rate| *rate > 0.0)));
        let names: Vec<_> = found.report.rows.iter().map(|row| row.name.as_str()).collect();
        assert!(names.contains(&"chunk 4 KiB") && names.contains(&"whole 293 KiB, 2 threads"), "{names:?}");
    }

    #[test]
    fn kinds_of_files_tell_what_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        let mut noise = vec![0; 500_000];
        getrandom::fill(&mut noise).unwrap();
        write("a.bin", &noise);
        write("b.bin", &noise);
        write("c.txt", "the same words again and again\n".repeat(1000).as_bytes());
        write("empty.txt", b"");
        write("none", b"x");
        std::os::unix::fs::symlink("/", dir.path().join("link.bin")).unwrap();
        let paths = vec![dir.path().to_path_buf()];
        let (kinds, unread) = kinds::measure_file_kinds(&paths, &ProgressMeter::default()).unwrap();
        assert_eq!(unread, 0);
        let of = |name: &str| kinds.iter().find(|kind| kind.kind == name).unwrap();
        let bin = of(".bin");
        assert_eq!((bin.files, bin.bytes, bin.unique), (2, 1_000_000, 500_000));
        assert!(bin.compressed >= bin.unique);
        let txt = of(".txt");
        assert_eq!(txt.files, 2);
        assert!(txt.compressed < txt.bytes / 5, "{txt:?}");
        assert_eq!(of("(none)").bytes, 1);
        assert_eq!(kinds[0].kind, ".bin", "the largest comes first");
    }
}

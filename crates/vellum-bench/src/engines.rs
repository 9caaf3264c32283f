//! Snapshots, restores and forks by engine: a mounted worktree, and checked-out ones whose files are made by sharing
//! blocks, by copying, or from the store. What is measured is the program, as a user runs it.
//!
//! Invariant: everything happens in one directory of the bench's own. Nothing is removed while something is mounted in
//! it, so that no mount is emptied.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use vellum_host::ProgressMeter;
use vellum_host::mount_table::read_mounts;
use vellum_types::LookupResult;

use crate::error::{BenchError, Result, check_interrupted};
use crate::ground::{self, BenchDirectory};
use crate::report::{BenchCurve, BenchReport, BetterDirection};

/// The numbers of one bench.
#[derive(Debug, Clone)]
pub struct EngineBenchParameters {
    /// Bytes of all files of a worktree together.
    pub sizes: Vec<u64>,
    /// How many files these are.
    pub counts: Vec<u64>,
    /// Number of runs.
    pub runs: usize,
    /// The program.
    pub program: PathBuf,
}

/// Ways to fork a checked-out worktree.
const ENGINES: [&str; 3] = ["reflink", "copy", "chunks"];

/// Files of one directory.
const IN_A_DIRECTORY: u64 = 1000;

/// How many worktrees of a size there are at once at most, with the store: the tree, its store twice (all files
/// change), a fork.
const COPIES: u64 = 6;

const MIB: u64 = 1 << 20;

/// Most files of a worktree.
const COUNT_MAX: u64 = 10_000_000;

/// Measures in the directory at `path`. What cannot be done there is left out, and reported in the second result.
pub fn run_engine_bench(
    path: &Path,
    parameters: &EngineBenchParameters,
    meter: &ProgressMeter,
) -> Result<(BenchReport, Vec<String>)> {
    let most = parameters.sizes.iter().max().copied().unwrap_or_default();
    let counts = parameters.counts.iter().all(|count| (1..=COUNT_MAX).contains(count));
    if parameters.sizes.is_empty() || parameters.counts.is_empty() || parameters.runs == 0 || !counts {
        return Err(BenchError::Parameter(format!(
            "there is at least one size, one count of 1 to {COUNT_MAX} files, and one run"
        )));
    }
    let ground = BenchDirectory::create_in(path, most.saturating_mul(COPIES))?;
    let mut report =
        BenchReport::new("engines", ground::describe_target(path), &[("runs", parameters.runs as u64)]);
    let mut trial = EngineTrial { place: ground.full_path(), parameters, meter, left_out: Vec::new() };
    let done = trial.run_all_shapes(&mut report);
    // After a failure, too: the mounts must end before the directory can be removed.
    let cleared = trial.remove_everything();
    done?;
    cleared?;
    ground.remove_dir()?;
    report.scaling = collect_cost_curves(&report);
    Ok((report, trial.left_out))
}

/// One shape of worktree.
#[derive(Debug, Clone, Copy)]
struct WorktreeShape {
    size: u64,
    count: u64,
}

impl WorktreeShape {
    fn format_name(self) -> String {
        let (size, unit) = if self.size < MIB { (self.size >> 10, "KiB") } else { (self.size >> 20, "MiB") };
        format!("{size} {unit} in {} files", self.count)
    }
}

struct EngineTrial<'a> {
    place: PathBuf,
    parameters: &'a EngineBenchParameters,
    meter: &'a ProgressMeter,
    left_out: Vec<String>,
}

impl EngineTrial<'_> {
    fn run_all_shapes(&mut self, report: &mut BenchReport) -> Result<()> {
        for _ in 0..self.parameters.runs {
            for size in self.parameters.sizes.clone() {
                for count in self.parameters.counts.clone() {
                    let shape = WorktreeShape { size, count };
                    self.measure_checked_out(shape, report)?;
                    // What is left would take room on the disk, of which there was enough for one
                    // engine at a time.
                    self.remove_everything()?;
                    self.measure_mounted(shape, report)?;
                    self.remove_everything()?;
                }
            }
        }
        Ok(())
    }

    fn measure_checked_out(&mut self, shape: WorktreeShape, report: &mut BenchReport) -> Result<()> {
        let tree = self.place.join("tree");
        self.create_files(&tree, shape)?;
        self.run_vellum(&tree, &["init", "--quiet"])?;
        let mut time = |name: &str, seconds| {
            report.add_figure(&format_row_name(name, shape), "s", BetterDirection::Lower, seconds)
        };
        time("checked out: first snapshot", self.run_vellum(&tree, &["snapshot", "--tag", "first"])?);
        time("checked out: snapshot of no change", self.run_vellum(&tree, &["snapshot"])?);
        self.modify_files(&tree, shape)?;
        time("checked out: snapshot of all changed", self.run_vellum(&tree, &["snapshot"])?);
        // All files were changed since that snapshot, so that each one is restored.
        time("checked out: restore of all", self.run_vellum(&tree, &["restore", "first"])?);
        time("checked out: verify", self.run_vellum(&tree, &["verify"])?);
        for engine in ENGINES {
            let fork = self.place.join(engine);
            let to = fork.display().to_string();
            match self.run_vellum(&tree, &["fork", engine, "--to", &to, "--engine", engine]) {
                Ok(seconds) => time(&format!("{engine}: fork"), seconds),
                // Not every filesystem can share blocks. What it cannot do is no failure of the bench.
                Err(BenchError::Program { message, .. }) => self.record_omitted(engine, &message),
                Err(error) => return Err(error),
            }
            // A fork that failed may have left a directory.
            let _ = fs::remove_dir_all(&fork);
        }
        Ok(())
    }

    fn measure_mounted(&mut self, shape: WorktreeShape, report: &mut BenchReport) -> Result<()> {
        let tree = self.place.join("tree");
        let work = self.place.join("work");
        let fork = self.place.join("fork");
        for directory in [&tree, &work, &fork] {
            fs::create_dir_all(directory)
                .map_err(BenchError::io_error("make", directory.display().to_string()))?;
        }
        self.run_vellum(&tree, &["init", "--quiet"])?;
        let at = work.display().to_string();
        match self.run_vellum(&tree, &["mount", &at]) {
            Ok(_) => {}
            // Without FUSE, or without the right to use it, everything else can still be measured.
            Err(BenchError::Program { message, .. }) => {
                self.record_omitted("mounted", &message);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let mut time = |name: &str, seconds| {
            report.add_figure(&format_row_name(name, shape), "s", BetterDirection::Lower, seconds)
        };
        let files = work.join("files");
        self.create_files(&files, shape)?;
        time("mounted: first snapshot", self.run_vellum(&work, &["snapshot", "--tag", "first"])?);
        self.modify_files(&files, shape)?;
        time("mounted: snapshot of all changed", self.run_vellum(&work, &["snapshot"])?);
        time("mounted: restore of all", self.run_vellum(&work, &["restore", "first"])?);
        let to = fork.display().to_string();
        time("mounted: fork", self.run_vellum(&work, &["fork", "fork", "--mount", &to])?);
        Ok(())
    }

    fn record_omitted(&mut self, what: &str, why: &str) {
        let remark = format!("{what}: {}", why.lines().next().unwrap_or("it does not work here"));
        // Each run and each shape finds the same again.
        if !self.left_out.contains(&remark) {
            self.left_out.push(remark);
        }
    }

    /// Runs the program in a directory. Returns the seconds that it took.
    fn run_vellum(&self, directory: &Path, args: &[&str]) -> Result<f64> {
        check_interrupted(self.meter)?;
        let start = Instant::now();
        let ran = Command::new(&self.parameters.program)
            .args(args)
            .current_dir(directory)
            // A question, as for a passphrase, must end the program instead of waiting for an answer.
            .stdin(Stdio::null())
            .output()
            .map_err(BenchError::io_error("run", self.parameters.program.display().to_string()))?;
        // With the start of the process, since that is what a user waits for.
        let seconds = start.elapsed().as_secs_f64();
        self.meter.add_progress(1, 0);
        if ran.status.success() {
            return Ok(seconds);
        }
        let message = String::from_utf8_lossy(&ran.stderr);
        // It becomes a part of another message, which says that it is an error.
        let message = message.trim().trim_start_matches("error: ").to_owned();
        Err(BenchError::Program { command: format!("vellum {}", args.join(" ")), message })
    }

    /// Makes the files of a worktree.
    fn create_files(&self, tree: &Path, shape: WorktreeShape) -> Result<()> {
        let size = usize::try_from(shape.size / shape.count).unwrap_or(usize::MAX);
        let mut bytes = vec![0; size];
        let failed = |path: &Path| BenchError::io_error("write", path.display().to_string());
        for (number, path) in worktree_file_paths(tree, shape).enumerate() {
            check_interrupted(self.meter)?;
            if (number as u64).is_multiple_of(IN_A_DIRECTORY)
                && let Some(folder) = path.parent()
            {
                fs::create_dir_all(folder).map_err(failed(folder))?;
            }
            // Bytes that are not there twice.
            let filled = getrandom::fill(&mut bytes);
            filled.map_err(|error| failed(&path)(std::io::Error::other(error.to_string())))?;
            fs::write(&path, &bytes).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// Changes every file: a byte in its middle.
    fn modify_files(&self, tree: &Path, shape: WorktreeShape) -> Result<()> {
        let middle = shape.size / shape.count / 2;
        for path in worktree_file_paths(tree, shape) {
            check_interrupted(self.meter)?;
            // The file keeps its length, since rows are named after the size of a worktree.
            let file = fs::File::options().write(true).open(&path);
            file.and_then(|file| file.write_all_at(b"changed", middle))
                .map_err(BenchError::io_error("write", path.display().to_string()))?;
        }
        Ok(())
    }

    /// Ends the mounts and removes everything.
    fn remove_everything(&self) -> Result<()> {
        for name in ["fork", "work"] {
            let mountpoint = self.place.join(name);
            if is_mountpoint(&mountpoint) {
                let ended = Command::new(&self.parameters.program)
                    .arg("umount")
                    .arg(&mountpoint)
                    .stdin(Stdio::null())
                    .output()
                    .is_ok_and(|ran| ran.status.success());
                if !ended {
                    // A mount whose process has died answers no command: it is detached.
                    let _ = Command::new("fusermount3").arg("-uz").arg(&mountpoint).output();
                }
            }
            if is_mountpoint(&mountpoint) {
                return Err(BenchError::NotEmpty(mountpoint.display().to_string()));
            }
        }
        for name in ["tree", "work", "fork"].into_iter().chain(ENGINES) {
            let path = self.place.join(name);
            // Not every engine makes all of these directories.
            fs::remove_dir_all(&path)
                .ignore_missing()
                .map_err(BenchError::io_error("remove", path.display().to_string()))?;
        }
        Ok(())
    }
}

fn format_row_name(name: &str, shape: WorktreeShape) -> String {
    format!("{name}, {}", shape.format_name())
}

fn worktree_file_paths(tree: &Path, shape: WorktreeShape) -> impl Iterator<Item = PathBuf> {
    let tree = tree.to_path_buf();
    (0..shape.count)
        .map(move |number| tree.join(format!("d{}", number / IN_A_DIRECTORY)).join(format!("f{number}")))
}

/// Whether something is mounted right there, also if its process is gone.
fn is_mountpoint(path: &Path) -> bool {
    // Only the parent is resolved, since a mountpoint whose process is gone cannot be looked at.
    let place = fs::canonicalize(path.parent().unwrap_or(path)).unwrap_or_default();
    let Some(name) = path.file_name() else { return false };
    let wanted = place.join(name);
    read_mounts().unwrap_or_default().iter().any(|mount| mount.mountpoint == wanted)
}

/// What [`WorktreeShape::format_name`] says of the size.
fn parse_size_label(size: &str) -> Option<f64> {
    let (number, unit) = size.split_once(' ')?;
    let factor = if unit == "KiB" { 1 << 10 } else { MIB };
    Some(number.parse::<f64>().ok()? * factor as f64)
}

/// Cost against bytes, by what was done and with how many files.
fn collect_cost_curves(report: &BenchReport) -> Vec<BenchCurve> {
    let mut curves: Vec<BenchCurve> = Vec::new();
    for row in &report.rows {
        let Some((name, shape)) = row.name.split_once(", ") else { continue };
        // Names of rows are taken apart here, since a report has only these.
        let (size, files) = shape.split_once(" in ").unwrap_or((shape, ""));
        let (Some(bytes), Some(summary)) = (parse_size_label(size), row.summarize_runs()) else { continue };
        let name = format!("{name}, {files}");
        let point = (bytes, summary.median);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(BenchCurve {
                name,
                x_unit: "bytes".into(),
                y_unit: "s".into(),
                points: vec![point],
            }),
        }
    }
    curves
}

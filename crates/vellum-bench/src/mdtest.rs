//! Names in a tree of directories: made, looked at, opened and removed, phase by phase. Each thread has a tree of its
//! own, walked depth first, so that no phase finds what the one before it left in reach.

use std::path::Path;

use vellum_host::ProgressMeter;
use vellum_host::beneath::{BeneathError, HeldDir};

use crate::error::{BenchError, Result, check_interrupted};
use crate::ground::{self, BenchDirectory};
use crate::report::BenchReport;
use crate::thread_group::{THREADS_MAX, run_in_threads};

/// The shape of a tree.
#[derive(Debug, Clone, Copy)]
pub struct MdtestParameters {
    /// Directories above each other, beside the top.
    pub depth: u32,
    /// Directories in each directory that is not at the bottom.
    pub branch: u64,
    /// Files in each directory.
    pub files: u64,
    /// Trees, one of each thread.
    pub threads: usize,
    /// How often everything is done.
    pub runs: usize,
}

/// Deepest tree: each directory on the way is held open.
const DEPTH_MAX: u32 = 64;

/// Most names in all.
const NAMES_MAX: u64 = 100_000_000;

impl Default for MdtestParameters {
    fn default() -> Self {
        Self { depth: 2, branch: 5, files: 20, threads: 1, runs: 3 }
    }
}

impl MdtestParameters {
    /// Directories of one tree, its top left out: it is there before.
    fn dirs_per_tree(&self) -> Option<u64> {
        let level = |depth| self.branch.checked_pow(depth);
        (1..=self.depth).try_fold(0_u64, |sum, depth| sum.checked_add(level(depth)?))
    }

    /// Directories and files of all trees.
    fn count_entries(&self) -> Result<(u64, u64)> {
        let Self { depth, threads, runs, .. } = *self;
        if depth > DEPTH_MAX || !(1..=THREADS_MAX).contains(&threads) || runs == 0 {
            return Err(BenchError::Parameter(format!(
                "a tree is {DEPTH_MAX} directories deep at most, and there are 1 to {THREADS_MAX} threads and at \
                 least one run"
            )));
        }
        // Checked, since the numbers that a user types may give more than 64 bits hold.
        let counts = || {
            let directories = self.dirs_per_tree()?;
            let files = directories.checked_add(1)?.checked_mul(self.files)?;
            let threads = threads as u64;
            let directories = directories.checked_mul(threads)?;
            let files = files.checked_mul(threads)?;
            (directories.checked_add(files)? <= NAMES_MAX).then_some((directories, files))
        };
        match counts() {
            Some((0, 0)) => {
                Err(BenchError::Parameter("without directories and files there is nothing to measure".into()))
            }
            Some(counts) => Ok(counts),
            None => Err(BenchError::Parameter(format!("that are more than {NAMES_MAX} names"))),
        }
    }
}

/// What one phase does with each directory, before (`down`) and after (`up`) those in it.
struct MdtestPhase<'a> {
    name: &'static str,
    unit: &'static str,
    down: &'a (dyn Fn(&HeldDir) -> MdtestOutcome + Sync),
    up: &'a (dyn Fn(&HeldDir) -> MdtestOutcome + Sync),
}

type MdtestOutcome = Result<(), BeneathError>;

/// One bench under way.
struct MdtestTrees<'a> {
    parameters: &'a MdtestParameters,
    meter: &'a ProgressMeter,
}

/// Measures the directory at `path`.
pub fn run_mdtest(path: &Path, parameters: &MdtestParameters, meter: &ProgressMeter) -> Result<BenchReport> {
    let (directories, files) = parameters.count_entries()?;
    // How much room names take depends on the filesystem, so that none is asked for.
    let ground = BenchDirectory::create_in(path, 0)?;
    let listed = [
        ("depth", u64::from(parameters.depth)),
        ("branch", parameters.branch),
        ("files", parameters.files),
        ("threads", parameters.threads as u64),
        ("runs", parameters.runs as u64),
    ];
    let mut report = BenchReport::new("mdtest", ground::describe_target(path), &listed);
    // Files are touched by four phases that count and directories by two. Listing does not count single
    // names.
    meter.set_expected_total((4 * files + 2 * directories).saturating_mul(parameters.runs as u64), 0);
    let trees = MdtestTrees { parameters, meter };
    for _ in 0..parameters.runs {
        trees.measure_phases(&ground, &mut report, directories, files)?;
        // The tops of the trees are left, and the next run makes its own.
        ground.remove_contents()?;
    }
    ground.remove_dir()?;
    Ok(report)
}

impl MdtestTrees<'_> {
    fn measure_phases(
        &self,
        ground: &BenchDirectory,
        report: &mut BenchReport,
        directories: u64,
        files: u64,
    ) -> Result<()> {
        let tops = (0..self.parameters.threads)
            .map(|thread| ground.create_dir(&format!("bench-tree-{thread}")))
            .collect::<Result<Vec<_>>>()?;
        let nothing = |_: &HeldDir| Ok(());
        let make = |dir: &HeldDir| {
            self.for_each_name("d", self.parameters.branch, |name| dir.create_dir(name, 0o755))
        };
        let seconds = self.walk_trees(ground, &tops, &DirectoryMaker(&make))?;
        if directories > 0 {
            report.add_rate("directory create", "op/s", directories as f64, seconds);
        }
        let all = |work: &(dyn Fn(&HeldDir, &[u8]) -> MdtestOutcome + Sync), dir: &HeldDir| {
            self.for_each_name("f", self.parameters.files, |name| work(dir, name))
        };
        let create = |dir: &HeldDir| all(&|dir, name| dir.create_file(name, 0o644).map(drop), dir);
        let stat = |dir: &HeldDir| all(&|dir, name| dir.stat(name).map(drop), dir);
        let open = |dir: &HeldDir| all(&|dir, name| dir.open_file(name).map(drop), dir);
        let unlink = |dir: &HeldDir| all(&HeldDir::unlink, dir);
        let list = |dir: &HeldDir| dir.read_names().map(drop);
        let phases: [MdtestPhase<'_>; 5] = [
            MdtestPhase { name: "file create", unit: "op/s", down: &create, up: &nothing },
            MdtestPhase { name: "file stat", unit: "op/s", down: &stat, up: &nothing },
            MdtestPhase { name: "file open", unit: "op/s", down: &open, up: &nothing },
            MdtestPhase { name: "list", unit: "names/s", down: &list, up: &nothing },
            // On the way up, as programs that remove whole trees do it.
            MdtestPhase { name: "file remove", unit: "op/s", down: &nothing, up: &unlink },
        ];
        // Without files these phases would give rates of nothing.
        for phase in phases.iter().filter(|_| files > 0) {
            let seconds = self.walk_trees(ground, &tops, phase)?;
            // A listing shows the directories, too.
            let names = if phase.unit == "names/s" { directories + files } else { files };
            report.add_rate(phase.name, phase.unit, names as f64, seconds);
        }
        let remove =
            |dir: &HeldDir| self.for_each_name("d", self.parameters.branch, |name| dir.remove_dir(name));
        let removing = MdtestPhase { name: "", unit: "", down: &nothing, up: &remove };
        let seconds = self.walk_trees(ground, &tops, &removing)?;
        if directories > 0 {
            report.add_rate("directory remove", "op/s", directories as f64, seconds);
        }
        Ok(())
    }

    /// Does something with the names of a directory's entries of one kind.
    fn for_each_name(
        &self,
        kind: &str,
        count: u64,
        mut work: impl FnMut(&[u8]) -> MdtestOutcome,
    ) -> MdtestOutcome {
        for number in 0..count {
            work(format!("bench-{kind}{number}").as_bytes())?;
            self.meter.add_progress(1, 0);
            if check_interrupted(self.meter).is_err() {
                // The phase ends early; `walk_trees` reports the interruption.
                break;
            }
        }
        Ok(())
    }

    /// Runs one phase in all threads. Returns the seconds that it took.
    fn walk_trees(
        &self,
        ground: &BenchDirectory,
        tops: &[HeldDir],
        visit: &(impl TreeVisitor + Sync),
    ) -> Result<f64> {
        let group = run_in_threads(tops.len(), |thread| {
            let Some(top) = tops.get(thread) else { return Ok(()) };
            self.visit_dir(top, 0, visit).map_err(|error| ground.to_bench_error(error))
        })?;
        check_interrupted(self.meter)?;
        Ok(group.elapsed_seconds())
    }

    fn visit_dir(&self, dir: &HeldDir, depth: u32, visit: &impl TreeVisitor) -> MdtestOutcome {
        let bottom = depth >= self.parameters.depth;
        visit.visit_before_children(dir, bottom)?;
        if !bottom {
            for number in 0..self.parameters.branch {
                // As between names: `walk_trees` reports the interruption.
                if check_interrupted(self.meter).is_err() {
                    return Ok(());
                }
                // Opened from its parent: to resolve a whole path would measure the directories above each
                // time.
                let below = dir.open_dir(format!("bench-d{number}").as_bytes())?;
                self.visit_dir(&below, depth + 1, visit)?;
            }
        }
        visit.visit_after_children(dir, bottom)
    }
}

/// What is done on the way down and up.
trait TreeVisitor {
    fn visit_before_children(&self, dir: &HeldDir, bottom: bool) -> MdtestOutcome;
    fn visit_after_children(&self, dir: &HeldDir, bottom: bool) -> MdtestOutcome;
}

impl TreeVisitor for MdtestPhase<'_> {
    fn visit_before_children(&self, dir: &HeldDir, _bottom: bool) -> MdtestOutcome {
        (self.down)(dir)
    }

    fn visit_after_children(&self, dir: &HeldDir, bottom: bool) -> MdtestOutcome {
        // Those at the bottom have no directories to be removed.
        if bottom && self.name.is_empty() { Ok(()) } else { (self.up)(dir) }
    }
}

/// Makes the directories of each directory that is not at the bottom.
struct DirectoryMaker<'a>(&'a (dyn Fn(&HeldDir) -> MdtestOutcome + Sync));

impl TreeVisitor for DirectoryMaker<'_> {
    fn visit_before_children(&self, dir: &HeldDir, bottom: bool) -> MdtestOutcome {
        if bottom { Ok(()) } else { (self.0)(dir) }
    }

    fn visit_after_children(&self, _dir: &HeldDir, _bottom: bool) -> MdtestOutcome {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_counted_before_it_is_made() {
        let of = |depth, branch, files, threads| {
            MdtestParameters { depth, branch, files, threads, runs: 1 }.count_entries()
        };
        assert_eq!(of(2, 3, 10, 2).unwrap(), (2 * (3 + 9), 2 * 10 * (1 + 3 + 9)));
        assert_eq!(of(0, 3, 10, 1).unwrap(), (0, 10));
        assert_eq!(of(1, 4, 0, 1).unwrap(), (4, 0));
        for wrong in
            [of(0, 0, 0, 1), of(64, 10, 1, 1), of(65, 1, 1, 1), of(1, 1, u64::MAX, 1), of(1, 1, 1, 0)]
        {
            assert!(matches!(wrong, Err(BenchError::Parameter(_))));
        }
    }

    #[test]
    fn every_phase_is_measured_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let parameters = MdtestParameters { depth: 2, branch: 2, files: 3, threads: 2, runs: 2 };
        let meter = ProgressMeter::default();
        let report = run_mdtest(dir.path(), &parameters, &meter).unwrap();
        let rows: Vec<_> = report.rows.iter().map(|row| (&*row.name, row.runs.len())).collect();
        let names = [
            "directory create",
            "file create",
            "file stat",
            "file open",
            "list",
            "file remove",
            "directory remove",
        ];
        assert_eq!(rows, names.map(|name| (name, 2)));
        assert!(report.rows.iter().flat_map(|row| &row.runs).all(|rate| *rate > 0.0 && rate.is_finite()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // Four phases touch each file, two each directory; the lists count nothing.
        assert_eq!(meter.read_progress().items, 2 * 2 * (4 * 21 + 2 * 6));
    }

    #[test]
    fn stopped_it_removes_what_it_made() {
        let dir = tempfile::tempdir().unwrap();
        let meter = ProgressMeter::default();
        meter.request_stop();
        let stopped = run_mdtest(dir.path(), &MdtestParameters::default(), &meter);
        assert!(matches!(stopped, Err(BenchError::Interrupted)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

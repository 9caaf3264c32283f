//! Histories on one filesystem, which have no violations, and on two that pretend to be one, which have some of each kind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vellum_testkit::histories::{
    HistoryKind, HistoryMounts, HistoryPlan, HistoryReport, run_history, run_worker_if_asked,
};
use vellum_testkit::random::choose_seed;

/// Directories of this machine as mounts: each gets what is made in the first, and nothing afterwards.
struct LocalMounts(Vec<PathBuf>);

impl HistoryMounts for LocalMounts {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn path(&self, mount: usize) -> PathBuf {
        self.0[mount].clone()
    }

    fn command(&self, _mount: usize, program: &Path) -> Command {
        Command::new(program)
    }

    fn finish_preparation(&self) {
        for other in &self.0[1..] {
            let copy = Command::new("cp").arg("-a").arg(self.0[0].join(".")).arg(other).status();
            assert!(copy.unwrap().success());
        }
    }
}

/// The process of a worker; without a task it sees that there is none.
#[test]
fn history_worker() {
    let is_worker = std::env::var_os("VELLUM_HISTORY_WORKER").is_some();
    assert_eq!(run_worker_if_asked(), is_worker);
}

fn run(kind: HistoryKind, mounts: &LocalMounts, logs: &Path, seed: u64) -> HistoryReport {
    let plan = HistoryPlan {
        kind,
        worker_test: "histories::history_worker",
        clients: 4,
        operations: 300,
        limit: Duration::from_secs(60),
        has_faults: false,
        seed,
        logs: logs.to_owned(),
    };
    run_history(&plan, mounts, || None)
}

fn expect_none(kind: HistoryKind, place: &Path) {
    let [dir, logs] = [tempfile::tempdir_in(place).unwrap(), tempfile::tempdir().unwrap()];
    let report = run(kind, &LocalMounts(vec![dir.path().to_owned()]), logs.path(), choose_seed());
    assert!(report.violations.is_empty(), "{}: {}", kind.name(), report.describe());
    let known = report.events.iter().filter(|event| event.results().is_some()).count();
    assert!(known > 300, "{}: {}", kind.name(), report.describe());
    // Of different workers, in turns: otherwise nothing was tried.
    let turns = report.events.windows(2).filter(|pair| pair[0].client != pair[1].client);
    assert!(turns.count() > 100, "{}", kind.name());
}

#[test]
fn a_filesystem_in_memory_has_no_violations() {
    for kind in HistoryKind::ALL {
        expect_none(kind, Path::new("/dev/shm"));
    }
}

#[test]
fn a_filesystem_on_a_disk_has_no_violations() {
    for kind in HistoryKind::ALL {
        expect_none(kind, &std::env::temp_dir());
    }
}

#[test]
fn two_directories_that_pretend_to_be_one_have_violations_of_each_kind() {
    for kind in HistoryKind::ALL {
        let seed = choose_seed();
        let has_violations = |more: u64| {
            let [first, second, logs] = [(); 3].map(|()| tempfile::tempdir().unwrap());
            let mounts = LocalMounts(vec![first.path().to_owned(), second.path().to_owned()]);
            !run(kind, &mounts, logs.path(), seed.wrapping_add(more)).violations.is_empty()
        };
        // With one seed workers may keep out of each other's way.
        assert!((0..10).any(has_violations), "{}", kind.name());
    }
}

//! All histories, on one mount, on hosts that share one filesystem, and while something fails.

use std::path::Path;
use std::time::Duration;

use vellum_testkit::histories::{HistoryKind, HistoryPlan, HistoryReport, TakeOver, run_history};
use vellum_testkit::random::choose_seed;

use crate::faults::ClusterFault;
use crate::hosts::{MountedHosts, MountedKind};

/// Time of a history with a fault in a short run: the fault takes a third of it.
const SHORT: Duration = Duration::from_millis(1500);
/// Most operations of a worker in a short run without faults, and in a long run: a checker keeps them all.
const OPERATIONS: (u64, u64) = (150, 20_000);
/// Time in which a worker does few operations, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long each history of a long run takes.
pub fn long_time() -> Option<Duration> {
    let seconds = std::env::var("CLUSTER_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("CLUSTER_SECONDS is a number")))
}

/// Runs a history with three workers a mount, or four on one mount alone.
fn run(kind: HistoryKind, hosts: &MountedHosts, fault: ClusterFault) -> HistoryReport {
    let has_faults = fault != ClusterFault::None;
    let time = long_time().unwrap_or(SHORT);
    let is_timed = has_faults || long_time().is_some();
    let (operations, limit) = if is_timed { (OPERATIONS.1, time) } else { (OPERATIONS.0, PATIENCE) };
    let count = hosts.mount_hosts().len();
    let clients = if count == 1 { 4 } else { 3 * count };
    let work = HistoryWork { clients, operations, limit, has_faults };
    run_on(kind, hosts, work, || fault.cause(hosts, time))
}

/// How much is done in a history.
#[derive(Debug, Clone, Copy)]
pub struct HistoryWork {
    pub clients: usize,
    pub operations: u64,
    pub limit: Duration,
    pub has_faults: bool,
}

/// Runs a history on hosts, while something is done. `CLUSTER_RECORDS` names a directory for the records of what fails.
fn run_on(
    kind: HistoryKind,
    hosts: &MountedHosts,
    work: HistoryWork,
    meanwhile: impl FnOnce() -> Option<TakeOver>,
) -> HistoryReport {
    let HistoryWork { clients, operations, limit, has_faults } = work;
    let logs = hosts.logs();
    let plan = HistoryPlan {
        kind,
        worker_test: "history_worker",
        clients,
        operations,
        limit,
        has_faults,
        seed: choose_seed(),
        logs: logs.path().to_owned(),
    };
    let report = run_history(&plan, hosts, meanwhile);
    if let Some(dir) = std::env::var_os("CLUSTER_RECORDS")
        && !report.violations.is_empty()
    {
        MountedHosts::keep_records(&logs, Path::new(&dir));
    }
    report
}

/// Runs a history while servers are killed on other hosts, and sees that one filesystem could have answered so.
#[track_caller]
pub fn expect_none_meanwhile(
    kind: HistoryKind,
    hosts: &MountedHosts,
    limit: Duration,
    meanwhile: impl FnOnce() -> TakeOver,
) -> HistoryReport {
    let work = HistoryWork { clients: 6, operations: OPERATIONS.1, limit, has_faults: true };
    let report = run_on(kind, hosts, work, || Some(meanwhile()));
    assert!(report.violations.is_empty(), "{}: {}", kind.name(), report.describe());
    report
}

/// Runs a history, and sees that one filesystem could have answered so.
#[track_caller]
pub fn expect_none(kind: HistoryKind, hosts: &MountedHosts, fault: ClusterFault) {
    let report = run(kind, hosts, fault);
    assert!(report.violations.is_empty(), "{} with {fault:?}: {}", kind.name(), report.describe());
    // Otherwise nothing was tried.
    let known = report.events.iter().filter(|event| event.results().is_some()).count();
    assert!(known > 20, "{} with {fault:?}: {}", kind.name(), report.describe());
    println!("{}", report.describe());
}

#[test]
fn programs_on_one_mount_see_one_filesystem() {
    let hosts = MountedHosts::start(MountedKind::Worktree, &["h1"]);
    HistoryKind::ALL.into_iter().for_each(|kind| expect_none(kind, &hosts, ClusterFault::None));
}

/// The process of the mount is killed, with the programs.
#[test]
fn what_was_synced_on_one_mount_survives_its_process() {
    let hosts = MountedHosts::start(MountedKind::Worktree, &["h3"]);
    expect_none(HistoryKind::Durable, &hosts, ClusterFault::KillHost);
}

/// The faults and the checkers by themselves: what all hosts see is one directory.
#[test]
fn programs_on_three_hosts_with_one_directory_see_one_filesystem() {
    let hosts = MountedHosts::start(MountedKind::Directory, &["h1", "h2", "h3"]);
    for kind in HistoryKind::ALL {
        expect_none(kind, &hosts, ClusterFault::None);
    }
    for (fault, kind) in ClusterFault::OF_HOSTS[1..].iter().zip(HistoryKind::ALL.into_iter().cycle()) {
        expect_none(kind, &hosts, *fault);
    }
}

#[test]
fn programs_on_three_hosts_with_a_shared_worktree_see_one_filesystem() {
    let hosts = MountedHosts::start(MountedKind::Shared, &["h1", "h2", "h3"]);
    HistoryKind::ALL.into_iter().for_each(|kind| expect_none(kind, &hosts, ClusterFault::None));
}

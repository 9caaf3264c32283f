//! Each fault while each history takes place, on hosts that share a worktree with a log.
//!
//! What is expected of each fault is in docs/shared-worktrees.md; what all have in common is checked: one filesystem could
//! have answered all programs so, nothing acknowledged is lost, and afterwards everything can be read.

use vellum_testkit::histories::HistoryKind;

use crate::faults::ClusterFault;
use crate::histories::expect_none;
use crate::hosts::{LoggedSetup, MountedHosts, MountedKind};
use crate::services::{LogEngine, ObjectPlace};

const MOUNTS: [&str; 3] = ["h1", "h2", "h3"];

fn start(engine: LogEngine, objects: ObjectPlace, has_wrong_clocks: bool) -> MountedHosts {
    MountedHosts::start(MountedKind::Logged(LoggedSetup { engine, objects, has_wrong_clocks }), &MOUNTS)
}

/// Runs histories while a fault comes and goes, each after the other.
#[track_caller]
fn expect_none_each(hosts: &MountedHosts, fault: ClusterFault, kinds: &[HistoryKind]) {
    for kind in kinds {
        println!("{} with {fault:?}", kind.name());
        expect_none(*kind, hosts, fault);
        hosts.restore_first();
    }
}

/// All histories with all faults that this engine can have. `VELLUM_FAULT` and `VELLUM_HISTORY` name those that are to be
/// tried alone, with commas.
fn expect_none_of_all(engine: LogEngine) {
    let objects = ObjectPlace::Service;
    let is_tried = |fault: &ClusterFault| match engine {
        LogEngine::Redis | LogEngine::Store => true,
        LogEngine::Postgres | LogEngine::Etcd => fault.rests_on_engine(),
    };
    let possible = ClusterFault::ALL.into_iter().filter(|fault| fault.is_possible(engine, objects));
    let possible = possible.filter(is_tried);
    let kinds: Vec<_> =
        HistoryKind::ALL.into_iter().filter(|kind| is_meant("VELLUM_HISTORY", kind.name())).collect();
    for fault in possible.filter(|fault| is_meant("VELLUM_FAULT", &format!("{fault:?}"))) {
        let hosts = start(engine, objects, fault.is_of_clocks());
        expect_none_each(&hosts, fault, &kinds);
    }
}

/// Whether a variable names this, or nothing.
fn is_meant(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |only| only.split(',').any(|word| word == name))
}

#[test]
#[ignore = "long"]
fn each_fault_with_a_log_in_redis_is_survived_by_each_history() {
    expect_none_of_all(LogEngine::Redis);
}

#[test]
#[ignore = "long"]
fn each_fault_with_a_log_in_the_store_is_survived_by_each_history() {
    expect_none_of_all(LogEngine::Store);
}

#[test]
#[ignore = "long"]
fn each_fault_with_a_log_in_postgresql_is_survived_by_each_history() {
    expect_none_of_all(LogEngine::Postgres);
}

#[test]
#[ignore = "long"]
fn each_fault_with_a_log_in_etcd_is_survived_by_each_history() {
    expect_none_of_all(LogEngine::Etcd);
}

#[test]
fn faults_of_the_engine_are_survived() {
    let hosts = start(LogEngine::Redis, ObjectPlace::Directory, false);
    let faults = [
        (ClusterFault::RestartEngine, HistoryKind::Counter),
        (ClusterFault::EmptyEngine, HistoryKind::Durable),
        (ClusterFault::FillEngine, HistoryKind::Append),
        (ClusterFault::CutFromEngine, HistoryKind::Register),
        (ClusterFault::FailOverEngine, HistoryKind::Snapshots),
        (ClusterFault::HandOver, HistoryKind::Held),
    ];
    faults.into_iter().for_each(|(fault, kind)| expect_none_each(&hosts, fault, &[kind]));
}

#[test]
fn a_killed_server_is_replaced() {
    let hosts = start(LogEngine::Redis, ObjectPlace::Directory, false);
    expect_none_each(&hosts, ClusterFault::KillServer, &[HistoryKind::Durable]);
}

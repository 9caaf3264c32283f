//! `vellum bench cluster` with hosts of a network, on a worktree that they share.

use std::os::unix::fs::PermissionsExt;

use vellum_testkit::cluster::run_command;

use crate::hosts::{MountedHosts, MountedKind};

#[test]
fn hosts_of_a_shared_worktree_report_as_one() {
    let names = ["h1", "h2", "h3"];
    let hosts = MountedHosts::start(MountedKind::Shared, &names);
    let dir = hosts.logs();
    let enter = dir.path().join("enter");
    let cases = names.map(|name| format!("{name}) process={};;\n", hosts.cluster.host(name).process_id()));
    let script = format!(
        "#!/bin/sh\ncase $1 in\n{}esac\nshift\nexec nsenter --target $process --mount --uts --ipc --net --pid -- \"$@\"\n",
        cases.concat()
    );
    std::fs::write(&enter, script).unwrap();
    std::fs::set_permissions(&enter, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = env!("CARGO_BIN_EXE_vellum");
    let mut command = std::process::Command::new(program);
    command.args([
        "bench",
        "cluster",
        "--json",
        "-p",
        "2",
        "--small-file-count",
        "10",
        "--big-file-size",
        "2M",
    ]);
    command.args(["--operations", "50", "--remote-program", program, "-e"]).arg(enter);
    command.args(names.iter().flat_map(|name| ["--host", name])).arg(hosts.mountpoint());
    let report: serde_json::Value = serde_json::from_str(&run_command(&mut command)).unwrap();
    assert_eq!(report["target"]["filesystem"], "fuse.vellum");
    let workloads = report["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 12);
    for workload in workloads {
        assert_eq!(workload["hosts"].as_array().unwrap().len(), 3, "{workload}");
        assert_eq!(workload["whole"]["errors"], 0, "{workload}");
    }
    let left = hosts.cluster.host("h2").sh(&format!("ls {}", hosts.mountpoint().display()));
    assert_eq!(left, "");
}

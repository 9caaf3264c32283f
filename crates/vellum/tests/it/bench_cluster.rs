//! `vellum bench cluster`: workers on this machine, over ssh, and ones that misbehave. Hosts with networks of their own are
//! in the tests of clusters.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use vellum_testkit::SshServer;

use crate::world::World;

const SMALL: [&str; 14] = [
    "bench",
    "cluster",
    "-p",
    "2",
    "--small-file-size",
    "5K",
    "--small-file-count",
    "10",
    "--big-file-size",
    "300K",
    "--io-size",
    "64K",
    "--operations",
    "20",
];

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], more].concat()
}

/// Where the directory is that is measured: empty but for what the test puts beside it.
fn new_world() -> World {
    let world = World::empty();
    fs::create_dir(world.path("shared")).unwrap();
    world
}

fn is_left_as_it_was(world: &World) -> bool {
    fs::read_dir(world.path("shared")).unwrap().next().is_none()
}

/// A program that is run as `ssh` would be: with a host and a command.
fn write_shell(world: &World, name: &str, script: &str) -> String {
    let path = world.path(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().into()
}

fn workload<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["workloads"].as_array().unwrap();
    all.iter().find(|workload| workload["workload"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn hosts_work_on_one_directory_and_report_as_one() {
    let world = new_world();
    let hosts = ["--host", "localhost", "--host", "localhost", "--runs", "2", "../shared"];
    let report = world.json(&args(&hosts));
    assert_eq!(report["bench"], "cluster");
    assert_eq!(report["rows"].as_array().unwrap().len(), 12);
    assert_eq!(report["rows"][0]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(report["hosts"][1]["host"], "localhost (2)");
    // Two runs, two hosts, two threads.
    for (name, operations, bytes) in [
        ("create", 80, 80 * 5120),
        ("create-empty-one-dir", 80, 0),
        ("read-cold", 80, 80 * 5120),
        ("stat", 80, 0),
        ("mix", 80, 80 * 5120),
        ("big-read", 40, 8 * 300 * 1024),
        ("append", 160, 160 * 64),
        ("lock", 80, 0),
    ] {
        let found = workload(&report, name);
        let whole = &found["whole"];
        assert_eq!(whole["operations"], operations, "{name}");
        assert_eq!(whole["bytes"], bytes, "{name}");
        assert_eq!(whole["errors"], 0, "{name}");
        let of_hosts: u64 =
            found["hosts"].as_array().unwrap().iter().map(|host| host["operations"].as_u64().unwrap()).sum();
        assert_eq!(whole["operations"], of_hosts, "{name}");
        let latency = ["p50", "p95", "p99", "max"].map(|part| whole["latency_ms"][part].as_f64().unwrap());
        assert!(latency.is_sorted() && latency[0] > 0.0, "{name}: {latency:?}");
    }
    assert!(is_left_as_it_was(&world));
    let chosen = ["--host", "localhost", "--workloads", "stat,append", "../shared"];
    let ran = world.run(&args(&chosen)).ok().says("stat").says("append").says("  localhost");
    assert!(!ran.out.contains("create"), "{}", ran.out);
    assert!(is_left_as_it_was(&world));
}

#[test]
fn hosts_are_reached_over_ssh() {
    let world = new_world();
    let server = SshServer::new(&world.path("ssh"));
    let shared = world.path("shared");
    let there = format!("here={}", shared.to_str().unwrap());
    let ssh = server.program();
    let connect = ["-e", ssh.to_str().unwrap(), "--remote-program", env!("CARGO_BIN_EXE_vellum")];
    let hosts = ["--host", &there, "--host", "localhost=../shared"];
    let report = world.json(&args(&[&connect[..], &hosts].concat()));
    assert_eq!(report["hosts"][0]["host"], "here");
    assert_eq!(workload(&report, "create")["whole"]["operations"], 40);
    assert!(is_left_as_it_was(&world));
}

#[test]
fn a_host_that_dies_is_named_and_the_others_go_on() {
    let world = new_world();
    // Dies as soon as it has made something.
    let shared = world.path("shared");
    let script = format!(
        "shift\n(until ls -d {}/vellum-bench-*/bench-small-0-0-0; do sleep 0.01; done; kill -9 $$) >/dev/null 2>&1 &\n\
         exec \"$@\"",
        shared.display()
    );
    let rsh = write_shell(&world, "dying", &script);
    let connect = ["-e", &rsh, "--remote-program", env!("CARGO_BIN_EXE_vellum"), "--json"];
    let dir = shared.to_str().unwrap();
    let hosts = ["--host", "h2", "--host", "localhost", "--runs", "20", dir];
    let ran = world.run(&args(&[&connect[..], &hosts].concat())).code(1);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let lost = &report["hosts"].as_array().unwrap()[0];
    assert!(lost["host"] == "h2" && lost["lost"].as_str().unwrap().contains("signal: 9"), "{lost}");
    let append = workload(&report, "append");
    assert_eq!(append["whole"]["errors"], 0, "{append}");
    assert!(append["hosts"].as_array().unwrap().iter().any(|host| host["host"] == "localhost"));
    assert!(is_left_as_it_was(&world));
}

#[test]
fn hosts_that_cannot_take_part_are_named_before_anything_is_measured() {
    let world = new_world();
    let run = |rsh: &str, hosts: &[&str]| {
        let connect = ["-e", rsh, "--remote-program", env!("CARGO_BIN_EXE_vellum")];
        world.run(&args(&[&connect[..], hosts].concat())).code(2)
    };
    let other = r#"{"reply":"hello","version":"9.9.9"}"#;
    let rsh = write_shell(&world, "other", &format!("echo '{other}'; cat >/dev/null"));
    let ours = env!("CARGO_PKG_VERSION");
    let refused = run(&rsh, &["--host", "localhost", "--host", "h2", "../shared"]);
    refused.remarks("h2").remarks("vellum 9.9.9").remarks(ours).remarks("--remote-program");
    let chatty = write_shell(&world, "chatty", "echo Welcome to h2; cat >/dev/null");
    run(&chatty, &["--host", "h2", "../shared"]).remarks("h2").remarks("not from a worker");
    let silent = write_shell(&world, "silent", "exit 255");
    run(&silent, &["--host", "h2", "../shared"]).remarks("h2").remarks("255");
    run("/nowhere/ssh", &["--host", "h2", "../shared"]).remarks("h2").remarks("/nowhere/ssh");
    fs::create_dir(world.path("another")).unwrap();
    let two = ["--host", "localhost=../shared", "--host", "localhost=../another"];
    run("sh", &two).remarks("localhost (2)").remarks("is not the directory of the other hosts");
    run("sh", &["--host", "localhost=../missing"]).remarks("missing");
    assert!(is_left_as_it_was(&world));
    assert!(fs::read_dir(world.path("another")).unwrap().next().is_none());
}

#[test]
fn absurd_requests_are_refused() {
    let world = new_world();
    let refuse = |more: &[&str], why: &str| world.run(&args(more)).code(3).remarks(why);
    refuse(&["../shared"], "no host was named");
    refuse(&["--host", "localhost"], "no directory was named for the host 'localhost'");
    refuse(&["--host=-oProxyCommand=id", "../shared"], "is not a host name");
    refuse(&["--host", "localhost", "--workloads", "dance", "../shared"], "the workloads are create, ");
    let of_one = |more: &[&str], why: &str| {
        world
            .run(&[&["bench", "cluster", "--host", "localhost", "../shared"], more].concat())
            .code(3)
            .remarks(why)
    };
    of_one(&["-p", "0"], "1 to 1024 threads, not 0");
    of_one(&["-p", "1024", "--operations", "1000000"], "files and records at most");
    of_one(&["--runs", "0"], "1 to 1000 times");
    of_one(&["--small-file-count", "0"], "nothing to measure");
    let full = ["bench", "cluster", "--host", "localhost", "--big-file-size", "1000T", "../shared"];
    world.run(&full).code(2).remarks("MiB free");
    assert!(is_left_as_it_was(&world));
}

//! What `vellum sync` asks of the system, counted.

use std::process::Command;

use crate::world::World;

const DIRS: u64 = 20;
const FILES: u64 = 1000;
/// Of a directory on both sides: looked at, opened, read to its end, closed.
const CALLS_OF_A_DIRECTORY: u64 = 12;
/// What the program needs to start and to end.
const CALLS_IN_ANY_CASE: u64 = 400;

/// Calls by which files and directories are reached; what threads say to each other depends on chance.
const COUNTED: &str = "trace=statx,newfstatat,openat,openat2,close,getdents64";

#[test]
fn where_nothing_changed_there_are_two_calls_for_each_file() {
    let world = World::empty();
    for file in 0..FILES {
        world.write(&format!("src/d{}/f{file}", file % DIRS), "x");
    }
    world.run(&["sync", "src/", "dst/"]).ok();
    let log = world.path("calls");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-c", "-U", "calls,name", "-e", COUNTED, "-o"])
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_vellum"))
        .args(["sync", "src/", "dst/"])
        .current_dir(world.tree())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("Nothing to do"), "{output:?}");
    let table = std::fs::read_to_string(&log).unwrap();
    let total = table.lines().find_map(|line| line.trim().strip_suffix("total")).unwrap();
    let total: u64 = total.trim().parse().unwrap();
    assert!(
        total <= 2 * FILES + CALLS_OF_A_DIRECTORY * (DIRS + 1) + CALLS_IN_ANY_CASE,
        "{total} calls for {FILES} files:\n{table}"
    );
}

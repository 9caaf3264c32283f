//! What `vellum restore` asks of the system, counted.

use std::process::Command;

use crate::world::World;

const DIRS: u64 = 20;
const FILES: u64 = 1000;
/// Of a new file: made, written, given its times, closed; and looked at once for the next snapshot.
const CALLS_OF_A_FILE: u64 = 5;
/// Of a new directory: made, locked, named, given its attributes, read to its end.
const CALLS_OF_A_DIRECTORY: u64 = 40;
/// What the program needs to start, to read the store and to end.
const CALLS_IN_ANY_CASE: u64 = 600;

/// Calls on files; what threads say to each other depends on chance.
const COUNTED: &str = "trace=statx,newfstatat,fstat,openat,openat2,close,linkat,renameat2,fchmod,fchown,flistxattr,\
                       fgetxattr,utimensat,pwrite64,write,mkdirat,getdents64,flock";

#[test]
fn a_file_in_a_new_directory_takes_four_calls() {
    let world = World::new();
    for file in 0..FILES {
        world.write(&format!("d{}/f{file}", file % DIRS), "x");
    }
    world.snapshot("all");
    for dir in 0..DIRS {
        std::fs::remove_dir_all(world.tree().join(format!("d{dir}"))).unwrap();
    }
    let log = world.path("calls");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-c", "-U", "calls,name", "-e", COUNTED, "-o"])
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_vellum"))
        .args(["restore", "all"])
        .current_dir(world.tree())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = std::fs::read_to_string(&log).unwrap();
    let total = table.lines().find_map(|line| line.trim().strip_suffix("total")).unwrap();
    let total: u64 = total.trim().parse().unwrap();
    assert!(
        total <= CALLS_OF_A_FILE * FILES + CALLS_OF_A_DIRECTORY * DIRS + CALLS_IN_ANY_CASE,
        "{total} calls for {FILES} files:\n{table}"
    );
    world.run(&["status"]).ok();
}

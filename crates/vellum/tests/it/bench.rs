//! `vellum bench`

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::disk::Disk;
use crate::mounting::Mount;
use crate::world::World;

const SMALL: [&str; 8] =
    ["--big-file-size", "300K", "--small-file-size", "5K", "--small-file-count", "6", "--io-size", "64K"];

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["bench"], &SMALL[..], more].concat()
}

fn is_empty(path: &std::path::Path) -> bool {
    fs::read_dir(path).unwrap().next().is_none()
}

#[test]
fn a_directory_is_measured_graded_and_left_as_it_was() {
    let world = World::empty();
    let ran = world.run(&args(&["-p", "2", "--runs", "2"])).ok();
    for text in ["big write, flushed", "MiB/s", "fsync", "(expected ", "± "] {
        assert!(ran.out.contains(text), "{text}: {}", ran.out);
    }
    ran.remarks("scaled to how fast this machine is");
    assert!(is_empty(&world.tree()));
}

#[test]
fn a_mount_is_measured_like_any_directory() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let before = fs::read_dir(&mount.path).unwrap().count();
    let path = mount.path.to_str().unwrap();
    let report = world.json(&args(&["--runs", "1", path]));
    assert_eq!(report["target"]["filesystem"], "fuse.vellum");
    assert_eq!(report["rows"].as_array().unwrap().len(), 15);
    assert_eq!(fs::read_dir(&mount.path).unwrap().count(), before);
}

#[test]
fn a_result_compared_with_itself_is_ok_and_with_a_better_one_a_regression() {
    let world = World::empty();
    let json = world.run(&args(&["--json", "--runs", "3"])).ok().out;
    fs::write(world.path("base.json"), &json).unwrap();
    let same = world.run(&["bench", "compare", "../base.json", "../base.json"]).ok();
    assert!(same.lines().iter().all(|line| line.contains("OK")), "{}", same.out);
    let mut report: serde_json::Value = serde_json::from_str(&json).unwrap();
    for row in report["rows"].as_array_mut().unwrap() {
        row["runs"] = serde_json::json!([1e12, 1e12, 1e12]);
    }
    fs::write(world.path("better.json"), report.to_string()).unwrap();
    world.run(&["bench", "compare", "../better.json", "../base.json"]).code(1).says("REGRESSION");
    world.run(&["bench", "compare", "../base.json", "../better.json"]).ok();
    let compared = world.json(&["bench", "compare", "../better.json", "../base.json"]);
    assert!(compared["rows"].as_array().unwrap().iter().all(|row| row["verdict"] == "REGRESSION"));
}

#[test]
fn results_that_cannot_be_compared_are_refused() {
    let world = World::empty();
    let json = world.run(&args(&["--json", "--runs", "1"])).ok().out;
    fs::write(world.path("base.json"), &json).unwrap();
    fs::write(world.path("other.json"), json.replace("\"version\": 1", "\"version\": 2")).unwrap();
    let refused = world.run(&["bench", "compare", "../base.json", "../other.json"]).code(2);
    refused.remarks("other.json").remarks("version 2").remarks("measure again");
    fs::write(world.path("other.json"), &json[..json.len() / 2]).unwrap();
    world.run(&["bench", "compare", "../base.json", "../other.json"]).code(2).remarks("not JSON");
    world.run(&["bench", "compare", "../base.json", "../missing.json"]).code(2).remarks("missing.json");
    fs::write(world.path("other.json"), json.replace("\"io_size\": 65536", "\"io_size\": 1")).unwrap();
    world.run(&["bench", "compare", "../base.json", "../other.json"]).code(3).remarks("another io_size");
    let foreign = world.run(&["mdtest", ".", "--json", "--files", "1", "--runs", "1"]).ok().out;
    fs::write(world.path("other.json"), foreign).unwrap();
    world.run(&["bench", "compare", "../base.json", "../other.json"]).code(3).remarks("mdtest");
}

#[test]
fn a_page_is_written_and_a_place_where_none_can_be_is_refused_at_once() {
    let world = World::empty();
    world.run(&args(&["--runs", "2", "--html", "../page.html"])).ok();
    let page = fs::read_to_string(world.path("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("class=\"box\""));
    world.run(&["bench", "--html", "missing/page.html"]).code(3).remarks("missing/page.html");
    world.run(&["bench", "--html", "."]).code(3);
    assert!(is_empty(&world.tree()));
}

#[test]
fn missing_full_and_read_only_directories_are_named() {
    let world = World::empty();
    world.run(&args(&["missing"])).code(2).remarks("missing");
    world.write("file", "x");
    world.run(&args(&["file"])).code(2).remarks("file");
    world.run(&["bench", "-p", "0"]).code(3).remarks("threads");
    world.run(&["bench", "--big-file-size", "5X"]).code(3).remarks("size");
    let disk = Disk::in_memory(20);
    let path = disk.path();
    let full = ["bench", "--big-file-size", "30M", path.to_str().unwrap()];
    world.run(&full).code(2).remarks("MiB free").remarks("use fewer threads");
    assert!(is_empty(&path));
    world.run(&args(&["/sys"])).code(2).remarks("/sys");
}

/// A bench that runs in the background until it is told to stop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a bench in a directory with somebody else's file, and sends it and what it started a Ctrl-C once it has made
/// something there.
fn interrupt(command: &[&str]) {
    let world = World::empty();
    world.write("mine", "x");
    let child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(command)
        .current_dir(world.tree())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let names = || fs::read_dir(world.tree()).unwrap().map(|entry| entry.unwrap().file_name());
    let start = Instant::now();
    while names().count() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "{command:?} made nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process_group(Pid::from_child(&running.0), Signal::INT).unwrap();
    let status = running.0.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None), "{command:?}");
    assert_eq!(names().collect::<Vec<_>>(), ["mine"], "{command:?}");
}

#[test]
fn interrupted_it_removes_what_it_made_and_only_that() {
    interrupt(&args(&["--runs", "1000"]));
    interrupt(&["mdtest", ".", "--runs", "1000"]);
    interrupt(&["objbench", "store", "--runs", "1000"]);
    let hosts = ["bench", "cluster", "--host", "localhost", "--host", "localhost", "--runs", "1000", "."];
    interrupt(&[&hosts[..], &["--small-file-size", "5K", "--big-file-size", "300K"]].concat());
    interrupt(&["bench", "engines", "--sizes", "1M", "--counts", "10", "--runs", "1000"]);
}

#[test]
fn engines_are_measured_and_those_that_do_not_work_here_are_left_out() {
    let disk = Disk::in_memory(200);
    let world = World::on(&disk.path());
    let ran =
        world.run(&["bench", "engines", "--sizes", "1M", "--counts", "10", "--runs", "1", "--json"]).ok();
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let rows: Vec<_> =
        report["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    for name in
        ["checked out: first snapshot", "copy: fork", "chunks: fork", "mounted: snapshot", "mounted: fork"]
    {
        assert!(rows.iter().any(|row| row.starts_with(name)), "{name}: {rows:?}");
    }
    ran.remarks("left out: reflink");
    assert!(is_empty(&world.tree()));
    world.run(&["bench", "engines", "--counts", "0"]).code(3);
    world.run(&["bench", "engines", "--sizes", "1G"]).code(2).remarks("MiB free");
}

#[test]
fn the_pipeline_is_measured_and_kinds_of_files_are_told_apart() {
    let world = World::empty();
    world.write("a.txt", "again and again\n".repeat(5000));
    world.write("b.txt", "again and again\n".repeat(5000));
    let ran = world.run(&["bench", "pipeline", "--sizes", "4K", "--runs", "1", "."]).ok();
    ran.says("whole 4 KiB, ").says(".txt").says("(50 %)");
    world.run(&["bench", "pipeline", "--sizes", "4K", "--runs", "1", "missing"]).code(2).remarks("missing");
    world.run(&["bench", "pipeline", "--sizes", "0"]).code(3);
}

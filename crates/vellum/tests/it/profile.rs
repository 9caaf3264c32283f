//! `vellum profile`

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mounting::{Mount, wait_until};
use crate::world::World;

const LOG: &str = "\
1.000000 [uid:0,gid:0,pid:1] lookup (node:0x1,a.txt): ok <0.000100>
1.100000 [uid:0,gid:0,pid:1] read (node:0x2): ok <0.002000>
2.000000 [uid:5,gid:5,pid:2] read (node:0x3): Input/output error (os error 5) <0.004000>
";

#[test]
fn a_log_that_was_kept_is_replayed() {
    let world = World::empty();
    fs::write(world.path("log"), LOG).unwrap();
    let report = world.json(&["profile", "../log"]);
    assert_eq!(report["requests"], 3);
    let read = &report["operations"][0];
    assert_eq!(
        (read["operation"].as_str(), read["count"].as_u64(), read["failed"].as_u64()),
        (Some("read"), Some(2), Some(1))
    );
    assert!((read["total"].as_f64().unwrap() - 0.006).abs() < 1e-9);
    assert_eq!(report["slowest"][0]["about"], "node:0x3");
    assert_eq!(world.json(&["profile", "../log", "--uid", "5"])["requests"], 1);
    assert_eq!(world.json(&["profile", "../log", "--pid", "1"])["requests"], 2);
    world.run(&["profile", "../log"]).ok().says("read").says("98.4 %").says("node:0x1,a.txt");
    // By the log's own time: the first two, then the last.
    let tables = world.run(&["profile", "../log", "--interval", "0.5", "--json", "--files", "0"]).ok().out;
    assert_eq!(tables.matches("\"requests\"").count(), 2, "{tables}");
}

#[test]
fn a_log_that_was_cut_off_is_told_with_its_line() {
    let world = World::empty();
    fs::write(world.path("log"), &LOG[..LOG.len() - 20]).unwrap();
    let ran = world.run(&["profile", "../log"]).code(1).remarks("line 3 of the log is damaged");
    ran.says("lookup");
    fs::write(world.path("log"), "").unwrap();
    assert_eq!(world.json(&["profile", "../log"])["requests"], 0);
    world.run(&["profile", "../missing"]).code(2).remarks("missing");
    world.run(&["profile", "."]).code(3).remarks("is no mount");
}

/// A command that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_is_followed_until_it_ends() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["profile", "--interval", "0.1", "--json"])
        .arg(&mount.path)
        .stdout(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let out = child.0.stdout.take().unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let reader = {
        let seen = seen.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                assert!(!line.contains("damaged_lines\": 1"), "{line}");
                seen.fetch_or(line.contains("\"write\""), Ordering::Relaxed);
            }
        })
    };
    // It takes a moment until the log is read.
    let number = Cell::new(0);
    wait_until("a write is told", || {
        fs::write(mount.at(&format!("file-{}", number.get())), "x").unwrap();
        number.set(number.get() + 1);
        seen.load(Ordering::Relaxed)
    });
    mount.umount().ok();
    assert!(child.0.wait().unwrap().success());
    reader.join().unwrap();
}

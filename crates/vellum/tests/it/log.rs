//! `VELLUM_LOG`: what goes on inside, on the standard error output or in a mount's log.

use std::fs::{self, File};
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mounting::{Mount, wait_until};
use crate::world::{Ran, World};

fn run_logging(world: &World, directives: &str, args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
    command.args(args).current_dir(world.tree()).env("VELLUM_LOG", directives).env("TZ", "UTC");
    Ran::of(args, command.output().unwrap())
}

#[test]
fn a_log_is_written_when_it_is_asked_for_and_only_then() {
    let world = World::with_snapshot();
    world.write("a.txt", "changed");
    let quiet = run_logging(&world, "", &["snapshot", "-q"]).ok();
    assert_eq!(quiet.err, "");
    world.write("a.txt", "changed again");
    let output = run_logging(&world, "vellum_volume=info", &["snapshot", "-q"]).ok();
    assert!(output.err.contains("INFO vellum_volume::volume: snapshot committed"), "{}", output.err);
    assert_eq!(output.out.trim().len(), 64, "the standard output is as without a log: {}", output.out);
    world.write("a.txt", "changed once more");
    let traced = run_logging(&world, "vellum_store=trace", &["snapshot", "-q"]).ok();
    assert!(traced.err.contains("store request"), "{}", traced.err);
    assert!(!traced.err.contains("snapshot committed"), "{}", traced.err);
}

#[test]
fn directives_that_mean_nothing_are_refused() {
    let world = World::with_snapshot();
    let refused = run_logging(&world, "vellum=loud", &["status"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("VELLUM_LOG cannot be used"), "{}", refused.err);
    // What the hint says works.
    run_logging(&world, "debug", &["status"]).ok();
    run_logging(&world, "vellum_store=trace,info", &["status"]).ok();
}

#[test]
fn the_process_of_a_mount_writes_into_its_log() {
    let world = World::new();
    let mount = Mount::place(&world, "work");
    let mounted = run_logging(&world, "trace", &["mount", "-q", mount.path.to_str().unwrap()]).ok();
    for line in ["lease acquired", "agreed on FUSE 7"] {
        assert!(mounted.err.contains(line), "{line}: {}", mounted.err);
    }
    fs::write(mount.at("file"), "content").unwrap();
    mount.umount().ok();
    let log = fs::read_to_string(world.tree().join(".vellum/live/work/daemon.log")).unwrap();
    for line in ["changes published", "store request", "lease ended"] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[test]
fn each_line_of_a_mounts_log_has_a_level() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    mount.umount().ok();
    let log = fs::read_to_string(world.tree().join(".vellum/live/work/daemon.log")).unwrap();
    let levels: Vec<_> = log.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert!(levels.len() >= 2 && levels.iter().all(|level| *level == "INFO"), "{log}");
}

/// Runs a command as a unit of systemd does whose standard error is the journal: what it writes there goes to the file.
fn as_unit(world: &World, journal: &Path, args: &[&str]) -> Command {
    let file = File::create(journal).unwrap();
    let found = file.metadata().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
    command.args(args).current_dir(world.tree()).env_remove("VELLUM_LOG").stdin(Stdio::null());
    command.env("JOURNAL_STREAM", format!("{}:{}", found.st_dev(), found.st_ino()));
    command.stdout(Stdio::null()).stderr(file);
    command
}

#[test]
fn a_unit_of_systemd_logs_to_the_journal_with_levels() {
    let world = World::with_snapshot();
    let journal = world.path("journal");
    let read = || fs::read_to_string(&journal).unwrap();
    let mount = Mount::place(&world, "work");
    let args = ["mount", "--foreground", mount.path.to_str().unwrap()];
    let mut process = as_unit(&world, &journal, &args).env("VELLUM_LOG", "info").spawn().unwrap();
    wait_until("it is mounted", || read().contains("mounted on"));
    mount.umount().ok();
    assert!(process.wait().unwrap().success());
    let lines = read();
    assert!(lines.lines().all(|line| line.starts_with("<6>")), "{lines}");
    for line in ["<6>mounted on ", "<6>unmounted", "lease acquired"] {
        assert!(lines.contains(line), "{line}: {lines}");
    }
    let log = fs::read_to_string(world.tree().join(".vellum/live/work/daemon.log")).unwrap();
    assert!(log.contains("INFO mounted on"), "the file has it, too: {log}");

    as_unit(&world, &journal, &["show", "nothing"]).status().unwrap();
    assert!(read().lines().all(|line| line.starts_with("<3>")), "{}", read());
    // The variable alone does not make a file the journal.
    let mut elsewhere = as_unit(&world, &journal, &["show", "nothing"]);
    let output = elsewhere.stderr(Stdio::piped()).output().unwrap();
    assert!(output.stderr.starts_with(b"error: "));
}

//! Credentials of services, where a process could show them: its arguments, its environment, its log, a dump of its memory.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use vellum_testkit::{LyingS3, S3Failure, S3Lie};

use crate::mounting::{kill, wait_until};
use crate::remote::{every, init, world_with_credentials};
use crate::world::World;

/// What no output may contain.
const CANARY: &str = "canary-5d41402abc4b2a76b9719d911017c592";

fn world_with_canary() -> World {
    let world = world_with_credentials();
    let file = world.path("config/vellum/credentials/test");
    fs::write(file, format!("access-key-id = test\nsecret-access-key = {CANARY}\n")).unwrap();
    world
}

fn holds_canary(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes())
}

#[test]
fn a_process_with_credentials_shows_them_nowhere() {
    let world = world_with_canary();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    world.write("a", "one\n");
    world.run_at_home(&["snapshot"]).ok();
    fs::create_dir(world.path("mnt")).unwrap();
    let shown = world.path("mnt").display().to_string();
    let mut mount = world.command_at_home(&["--json", "mount", &shown]);
    let mounted = mount.env("VELLUM_LOG", "trace").output().unwrap();
    let mounted: serde_json::Value = serde_json::from_slice(&mounted.stdout).unwrap();
    // A failure is described in the log with everything that the service said.
    server.add_lie(every("PUT"), S3Lie::Fail(S3Failure::new(403, "SignatureDoesNotMatch")));
    fs::write(world.path("mnt/b"), "two\n").unwrap();
    world.run_beside("mnt", &["flush"]).code(2);
    let process = Path::new("/proc").join(mounted["pid"].to_string());
    for name in ["cmdline", "environ"] {
        assert!(!holds_canary(&process.join(name)), "{name}");
    }
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let log = Path::new(mounted["log"].as_str().unwrap());
    assert!(fs::read_to_string(log).unwrap().contains("SignatureDoesNotMatch"));
    assert!(!holds_canary(log));
    server.tell_truth();
    world.run_at_home(&["umount", &shown]).ok();
}

#[test]
fn a_process_that_is_aborted_leaves_no_dump_of_its_memory() {
    let world = world_with_canary();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    server.add_lie(every("GET"), S3Lie::Hang);
    let told = server.count_told_lies();
    let vellum = world.command_at_home(&["verify", "--all"]);
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "bash"]).arg(vellum.get_program());
    command.args(vellum.get_args()).current_dir(world.tree()).process_group(0);
    vellum.get_envs().for_each(|(name, value)| {
        command.env(name, value.unwrap());
    });
    let mut child = command.spawn().unwrap();
    wait_until("it waits for the service", || server.count_told_lies() > told);
    kill(i32::try_from(child.id()).unwrap(), "-ABRT");
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(6));
    assert!(!status.core_dumped());
}

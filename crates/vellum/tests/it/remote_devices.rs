//! Devices with wrong clocks and with a service that fails at times: whatever they do, and in whatever order they exchange
//! it, they come to the same tree, and no edit is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vellum_testkit::random::{TestRandom, scale_rounds};
use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match};

use crate::remote::world_with_credentials;
use crate::world::{Ran, World, copy_dir};

/// The devices, and how many days their clocks are ahead.
const DEVICES: [(&str, i32); 3] = [("ann", 0), ("bob", 3650), ("cy", -7300)];
/// Rounds with edits: days, of which a month is long. And rounds after them in which all have to come together.
const ROUNDS: usize = 4;
const MONTH: usize = 30;
const ROUNDS_TO_SETTLE: usize = 6;

/// A device: a worktree with a store of its own, and a clock.
struct Device<'a> {
    world: &'a World,
    name: &'static str,
    days_ahead: i32,
}

/// Runs the binary in a directory beside the worktree, on a machine whose clock is ahead: `+61m`, `-3d`.
pub fn run_with_clock(world: &World, dir: &str, ahead: &str, args: &[&str]) -> Ran {
    let vellum = world.command_at_home(args);
    let mut command = Command::new("faketime");
    // Waits are as long as they are: only the time of day is wrong, and that of files is the filesystem's.
    command.args(["-m", "--exclude-monotonic", "-f", ahead]);
    command.arg(vellum.get_program()).args(args).current_dir(world.path(dir)).env_clear();
    vellum.get_envs().for_each(|(name, value)| {
        command.env(name, value.unwrap());
    });
    Ran::of(args, command.env("NO_FAKE_STAT", "1").output().unwrap())
}

impl Device<'_> {
    fn dir(&self) -> PathBuf {
        self.world.path(self.name)
    }

    fn run(&self, args: &[&str]) -> Ran {
        run_with_clock(self.world, self.name, &format!("{:+}d", self.days_ahead), args)
    }

    fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--json"]].concat());
        assert!(ran.code <= 1, "{}: {} {}", self.name, ran.args, ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut waiting = vec![self.dir()];
        while let Some(at) = waiting.pop() {
            for path in fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()) {
                match path.is_dir() {
                    _ if path.ends_with(".vellum") => {}
                    true => waiting.push(path),
                    false => found.push(path),
                }
            }
        }
        found.sort();
        found
    }

    /// The lines of all files.
    fn lines(&self) -> BTreeSet<String> {
        let texts = self.files().into_iter().map(|path| fs::read_to_string(path).unwrap());
        texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    /// Creates, changes, renames, moves or removes a file, or changes its mode. Each line is written once.
    fn edit(&self, random: &mut TestRandom, line: &str) {
        let files = self.files();
        let file = &files[random.next_below(files.len() as u64) as usize];
        match random.next_below(7) {
            // Others may create one of the same name.
            0 => {
                let new = self.dir().join(format!("new-{}", random.next_below(5)));
                fs::write(new, format!("{line}\n")).unwrap();
            }
            1 => {
                let number = random.next_below(100);
                fs::rename(file, self.dir().join(format!("renamed-{}-{number}", self.name))).unwrap();
            }
            2 => {
                let dir = self.dir().join(format!("dir-{}", random.next_below(2)));
                fs::create_dir_all(&dir).unwrap();
                fs::rename(file, dir.join(file.file_name().unwrap())).unwrap();
            }
            3 if files.len() > 3 => fs::remove_file(file).unwrap(),
            4 => set_mode(file, random.pick_item(&[0o600, 0o640, 0o644, 0o755])),
            _ => insert_line(file, line, random),
        }
    }

    /// Fetches what the others sent, merges it in a random order and sends the result; whether anything was merged, or
    /// None if the service failed.
    fn synchronise(&self, random: &mut TestRandom) -> Option<bool> {
        self.run_with_service(&["pull"])?;
        let mut others: Vec<_> =
            DEVICES.into_iter().map(|(name, _)| name).filter(|name| *name != self.name).collect();
        if random.is_one_in(2) {
            others.reverse();
        }
        let shown = self.json(&["remote", "show"]);
        let known: BTreeSet<_> = shown["worktrees"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap())
            .collect();
        let mut is_merged = false;
        for other in others.into_iter().filter(|other| known.contains(other)) {
            let done = self.json(&["merge", "--both", &format!("origin/{other}")]);
            is_merged |= done["outcome"] == "merged";
        }
        self.run_with_service(&["push"])?;
        Some(is_merged)
    }

    /// Runs a command that may fail only because of the service.
    fn run_with_service(&self, args: &[&str]) -> Option<()> {
        let ran = self.run(args);
        if ran.code == 0 {
            return Some(());
        }
        assert!(ran.code == 2 && ran.err.contains("AccessDenied"), "{}: {} {}", self.name, ran.args, ran.err);
        None
    }

    fn head(&self) -> (String, String) {
        let head = self.json(&["status"])["head"].clone();
        (head["id"].as_str().unwrap().into(), head["root"].as_str().unwrap().into())
    }

    fn modes(&self) -> BTreeMap<PathBuf, u32> {
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        self.files()
            .into_iter()
            .map(|path| (path.strip_prefix(self.dir()).unwrap().to_owned(), mode(&path)))
            .collect()
    }
}

fn set_mode(file: &Path, mode: u32) {
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

fn insert_line(file: &Path, line: &str, random: &mut TestRandom) {
    let text = fs::read_to_string(file).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(random.next_below(lines.len() as u64 + 1) as usize, line);
    fs::write(file, lines.join("\n") + "\n").unwrap();
}

/// Makes the service fail for a while, or answer wrongly now and then.
fn make_faults(server: &LyingS3, random: &mut TestRandom) {
    let requests = |method, times, random: &mut TestRandom| S3Match {
        method,
        key: String::new(),
        skip: random.next_below(8) as u32,
        times,
    };
    match random.next_below(6) {
        0 => server.add_lie(requests("ANY", 2, random), S3Lie::Fail(S3Failure::new(503, "SlowDown"))),
        1 => server.add_lie(requests("PUT", 1, random), S3Lie::LoseReply),
        2 => server.add_lie(requests("GET", 2, random), S3Lie::Disconnect),
        3 => server.add_lie(requests("GET", 1, random), S3Lie::CutBody(10)),
        // From some moment on, it lets nobody do anything.
        4 => server
            .add_lie(requests("ANY", u32::MAX, random), S3Lie::Fail(S3Failure::new(403, "AccessDenied"))),
        _ => {}
    }
}

fn check_devices(seed: u64, rounds_of_edits: usize) {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    world.run_at_home(&["init", "--plain", "--name", "main"]).ok();
    for (name, content) in [("shared", "1\n2\n3\n4\n5\n6\n"), ("other", "a\nb\nc\n"), ("third", "x\n")] {
        world.write(name, content);
    }
    world.run_at_home(&["snapshot"]).ok();
    let url = server.store_url("hub");
    world.run_at_home(&["remote", "add", "origin", &url, "--credentials", "test"]).ok();
    let devices = DEVICES.map(|(name, days_ahead)| {
        copy_dir(&world.tree(), &world.path(name));
        let device = Device { world: &world, name, days_ahead };
        device.run(&["worktree", "rename", "main", name]).ok();
        device
    });
    devices.iter().for_each(|device| drop(device.run(&["push"]).ok()));
    let mut random = TestRandom::new(seed);
    let mut written = devices[0].lines();
    for round in 0..rounds_of_edits {
        for device in &devices {
            for edit in 0..3 {
                let before = device.lines();
                device.edit(&mut random, &format!("{} round {round} edit {edit}", device.name));
                let after = device.lines();
                // What was removed on purpose is no loss.
                written.retain(|line| !before.contains(line) || after.contains(line));
                written.extend(after.difference(&before).cloned());
            }
            device.run(&["snapshot"]).ok();
            make_faults(&server, &mut random);
            let _ = device.synchronise(&mut random);
            server.tell_truth();
        }
    }
    let mut rounds = 0;
    loop {
        let merged = devices.iter().filter(|device| device.synchronise(&mut random).unwrap()).count();
        let heads: BTreeSet<_> = devices.iter().map(Device::head).collect();
        if merged == 0 && heads.len() == 1 {
            break;
        }
        rounds += 1;
        assert!(rounds < ROUNDS_TO_SETTLE, "seed {seed}: the devices go on: {heads:?}");
    }
    for device in &devices {
        let lines = device.lines();
        let lost: Vec<_> = written.difference(&lines).collect();
        assert!(lost.is_empty(), "seed {seed}: {} lost {lost:?}", device.name);
        assert_eq!(device.modes(), devices[0].modes(), "seed {seed}: {}", device.name);
        device.run(&["status"]).ok();
        device.run(&["verify", "--all"]).ok();
    }
}

#[test]
fn devices_with_wrong_clocks_and_a_failing_service_come_together() {
    for seed in 1..=scale_rounds(1) {
        check_devices(seed as u64, ROUNDS);
    }
}

#[test]
#[ignore = "long"]
fn devices_with_wrong_clocks_and_a_failing_service_come_together_after_a_month() {
    for seed in 1..=scale_rounds(1) {
        check_devices(100 + seed as u64, MONTH);
    }
}

#[test]
fn the_order_of_snapshots_is_that_of_work_and_not_of_clocks() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    world.run_at_home(&["init", "--plain", "--name", "main"]).ok();
    world.write("a", "start\n");
    world.run_at_home(&["snapshot", "-m", "start"]).ok();
    let url = server.store_url("hub");
    world.run_at_home(&["remote", "add", "origin", &url, "--credentials", "test"]).ok();
    // The first one that works is ten years ahead, and the one that goes on with its work is twenty years behind.
    let [_, bob, cy] = DEVICES.map(|(name, days_ahead)| {
        copy_dir(&world.tree(), &world.path(name));
        let device = Device { world: &world, name, days_ahead };
        device.run(&["worktree", "rename", "main", name]).ok();
        device
    });
    fs::write(bob.dir().join("a"), "by bob\n").unwrap();
    bob.run(&["snapshot", "-m", "bob's"]).ok();
    bob.run(&["push"]).ok();
    cy.run(&["pull"]).ok();
    assert_eq!(cy.json(&["merge", "origin/bob"])["outcome"], "fast-forward");
    fs::write(cy.dir().join("a"), "by cy\n").unwrap();
    cy.run(&["snapshot", "-m", "cy's"]).ok();
    cy.run(&["push"]).ok();
    bob.run(&["pull"]).ok();
    assert_eq!(bob.json(&["merge", "origin/cy"])["outcome"], "fast-forward");
    for device in [&bob, &cy] {
        assert_eq!(fs::read_to_string(device.dir().join("a")).unwrap(), "by cy\n");
        let listed = device.json(&["history"]);
        let snapshots = listed["snapshots"].as_array().unwrap();
        let notes: Vec<_> = snapshots.iter().map(|item| item["note"].as_str().unwrap()).collect();
        assert_eq!(notes, ["cy's", "bob's", "start"], "{}", device.name);
        device.run(&["gc", "run"]).ok();
        device.run(&["verify", "--all"]).ok();
    }
}

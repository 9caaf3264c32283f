//! Devices that work on one volume, each with a store of its own, and exchange their work through a remote: whatever they
//! do and in whatever order they merge, they come to the same tree, nothing is lost, and they stop.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::world::{World, copy_dir, run};

const DEVICES: [&str; 3] = ["ann", "bob", "cy"];
/// Rounds with edits, and rounds after them in which all have to come together.
const ROUNDS: usize = 4;
const ROUNDS_TO_SETTLE: usize = 6;

/// A generator of numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

struct Device {
    name: &'static str,
    dir: PathBuf,
}

impl Device {
    fn json(&self, args: &[&str]) -> serde_json::Value {
        let ran = run(&self.dir, &[args, &["--json"]].concat(), Stdio::null());
        assert!(ran.code <= 1, "{}: {} {}", self.name, ran.args, ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    fn run(&self, args: &[&str]) {
        run(&self.dir, args, Stdio::null()).ok();
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut waiting = vec![self.dir.clone()];
        while let Some(at) = waiting.pop() {
            for entry in fs::read_dir(&at).unwrap() {
                let path = entry.unwrap().path();
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

    /// Makes a file, adds a line to one, renames one, or moves one into a directory. Each line is written once.
    fn edit(&self, numbers: &mut Numbers, line: &str) {
        let files = self.files();
        let file = files[numbers.next(files.len())].clone();
        match numbers.next(4) {
            0 => fs::write(self.dir.join(format!("file-{}", numbers.next(5))), format!("{line}\n"))
                .unwrap_or(()),
            1 => fs::rename(&file, self.dir.join(format!("renamed-{}-{}", self.name, numbers.next(100))))
                .unwrap(),
            2 => {
                let dir = self.dir.join(format!("dir-{}", numbers.next(2)));
                fs::create_dir_all(&dir).unwrap();
                fs::rename(&file, dir.join(file.file_name().unwrap())).unwrap();
            }
            _ => {
                let text = fs::read_to_string(&file).unwrap();
                let mut lines: Vec<&str> = text.lines().collect();
                lines.insert(numbers.next(lines.len() + 1), line);
                fs::write(&file, lines.join("\n") + "\n").unwrap();
            }
        }
    }

    fn lines(&self) -> BTreeSet<String> {
        let text = |path: &PathBuf| fs::read_to_string(path).unwrap();
        self.files()
            .iter()
            .flat_map(|path| text(path).lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }

    /// Takes over what the others pushed, in a random order; whether anything was merged.
    fn synchronise(&self, numbers: &mut Numbers) -> bool {
        self.run(&["pull"]);
        let mut others: Vec<_> = DEVICES.into_iter().filter(|name| *name != self.name).collect();
        if numbers.next(2) == 0 {
            others.reverse();
        }
        let mut is_merged = false;
        for other in others {
            let shown = self.json(&["remote", "show"]);
            let known = shown["worktrees"].as_array().unwrap();
            if known.iter().any(|worktree| worktree["name"] == other) {
                let done = self.json(&["merge", "--both", &format!("origin/{other}")]);
                is_merged |= done["outcome"] == "merged";
            }
        }
        self.run(&["push"]);
        is_merged
    }

    fn head(&self) -> (String, String) {
        let last = self.json(&["status"])["head"].clone();
        (last["id"].as_str().unwrap().into(), last["root"].as_str().unwrap().into())
    }
}

/// A device for each name, with the worktree of `world`, which holds these files, and with the same remote.
fn make_devices(world: &World, files: &[(&str, &str)]) -> [Device; DEVICES.len()] {
    files.iter().for_each(|(name, content)| world.write(name, content));
    world.snapshot("start");
    world.run(&["remote", "add", "origin", &world.path("hub").display().to_string()]).ok();
    DEVICES.map(|name| {
        let dir = world.path(name);
        copy_dir(&world.tree(), &dir);
        let device = Device { name, dir };
        device.run(&["worktree", "rename", "main", name]);
        device
    })
}

fn check_devices(seed: u64) {
    let world = World::new();
    let files = [("shared", "1\n2\n3\n4\n5\n6\n"), ("other", "a\nb\nc\n")];
    let devices = make_devices(&world, &files);
    devices.iter().for_each(|device| device.run(&["push"]));
    let mut numbers = Numbers(seed);
    let mut written: BTreeSet<String> = devices[0].lines();
    for round in 0..ROUNDS {
        for device in &devices {
            for edit in 0..3 {
                let line = format!("{} round {round} edit {edit}", device.name);
                let before = device.lines();
                device.edit(&mut numbers, &line);
                let after = device.lines();
                // A file that was written over on purpose is no loss.
                written.retain(|line| !before.contains(line) || after.contains(line));
                written.extend(after.difference(&before).cloned());
            }
            device.run(&["snapshot"]);
            // One of them is offline now and then.
            if numbers.next(3) > 0 {
                device.synchronise(&mut numbers);
            }
        }
    }
    let mut rounds = 0;
    loop {
        let merged = devices.iter().filter(|device| device.synchronise(&mut numbers)).count();
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
        device.run(&["status"]);
        device.run(&["verify", "--all"]);
    }
}

#[test]
fn devices_come_together_and_stop() {
    check_devices(1);
    check_devices(2);
}

#[test]
fn one_merge_made_on_three_devices_is_one() {
    let world = World::new();
    let devices = make_devices(&world, &[("a", "a\n")]);
    for device in &devices {
        fs::write(device.dir.join(device.name), device.name).unwrap();
        device.run(&["snapshot"]);
        device.run(&["push"]);
    }
    let [ann, bob, cy] = &devices;
    for device in &devices {
        device.run(&["pull"]);
    }
    // All merge the same two, offline.
    assert_eq!(ann.json(&["merge", "origin/bob"])["outcome"], "merged");
    assert_eq!(bob.json(&["merge", "origin/ann"])["outcome"], "merged");
    assert_eq!(ann.head().1, bob.head().1);
    ann.run(&["push"]);
    bob.run(&["push"]);
    ann.run(&["pull"]);
    bob.run(&["pull"]);
    let outcomes = [ann.json(&["merge", "origin/bob"]), bob.json(&["merge", "origin/ann"])];
    let outcomes: BTreeSet<_> = outcomes.iter().map(|done| done["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["adopted", "up-to-date"].into());
    assert_eq!(ann.head(), bob.head());
    ann.run(&["push"]);
    bob.run(&["push"]);
    cy.run(&["pull"]);
    assert_eq!(cy.json(&["merge", "origin/ann"])["outcome"], "merged");
    assert_eq!(cy.json(&["merge", "origin/bob"])["outcome"], "up-to-date");
    cy.run(&["push"]);
    for device in [ann, bob] {
        device.run(&["pull"]);
        assert_eq!(device.json(&["merge", "origin/cy"])["outcome"], "fast-forward");
        assert_eq!(device.head(), cy.head());
    }
}

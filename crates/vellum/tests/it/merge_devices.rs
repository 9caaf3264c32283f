//! Devices that work on one volume, each with a store of its own, and merge the same work through a remote: their merges
//! are one, and they stop.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::world::{World, copy_dir, run};

const DEVICES: [&str; 3] = ["ann", "bob", "cy"];

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

//! The floors of ARCHITECTURE.md, held up by `cargo metadata`: a crate uses crates on lower floors only.
//!
//! Deliberately absent: the order of modules inside a crate, which is the crate's own affair.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Every crate and its floor. A new crate is added here and to ARCHITECTURE.md in the same commit.
const FLOORS: &[(&str, u8)] = &[
    ("vellum-types", 0),
    ("vellum-host", 1),
    ("vellum-crypto", 1),
    ("vellum-chunker", 1),
    ("vellum-store", 2),
    ("vellum-map", 3),
    ("vellum-volume", 4),
    ("vellum-live", 4),
    ("vellum-fs", 5),
    ("vellum-shared-log", 5),
    ("vellum-checkout", 5),
    ("vellum-fuse", 6),
    ("vellum-library", 6),
    ("vellum-sync", 6),
    ("vellum-bench", 6),
    ("vellum-cluster", 7),
    ("vellum-json", 7),
    ("vellum-serve", 8),
    ("vellum-python", 8),
    ("vellum", 8),
];

/// Stand beside the house: may use any floor, and are used by tests and benches alone.
const KITS: [&str; 2] = ["vellum-testkit", "vellum-benchkit"];

/// One dependency between two crates of the workspace.
#[derive(Debug, PartialEq, Eq)]
struct Use {
    user: String,
    used: String,
    only_in_tests: bool,
}

impl Use {
    /// What is wrong with this dependency, if anything is.
    fn objection(&self) -> Option<String> {
        let Self { user, used, only_in_tests } = self;
        if is_kit(user) {
            return None;
        }
        if is_kit(used) {
            return (!only_in_tests).then(|| format!("{user} uses {used} outside its tests and benches"));
        }
        let upper = floor(user)?;
        let lower = floor(used)?;
        (lower >= upper).then(|| format!("{user} (floor {upper}) uses {used} (floor {lower})"))
    }
}

fn is_kit(name: &str) -> bool {
    KITS.contains(&name)
}

fn floor(name: &str) -> Option<u8> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// The packages of the workspace as cargo sees them. `--no-deps` needs neither network nor lock file.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(workspace_root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn name(value: &Value) -> String {
    value["name"].as_str().unwrap().to_owned()
}

/// Every dependency of one crate of the workspace on another.
fn uses(packages: &[Value]) -> Vec<Use> {
    let ours: Vec<String> = packages.iter().map(name).collect();
    let mut found = Vec::new();
    for package in packages {
        for dependency in package["dependencies"].as_array().unwrap() {
            // A crate names itself to have all of its features in its own tests.
            if ours.contains(&name(dependency)) && name(dependency) != name(package) {
                let only_in_tests = dependency["kind"].as_str() == Some("dev");
                found.push(Use { user: name(package), used: name(dependency), only_in_tests });
            }
        }
    }
    found
}

/// The rows of ARCHITECTURE.md's table: `| 3 | `vellum-map` | … |`.
fn drawn(text: &str) -> BTreeMap<String, u8> {
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let floor = cells.next()?.parse().ok()?;
        let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), floor))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn crates_use_lower_floors_only() {
    let objections: Vec<String> = uses(&packages()).iter().filter_map(Use::objection).collect();
    assert!(objections.is_empty(), "\n{}", objections.join("\n"));
}

#[test]
fn every_crate_has_a_floor() {
    for name in packages().iter().map(name) {
        assert!(is_kit(&name) || floor(&name).is_some(), "{name} has no floor: add it to FLOORS");
    }
}

#[test]
fn the_drawing_agrees() {
    let drawing = workspace_root().join("ARCHITECTURE.md");
    let text =
        std::fs::read_to_string(&drawing).unwrap_or_else(|error| panic!("{}: {error}", drawing.display()));
    let drawn = drawn(&text);
    for name in packages().iter().map(name).filter(|name| !is_kit(name)) {
        assert_eq!(drawn.get(&name).copied(), floor(&name), "{name}: ARCHITECTURE.md against FLOORS");
    }
    for (name, drawn_floor) in &drawn {
        assert_eq!(floor(name), Some(*drawn_floor), "{name}: ARCHITECTURE.md against FLOORS");
    }
}

#[test]
fn wrong_uses_are_noticed() {
    let usage = |user: &str, used: &str, only_in_tests| Use {
        user: user.to_owned(),
        used: used.to_owned(),
        only_in_tests,
    };
    assert!(usage("vellum-map", "vellum-store", false).objection().is_none());
    for kit in KITS {
        assert!(usage("vellum-map", kit, true).objection().is_none());
        assert!(usage("vellum-map", kit, false).objection().is_some());
    }
    assert!(usage("vellum-store", "vellum-map", false).objection().is_some());
    assert!(usage("vellum-crypto", "vellum-chunker", true).objection().is_some());
}

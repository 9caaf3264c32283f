//! What `vellum snapshot` asks of the disk, counted.

use std::collections::BTreeMap;
use std::process::Command;

use crate::world::World;

/// Of a snapshot of one changed file, by the folder below `.vellum` that is flushed, or whose file is. A session: its file and
/// its name, at the beginning and the end. Content and index: both files, the folder of the pack and its name, the folder of
/// the index. The records of the snapshot and of the operation: both files and both folders. The ref: its file and its folder.
/// The counter that was seen: its file and its name. Names of folders that hold something were flushed before.
const FLUSHED: [(&str, u64); 9] = [
    ("", 2),
    ("store", 1),
    ("store/.tmp", 6),
    ("store/index", 1),
    ("store/operations", 1),
    ("store/packs", 2),
    ("store/refs", 1),
    ("store/sessions", 2),
    ("store/snapshots", 1),
];

#[test]
fn a_snapshot_of_one_file_flushes_what_it_must_and_no_more() {
    let world = World::with_snapshot();
    world.write("a.txt", "changed");
    let log = world.path("calls");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-y", "-e", "trace=fsync,fdatasync,sync_file_range,syncfs,sync", "-o"])
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_vellum"))
        .args(["snapshot", "-m", "second"])
        .current_dir(world.tree())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = std::fs::read_to_string(&log).unwrap();
    let state = world.tree().join(".vellum");
    let mut found = BTreeMap::new();
    for line in trace.lines().filter(|line| line.contains('<')) {
        let path = line.split_once('<').unwrap().1.split_once('>').unwrap().0;
        let below = path.strip_prefix(state.to_str().unwrap()).unwrap_or_else(|| panic!("{line}"));
        *found.entry(folder_of(below.trim_start_matches('/'))).or_insert(0) += 1;
    }
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        FLUSHED.map(|(folder, count)| (folder.to_owned(), count))
    );
}

/// The folder of the store that a path is in; empty for what lies in the state directory itself.
fn folder_of(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some("store"), Some(folder)) => format!("store/{folder}"),
        (Some("store"), None) => "store".into(),
        (Some(_) | None, _) => String::new(),
    }
}

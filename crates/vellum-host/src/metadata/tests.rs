//! Which attributes count as a change.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::beneath::HeldDir;

#[test]
fn the_same_state_is_seen_as_such_and_every_change_as_one() {
    let temp = tempfile::tempdir().unwrap();
    let dir = HeldDir::open_root(temp.path()).unwrap();
    std::fs::write(temp.path().join("f"), b"one").unwrap();
    let before = dir.stat(b"f").unwrap();
    assert!(before.is_same_state(&dir.stat(b"f").unwrap()));
    dir.hold_node(b"f").unwrap().set_mode(0o640).unwrap();
    let after = dir.stat(b"f").unwrap();
    assert!(before.is_same_file(&after));
    assert!(!before.is_same_state(&after));
}

#[test]
fn a_replaced_file_is_another_file() {
    let temp = tempfile::tempdir().unwrap();
    let dir = HeldDir::open_root(temp.path()).unwrap();
    std::fs::write(temp.path().join("f"), b"one").unwrap();
    let before = dir.stat(b"f").unwrap();
    std::fs::write(temp.path().join("g"), b"one").unwrap();
    dir.rename(b"g", &dir, b"f").unwrap();
    assert!(!before.is_same_file(&dir.stat(b"f").unwrap()));
}

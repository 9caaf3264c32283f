//! Watching real directories, and waiting by a clock that the test holds.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vellum_host::beneath::HeldDir;

use super::*;
use crate::ends::SyncSide;
use crate::local::scan::{EntryFilter, NoFilter};
use crate::rules::{RuleArg, RuleSet, SyncFilters};

/// Longest wait for the system to tell something, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn excluding(pattern: &str) -> Arc<dyn EntryFilter> {
    let args = [RuleArg::Exclude(pattern.as_bytes().to_vec())];
    let read = |_: &[u8]| Err("no files".into());
    let rules = RuleSet::compile_args(&args, false, &mut { read }).unwrap();
    Arc::new(SyncFilters { rules, ..SyncFilters::default() }).create_filter(SyncSide::Source, b"/").unwrap()
}

fn watch(root: &Path, rules: Arc<dyn EntryFilter>) -> WatchedTree {
    let mut tree = WatchedTree::new(HeldDir::open_root(root).unwrap(), rules).unwrap();
    assert_eq!(tree.refresh_watches().unwrap(), WatchCoverage::Whole);
    tree
}

/// Waits until something is told, and takes all of it.
fn told(tree: &mut WatchedTree) -> WatchEvent {
    let start = Instant::now();
    loop {
        let mut fds = [PollFd::from_borrowed_fd(tree.as_fd(), PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut fds, Some(&second)).unwrap();
        match tree.read_events().unwrap() {
            WatchEvent::Nothing => assert!(start.elapsed() < PATIENCE, "nothing was told"),
            noticed => return noticed,
        }
    }
}

/// What was told so far; what the system tells, it tells at once.
fn quiet(tree: &mut WatchedTree) -> bool {
    tree.read_events().unwrap() == WatchEvent::Nothing
}

#[test]
fn changes_at_every_depth_are_noticed() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("a/b/c");
    std::fs::create_dir_all(&deep).unwrap();
    let mut tree = watch(root.path(), Arc::new(NoFilter));
    assert_eq!(tree.len(), 4);
    assert!(quiet(&mut tree));
    std::fs::write(deep.join("f"), b"1").unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
    std::fs::remove_file(deep.join("f")).unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
}

#[test]
fn what_the_rules_leave_out_is_not_watched() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("target/deep")).unwrap();
    std::fs::create_dir_all(root.path().join(".vellum-trash/deep")).unwrap();
    let mut tree = watch(root.path(), excluding("target"));
    assert_eq!(tree.len(), 1);
    std::fs::write(root.path().join("target/deep/f"), b"1").unwrap();
    std::fs::remove_dir_all(root.path().join("target")).unwrap();
    std::fs::write(root.path().join(".vellum-tmp-0123456789abcdef"), b"1").unwrap();
    assert!(quiet(&mut tree));
    std::fs::write(root.path().join("kept"), b"1").unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
}

#[test]
fn a_moved_directory_is_watched_where_it_is() {
    let root = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("a/inner")).unwrap();
    std::fs::create_dir_all(root.path().join("b")).unwrap();
    let mut tree = watch(root.path(), Arc::new(NoFilter));
    std::fs::rename(root.path().join("a"), root.path().join("b/moved")).unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
    tree.refresh_watches().unwrap();
    assert_eq!(tree.len(), 4);
    assert!(quiet(&mut tree));
    std::fs::write(root.path().join("b/moved/inner/f"), b"1").unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
    // Out of the tree: what happens there is nobody's affair any more.
    let out = outside.path().join("out");
    std::fs::rename(root.path().join("b/moved"), &out).unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
    tree.refresh_watches().unwrap();
    assert_eq!(tree.len(), 2);
    std::fs::write(out.join("inner/g"), b"1").unwrap();
    assert!(quiet(&mut tree));
}

#[test]
fn a_directory_made_before_the_refresh_and_filled_after_it_is_not_missed() {
    let root = tempfile::tempdir().unwrap();
    let mut tree = watch(root.path(), Arc::new(NoFilter));
    std::fs::create_dir(root.path().join("new")).unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
    tree.refresh_watches().unwrap();
    std::fs::write(root.path().join("new/f"), b"1").unwrap();
    assert_eq!(told(&mut tree), WatchEvent::Change);
}

#[test]
fn quiet_is_waited_for_and_no_longer_than_the_longest_wait() {
    let pace = WatchPace { quiet: Duration::from_millis(200), longest: Duration::from_secs(1) };
    let at = |millis: u64, start: Instant| start + Duration::from_millis(millis);
    let start = Instant::now();
    let mut settle = SettleTimer::new(pace);
    assert_eq!(settle.remaining_wait(start), None);
    settle.record_event(start);
    assert_eq!(settle.remaining_wait(at(50, start)), Some(Duration::from_millis(150)));
    settle.record_event(at(150, start));
    assert_eq!(settle.remaining_wait(at(200, start)), Some(Duration::from_millis(150)));
    for millis in (200..=950).step_by(50) {
        settle.record_event(at(millis, start));
    }
    assert_eq!(settle.remaining_wait(at(950, start)), Some(Duration::from_millis(50)));
    assert_eq!(settle.remaining_wait(at(2000, start)), Some(Duration::ZERO));
    settle.clear_events();
    assert_eq!(settle.remaining_wait(at(2000, start)), None);
}

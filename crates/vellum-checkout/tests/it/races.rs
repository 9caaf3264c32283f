//! Trees that change while they are looked at or written to. What is asserted holds in every interleaving.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use vellum_host::beneath::{HeldDir, ReplacePolicy};
use vellum_types::FileKind;

use crate::workspace::{Workspace, paths};

/// Runs `disturb` over and over beside `work`.
fn beside(disturb: impl Fn() + Sync, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                disturb();
            }
        });
        // Also when an assertion fails: the disturber would keep the test alive for ever.
        let _stop = StopAtEnd(&stop);
        work();
    });
}

struct StopAtEnd<'s>(&'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A tree with a directory `d`, and beside it `evil`, a symlink to a directory outside.
fn with_outside() -> (Workspace, tempfile::TempDir) {
    let space = Workspace::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    space.write("d/inner", "");
    symlink(outside.path(), space.at("evil")).unwrap();
    (space, outside)
}

#[test]
fn a_directory_exchanged_for_a_symlink_is_never_looked_through() {
    let (space, _outside) = with_outside();
    let swap = || space.root.exchange_names(b"d", &space.root, b"evil").unwrap();
    beside(swap, || {
        for _ in 0..500 {
            let tree = space.scan();
            assert!(tree.walk_entries().all(|entry| entry.name() != b"secret"), "{:?}", paths(&tree));
            for entry in tree.walk_entries() {
                assert_eq!(entry.child_index().is_some(), entry.kind() == FileKind::Dir);
            }
        }
    });
}

#[test]
fn nothing_is_written_through_a_symlink_that_was_a_directory() {
    let (space, outside) = with_outside();
    let swap = || space.root.exchange_names(b"d", &space.root, b"evil").unwrap();
    beside(swap, || {
        let mut attempts = 0;
        let mut written = 0;
        while attempts < 2000 || written < 100 {
            attempts += 1;
            let name = format!("d/new-{attempts}");
            let Ok((dir, name)) = space.root.resolve_parent(name.as_bytes()) else { continue };
            dir.stage_file().unwrap().commit(name, ReplacePolicy::Always).unwrap();
            dir.create_dir(b"sub", 0o700).ok();
            dir.hold_node(name).unwrap().set_mode(0o600).unwrap();
            dir.unlink(name).unwrap();
            written += 1;
        }
    });
    let outside = HeldDir::open_root(outside.path()).unwrap().read_names().unwrap();
    assert_eq!(outside.iter().map(|listed| listed.name.to_vec()).collect::<Vec<_>>(), [b"secret"]);
}

#[test]
fn directories_that_come_and_go_are_no_problem() {
    let space = Workspace::new();
    space.write("steady/file", "");
    let churn = || {
        for name in ["x", "y", "z"] {
            space.write(format!("{name}/deep/file"), "");
        }
        for name in ["x", "y", "z"] {
            std::fs::remove_dir_all(space.at(name)).unwrap();
        }
    };
    beside(churn, || {
        for _ in 0..300 {
            let tree = space.scan();
            assert!(tree.is_complete(), "{:?}", tree.problems());
            assert!(paths(&tree).contains(&"steady/file".to_owned()));
        }
    });
}

#[test]
fn a_file_and_a_directory_that_change_places() {
    let space = Workspace::new();
    space.write("a", "file");
    space.write("b/inner", "");
    let swap = || space.root.exchange_names(b"a", &space.root, b"b").unwrap();
    beside(swap, || {
        for _ in 0..500 {
            let tree = space.scan();
            for entry in tree.walk_entries() {
                assert_eq!(entry.child_index().is_some(), entry.kind() == FileKind::Dir);
            }
        }
    });
}

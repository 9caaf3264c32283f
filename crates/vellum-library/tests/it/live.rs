//! Who may open a live worktree.

use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use vellum_library::live::{self, LiveStateClaim};
use vellum_types::ErrorKind;
use vellum_volume::volume::NewWorktree;
use vellum_volume::{StateDir, Volume};

fn volume() -> (TempDir, Volume) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::create(dir.path()).unwrap();
    let new = NewWorktree {
        store: None,
        name: "main".into(),
        encrypted: false,
        is_in_device_line: false,
        chunk_sizes: None,
    };
    let made = Volume::init_volume(&state, &new, || panic!("a new volume asks for nothing")).unwrap();
    (dir, made.volume)
}

#[test]
fn one_process_at_a_time_has_a_worktree() {
    let (_dir, volume) = volume();
    let claim = LiveStateClaim::acquire(&volume, "work", None).unwrap();
    let refused = LiveStateClaim::acquire(&volume, "work", None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    let holder = format!("the worktree 'work' is open in process {}", std::process::id());
    assert_eq!(refused.to_string(), holder);
    drop(claim);
    let _mounted = LiveStateClaim::acquire(&volume, "work", Some(Path::new("/mnt/work"))).unwrap();
    let refused = LiveStateClaim::acquire(&volume, "work", None).unwrap_err();
    assert!(refused.to_string().contains("mounted on /mnt/work by process"), "{refused}");
}

#[test]
fn a_directory_is_not_opened_live() {
    let (dir, volume) = volume();
    assert!(live::find_live_worktree(&volume, "work").unwrap().is_none());
    let refused = live::find_live_worktree(&volume, "main").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage);
    assert!(refused.to_string().contains(&dir.path().display().to_string()), "{refused}");
    live::create_live_worktree(&volume, "work", None).unwrap();
    assert!(live::find_live_worktree(&volume, "work").unwrap().is_some());
}

/// How many descriptors of this process lead to a path.
fn count_descriptors(path: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == path)).count()
}

#[test]
fn a_claim_is_of_the_state_that_has_the_name() {
    let (_dir, volume) = volume();
    drop(LiveStateClaim::acquire(&volume, "work", None).unwrap());
    let dir = live::live_state_dir(&volume, "work");
    let lock = dir.canonicalize().unwrap().join("lock");
    // A holder without a name is about to end: it is waited for.
    let held = std::fs::File::options().write(true).truncate(true).open(&lock).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| LiveStateClaim::acquire(&volume, "work", None));
        while count_descriptors(&lock) < 2 {
            std::thread::yield_now();
        }
        std::fs::rename(&dir, dir.with_file_name("moved")).unwrap();
        drop(held);
        let claim = waiting.join().unwrap().unwrap();
        assert_eq!(claim.dir(), dir);
        LiveStateClaim::acquire(&volume, "work", None).unwrap_err();
        LiveStateClaim::acquire(&volume, "moved", None).unwrap();
    });
}

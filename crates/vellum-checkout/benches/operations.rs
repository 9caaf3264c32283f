//! What the record of an operation adds to a snapshot of a directory.
//!
//! Snapshots are made in turns with the record kept in the store and dropped on its way there, so that whatever the machine
//! does besides falls on both. The volume seals the record either way: with a figure of that alone, the share of a snapshot
//! is known in whole. `VELLUM_BENCH_DIR` names the directory to work in, `VELLUM_BENCH_FILES` the number of files.

#![allow(clippy::disallowed_methods, reason = "tests and measurements make the trees that the code works on")]
#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use vellum_benchkit::{create_scratch_dir, is_measuring, measure_wall_time, record_figure, setup_size};
use vellum_checkout::{CheckoutSnapshotRequest, CheckoutWorktree};
use vellum_host::ProgressMeter;
use vellum_store::{LocalStore, ObjectInfo, ObjectKey, ObjectStore, StoreError};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotOrigin, StateDir, Volume};

const FILES: u64 = 10_000;
/// Files of each directory.
const IN_ONE: u64 = 100;
/// Of so many files one is changed before each snapshot.
const CHANGED: u64 = 100;
/// Pairs of snapshots, and those of them that are not counted: caches are warm after them.
const PAIRS: usize = 60;
const WARM_UP: usize = 5;
/// Where records of operations are.
const OPERATIONS: &str = "operations/";
const ID: &str = "checkout/snapshot/operations";

fn main() {
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    if wanted.is_some_and(|wanted| !ID.contains(&wanted)) {
        return;
    }
    let bench = SnapshotBench::new();
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for pair in 0..if is_measuring() { PAIRS } else { WARM_UP + 1 } {
        // In turns also within a pair: the second of two snapshots finds what the first one has warmed up.
        let order = if pair % 2 == 0 { [true, false] } else { [false, true] };
        for keeps in order {
            let took = bench.measure_snapshot(keeps);
            if pair >= WARM_UP {
                if keeps { &mut kept } else { &mut dropped }.push(took);
            }
        }
    }
    let with = median(&mut kept);
    let without = median(&mut dropped);
    record_figure(ID, "snapshot with the record of its operation, µs", with.as_secs_f64() * 1e6, "count");
    record_figure(ID, "snapshot without it, µs", without.as_secs_f64() * 1e6, "count");
    let share = (with.as_secs_f64() / without.as_secs_f64() - 1.0) * 100.0;
    record_figure(ID, "what the record adds, %", share, "count");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A directory with files, a store beside it, and which of them were changed.
struct SnapshotBench {
    worktree: CheckoutWorktree,
    store: Arc<RecordDroppingStore>,
    tree: TempDir,
    _dir: TempDir,
    round: AtomicBool,
}

impl SnapshotBench {
    fn new() -> Self {
        let tree = create_scratch_dir();
        let dir = create_scratch_dir();
        for file in 0..setup_size("VELLUM_BENCH_FILES", FILES) {
            let path = path_of(tree.path(), file);
            if file % IN_ONE == 0 {
                std::fs::create_dir(path.parent().unwrap()).unwrap();
            }
            std::fs::write(path, b"content").unwrap();
        }
        let inner = LocalStore::create(dir.path().join("store")).unwrap();
        let store = Arc::new(RecordDroppingStore { inner, keeps: AtomicBool::new(true) });
        let state = StateDir::create(tree.path()).unwrap();
        let new = NewWorktree {
            store: None,
            name: "main".into(),
            encrypted: true,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let made =
            Volume::init_volume_on(store.clone(), &state, &new, || panic!("a new volume asks for nothing"));
        let worktree = CheckoutWorktree::from_volume(made.unwrap().volume).unwrap();
        Self { worktree, store, tree, _dir: dir, round: AtomicBool::new(false) }
    }

    /// Changes some files, and makes a snapshot; how long that took.
    fn measure_snapshot(&self, keeps: bool) -> Duration {
        // Of another length each time, so that the change is seen whatever the clock of the filesystem says.
        let is_odd = self.round.fetch_xor(true, Ordering::Relaxed);
        let content: &[u8] = if is_odd { b"changed content" } else { b"changed" };
        for file in (0..setup_size("VELLUM_BENCH_FILES", FILES)).step_by(CHANGED as usize) {
            std::fs::write(path_of(self.tree.path(), file), content).unwrap();
        }
        self.store.keeps.store(keeps, Ordering::Relaxed);
        let request = CheckoutSnapshotRequest {
            note: String::new(),
            paths: Vec::new(),
            origin: SnapshotOrigin::User,
            only_if_changed: false,
        };
        measure_wall_time(&mut || {
            let _lock = self.worktree.lock_worktree(|| ()).unwrap();
            self.worktree.create_snapshot(&request, &ProgressMeter::default()).unwrap();
        })
    }
}

fn path_of(tree: &Path, file: u64) -> std::path::PathBuf {
    tree.join(format!("directory-{:05}", file / IN_ONE)).join(format!("some-file-{file:07}.txt"))
}

/// A store in a directory that may drop records of operations on their way: what is there then is a store in which nobody can
/// take an operation back.
struct RecordDroppingStore {
    inner: LocalStore,
    keeps: AtomicBool,
}

impl RecordDroppingStore {
    fn is_dropped(&self, key: &ObjectKey) -> bool {
        key.as_str().starts_with(OPERATIONS) && !self.keeps.load(Ordering::Relaxed)
    }
}

impl ObjectStore for RecordDroppingStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&self.inner)
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        if self.is_dropped(key) { Ok(()) } else { self.inner.put_object(key, bytes) }
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        let kept: Vec<_> = objects.iter().filter(|(key, _)| !self.is_dropped(key)).cloned().collect();
        self.inner.put_objects(&kept)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.inner.swap_ref(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.inner.list_objects(folder)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete_object(key)
    }
}

//! A directory with a volume of its own, and what tests do to it.

use std::path::{Path, PathBuf};

use vellum_checkout::{
    CheckoutProblem, CheckoutSnapshotRequest, CheckoutWorktree, RestoreReport, RestoreRequest, Result,
    SnapshotReport,
};
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_store::StoreLocation;
use vellum_types::SnapshotId;
use vellum_volume::history::HistoryEntry;
use vellum_volume::volume::NewWorktree;
use vellum_volume::{FsTree, SnapshotOrigin, StateDir, Volume};

use crate::picture::Picture;

/// A worktree in a directory of its own; the store lies beside it.
pub struct Place {
    _temp: Option<tempfile::TempDir>,
    pub path: PathBuf,
    pub tree: CheckoutWorktree,
}

impl Place {
    pub fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("tree");
        let store = temp.path().join("store");
        Self { _temp: Some(temp), ..Self::at(&path, &store) }
    }

    /// In a given directory, with the store in a given place.
    pub fn at(path: &Path, store: &Path) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let state = StateDir::create(path).unwrap();
        let store = Some(StoreLocation::new(store.to_str().unwrap()));
        let new = NewWorktree {
            store,
            name: "main".into(),
            encrypted: true,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let volume = Volume::init_volume(&state, &new, || unreachable!("a new volume needs no secret"))
            .unwrap()
            .volume;
        Self { _temp: None, path: path.into(), tree: CheckoutWorktree::from_volume(volume).unwrap() }
    }

    /// The folder for what a test needs beside the worktree.
    pub fn beside(&self) -> &Path {
        self.path.parent().unwrap()
    }

    pub fn on(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.join(path)
    }

    /// Writes a file, making the directories on the way.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.on(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn read(&self, path: impl AsRef<Path>) -> Vec<u8> {
        std::fs::read(self.on(path)).unwrap()
    }

    pub fn try_snapshot(&self, paths: &[&str]) -> Result<SnapshotReport> {
        let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let request = CheckoutSnapshotRequest {
            note: String::new(),
            paths,
            origin: SnapshotOrigin::User,
            only_if_changed: false,
        };
        let _lock = self.tree.lock_worktree(|| {})?;
        self.tree.create_snapshot(&request, &ProgressMeter::default())
    }

    /// Takes a snapshot of everything, of which nothing may go wrong.
    pub fn snapshot(&self) -> SnapshotReport {
        self.snapshot_of(&[])
    }

    pub fn snapshot_of(&self, paths: &[&str]) -> SnapshotReport {
        let outcome = self.try_snapshot(paths).unwrap();
        assert_eq!(outcome.problems, []);
        outcome
    }

    pub fn entry(&self, id: SnapshotId) -> HistoryEntry {
        HistoryEntry { id, record: self.tree.volume.catalog.get_record(&id).unwrap() }
    }

    pub fn state(&self, root: MapRoot) -> FsTree {
        self.tree.volume.open_tree(root)
    }

    pub fn request(&self, id: SnapshotId, paths: &[&str]) -> RestoreRequest {
        let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        RestoreRequest { target: self.entry(id), paths, only: Vec::new(), discard: false }
    }

    pub fn try_restore(&self, request: &RestoreRequest) -> Result<RestoreReport> {
        let _lock = self.tree.lock_worktree(|| {})?;
        let plan = self.tree.plan_restore(request, &ProgressMeter::default())?;
        self.tree.execute_restore(plan, &ProgressMeter::default())
    }

    /// Restores everything, of which nothing may go wrong.
    pub fn restore(&self, id: SnapshotId) -> RestoreReport {
        let outcome = self.try_restore(&self.request(id, &[])).unwrap();
        assert_eq!(outcome.problems, []);
        outcome
    }

    /// The changes since the last snapshot, as `kind path` each.
    pub fn status(&self) -> Vec<String> {
        let compared = self.tree.compare_with_snapshot(None, &[], &ProgressMeter::default()).unwrap();
        let line = |change: &vellum_volume::diff::FileChange| {
            format!("{:?} {}", change.kind, vellum_host::escape::format_path(change.path()))
        };
        compared.changes.iter().map(line).collect()
    }

    pub fn picture(&self) -> Picture {
        Picture::of(&self.path)
    }

    /// Opens the same worktree again, as the next command does.
    pub fn again(&self) -> CheckoutWorktree {
        CheckoutWorktree::open(&self.path).unwrap()
    }

    /// The same as another command sees it. The directory lives as long as the first.
    pub fn reopened(&self) -> Self {
        Self { _temp: None, path: self.path.clone(), tree: self.again() }
    }

    pub fn forget_statcache(&self) {
        let _ = std::fs::remove_file(self.on(".vellum/statcache"));
    }

    /// Removes everything but the state directory.
    pub fn wipe(&self) {
        for entry in std::fs::read_dir(&self.path).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == ".vellum" {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                std::fs::remove_dir_all(entry.path()).unwrap();
            } else {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

/// The paths of problems.
pub fn concerning(problems: &[CheckoutProblem]) -> Vec<String> {
    problems.iter().map(|problem| vellum_host::escape::format_path(&problem.path)).collect()
}

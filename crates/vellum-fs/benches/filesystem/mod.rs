//! A new worktree for benches, with its live metadata in the engine of this machine.

use std::sync::Arc;

use tempfile::TempDir;
use vellum_benchkit::create_scratch_dir;
use vellum_fs::log::LogHooks;
use vellum_fs::tree::head::LiveHead;
use vellum_fs::{LiveFilesystem, LiveOptions, WriteLog};
use vellum_live::EmbeddedStore;
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotStatistics, StateDir, Volume};

/// Makes it, in a directory that lasts as long as what is returned.
pub fn open_new_filesystem() -> (TempDir, LiveFilesystem) {
    let dir = create_scratch_dir();
    let root = dir.path().join("worktree");
    std::fs::create_dir(&root).unwrap();
    let state = StateDir::create(&root).unwrap();
    let new = NewWorktree {
        store: None,
        name: "main".into(),
        encrypted: true,
        is_in_device_line: false,
        chunk_sizes: None,
    };
    let volume =
        Volume::init_volume(&state, &new, || panic!("a new volume asks for nothing")).unwrap().volume;
    let log = Arc::new(WriteLog::open(&dir.path().join("log"), u64::MAX).unwrap());
    let live = Arc::new(EmbeddedStore::open(&dir.path().join("live"), LogHooks(log.clone())).unwrap());
    let head = LiveHead::new(volume.empty_root(), SnapshotStatistics::default(), None);
    let fs = LiveFilesystem::open(Arc::new(volume), live, log, &head, LiveOptions::default()).unwrap();
    (dir, fs)
}

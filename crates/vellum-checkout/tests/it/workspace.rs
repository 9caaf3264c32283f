//! A temporary worktree and what tests ask of it.

use std::path::{Path, PathBuf};

use vellum_checkout::scan::{ScanEntryRef, ScanOptions, ScanTree, scan_tree};
use vellum_checkout::statcache::{FilesystemTime, NewStatCache, RecordedEntry, StatCache, write_stat_cache};
use vellum_host::beneath::HeldDir;
use vellum_types::{BlobId, Ino};

pub const BASE: BlobId = BlobId([3; 32]);

/// A root to scan, with a state directory beside it.
pub struct Workspace {
    _temp: tempfile::TempDir,
    pub path: PathBuf,
    pub root: HeldDir,
    pub state: HeldDir,
}

impl Workspace {
    pub fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("tree");
        let state = temp.path().join("state");
        std::fs::create_dir(&path).unwrap();
        std::fs::create_dir(&state).unwrap();
        let root = HeldDir::open_root(&path).unwrap();
        let state = HeldDir::open_root(&state).unwrap();
        Self { _temp: temp, path, root, state }
    }

    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.join(path)
    }

    pub fn write(&self, path: impl AsRef<Path>, content: &str) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn scan(&self) -> ScanTree {
        scan_tree(&self.root, ScanOptions::default()).unwrap()
    }

    pub fn scan_cached(&self) -> ScanTree {
        scan_tree(&self.root, ScanOptions { cache: Some(self.cache()), ..ScanOptions::default() }).unwrap()
    }

    pub fn cache(&self) -> StatCache {
        StatCache::load(&self.state, b"cache").unwrap()
    }

    /// Remembers a tree as if it had been recorded at `stamp`: numbers are the host's.
    pub fn remember(&self, tree: &ScanTree, stamp: FilesystemTime) {
        let recorded =
            |entry: ScanEntryRef<'_>| Some(RecordedEntry { ino: Ino(entry.stat().ino), stat: None });
        let cache = NewStatCache { dir: &self.state, name: b"cache", base: BASE, stamp };
        write_stat_cache(cache, tree, recorded).unwrap();
    }

    /// Lets all attributes grow old enough to be trusted, then remembers the tree.
    pub fn settle_and_remember(&self) {
        std::thread::sleep(std::time::Duration::from_millis(40));
        let stamp = FilesystemTime::read_filesystem_time(&self.state).unwrap();
        self.remember(&self.scan(), stamp);
    }
}

/// Paths of all entries in the order of the walk.
pub fn paths(tree: &ScanTree) -> Vec<String> {
    tree.walk_entries().map(|entry| String::from_utf8_lossy(&entry.path()).into_owned()).collect()
}

/// Paths of the entries that do not count as unchanged.
pub fn changed(tree: &ScanTree) -> Vec<String> {
    let changed = tree.walk_entries().filter(|entry| !entry.is_unchanged());
    changed.map(|entry| String::from_utf8_lossy(&entry.path()).into_owned()).collect()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

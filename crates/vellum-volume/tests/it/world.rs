//! Volumes over stores in memory, with as many worktrees as a test needs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use vellum_crypto::RecordDomain;
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_store::{ObjectKey, ObjectStore, StoreLocation};
use vellum_types::SnapshotId;
use vellum_volume::session::{SessionObject, current_time};
use vellum_volume::verify::{VerifyReport, VerifyScope, verify_volume};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics, StateDir, Volume, VolumeError};

use crate::model::Tree;
use crate::ram::Ram;

/// Whether a volume is sealed.
pub const SEALED: bool = true;
pub const PLAIN: bool = false;

/// A volume, its store, and a place for state directories.
pub struct World {
    pub dir: TempDir,
    pub ram: Arc<Ram>,
    pub volume: Volume,
    count: AtomicU64,
}

/// State directories are synced: memory is faster than a disk.
pub fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub fn new_worktree(name: &str, encrypted: bool) -> NewWorktree {
    NewWorktree {
        store: Some(StoreLocation::new("memory://not-used")),
        name: name.into(),
        encrypted,
        is_in_device_line: false,
        chunk_sizes: None,
    }
}

impl World {
    pub fn new(encrypted: bool) -> Self {
        let dir = temporary();
        let ram = Arc::new(Ram::default());
        let state = Self::state_in(dir.path().join("main"));
        let made = Volume::init_volume_on(ram.clone(), &state, &new_worktree("main", encrypted), || {
            panic!("a new volume asks for nothing")
        });
        Self { dir, ram, volume: made.unwrap().volume, count: AtomicU64::new(0) }
    }

    fn state_in(root: PathBuf) -> StateDir {
        std::fs::create_dir(&root).unwrap();
        StateDir::create(&root).unwrap()
    }

    pub fn empty_state(&self) -> StateDir {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        Self::state_in(self.dir.path().join(number.to_string()))
    }

    /// The volume opened once more, from the first worktree's state.
    pub fn again(&self) -> Volume {
        Volume::open_on(self.ram.clone(), &self.volume.state).unwrap()
    }

    /// Another worktree of the volume.
    pub fn worktree(&self, name: &str) -> Volume {
        self.volume.fork_into(&self.empty_state(), name).unwrap()
    }

    /// A state directory that holds the key and nothing else: no index, no catalog, no memory of refs.
    pub fn newcomer(&self) -> StateDir {
        let state = self.empty_state();
        if let Some(key) = self.volume.state.read_master_key().unwrap() {
            state.write_master_key(&key).unwrap();
        }
        if let Some(held) = self.volume.state.read_held_slot().unwrap() {
            state.write_held_slot(held.slot, &held.exchange).unwrap();
        }
        state.write_worktree_file(&self.volume.worktree).unwrap();
        state
    }

    /// The volume opened once more, from another worktree's state.
    pub fn seen_in_state(&self, other: &Volume) -> Volume {
        Volume::open_on(self.ram.clone(), &other.state).unwrap()
    }

    /// The volume as a newcomer sees it in another store.
    pub fn seen_in(&self, store: Arc<dyn ObjectStore>) -> Volume {
        Volume::open_on(store, &self.newcomer()).unwrap()
    }
}

/// A record of a tree, descending from the worktree's head.
pub fn record(volume: &Volume, root: MapRoot, note: &str) -> SnapshotRecord {
    record_on(volume, volume.read_head().unwrap(), root, note)
}

/// A record of a tree, descending from this snapshot.
pub fn record_on(volume: &Volume, head: Option<SnapshotId>, root: MapRoot, note: &str) -> SnapshotRecord {
    SnapshotRecord {
        nonce: Default::default(),
        root,
        parents: head.into_iter().collect(),
        counter: 1,
        time: current_time(),
        worktree: volume.worktree.worktree.clone(),
        author: "ann".into(),
        host: "box".into(),
        note: note.into(),
        origin: SnapshotOrigin::User,
        paths: Vec::new(),
        statistics: SnapshotStatistics::default(),
    }
}

/// Stores a tree and records it.
pub fn snapshot(volume: &Volume, tree: &Tree, note: &str) -> SnapshotId {
    let mut session = volume.begin_write_session().unwrap();
    let root = tree.store(volume, &session).unwrap();
    session.flush_blobs().unwrap();
    let id = volume.commit_snapshot(record(volume, root, note)).unwrap();
    session.end_session().unwrap();
    id
}

pub fn verified(volume: &Volume) -> VerifyReport {
    verify_volume(volume, &VerifyScope::All, false, &ProgressMeter::default()).unwrap()
}

pub fn assert_clean(volume: &Volume) {
    assert_eq!(verified(volume).findings, []);
}

/// Makes all sessions those of a process that is gone.
pub fn bury_sessions(ram: &Ram, volume: &Volume) {
    for key in ram.keys("sessions") {
        change_session(ram, volume, &key, |session| session.started = 1);
    }
}

/// Rewrites a session as its writer could have written it.
pub fn change_session(ram: &Ram, volume: &Volume, key: &ObjectKey, change: impl FnOnce(&mut SessionObject)) {
    let aad = key.as_str().as_bytes();
    let mut plain = Vec::new();
    volume.keys.open_record(RecordDomain::Session, aad, &ram.bytes(key), &mut plain).unwrap();
    let mut session = SessionObject::decode(&plain).unwrap();
    change(&mut session);
    let mut sealed = Vec::new();
    volume.keys.seal_record(RecordDomain::Session, aad, &session.encode(), &mut sealed);
    ram.force(key, &sealed);
}

/// The error of what must not succeed.
pub fn refused<T>(outcome: Result<T, VolumeError>) -> VolumeError {
    outcome.err().expect("it should have been refused")
}

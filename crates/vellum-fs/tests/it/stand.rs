//! A live worktree of a new volume, in memory but for its state directory.

use std::ops::Deref;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::tree::head::LiveHead;
use vellum_fs::{InodeAttributes, LiveFilesystem, LiveOptions, RenameFlags, RequestCaller, Result, WriteLog};
use vellum_live::{LiveStore, MemoryStore};
use vellum_types::{Ino, InodeAttr};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotOrigin, SnapshotStatistics, StateDir, Volume};

pub const ROOT: Ino = Ino::ROOT;
/// Who asks, unless the test is about that.
pub const CALLER: RequestCaller = RequestCaller { uid: 0, gid: 0, umask: 0o022 };
pub const MOVE: RenameFlags = RenameFlags { noreplace: false, exchange: false, whiteout: None, uid: 0 };
pub const NOREPLACE: RenameFlags = RenameFlags { noreplace: true, ..MOVE };
pub const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..MOVE };

/// Bytes that the write log may take: more than any test here writes.
const LOG_LIMIT: u64 = 1 << 30;

pub struct Stand {
    pub fs: Arc<LiveFilesystem>,
    live: Arc<dyn LiveStore>,
    dir: Arc<TempDir>,
}

impl Deref for Stand {
    type Target = LiveFilesystem;

    fn deref(&self) -> &LiveFilesystem {
        &self.fs
    }
}

/// A directory that goes with the test, in memory if there is room.
pub fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Waits until the clock of inodes has moved on: what is stamped from now on is later than what was stamped before.
pub fn wait_for_tick() {
    let read = || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec, now.tv_nsec)
    };
    let before = read();
    while read() == before {
        std::thread::yield_now();
    }
}

fn open(volume: Arc<Volume>, live: Arc<dyn LiveStore>) -> Arc<LiveFilesystem> {
    let log = WriteLog::open(&volume.state.join("log"), LOG_LIMIT).unwrap();
    let head = volume.read_worktree_head(&volume.worktree.worktree).unwrap().unwrap();
    // What was published since the last snapshot, or else the snapshot.
    let (root, counted) = match (head.live, head.head) {
        (Some(live), _) => (live.root, live.counted),
        (None, Some(id)) => {
            let record = volume.catalog.get_record(&id).unwrap();
            (record.root, SnapshotStatistics { changed: 0, stored: 0, ..record.statistics })
        }
        (None, None) => (volume.empty_root(), SnapshotStatistics::default()),
    };
    let fresh = LiveHead::new(root, counted, None);
    let options = LiveOptions { trash: head.trash, ..LiveOptions::default() };
    Arc::new(LiveFilesystem::open(volume, live, Arc::new(log), &fresh, options).unwrap())
}

impl Stand {
    pub fn new() -> Self {
        let dir = temporary();
        let state = StateDir::create(dir.path()).unwrap();
        let new = NewWorktree {
            store: None,
            name: "main".into(),
            encrypted: false,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let made = Volume::init_volume(&state, &new, || panic!("a new volume asks for nothing")).unwrap();
        let live: Arc<dyn LiveStore> = Arc::new(MemoryStore::default());
        Self { fs: open(Arc::new(made.volume), live.clone()), live, dir: Arc::new(dir) }
    }

    /// One that somebody opened, with its state directory.
    pub fn of(fs: LiveFilesystem, live: Arc<dyn LiveStore>, dir: Arc<TempDir>) -> Self {
        Self { fs: Arc::new(fs), live, dir }
    }

    /// Closes it and opens it again: what is in memory alone is gone.
    pub fn again(self) -> Self {
        let Self { fs, live, dir } = self;
        let volume = fs.volume().clone();
        drop(fs);
        Self { fs: open(volume, live.clone()), live, dir }
    }

    /// Opens it as another machine does, which has only what is published.
    pub fn elsewhere(self) -> Self {
        let Self { fs, dir, .. } = self;
        let volume = fs.volume().clone();
        drop(fs);
        std::fs::remove_dir_all(volume.state.join("log")).unwrap();
        let live: Arc<dyn LiveStore> = Arc::new(MemoryStore::default());
        Self { fs: open(volume, live.clone()), live, dir }
    }

    /// The inode at a path.
    pub fn at(&self, path: &str) -> InodeAttributes {
        self.names().resolve_path(path.as_bytes()).unwrap()
    }

    pub fn attr(&self, path: &str) -> Arc<InodeAttr> {
        self.at(path).attr
    }

    /// Directory and name of a path.
    pub fn split<'p>(&self, path: &'p str) -> (Ino, &'p [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.at(dir).ino, name.as_bytes())
    }

    pub fn mkdir(&self, path: &str) -> Result<InodeAttributes> {
        let (dir, name) = self.split(path);
        self.fs.names().mkdir(dir, name, 0o755, CALLER)
    }

    pub fn create(&self, path: &str) -> Result<InodeAttributes> {
        let (dir, name) = self.split(path);
        self.fs.names().create(dir, name, 0o644, CALLER)
    }

    pub fn link(&self, old: &str, new: &str) -> Result<InodeAttributes> {
        let (dir, name) = self.split(new);
        self.fs.names().link(self.at(old).ino, dir, name)
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.split(path);
        self.fs.names().unlink(dir, name, 0)
    }

    /// Holds an inode, as the kernel does with one that it knows.
    pub fn hold(&self, ino: Ino) -> Result<Ino> {
        self.fs.epochs().hold_inode(self.fs.epochs().current_epoch(), ino)?;
        // It may have been gone before.
        match self.fs.live_map().inode_attr(ino) {
            Ok(_) => Ok(ino),
            Err(error) => self.release(ino).and(Err(error)),
        }
    }

    pub fn release(&self, ino: Ino) -> Result<()> {
        self.fs.epochs().release_inode(self.fs.epochs().current_epoch(), ino, 1)
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.split(path);
        self.fs.names().rmdir(dir, name, 0)
    }

    pub fn rename(&self, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
        let (dir, name) = self.split(old);
        let (newdir, newname) = self.split(new);
        self.fs.names().rename(dir, name, newdir, newname, flags)
    }

    /// Directories, and files whose paths do not end with a slash.
    pub fn populate(&self, paths: &[&str]) {
        for path in paths {
            match path.strip_suffix('/') {
                Some(dir) => self.mkdir(dir),
                None => self.create(path),
            }
            .unwrap();
        }
    }

    pub fn exists(&self, path: &str) -> bool {
        self.names().resolve_path(path.as_bytes()).is_ok()
    }
}

/// For a snapshot that is nothing special.
pub fn request() -> LiveSnapshotRequest {
    LiveSnapshotRequest { note: String::new(), tags: Vec::new(), origin: SnapshotOrigin::User }
}

/// The error number of what must fail.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.expect_err("it must fail").errno()
}

//! What snapshot, restore and fork cost, counted and not timed: the same for a few files and for very many.

use std::collections::BTreeMap;
use std::sync::Arc;

use vellum_benchkit::assert_max_allocations;
use vellum_fs::log::LogHooks;
use vellum_fs::tree::cache::InodeCache;
use vellum_fs::tree::head::{AncestorSnapshot, LiveHead};
use vellum_fs::{LiveFilesystem, LiveOptions, WriteLog};
use vellum_live::sim::SimFolder;
use vellum_live::{EmbeddedStore, EngineLimits};
use vellum_map::{MapBuilder, MapRoot};
use vellum_store::{LocalStore, MeteredStore, RequestCounts};
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotRecord, SnapshotStatistics, StateDir, Volume};

use crate::stand::{CALLER, ROOT, request, temporary};

/// Files in one directory.
const IN_ONE: u64 = 1000;

/// What was asked of the store and of the disk beneath the engine and the write log.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Cost {
    store: RequestCounts,
    disk: usize,
}

struct Place {
    store: Arc<MeteredStore>,
    disk: Arc<SimFolder>,
    volume: Arc<Volume>,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = temporary();
        let objects = LocalStore::create(dir.path().join("store")).unwrap();
        let store = Arc::new(MeteredStore::new(Arc::new(objects)));
        let state = StateDir::create(dir.path()).unwrap();
        let new = NewWorktree {
            store: None,
            name: "main".into(),
            encrypted: false,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let nothing = || panic!("a new volume asks for nothing");
        let volume = Volume::init_volume_on(store.clone(), &state, &new, nothing).unwrap().volume;
        Self { store, disk: SimFolder::with_files(BTreeMap::new()), volume: Arc::new(volume), _dir: dir }
    }

    fn open(&self, name: &str, head: &LiveHead) -> LiveFilesystem {
        let log = Arc::new(
            WriteLog::open_in_folder(self.disk.sibling_folder(&format!("{name}-log")), 1 << 30).unwrap(),
        );
        let folder = self.disk.sibling_folder(&format!("{name}-meta"));
        let live =
            EmbeddedStore::open_in_folder(folder, LogHooks(log.clone()), EngineLimits::default()).unwrap();
        let options = LiveOptions { worktree: Some(name.into()), ..LiveOptions::default() };
        LiveFilesystem::open(self.volume.clone(), Arc::new(live), log, head, options).unwrap()
    }

    /// What something costs.
    fn cost<T>(&self, what: impl FnOnce() -> T) -> (T, Cost) {
        let store = self.store.request_counts();
        let disk = self.disk.operation_count();
        let done = what();
        let now = self.store.request_counts();
        let counts = RequestCounts {
            gets: now.gets - store.gets,
            puts: now.puts - store.puts,
            barriers: now.barriers - store.barriers,
            swaps: now.swaps - store.swaps,
            lists: now.lists - store.lists,
            deletes: now.deletes - store.deletes,
            // How long a name or a number is, is not what is asked here.
            bytes_in: 0,
            bytes_out: 0,
        };
        (done, Cost { store: counts, disk: self.disk.operation_count() - disk })
    }
}

/// A published snapshot of so many files.
fn publish(volume: &Volume, files: u64) -> LiveHead {
    let mut session = volume.begin_write_session().unwrap();
    let root = build(volume, &session, files);
    session.flush_blobs().unwrap();
    let statistics = SnapshotStatistics { files, ..SnapshotStatistics::default() };
    let mut record = SnapshotRecord {
        nonce: Default::default(),
        root,
        parents: Vec::new(),
        counter: 1,
        time: vellum_volume::session::current_time(),
        worktree: "main".into(),
        author: String::new(),
        host: String::new(),
        note: String::new(),
        origin: vellum_volume::SnapshotOrigin::User,
        paths: Vec::new(),
        statistics,
    };
    let id = volume.assign_snapshot_id(&mut record).unwrap();
    volume.catalog.store_record(&record).unwrap();
    volume.update_worktree_ref(&record.worktree, |head| head.head = Some(id)).unwrap();
    session.end_session().unwrap();
    LiveHead::new(root, statistics, Some(AncestorSnapshot { id, counter: 1, time: record.time }))
}

/// Directories of files, in the order of the map's keys.
fn build(volume: &Volume, session: &vellum_volume::WriteSession, files: u64) -> MapRoot {
    let dirs = files.div_ceil(IN_ONE);
    let dir_of = |number: u64| Ino(2 + number);
    let file_of = |number: u64| Ino(2 + dirs + number);
    let name = |number: u64| format!("{number:07}").into_bytes();
    let attr = |kind, (parent, number): (Ino, u64)| {
        let mut attr = InodeAttr::new(kind, 0o755);
        (attr.parent, attr.name) = (parent, name(number));
        if kind == FileKind::Dir {
            attr.nlink = 2;
        }
        attr
    };
    let mut builder = MapBuilder::new(volume.map_shape(), session);
    let mut push = |key: MapKey, value: &[u8]| builder.push_entry(key.as_bytes(), value).unwrap();
    push(MapKey::for_attr(Ino::SUPER), &SuperBlock { next_ino: file_of(files) }.encode());
    let mut root = InodeAttr::new(FileKind::Dir, 0o755);
    root.nlink = 2 + dirs as u32;
    push(MapKey::for_attr(ROOT), &root.encode());
    for dir in 0..dirs {
        let dentry = Dentry { ino: dir_of(dir), kind: FileKind::Dir };
        push(MapKey::for_dentry(ROOT, &name(dir)), &dentry.encode());
    }
    for dir in 0..dirs {
        push(MapKey::for_attr(dir_of(dir)), &attr(FileKind::Dir, (ROOT, dir)).encode());
        for file in dir * IN_ONE..files.min((dir + 1) * IN_ONE) {
            let dentry = Dentry { ino: file_of(file), kind: FileKind::File };
            push(MapKey::for_dentry(dir_of(dir), &name(file)), &dentry.encode());
        }
    }
    for file in 0..files {
        push(MapKey::for_attr(file_of(file)), &attr(FileKind::File, (dir_of(file / IN_ONE), file)).encode());
    }
    builder.finish_tree().unwrap()
}

/// The costs of a snapshot, of one right after it, of a restore that saves what was changed, of one that discards it,
/// and of a fork, up to the moment at which the command can answer.
fn costs(files: u64) -> [Cost; 5] {
    let place = Place::new();
    let head = publish(&place.volume, files);
    let first = head.snapshot.unwrap().id;
    let fs = place.open("main", &head);
    fs.names().lookup(ROOT, b"0000000").unwrap();
    fs.names().mkdir(ROOT, b"new", 0o755, CALLER).unwrap();
    let (_, snapshot) = place.cost(|| fs.create_snapshot(&request()).unwrap());
    let (_, again) = place.cost(|| fs.create_snapshot(&request()).unwrap());
    fs.names().mkdir(ROOT, b"newer", 0o755, CALLER).unwrap();
    let (saved, restore) = place.cost(|| fs.restore_snapshot(first, false).unwrap());
    assert!(saved.is_some());
    fs.names().mkdir(ROOT, b"newest", 0o755, CALLER).unwrap();
    let (_, discard) = place.cost(|| fs.restore_snapshot(first, true).unwrap());
    let (fork, forking) = place.cost(|| {
        place.volume.add_worktree("fork", Some(first), "fork").unwrap();
        place.open("fork", &head)
    });
    for fs in [&fs, &fork] {
        assert_eq!(fs.names().lookup(ROOT, b"new").unwrap_err().errno(), rustix::io::Errno::NOENT);
        let last =
            fs.names().resolve_path(format!("{:07}/{:07}", (files - 1) / IN_ONE, files - 1).as_bytes());
        assert_eq!(last.unwrap().attr.kind, FileKind::File);
    }
    [snapshot, again, restore, discard, forking]
}

#[test]
fn snapshot_restore_and_fork_cost_the_same_for_any_number_of_files() {
    let few = costs(10);
    println!("{few:#?}");
    assert_eq!(costs(10_000), few);
    assert_eq!(costs(1_000_000), few);
}

#[test]
fn what_the_inode_cache_answers_allocates_nothing() {
    let cache = InodeCache::new(1 << 20);
    let attr = Arc::new(InodeAttr::new(FileKind::File, 0o644));
    cache.insert_attr(ROOT, &attr, cache.get_attr(ROOT).unwrap_err());
    cache.insert_dentry(ROOT, b"none", None, cache.get_dentry(ROOT, b"none").unwrap_err());
    assert_max_allocations("a hit of attributes", 0, 1000, |_| drop(cache.get_attr(ROOT).unwrap()));
    assert_max_allocations("a hit of an entry", 0, 1000, |_| {
        assert!(cache.get_dentry(ROOT, b"none").unwrap().is_none())
    });
    assert_max_allocations("a miss of attributes", 0, 1000, |number| {
        assert!(cache.get_attr(Ino(2 + ROOT.0 + number)).is_err())
    });
    assert_max_allocations("a miss of an entry", 0, 1000, |_| {
        assert!(cache.get_dentry(ROOT, b"other").is_err())
    });
}

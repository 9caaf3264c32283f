//! A fork has everything that the worktree has, published or not, and goes its own way.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use vellum_fs::StateReader;
use vellum_fs::history::fork::LiveStateFolders;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::log::LogHooks;
use vellum_fs::tree::head::LiveHead;
use vellum_fs::{LiveFilesystem, LiveOptions, WriteLog};
use vellum_host::ProgressMeter;
use vellum_live::EmbeddedStore;
use vellum_types::Ino;
use vellum_volume::refs::UnsnapshottedTree;
use vellum_volume::verify::{VerifyScope, verify_volume};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotOrigin, SnapshotStatistics, StateDir, Volume};

use crate::stand::CALLER;

fn open(volume: &Arc<Volume>, dir: &Path, worktree: &str) -> LiveFilesystem {
    let log = Arc::new(WriteLog::open(&dir.join("log"), 1 << 30).unwrap());
    let live = Arc::new(EmbeddedStore::open(&dir.join("meta"), LogHooks(log.clone())).unwrap());
    let fresh = LiveHead::new(volume.empty_root(), SnapshotStatistics::default(), None);
    let options = LiveOptions { worktree: Some(worktree.into()), ..LiveOptions::default() };
    LiveFilesystem::open(volume.clone(), live, log, &fresh, options).unwrap()
}

fn world() -> (TempDir, Arc<Volume>, LiveFilesystem) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let state = StateDir::create(dir.path()).unwrap();
    let new = NewWorktree {
        store: None,
        name: "main".into(),
        encrypted: true,
        is_in_device_line: false,
        chunk_sizes: None,
    };
    let made = Volume::init_volume(&state, &new, || panic!("a new volume asks for nothing")).unwrap();
    let volume = Arc::new(made.volume);
    let fs = open(&volume, &dir.path().join("one"), "main");
    (dir, volume, fs)
}

fn write(fs: &LiveFilesystem, name: &str, content: &[u8]) {
    let ino = match fs.names().lookup(Ino::ROOT, name.as_bytes()) {
        Ok(node) => node.ino,
        Err(_) => fs.names().create(Ino::ROOT, name.as_bytes(), 0o644, CALLER).unwrap().ino,
    };
    fs.content().truncate(ino, 0).unwrap();
    assert_eq!(fs.content().write(ino, 0, content, false).unwrap(), content.len());
}

fn read(fs: &LiveFilesystem, name: &str) -> Vec<u8> {
    fs.read(fs.names().lookup(Ino::ROOT, name.as_bytes()).unwrap().ino, 0, 1 << 20).unwrap()
}

fn noise(seed: u8) -> Vec<u8> {
    (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed).collect()
}

#[test]
fn a_fork_has_what_is_published_and_what_is_not() {
    let (dir, volume, one) = world();
    write(&one, "published", &noise(1));
    one.publisher().publish_all().unwrap();
    let request =
        LiveSnapshotRequest { note: String::new(), tags: vec!["both".into()], origin: SnapshotOrigin::User };
    write(&one, "snapshotted", &noise(2));
    let waits = one.create_snapshot(&request).unwrap();
    write(&one, "dirty", &noise(3));
    write(&one, "small", b"small");
    let open_ino = one.names().create(Ino::ROOT, b"nameless", 0o600, CALLER).unwrap().ino;
    one.epochs().hold_inode(one.epochs().current_epoch(), open_ino).unwrap();
    one.names().unlink(Ino::ROOT, b"nameless", 0).unwrap();

    let meta = dir.path().join("two/meta");
    let log = dir.path().join("two/log");
    std::fs::create_dir(dir.path().join("two")).unwrap();
    let stands =
        |head: &LiveHead| Ok(UnsnapshottedTree { root: head.state.base, counted: head.state.counted });
    let base = one.fork_into(LiveStateFolders { meta: &meta, log: &log }, stands).unwrap();
    volume.add_worktree("two", None, "there").unwrap();
    volume.update_worktree_ref("two", |head| head.live = Some(base)).unwrap();

    // Each goes its own way, whatever the other writes, publishes and removes.
    write(&one, "dirty", b"changed in one");
    one.publisher().publish_all().unwrap();
    let two = open(&volume, &dir.path().join("two"), "two");
    for (name, content) in [("published", noise(1)), ("snapshotted", noise(2)), ("dirty", noise(3))] {
        assert!(read(&two, name) == content, "{name}");
    }
    assert_eq!(read(&two, "small"), b"small");
    assert!(two.inode_attr(open_ino).is_err(), "what has no name is nobody's in a fork");
    write(&two, "small", b"changed in two");
    two.names().unlink(Ino::ROOT, b"published", 0).unwrap();
    two.publisher().publish_all().unwrap();
    assert_eq!(read(&one, "small"), b"small");
    assert!(read(&one, "published") == noise(1));
    let later = two.create_snapshot(&request).unwrap();
    two.publisher().publish_pending().unwrap();
    assert_eq!(volume.catalog.fetch_record(&later).unwrap().parents, [waits]);
    assert_eq!(volume.read_worktree_head("two").unwrap().unwrap().head, Some(later));
    assert_eq!(volume.read_worktree_head("main").unwrap().unwrap().head, Some(waits));
    let report = verify_volume(&volume, &VerifyScope::All, false, &ProgressMeter::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_fork_is_refused_where_something_is_already() {
    let (dir, _, one) = world();
    write(&one, "file", b"content");
    let meta = dir.path().join("one/meta");
    let log = dir.path().join("one/log");
    one.fork_into(LiveStateFolders { meta: &meta, log: &log }, |_| Ok(())).unwrap_err();
    assert_eq!(read(&one, "file"), b"content");
}

//! Snapshots that no `vellum snapshot` made: nothing outside the root is touched, nothing panics, nothing hangs.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use vellum_checkout::export_tree;
use vellum_host::ProgressMeter;
use vellum_map::{MapBuilder, MapRoot};
use vellum_types::value::SuperBlock;
use vellum_types::{
    BlobId, BlobKind, Dentry, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey, MapKeyTag, SnapshotId,
};
use vellum_volume::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics};

use crate::picture::Picture;
use crate::place::Place;

/// The map of a snapshot under construction.
struct Forged {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Forged {
    fn new() -> Self {
        let mut root = InodeAttr::new(FileKind::Dir, 0o755);
        root.nlink = 2;
        let mut forged = Self { entries: Vec::new() };
        forged.put(&MapKey::for_attr(Ino::SUPER), SuperBlock { next_ino: Ino(1000) }.encode());
        forged.put(&MapKey::for_attr(Ino::ROOT), root.encode());
        forged
    }

    fn put(&mut self, key: &MapKey, value: Vec<u8>) -> &mut Self {
        self.entries.push((key.as_bytes().to_vec(), value));
        self
    }

    /// A key that no `MapKey` can be.
    fn put_raw(&mut self, ino: Ino, tag: MapKeyTag, suffix: &[u8], value: Vec<u8>) -> &mut Self {
        let mut key = MapKey::first_for_tag(ino, tag).into_bytes();
        key.extend_from_slice(suffix);
        self.entries.push((key, value));
        self
    }

    fn name(&mut self, dir: u64, name: &[u8], ino: u64, kind: FileKind) -> &mut Self {
        self.put_raw(Ino(dir), MapKeyTag::Dentry, name, Dentry { ino: Ino(ino), kind }.encode())
    }

    /// An inode that says it is `name` in `dir`.
    fn inode(&mut self, ino: u64, dir: u64, name: &[u8], kind: FileKind) -> &mut Self {
        let mut attr = InodeAttr::new(kind, 0o755);
        (attr.parent, attr.name) = (Ino(dir), name.to_vec());
        match kind {
            FileKind::File => (attr.inline, attr.size) = (Some(b"forged".to_vec()), 6),
            FileKind::Symlink => attr.target = b"/etc".to_vec(),
            _ => {}
        }
        self.put(&MapKey::for_attr(Ino(ino)), attr.encode())
    }

    /// Both.
    fn entry(&mut self, dir: u64, name: &[u8], ino: u64, kind: FileKind) -> &mut Self {
        self.name(dir, name, ino, kind).inode(ino, dir, name, kind)
    }

    /// A file of a size, with extents.
    fn file(&mut self, name: &[u8], size: u64, extents: &[(u64, Extent)]) -> &mut Self {
        let mut attr = InodeAttr::new(FileKind::File, 0o644);
        (attr.parent, attr.name, attr.size) = (Ino::ROOT, name.to_vec(), size);
        self.name(1, name, 50, FileKind::File).put(&MapKey::for_attr(Ino(50)), attr.encode());
        for (offset, extent) in extents {
            self.put(&MapKey::for_extent(Ino(50), *offset), extent.encode());
        }
        self
    }

    /// Makes it a snapshot of the volume.
    fn commit(&mut self, place: &Place) -> SnapshotId {
        self.entries.sort();
        let volume = &place.tree.volume;
        let mut session = volume.begin_write_session().unwrap();
        let root: MapRoot = {
            let mut builder = MapBuilder::new(volume.map_shape(), &session);
            for (key, value) in &self.entries {
                builder.push_entry(key, value).unwrap();
            }
            builder.finish_tree().unwrap()
        };
        session.flush_blobs().unwrap();
        let record = SnapshotRecord {
            nonce: Default::default(),
            root,
            parents: Vec::new(),
            counter: 1,
            time: vellum_types::UnixTime::default(),
            worktree: "main".into(),
            author: String::new(),
            host: String::new(),
            note: String::new(),
            origin: SnapshotOrigin::User,
            paths: Vec::new(),
            statistics: SnapshotStatistics::default(),
        };
        let id = volume.catalog.store_record(&record).unwrap();
        session.end_session().unwrap();
        id
    }
}

/// A worktree within a directory that must stay as it is.
struct Fenced {
    place: Place,
    fence: PathBuf,
    outside: Picture,
    state: Vec<(PathBuf, Vec<u8>)>,
}

impl Fenced {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap().keep();
        let fence = temp.join("fence");
        std::fs::create_dir_all(fence.join("precious")).unwrap();
        std::fs::write(fence.join("precious/file"), "precious").unwrap();
        let place = Place::at(&fence.join("tree"), &temp.join("store"));
        place.write("here", "before");
        place.write("d/inner", "before");
        place.snapshot();
        let mut fenced = Self { place, fence, outside: Picture::default(), state: Vec::new() };
        fenced.outside = fenced.look();
        fenced.state = fenced.keys();
        fenced
    }

    /// Everything around the worktree.
    fn look(&self) -> Picture {
        let mut picture = Picture::of(&self.fence);
        picture.0.retain(|path, _| !path.starts_with(b"tree"));
        picture
    }

    fn keys(&self) -> Vec<(PathBuf, Vec<u8>)> {
        ["key", "worktree.json"]
            .iter()
            .map(|name| (name.into(), self.place.read(format!(".vellum/{name}"))))
            .collect()
    }

    #[track_caller]
    fn check(&self, what: &str) {
        self.look().expect(&self.outside, what);
        assert_eq!(self.keys(), self.state, "{what}");
        let mode = rustix::fs::stat(self.place.on(".vellum")).unwrap().st_mode & 0o7777;
        assert_eq!(mode, 0o700, "{what}");
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.fence.parent().unwrap());
    }
}

/// Restores and exports a forged snapshot; neither may do harm. Gives whether the restore was refused.
#[track_caller]
fn attempt(what: &str, forge: impl FnOnce(&mut Forged)) -> bool {
    let fenced = Fenced::new();
    let mut forged = Forged::new();
    forge(&mut forged);
    let id = forged.commit(&fenced.place);
    let request = fenced.place.request(id, &[]);
    let restored = fenced.place.try_restore(&request);
    fenced.check(what);
    let refused = match &restored {
        Err(error) => {
            println!("{what}: refused: {error}");
            true
        }
        Ok(outcome) => {
            println!("{what}: {:?}", outcome.problems);
            false
        }
    };
    let state = fenced.place.state(fenced.place.entry(id).record.root);
    let to = fenced.place.path.join("exported");
    let _ = export_tree(&fenced.place.tree.volume, &state, Ino::ROOT, &to, &ProgressMeter::default());
    fenced.check(what);
    assert!(!to.join(".vellum").exists(), "{what}: an export is no worktree");
    // The worktree is still one.
    fenced.place.status();
    let _ = fenced.place.try_restore(&request);
    fenced.check(what);
    refused
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in [&b".."[..], b".", b"", b"a/b", b"../precious/file", b"/etc/x", b"nul\0l", &[b'x'; 256]] {
        let what = String::from_utf8_lossy(name).into_owned();
        // A key can hold at most the longest name; the map itself refuses more.
        if name.len() > 255 {
            continue;
        }
        assert!(attempt(&what, |forged| {
            forged.name(1, name, 5, FileKind::File).inode(5, 1, b"honest", FileKind::File);
        }));
        assert!(attempt(&what, |forged| {
            forged.name(1, name, 5, FileKind::Dir).inode(5, 1, b"honest", FileKind::Dir);
            forged.entry(5, b"file", 6, FileKind::File);
        }));
    }
}

#[test]
fn the_state_directory_is_out_of_reach() {
    assert!(attempt("a directory .vellum", |forged| {
        forged.entry(1, b".vellum", 5, FileKind::Dir).entry(5, b"planted", 6, FileKind::File);
    }));
    assert!(attempt("a directory .vellum further down", |forged| {
        forged.entry(1, b"d", 5, FileKind::Dir).entry(5, b".vellum", 6, FileKind::Dir);
        forged.entry(6, b"key", 7, FileKind::File);
    }));
    assert!(attempt("a file .vellum", |forged| {
        forged.entry(1, b".vellum", 5, FileKind::File);
    }));
    assert!(attempt("a directory that says it is .vellum", |forged| {
        forged.name(1, b"d", 5, FileKind::Dir).inode(5, 1, b".vellum", FileKind::Dir);
        forged.entry(5, b"planted", 6, FileKind::File);
    }));
}

#[test]
fn directories_in_circles_end() {
    assert!(attempt("a directory in itself", |forged| {
        forged.entry(1, b"d", 5, FileKind::Dir).name(5, b"again", 5, FileKind::Dir);
    }));
    assert!(attempt("a directory whose parent is itself", |forged| {
        forged.name(1, b"d", 5, FileKind::Dir).inode(5, 5, b"d", FileKind::Dir);
        forged.entry(5, b"file", 6, FileKind::File);
    }));
    assert!(attempt("two directories in each other", |forged| {
        forged.name(1, b"d", 5, FileKind::Dir).inode(5, 6, b"b", FileKind::Dir).name(
            5,
            b"a",
            6,
            FileKind::Dir,
        );
        forged.inode(6, 5, b"a", FileKind::Dir).name(6, b"b", 5, FileKind::Dir);
    }));
    assert!(attempt("a directory with two names", |forged| {
        forged.entry(1, b"d", 5, FileKind::Dir).name(1, b"e", 5, FileKind::Dir);
    }));
}

#[test]
fn trees_that_contradict_themselves() {
    assert!(attempt("a missing inode", |forged| {
        forged.name(1, b"f", 5, FileKind::File);
    }));
    assert!(attempt("a missing directory", |forged| {
        forged.name(1, b"f", 5, FileKind::Dir);
    }));
    attempt("one inode under two names, with one link", |forged| {
        forged.entry(1, b"f", 5, FileKind::File).name(1, b"g", 5, FileKind::File);
    });
    for kind in [FileKind::Dir, FileKind::Symlink, FileKind::Fifo, FileKind::CharDevice] {
        assert!(attempt("a file that is something else", |forged| {
            forged.name(1, b"f", 5, FileKind::File).inode(5, 1, b"f", kind);
        }));
    }
    assert!(attempt("a symlink with entries, said to be a directory", |forged| {
        forged.name(1, b"f", 5, FileKind::Dir).inode(5, 1, b"f", FileKind::Symlink);
        forged.entry(5, b"passwd", 6, FileKind::File);
    }));
    attempt("a symlink with entries", |forged| {
        forged.entry(1, b"f", 5, FileKind::Symlink).entry(5, b"passwd", 6, FileKind::File);
    });
    attempt("a file with entries", |forged| {
        forged.entry(1, b"f", 5, FileKind::File).entry(5, b"inside", 6, FileKind::File);
    });
}

#[test]
fn sizes_and_extents_that_lie() {
    let extent = |len, source| Extent { len, source };
    let chunk = |id| ExtentSource::Chunk { id, skip: 0 };
    let nothing = chunk(BlobId([9; 32]));
    assert!(attempt("extents beyond the size", |forged| {
        forged.file(b"f", 100, &[(0, extent(200, nothing))]);
    }));
    assert!(attempt("overlapping extents", |forged| {
        forged.file(b"f", 300, &[(0, extent(200, nothing)), (100, extent(200, nothing))]);
    }));
    assert!(attempt("an extent at the end of all numbers", |forged| {
        forged.file(b"f", i64::MAX as u64, &[(u64::MAX - 5, extent(100, nothing))]);
    }));
    attempt("an extent in a write log", |forged| {
        forged.file(b"f", 100, &[(0, extent(100, ExtentSource::WriteLog { segment: 1, offset: 2 }))]);
    });
    attempt("a chunk that is nowhere", |forged| {
        forged.file(b"f", 100, &[(0, extent(100, nothing))]);
    });
    attempt("the largest hole", |forged| {
        forged.file(b"f", i64::MAX as u64, &[]);
    });
    attempt("a file of many huge holes", |forged| {
        let holes: Vec<_> = (0..100).map(|n| (n << 55, extent(1 << 54, ExtentSource::Hole))).collect();
        forged.file(b"f", i64::MAX as u64, &holes);
    });
}

#[test]
fn chunks_of_another_length_than_said_make_no_file() {
    let fenced = Fenced::new();
    let session = fenced.place.tree.volume.begin_write_session().unwrap();
    let id = session.put_blob(BlobKind::Chunk, b"ten bytes!").unwrap();
    let mut session = session;
    session.flush_blobs().unwrap();
    session.end_session().unwrap();
    for (len, skip) in [(11, 0), (10, 1), (1, 10), (5, u32::MAX), (4 << 20, 0)] {
        let mut forged = Forged::new();
        forged.file(b"f", len, &[(0, Extent { len, source: ExtentSource::Chunk { id, skip } })]);
        forged.entry(1, b"honest", 7, FileKind::File);
        let snapshot = forged.commit(&fenced.place);
        let outcome = fenced.place.try_restore(&fenced.place.request(snapshot, &[])).unwrap();
        assert_eq!(crate::place::concerning(&outcome.problems), ["f"], "{len} {skip}");
        assert!(!fenced.place.on("f").exists() && fenced.place.read("honest") == b"forged");
        fenced.check("wrong lengths");
    }
}

/// What may stand behind its start, a reader that begins there would not see.
#[test]
fn a_tree_with_an_extent_longer_than_any_chunk_is_not_restored() {
    let fenced = Fenced::new();
    let mut forged = Forged::new();
    let len = (4 << 20) + 1;
    forged.file(b"f", len, &[(0, Extent { len, source: ExtentSource::Hole })]);
    let snapshot = forged.commit(&fenced.place);
    let failure = fenced.place.try_restore(&fenced.place.request(snapshot, &[])).map(drop).unwrap_err();
    assert!(failure.to_string().contains("inode"), "{failure}");
    assert!(!fenced.place.on("f").exists());
    fenced.check("a long extent");
}

#[test]
fn a_symlink_swapped_in_for_a_directory_is_never_followed() {
    let fenced = Fenced::new();
    let place = &fenced.place;
    for number in 0..40 {
        place.write(format!("d/sub/f{number}"), format!("{number}"));
    }
    let full = place.snapshot();
    std::fs::remove_dir_all(place.on("d/sub")).unwrap();
    place.write("d/other", "x");
    let empty = place.snapshot();
    symlink(fenced.fence.join("precious"), place.on("evil")).unwrap();
    place.write(".vellumignore", "evil\n");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for name in ["d", "d/sub"] {
                    let _ = renameat_with(CWD, place.on(name), CWD, place.on("evil"), RenameFlags::EXCHANGE);
                    std::thread::yield_now();
                    let _ = renameat_with(CWD, place.on(name), CWD, place.on("evil"), RenameFlags::EXCHANGE);
                }
            }
        });
        for round in 0..60 {
            let id = if round % 2 == 0 { full.id } else { empty.id };
            let mut request = place.request(id, &[]);
            request.discard = true;
            let _ = place.try_restore(&request);
        }
        stop.store(true, Ordering::Relaxed);
    });
    fenced.check("exchanged");
    assert_eq!(std::fs::read_dir(fenced.fence.join("precious")).unwrap().count(), 1);
}

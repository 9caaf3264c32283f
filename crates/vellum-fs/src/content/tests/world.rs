//! A volume with some files in it, and a live worktree on that.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::StateReader;
use tempfile::TempDir;
use vellum_live::{LiveStore, MemoryStore};
use vellum_map::{KeySpan, MapBuilder, MapRoot};
use vellum_types::value::SuperBlock;
use vellum_types::{
    BlobKind, Dentry, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey, MapKeyRef, MapKeyTag,
};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotStatistics, StateDir, Volume};

use crate::log::WriteLog;
use crate::tree::head::LiveHead;
use crate::{LiveFilesystem, LiveOptions};

/// Empty, in no directory: content has nothing to do with names.
pub const NEW: Ino = Ino(100);
/// Published, in chunks of [`CHUNK`] bytes.
pub const CHUNKED: Ino = Ino(2);
/// Published, inline.
pub const SMALL: Ino = Ino(3);
pub const CHUNK: usize = 3000;
/// Published, inline, and behind so many others that it is not in the node that the root directory is in.
pub const FAR: Ino = Ino(260);

pub struct World {
    pub dir: TempDir,
    pub volume: Arc<Volume>,
    pub live: Arc<dyn LiveStore>,
    pub base: MapRoot,
    pub limit: u64,
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(31).wrapping_add(seed * 7 + at / 251) % 251) as u8 + 1)
        .collect()
}

pub fn chunked() -> Vec<u8> {
    pattern(10 * CHUNK + 17, 1)
}

pub fn small() -> Vec<u8> {
    pattern(300, 2)
}

pub fn far() -> Vec<u8> {
    pattern(1000, FAR.0)
}

fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl World {
    pub fn new() -> Self {
        let dir = temporary();
        std::fs::create_dir(dir.path().join("worktree")).unwrap();
        let state = StateDir::create(&dir.path().join("worktree")).unwrap();
        let new = NewWorktree {
            store: None,
            name: "main".into(),
            encrypted: true,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let made = Volume::init_volume(&state, &new, || panic!("a new volume asks for nothing"));
        let volume = Arc::new(made.unwrap().volume);
        let base = publish(&volume);
        Self { dir, volume, live: Arc::new(MemoryStore::default()), base, limit: 1 << 30 }
    }

    /// Opens the worktree, as after the death of the process that had it open.
    pub fn open(&self) -> LiveFilesystem {
        let log = Arc::new(WriteLog::open(&self.dir.path().join("log"), self.limit).unwrap());
        let fresh = LiveHead::new(self.base, SnapshotStatistics::default(), None);
        LiveFilesystem::open(self.volume.clone(), self.live.clone(), log, &fresh, LiveOptions::default())
            .unwrap()
    }
}

/// Makes a tree with a file in chunks and an inline one.
fn publish(volume: &Volume) -> MapRoot {
    let mut session = volume.begin_write_session().unwrap();
    let mut entries: Vec<(MapKey, Vec<u8>)> = Vec::new();
    let file = |name: &[u8], size: usize| {
        let mut attr = InodeAttr::new(FileKind::File, 0o644);
        (attr.parent, attr.name, attr.size) = (Ino::ROOT, name.to_vec(), size as u64);
        attr
    };
    let mut root = InodeAttr::new(FileKind::Dir, 0o755);
    root.nlink = 2;
    entries.push((MapKey::for_attr(Ino::SUPER), SuperBlock { next_ino: Ino(FAR.0 + 1) }.encode()));
    entries.push((MapKey::for_attr(Ino::ROOT), root.encode()));
    for (name, ino) in [(b"chunked".as_slice(), CHUNKED), (b"small", SMALL)] {
        entries.push((MapKey::for_dentry(Ino::ROOT, name), Dentry { ino, kind: FileKind::File }.encode()));
    }
    entries.push((MapKey::for_attr(CHUNKED), file(b"chunked", chunked().len()).encode()));
    for (number, bytes) in chunked().chunks(CHUNK).enumerate() {
        let id = session.put_blob(BlobKind::Chunk, bytes).unwrap();
        let extent = Extent { len: bytes.len() as u64, source: ExtentSource::Chunk { id, skip: 0 } };
        entries.push((MapKey::for_extent(CHUNKED, (number * CHUNK) as u64), extent.encode()));
    }
    let inline = InodeAttr { inline: Some(small()), ..file(b"small", small().len()) };
    entries.push((MapKey::for_attr(SMALL), inline.encode()));
    for number in 200..=FAR.0 {
        let inline = Some(pattern(far().len(), number));
        let attr = InodeAttr { inline, ..file(number.to_string().as_bytes(), far().len()) };
        entries.push((MapKey::for_attr(Ino(number)), attr.encode()));
    }
    let root = {
        let mut builder = MapBuilder::new(volume.map_shape(), &session);
        for (key, value) in &entries {
            builder.push_entry(key.as_bytes(), value).unwrap();
        }
        builder.finish_tree().unwrap()
    };
    session.flush_blobs().unwrap();
    session.end_session().unwrap();
    root
}

/// Puts an empty file without a name there.
pub fn make(fs: &LiveFilesystem, ino: Ino) {
    let mut attr = InodeAttr::new(FileKind::File, 0o644);
    (attr.parent, attr.name) = (Ino::ROOT, ino.to_string().into_bytes());
    fs.live_map()
        .apply_change(|txn| {
            txn.set_inode_attr(ino, &attr);
            Ok(())
        })
        .unwrap();
}

pub fn attr(fs: &LiveFilesystem, ino: Ino) -> InodeAttr {
    fs.live_map().read_head_state(|view| view.expect_inode_attr(ino)).unwrap()
}

pub fn extents(fs: &LiveFilesystem, ino: Ino) -> Vec<(u64, Extent)> {
    let mut found = Vec::new();
    let end = MapKey::first_for_tag(Ino(ino.0 + 1), MapKeyTag::Attr);
    let span = KeySpan::from_bounds(MapKey::first_for_tag(ino, MapKeyTag::Extent).as_bytes(), end.as_bytes());
    let visit = &mut |key: &[u8], value: &[u8]| {
        let Ok(MapKeyRef::Extent(_, offset)) = MapKeyRef::parse(key) else { panic!("not an extent") };
        found.push((offset, Extent::decode(value).unwrap()));
        ControlFlow::Continue(())
    };
    fs.live_map().read_head_state(|view| view.scan(span.clone(), visit)).unwrap();
    found
}

pub fn content(fs: &LiveFilesystem, ino: Ino) -> Vec<u8> {
    fs.read(ino, 0, usize::MAX).unwrap()
}

/// What must hold of every file.
pub fn check(fs: &LiveFilesystem, ino: Ino) {
    let attr = attr(fs, ino);
    let extents = extents(fs, ino);
    if let Some(content) = &attr.inline {
        assert_eq!(content.len() as u64, attr.size);
        assert!(extents.is_empty());
    }
    let mut end = 0;
    for (offset, extent) in extents {
        assert!(offset >= end, "extents overlap");
        end = offset + extent.len;
    }
    assert!(end <= attr.size, "an extent lies beyond the size");
}

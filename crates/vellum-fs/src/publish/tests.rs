//! Random writes, snapshots and publishes: a live worktree reads the same before and after, and every snapshot in the
//! store holds what the worktree held when it was made.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::StateReader;
use proptest::prelude::*;
use vellum_host::ProgressMeter;
use vellum_live::MemoryStore;
use vellum_map::{KeySpan, read_range};
use vellum_types::value::SuperBlock;
use vellum_types::{
    BlobId, ChunkingMode, Dentry, Extent, FileKind, Ino, InodeAttr, MapKey, MapKeyTag, SnapshotId,
};
use vellum_volume::tree::FileReader;
use vellum_volume::verify::{VerifyScope, verify_volume};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotOrigin, SnapshotStatistics, StateDir, Volume};

use crate::content::extents::find_overlapping;
use crate::content::{AllocateMode, ChunkUploader, StoredWriteTarget};
use crate::fs::{LiveFilesystem, LiveOptions};
use crate::history::past::Epoch;
use crate::history::snapshot::LiveSnapshotRequest;
use crate::log::WriteLog;
use crate::publish::{PublishProgress, extent_chunk};
use crate::tree::head::{LiveHead, layer_prefix, parse_map_key};
use crate::tree::{LiveTransaction, MapReader, decode_change};

const FILES: u64 = 3;

struct World {
    _dir: tempfile::TempDir,
    fs: LiveFilesystem,
    now: BTreeMap<Ino, Vec<u8>>,
    snapshots: Vec<(SnapshotId, BTreeMap<Ino, Vec<u8>>)>,
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        file: u64,
        offset: u64,
        len: usize,
        seed: u8,
    },
    /// As a client that has stored the chunks.
    WriteStored {
        file: u64,
        offset: u64,
        len: usize,
        seed: u8,
    },
    WriteBack {
        file: u64,
        page: u64,
        seed: u8,
    },
    Truncate {
        file: u64,
        size: u64,
    },
    Punch {
        file: u64,
        offset: u64,
        len: u64,
    },
    /// Copies by reference.
    Copy {
        from: u64,
        to: u64,
        offset: u64,
        len: u64,
    },
    /// Seals the top layer: as when something is written while layers are published.
    Seal,
    Snapshot,
    Publish,
    Flush,
    Restore(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let offset = prop_oneof![0..9000u64, 0..700_000u64];
    let len = prop_oneof![1..5000usize, 1..200_000usize];
    prop_oneof![
        8 => (0..FILES, offset.clone(), len, any::<u8>())
            .prop_map(|(file, offset, len, seed)| Step::Write { file, offset, len, seed }),
        4 => (0..FILES, offset.clone(), 5000..300_000usize, any::<u8>())
            .prop_map(|(file, offset, len, seed)| Step::WriteStored { file, offset, len, seed }),
        6 => (0..FILES, prop_oneof![0..4u64, 0..180u64], any::<u8>())
            .prop_map(|(file, page, seed)| Step::WriteBack { file, page, seed }),
        2 => (0..FILES, offset.clone()).prop_map(|(file, size)| Step::Truncate { file, size }),
        1 => (0..FILES, offset.clone(), 1..50_000u64).prop_map(|(file, offset, len)| Step::Punch { file, offset, len }),
        2 => (0..FILES, 0..FILES, offset, 1..200_000u64)
            .prop_map(|(from, to, offset, len)| Step::Copy { from, to, offset, len }),
        2 => Just(Step::Seal),
        2 => Just(Step::Snapshot),
        3 => Just(Step::Publish),
        1 => Just(Step::Flush),
        1 => any::<prop::sample::Index>().prop_map(Step::Restore),
    ]
}

/// Bytes that compress little and repeat never.
fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volume");
        std::fs::create_dir(&root).unwrap();
        let state = StateDir::create(&root).unwrap();
        let new = NewWorktree {
            name: "main".into(),
            encrypted: true,
            store: None,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        let volume =
            Volume::init_volume(&state, &new, || panic!("a new volume asks for nothing")).unwrap().volume;
        let log = Arc::new(WriteLog::open(&dir.path().join("log"), u64::MAX).unwrap());
        let head = LiveHead::new(volume.empty_root(), SnapshotStatistics::default(), None);
        let live = Arc::new(MemoryStore::default());
        let fs = LiveFilesystem::open(Arc::new(volume), live, log, &head, LiveOptions::default()).unwrap();
        let mut world = Self { _dir: dir, fs, now: BTreeMap::new(), snapshots: Vec::new() };
        let next_ino = Ino(10 + FILES);
        let given_out = |txn: &mut LiveTransaction<'_>| {
            txn.set_key(MapKey::for_attr(Ino::SUPER), &SuperBlock { next_ino }.encode());
            Ok(())
        };
        world.fs.live_map().apply_change(given_out).unwrap();
        for number in 0..FILES {
            world.make(Ino(10 + number));
        }
        world
    }

    fn make(&mut self, ino: Ino) {
        let name = format!("file-{}", ino.0);
        self.fs
            .live_map()
            .apply_change(|txn| {
                let mut attr = InodeAttr::new(FileKind::File, 0o644);
                (attr.parent, attr.name) = (Ino::ROOT, name.clone().into_bytes());
                txn.set_inode_attr(ino, &attr);
                txn.set_key(
                    MapKey::for_dentry(Ino::ROOT, name.as_bytes()),
                    &Dentry { ino, kind: FileKind::File }.encode(),
                );
                Ok(())
            })
            .unwrap();
        self.now.insert(ino, Vec::new());
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Write { file, offset, len, seed } => {
                let ino = Ino(10 + file);
                let data = noise(*len, *seed);
                self.fs.content().write(ino, *offset, &data, false).unwrap();
                let content = self.now.get_mut(&ino).unwrap();
                let end = *offset as usize + len;
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(&data);
            }
            Step::WriteStored { file, offset, len, seed } => {
                self.write_stored(Ino(10 + file), *offset, &noise(*len, *seed));
            }
            Step::WriteBack { file, page, seed } => {
                let ino = Ino(10 + file);
                let offset = *page as usize * 4096;
                let content = self.now.get_mut(&ino).unwrap();
                let end = content.len().min(offset + 4096);
                if let Some(place) = content.get_mut(offset..end) {
                    place.copy_from_slice(&noise(place.len(), *seed));
                    self.fs.content().write_back(ino, offset as u64, place).unwrap();
                }
            }
            Step::Truncate { file, size } => {
                self.fs.content().truncate(Ino(10 + file), *size).unwrap();
                self.now.get_mut(&Ino(10 + file)).unwrap().resize(*size as usize, 0);
            }
            Step::Punch { file, offset, len } => {
                let mode = AllocateMode { punch_hole: true, keep_size: true, ..AllocateMode::default() };
                self.fs.content().fallocate(Ino(10 + file), mode, *offset, *len).unwrap();
                let content = self.now.get_mut(&Ino(10 + file)).unwrap();
                let end = content.len().min((offset + len) as usize);
                if let Some(range) = content.get_mut(*offset as usize..end) {
                    range.fill(0);
                }
            }
            Step::Copy { from, to, offset, len } => {
                let (source, target) = (Ino(10 + from), Ino(10 + to));
                let start = *offset as usize;
                let end = self.now[&source].len().min(start + *len as usize);
                let copied = self.now[&source].get(start..end).unwrap_or_default().to_vec();
                if source == target || copied.is_empty() {
                    return;
                }
                let done =
                    self.fs.content().copy_range(source, *offset, target, *offset, copied.len() as u64);
                assert_eq!(done.unwrap(), copied.len() as u64);
                let content = self.now.get_mut(&target).unwrap();
                content.resize(content.len().max(end), 0);
                content[start..end].copy_from_slice(&copied);
            }
            Step::Seal => {
                let seal = |head: &mut LiveHead, _: &mut dyn vellum_live::StoreTransaction| {
                    head.seal_top_layer();
                    Ok(())
                };
                self.fs.live_map().change_head(seal).unwrap();
            }
            Step::Snapshot => self.snapshot(),
            Step::Publish => drop(self.fs.publisher().publish_oldest().unwrap()),
            Step::Flush => self.fs.publisher().publish_all().unwrap(),
            Step::Restore(index) => {
                if self.snapshots.is_empty() {
                    return;
                }
                let (id, content) = index.get(&self.snapshots).clone();
                self.fs.restore_snapshot(id, true).unwrap();
                self.now = content;
            }
        }
    }

    fn write_stored(&mut self, ino: Ino, offset: u64, data: &[u8]) {
        let uploader = ChunkUploader::new(self.fs.volume().clone());
        let chunks = uploader.store_contents(&[data]).unwrap().remove(0);
        let target = StoredWriteTarget { ino, offset: Some(offset), kill_suid: false };
        assert_eq!(self.fs.content().write_stored(target, &chunks).unwrap(), data.len());
        uploader.end_session().unwrap();
        let content = self.now.get_mut(&ino).unwrap();
        let end = offset as usize + data.len();
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(data);
    }

    fn snapshot(&mut self) {
        let request =
            LiveSnapshotRequest { note: String::new(), tags: Vec::new(), origin: SnapshotOrigin::User };
        let id = self.fs.create_snapshot(&request).unwrap();
        self.snapshots.push((id, self.now.clone()));
    }

    fn check(&self, after: &Step) {
        for (ino, content) in &self.now {
            let read = self.fs.read(*ino, 0, 1 << 20).unwrap();
            assert!(read == *content, "{ino} after {after:?}: {} bytes of {}", read.len(), content.len());
            let look = |view: &dyn MapReader| {
                let extents = find_overlapping(view, *ino, 0..u64::MAX)?;
                Ok(view.expect_inode_attr(*ino)?.inline.is_none() || extents.is_empty())
            };
            assert!(
                self.fs.live_map().read_head_state(look).unwrap(),
                "{ino} after {after:?}: extents of what is inline"
            );
        }
    }

    /// Every chunk that a layer names is in a tree that the worktree's ref names, or in a snapshot: else a collection
    /// could delete it, unless a session for unpublished content keeps it from that.
    fn check_retained(&self, after: &Step) {
        let volume = self.fs.volume();
        let is_held = volume.holds_unpublished("main").unwrap();
        assert_eq!(is_held, self.fs.names_stored_chunks().unwrap(), "after {after:?}");
        let mut roots = self.fs.base_roots().unwrap();
        assert!(roots.len() < 40, "{} trees are retained", roots.len());
        roots.extend(volume.catalog.read_all_records().unwrap().sound.iter().map(|(_, record)| record.root));
        roots.sort_unstable();
        roots.dedup();
        let nodes = &**self.fs.live_map().node_provider();
        let mut retained = BTreeSet::new();
        for root in roots {
            for entry in read_range(nodes, &root, KeySpan::from_prefix(b"")).unwrap() {
                let entry = entry.unwrap();
                retained.extend(chunk_of_entry(&entry.key, Some(&entry.value)));
            }
        }
        let map = self.fs.live_map();
        let waiting = map.pending_snapshots().unwrap();
        // Layers of a state before a restore may be there still.
        let layers =
            map.collect_needed_layers(&map.lock_head(), &waiting, &self.fs.epochs().lock_past_states());
        for layer in layers {
            let visit: &mut vellum_live::VisitScan<'_> = &mut |key, value| {
                let key = parse_map_key(key).unwrap();
                let chunk = chunk_of_entry(key, decode_change(key, value).as_deref());
                assert!(
                    is_held || chunk.is_none_or(|id| retained.contains(&id)),
                    "a chunk is in no tree after {after:?}"
                );
                ControlFlow::Continue(())
            };
            map.live_store().scan(&KeySpan::from_prefix(layer_prefix(layer)), visit).unwrap();
        }
    }

    fn check_store(&self) {
        self.fs.publisher().publish_all().unwrap();
        assert_eq!(self.fs.live_map().pending_snapshots().unwrap(), []);
        let volume = self.fs.volume();
        for (id, content) in &self.snapshots {
            let record = volume.catalog.fetch_record(id).unwrap();
            let tree = volume.open_tree(record.root);
            for (ino, content) in content {
                let reader = FileReader::new(volume, &tree.read_inode(*ino).unwrap()).unwrap();
                let read = reader.read_to_end().unwrap();
                assert!(read == *content, "{ino} in {id}");
            }
            assert_eq!(record.statistics.files, FILES);
            assert_eq!(record.statistics.bytes, content.values().map(|c| c.len() as u64).sum::<u64>());
        }
        let report = verify_volume(volume, &VerifyScope::All, false, &ProgressMeter::default()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(self.fs.unpublished_changes().unwrap().sealed_layers, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn publishing_changes_nothing_that_can_be_read(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.check(step);
            world.check_retained(step);
        }
        world.check_store();
    }
}

/// The chunk that an entry of a tree or of a layer names.
fn chunk_of_entry(key: &[u8], value: Option<&[u8]>) -> Option<BlobId> {
    // The keys of attributes in a layer are longer than those of a tree.
    let is_extent = key.get(8) == Some(&MapKeyTag::Extent.as_byte());
    value.filter(|_| is_extent).and_then(|value| extent_chunk(&Extent::decode(value).unwrap()))
}

/// Content that is copied by reference while the file that it comes from is cut anew, below the copy.
#[test]
fn a_copy_of_what_is_being_published_is_retained() {
    let mut world = World::new();
    world.run(&Step::Write { file: 0, offset: 0, len: 500_000, seed: 1 });
    world.run(&Step::Flush);
    for round in 0..20 {
        let steps = [
            Step::Write { file: 0, offset: 250_000, len: 10, seed: round },
            Step::Seal,
            Step::Copy { from: 0, to: 1, offset: 0, len: 500_000 },
            Step::Publish,
            Step::Write { file: 0, offset: 0, len: 10, seed: round },
            Step::Publish,
        ];
        for step in steps {
            world.run(&step);
            world.check(&step);
            world.check_retained(&step);
        }
    }
    world.check_store();
    assert!(world.fs.base_roots().unwrap().len() <= 4);
}

/// One inode that is open for ever, and others that are for a while, retain one tree each.
#[test]
fn files_that_are_open_without_a_name_retain_few_trees() {
    let world = World::new();
    let fs = &world.fs;
    let caller = crate::RequestCaller { uid: 0, gid: 0, umask: 0 };
    let make = |name: &[u8], seed| {
        let ino = fs.names().create(Ino::ROOT, name, 0o600, caller).unwrap().ino;
        fs.content().write(ino, 0, &noise(30_000, seed), false).unwrap();
        ino
    };
    let step = Step::Flush;
    let lasting = make(b"lasting", 1);
    fs.epochs().hold_inode(Epoch::default(), lasting).unwrap();
    fs.publisher().publish_all().unwrap();
    fs.names().unlink(Ino::ROOT, b"lasting", 0).unwrap();
    for round in 0..20 {
        let ino = make(b"passing", round);
        fs.epochs().hold_inode(Epoch::default(), ino).unwrap();
        fs.publisher().publish_all().unwrap();
        fs.names().unlink(Ino::ROOT, b"passing", 0).unwrap();
        fs.publisher().publish_all().unwrap();
        world.check_retained(&step);
        fs.epochs().release_inode(Epoch::default(), ino, 1).unwrap();
        assert!(fs.base_roots().unwrap().len() <= 5, "{}", fs.base_roots().unwrap().len());
    }
    assert!(fs.read(lasting, 0, 30_000).unwrap() == noise(30_000, 1));
    fs.epochs().release_inode(Epoch::default(), lasting, 1).unwrap();
    make(b"another", 1);
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.base_roots().unwrap().len(), 1);
}

#[test]
fn a_file_that_is_overwritten_here_and_there_is_cut_into_blocks() {
    let mut world = World::new();
    let file = 0;
    let ino = Ino(10);
    world.run(&Step::Write { file, offset: 0, len: 3_000_000, seed: 1 });
    world.fs.publisher().publish_all().unwrap();
    let attr =
        |world: &World| world.fs.live_map().read_head_state(|view| view.expect_inode_attr(ino)).unwrap();
    assert_eq!(attr(&world).chunking, ChunkingMode::Content);
    for place in 0..40 {
        let step = Step::Write { file, offset: (place * 37 % 40) * 70_000, len: 4096, seed: place as u8 };
        world.run(&step);
    }
    world.fs.publisher().publish_all().unwrap();
    assert_eq!(attr(&world).chunking, ChunkingMode::Fixed);
    assert!(world.fs.read(ino, 0, 3_000_000).unwrap() == world.now[&ino]);
}

/// A page that is written back changes extents alone, and only while it is sure that the content is in extents.
#[test]
fn a_page_that_is_written_back_while_the_file_is_published_is_there_afterwards() {
    for len in [4096, 5000, 8192, 300_000] {
        let mut world = World::new();
        world.run(&Step::Write { file: 0, offset: 0, len: 6000, seed: 1 });
        world.run(&Step::Truncate { file: 0, size: len });
        for (page, between) in [(0, Step::Snapshot), (1, Step::Snapshot), (0, Step::Publish)] {
            world.run(&Step::WriteBack { file: 0, page, seed: 7 });
            world.run(&between);
            world.run(&Step::WriteBack { file: 0, page, seed: 8 });
            world.run(&Step::Publish);
            world.check(&between);
        }
        world.check_store();
    }
}

/// Of two snapshots that wait, the first inlines a file that only what comes after the second touches: the second has
/// the file's extents from an amendment, and would have its attributes from the tree.
#[test]
fn no_old_extents_come_to_light_when_a_restored_file_grows() {
    let mut world = World::new();
    world.run(&Step::Write { file: 0, offset: 0, len: 5000, seed: 1 });
    world.run(&Step::Truncate { file: 0, size: 1000 });
    world.run(&Step::Write { file: 0, offset: 1000, len: 500, seed: 2 });
    world.snapshot();
    world.run(&Step::Write { file: 1, offset: 0, len: 100, seed: 3 });
    world.snapshot();
    world.run(&Step::Write { file: 0, offset: 0, len: 100, seed: 4 });
    world.run(&Step::Publish);
    let (waiting, content) = world.snapshots[1].clone();
    world.fs.restore_snapshot(waiting, true).unwrap();
    world.now = content;
    let steps = [
        Step::Truncate { file: 0, size: 100 },
        Step::Write { file: 0, offset: 100, len: 300, seed: 5 },
        Step::Write { file: 0, offset: 400, len: 9000, seed: 6 },
    ];
    for step in steps {
        world.run(&step);
        world.check(&step);
    }
    world.check_store();
}

/// What is kept for it is laid over each new tree, and must not be taken for something to publish.
#[test]
fn a_file_that_is_open_without_a_name_does_not_keep_publishing_busy() {
    let world = World::new();
    let fs = &world.fs;
    let ino = Ino(10);
    fs.content().write(ino, 0, &noise(30_000, 1), false).unwrap();
    fs.epochs().hold_inode(Epoch::default(), ino).unwrap();
    fs.publisher().publish_all().unwrap();
    fs.names().unlink(Ino::ROOT, b"file-10", 0).unwrap();
    fs.content().write(ino, 10_000, &noise(5000, 2), false).unwrap();
    fs.publisher().publish_all().unwrap();
    let request = LiveSnapshotRequest { note: String::new(), tags: Vec::new(), origin: SnapshotOrigin::User };
    fs.create_snapshot(&request).unwrap();
    fs.publisher().publish_all().unwrap();
    assert!(!fs.is_changed().unwrap());
    assert_eq!(fs.publisher().publish_oldest().unwrap(), PublishProgress::Nothing);
    assert_eq!(fs.read(ino, 10_000, 5000).unwrap(), noise(5000, 2));
    fs.epochs().release_inode(Epoch::default(), ino, 1).unwrap();
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.unpublished_changes().unwrap().sealed_layers, 0);
}

/// Nothing of the first layers can be in a tree; that must not be thought of those that are sealed in the same moment.
#[test]
fn what_is_sealed_while_a_file_without_a_name_is_published_is_published_next() {
    let world = World::new();
    let caller = crate::RequestCaller { uid: 0, gid: 0, umask: 0 };
    let fs = &world.fs;
    let nameless = fs.names().tmpfile(Ino::ROOT, 0o600, caller).unwrap().ino;
    fs.epochs().hold_inode(Epoch::default(), nameless).unwrap();
    fs.publisher().publish_all().unwrap();
    let first = fs.live_map().lock_head().sealed_state();
    assert_ne!(first.layers, []);
    fs.content().write(Ino(10), 0, &noise(30_000, 1), false).unwrap();
    let seal = |head: &mut LiveHead, _: &mut dyn vellum_live::StoreTransaction| {
        head.seal_top_layer();
        Ok(())
    };
    fs.live_map().change_head(seal).unwrap();
    fs.publisher().publish_layers(&first).unwrap();
    assert_eq!(fs.publisher().publish_oldest().unwrap(), PublishProgress::Some);
    let base = fs.volume().open_tree(fs.live_map().lock_head().state.base);
    assert_eq!(base.read_inode(Ino(10)).unwrap().attr.size, 30_000);
    fs.epochs().release_inode(Epoch::default(), nameless, 1).unwrap();
}

#[test]
fn a_file_that_gets_a_name_again_has_its_content_in_every_snapshot() {
    let world = World::new();
    let caller = crate::RequestCaller { uid: 0, gid: 0, umask: 0 };
    let request = LiveSnapshotRequest { note: String::new(), tags: Vec::new(), origin: SnapshotOrigin::User };
    let fs = &world.fs;
    let ino = fs.names().tmpfile(Ino::ROOT, 0o600, caller).unwrap().ino;
    fs.epochs().hold_inode(Epoch::default(), ino).unwrap();
    fs.content().write(ino, 0, &noise(30_000, 1), false).unwrap();
    fs.create_snapshot(&request).unwrap();
    fs.names().link(ino, Ino::ROOT, b"name").unwrap();
    let named = fs.create_snapshot(&request).unwrap();
    fs.names().unlink(Ino::ROOT, b"name", 0).unwrap();
    fs.epochs().release_inode(Epoch::default(), ino, 1).unwrap();
    fs.publisher().publish_all().unwrap();
    let record = fs.volume().catalog.fetch_record(&named).unwrap();
    let inode = fs.volume().open_tree(record.root).read_inode(ino).unwrap();
    let reader = FileReader::new(fs.volume(), &inode).unwrap();
    assert!(reader.read_to_end().unwrap() == noise(30_000, 1));
}

/// It is open when the snapshot is made, closed when that is restored: nobody will ever close it again.
#[test]
fn a_restore_brings_back_no_file_without_a_name() {
    let world = World::new();
    let caller = crate::RequestCaller { uid: 0, gid: 0, umask: 0 };
    let request = LiveSnapshotRequest { note: String::new(), tags: Vec::new(), origin: SnapshotOrigin::User };
    let fs = &world.fs;
    let ino = fs.names().tmpfile(Ino::ROOT, 0o600, caller).unwrap().ino;
    fs.epochs().hold_inode(Epoch::default(), ino).unwrap();
    let snapshot = fs.create_snapshot(&request).unwrap();
    fs.epochs().release_inode(Epoch::default(), ino, 1).unwrap();
    fs.restore_snapshot(snapshot, true).unwrap();
    fs.publisher().publish_all().unwrap();
    assert!(fs.live_map().read_head_state(|view| view.inode_attr(ino)).unwrap().is_none());
    assert_eq!(fs.unpublished_changes().unwrap().sealed_layers, 0);
}

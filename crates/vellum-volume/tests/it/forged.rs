//! Trees that only a holder of the key can have made, and that are not as trees are; and what a report counts.

use std::collections::BTreeMap;

use vellum_host::ProgressMeter;
use vellum_map::{MapBuilder, MapRoot};
use vellum_types::codec::FieldWriter;
use vellum_types::value::SuperBlock;
use vellum_types::{
    BlobId, BlobKind, Dentry, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey, MapKeyTag,
};
use vellum_volume::Volume;
use vellum_volume::history::HistoryEntry;
use vellum_volume::verify::{TreeOwner, VerifyReport, VerifyScope, verify_volume};

use crate::model::{noise, small};
use crate::world::{PLAIN, SEALED, World, record, snapshot, verified};

/// An inner node of this level over one child.
fn above(level: u8, last_key: &[u8], child: BlobId, total: u64) -> Vec<u8> {
    let mut value = FieldWriter::new();
    value.write_raw(child.as_bytes()).write_varint(total);
    let mut node = FieldWriter::new();
    node.write_raw(b"VmNd").write_u8(1).write_u8(level).write_u32(1);
    node.write_varint(last_key.len() as u64)
        .write_varint(value.as_slice().len() as u64)
        .write_raw(last_key)
        .write_raw(value.as_slice());
    node.into_vec()
}

/// Records a snapshot of such a node.
fn forge(volume: &Volume, node: &[u8]) -> BlobId {
    let mut session = volume.begin_write_session().unwrap();
    let id = session.put_blob(BlobKind::Node, node).unwrap();
    session.flush_blobs().unwrap();
    volume.commit_snapshot(record(volume, MapRoot(id), "forged")).unwrap();
    session.end_session().unwrap();
    id
}

#[test]
fn a_child_that_is_not_as_its_parent_says_is_damage_and_named_at_the_parent() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    let sound = snapshot(volume, &small(1), "sound");
    let leaf = volume.catalog.get_record(&sound).unwrap().root.0;
    let node = vellum_map::MapNode::decode(volume.blobs.read_blob(BlobKind::Node, &leaf).unwrap()).unwrap();
    assert!(node.is_leaf());
    let last = node.last_key().unwrap().to_vec();
    let total = node.total_keys();
    forge(volume, &above(1, &last, leaf, total));
    assert_eq!(verified(volume).findings, [], "as deep as no writer makes it, but true");
    let longer = [&last[..], b"x"].concat();
    for wrong in [
        above(2, &last, leaf, total),
        above(31, &last, leaf, total),
        above(1, &longer, leaf, total),
        above(1, &last, leaf, total + 1),
    ] {
        let parent = forge(volume, &wrong);
        let head = volume.read_head().unwrap().unwrap();
        let entry = HistoryEntry { id: head, record: volume.catalog.get_record(&head).unwrap() };
        for scope in [VerifyScope::All, VerifyScope::Snapshot(entry)] {
            let findings = verify_volume(volume, &scope, false, &ProgressMeter::default()).unwrap().findings;
            let [finding] = &findings[..] else { panic!("one finding: {findings:#?}") };
            assert!(finding.object.contains(&parent.to_string()), "{finding:?}");
            assert!(finding.problem.contains(&leaf.to_string()), "{finding:?}");
            let hit: Vec<_> = finding.affected.iter().map(|affected| affected.owner.clone()).collect();
            assert_eq!(hit, [TreeOwner::Snapshot(head.to_string())], "the sound snapshot is not hit");
        }
        volume.set_head(sound).unwrap();
        volume.forget_snapshot(&head).unwrap();
        vellum_volume::gc::run_collection(
            volume,
            &vellum_volume::gc::CollectionRequest::default(),
            &ProgressMeter::default(),
        )
        .unwrap();
    }
}

#[test]
fn a_report_counts_blobs_and_their_stored_bytes_whatever_was_verified() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        let volume = &world.volume;
        let mut tree = small(1);
        tree.file(Ino::ROOT, "large", noise(7, 100_000));
        let id = snapshot(volume, &tree, "the only one");
        let entry = HistoryEntry { id, record: volume.catalog.get_record(&id).unwrap() };
        let amounts = |scope: &VerifyScope, metadata_only| {
            let VerifyReport { blobs, bytes, .. } =
                verify_volume(volume, scope, metadata_only, &ProgressMeter::default()).unwrap();
            (blobs, bytes)
        };
        let one = VerifyScope::Snapshot(entry);
        let all = VerifyScope::All;
        assert_eq!(amounts(&one, false), amounts(&all, false), "all the store is one snapshot");
        assert_eq!(amounts(&one, true), amounts(&all, true));
        assert!(amounts(&one, true) < amounts(&one, false));
        let mut blobs = 0;
        let mut bytes = 0;
        volume.blobs.for_each_entry(|_, place| (blobs, bytes) = (blobs + 1, bytes + u64::from(place.len)));
        assert_eq!(amounts(&all, false), (blobs, bytes));
    }
}

/// The entries of a map.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn attr(kind: FileKind, parent: u64, name: &str) -> InodeAttr {
    let mut attr = InodeAttr::new(kind, 0o755);
    (attr.parent, attr.name) = (Ino(parent), name.as_bytes().to_vec());
    attr
}

fn set_attr(entries: &mut Entries, ino: u64, attr: &InodeAttr) {
    entries.insert(MapKey::for_attr(Ino(ino)).into_bytes(), attr.encode());
}

fn set_name(entries: &mut Entries, dir: u64, name: &str, ino: u64, kind: FileKind) {
    let mut key = MapKey::first_for_tag(Ino(dir), MapKeyTag::Dentry).into_bytes();
    key.extend_from_slice(name.as_bytes());
    entries.insert(key, Dentry { ino: Ino(ino), kind }.encode());
}

fn entry(entries: &mut Entries, dir: u64, name: &str, ino: u64, kind: FileKind) {
    set_name(entries, dir, name, ino, kind);
    set_attr(entries, ino, &attr(kind, dir, name));
}

fn set_extents(entries: &mut Entries, size: u64, extents: &[(u64, u64, ExtentSource)]) {
    let mut file = attr(FileKind::File, 1, "content");
    file.size = size;
    set_attr(entries, 4, &file);
    for (offset, len, source) in extents {
        let extent = Extent { len: *len, source: *source };
        entries.insert(MapKey::for_extent(Ino(4), *offset).into_bytes(), extent.encode());
    }
}

/// A tree as it should be: `dir/below/`, `dir/file`, `content`.
fn sound() -> Entries {
    let mut entries = Entries::new();
    entries.insert(MapKey::for_attr(Ino::SUPER).into_bytes(), SuperBlock { next_ino: Ino(100) }.encode());
    set_attr(&mut entries, 1, &InodeAttr::new(FileKind::Dir, 0o755));
    entry(&mut entries, 1, "dir", 2, FileKind::Dir);
    entry(&mut entries, 2, "file", 3, FileKind::File);
    entry(&mut entries, 1, "content", 4, FileKind::File);
    entry(&mut entries, 2, "below", 5, FileKind::Dir);
    set_extents(&mut entries, 10, &[(0, 4, ExtentSource::Hole), (4, 6, ExtentSource::Hole)]);
    entries
}

/// Records a snapshot of a map.
fn record_map(volume: &Volume, entries: &Entries) {
    let mut session = volume.begin_write_session().unwrap();
    let root = {
        let mut builder = MapBuilder::new(volume.map_shape(), &session);
        entries.iter().for_each(|(key, value)| builder.push_entry(key, value).unwrap());
        builder.finish_tree().unwrap()
    };
    session.flush_blobs().unwrap();
    volume.commit_snapshot(record(volume, root, "forged")).unwrap();
    session.end_session().unwrap();
}

/// What a verification says of a tree that was forged, as the first snapshot and after a sound one.
fn told_of(forge: impl Fn(&mut Entries, &Volume)) -> [Vec<String>; 2] {
    [false, true].map(|after_a_sound_one| {
        let world = World::new(SEALED);
        let volume = &world.volume;
        if after_a_sound_one {
            record_map(volume, &sound());
            assert_eq!(verified(volume).findings, [], "the sound one");
        }
        let mut entries = sound();
        forge(&mut entries, volume);
        record_map(volume, &entries);
        verified(volume)
            .findings
            .into_iter()
            .map(|finding| format!("{}: {}", finding.object, finding.problem))
            .collect()
    })
}

fn assert_told(what: &str, forge: impl Fn(&mut Entries, &Volume)) {
    for told in told_of(forge) {
        assert!(told.len() == 1 && told[0].contains(what) && told[0].contains("tree"), "{what}: {told:?}");
    }
}

#[test]
fn a_directory_that_lies_in_itself_is_damage() {
    assert_told("directory 5 lies in itself", |entries, _| {
        entry(entries, 6, "circle", 5, FileKind::Dir);
        entry(entries, 5, "circle", 6, FileKind::Dir);
        let mut key = MapKey::first_for_tag(Ino(2), MapKeyTag::Dentry).into_bytes();
        key.extend_from_slice(b"below");
        entries.remove(&key);
    });
    assert_told("belongs to another place", |entries, _| set_name(entries, 5, "up", 2, FileKind::Dir));
}

#[test]
fn a_directory_in_two_places_or_in_none_is_damage() {
    assert_told("belongs to another place", |entries, _| set_name(entries, 1, "again", 5, FileKind::Dir));
    assert_told("directory 5 is in no directory", |entries, _| {
        let mut key = MapKey::first_for_tag(Ino(2), MapKeyTag::Dentry).into_bytes();
        key.extend_from_slice(b"below");
        entries.remove(&key);
    });
    assert_told("directory 9 is in no directory", |entries, _| {
        set_attr(entries, 9, &attr(FileKind::Dir, 1, "nowhere"));
    });
}

#[test]
fn an_entry_without_its_inode_or_of_another_kind_is_damage() {
    assert_told("inode 9 is missing", |entries, _| set_name(entries, 1, "gone", 9, FileKind::File));
    assert_told("inode 3 is missing", |entries, _| drop(entries.remove(MapKey::for_attr(Ino(3)).as_bytes())));
    assert_told("another kind of file", |entries, _| set_name(entries, 1, "fifo", 3, FileKind::Fifo));
    assert_told("which is no directory", |entries, _| {
        set_name(entries, 3, "in-a-file", 4, FileKind::File);
    });
    assert_told("not given out yet", |entries, _| entry(entries, 1, "late", 200, FileKind::File));
}

#[test]
fn a_tree_without_a_root_is_damage() {
    for told in told_of(|entries, _| drop(entries.remove(MapKey::for_attr(Ino::ROOT).as_bytes()))) {
        assert!(told.iter().any(|told| told.contains("no root directory")), "{told:?}");
    }
}

#[test]
fn extents_out_of_order_beyond_the_size_or_of_what_is_no_chunk_are_damage() {
    let hole = ExtentSource::Hole;
    assert_told("overlapping", |entries, _| set_extents(entries, 10, &[(0, 5, hole)]));
    assert_told("beyond its size", |entries, _| set_extents(entries, 9, &[]));
    assert_told("should not have", |entries, _| {
        entries.insert(MapKey::for_extent(Ino(2), 0).into_bytes(), Extent { len: 1, source: hole }.encode());
    });
    assert_told("which is no chunk", |entries, volume| {
        let mut session = volume.begin_write_session().unwrap();
        let id = session.put_blob(BlobKind::Node, b"some node or other").unwrap();
        session.flush_blobs().unwrap();
        session.end_session().unwrap();
        set_extents(entries, 10, &[(4, 6, ExtentSource::Chunk { id, skip: 0 })]);
    });
}

/// A reader that begins behind the longest chunk would not look back as far as to its start.
#[test]
fn an_extent_longer_than_any_chunk_is_damage() {
    let len = vellum_types::limits::EXTENT_MAX + 1;
    for told in told_of(|entries, _| set_extents(entries, len, &[(0, len, ExtentSource::Hole)])) {
        assert!(told.len() == 1 && told[0].contains("extent length"), "{told:?}");
    }
}

#[test]
fn a_directory_named_as_the_state_of_a_volume_is_damage() {
    assert_told("'.vellum'", |entries, _| entry(entries, 2, ".vellum", 9, FileKind::Dir));
    assert_told("'.vellum'", |entries, _| entry(entries, 1, ".vellum", 9, FileKind::File));
}

/// So many directories, one in the other.
fn deep(depth: u64) -> Entries {
    let mut entries = Entries::new();
    entries
        .insert(MapKey::for_attr(Ino::SUPER).into_bytes(), SuperBlock { next_ino: Ino(depth + 2) }.encode());
    set_attr(&mut entries, 1, &InodeAttr::new(FileKind::Dir, 0o755));
    for level in 1..=depth {
        entry(&mut entries, level, "deep", level + 1, FileKind::Dir);
    }
    entries
}

#[test]
fn a_deep_tree_after_another_one_is_not_climbed_from_each_directory() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    record_map(volume, &sound());
    record_map(volume, &deep(60_000));
    // With the square of the depth in steps this takes an hour.
    assert_eq!(verified(volume).findings, []);
}

#[test]
fn paths_of_a_deep_tree_take_little_memory_and_are_right() {
    let world = World::new(PLAIN);
    let volume = &world.volume;
    let depth = 20_000;
    record_map(volume, &deep(depth));
    assert_eq!(verified(volume).findings, []);
    let head = volume.read_head().unwrap().unwrap();
    let tree = volume.open_tree(volume.catalog.get_record(&head).unwrap().root);
    for level in 1..=depth {
        assert_eq!(tree.inode_path(Ino(level)).unwrap().len() as u64, ((level - 1) * 5).saturating_sub(1));
    }
}

#[test]
fn a_circle_of_many_directories_is_gone_round_once() {
    // With the square of their number in steps this takes hours.
    for told in told_of(|entries, _| {
        entries.insert(
            MapKey::for_attr(Ino::SUPER).into_bytes(),
            SuperBlock { next_ino: Ino(1 << 20) }.encode(),
        );
        for number in 1_000..61_000 {
            entry(entries, number, "next", number + 1, FileKind::Dir);
        }
        entry(entries, 61_000, "next", 1_000, FileKind::Dir);
        // As many hang below a directory that lies nowhere.
        set_attr(entries, 100_000, &attr(FileKind::Dir, 1, "nowhere"));
        for number in 100_000..160_000 {
            entry(entries, number, "next", number + 1, FileKind::Dir);
        }
    }) {
        assert!(told.len() == 1 && told[0].contains("lies in itself"), "{told:?}");
        assert!(told[0].len() < 4096, "{told:?}");
    }
}

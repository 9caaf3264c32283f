//! Trees that only a holder of the key can have made, and that are not as trees are; and what a report counts.

use vellum_map::Root;
use vellum_types::codec::Writer;
use vellum_types::{BlobId, BlobKind, Ino};
use vellum_volume::history::Entry;
use vellum_volume::verify::{Report, Scope, verify};
use vellum_volume::{Meter, Volume};

use crate::model::{noise, small};
use crate::world::{PLAIN, SEALED, World, record, snapshot, verified};

/// An inner node of this level over one child.
fn above(level: u8, last_key: &[u8], child: BlobId, total: u64) -> Vec<u8> {
    let mut value = Writer::new();
    value.raw(child.as_bytes()).varint(total);
    let mut node = Writer::new();
    node.raw(b"VmNd").u8(1).u8(level).u32(1);
    node.varint(last_key.len() as u64)
        .varint(value.as_slice().len() as u64)
        .raw(last_key)
        .raw(value.as_slice());
    node.into_vec()
}

/// Records a snapshot of such a node.
fn forge(volume: &Volume, node: &[u8]) -> BlobId {
    let mut session = volume.begin_write().unwrap();
    let id = session.put(BlobKind::Node, node).unwrap();
    session.flush().unwrap();
    volume.commit(record(volume, Root(id), "forged")).unwrap();
    session.end().unwrap();
    id
}

#[test]
fn a_child_that_is_not_as_its_parent_says_is_damage_and_named_at_the_parent() {
    let world = World::new(SEALED);
    let volume = &world.volume;
    let sound = snapshot(volume, &small(1), "sound");
    let leaf = volume.catalog.get(&sound).unwrap().root.0;
    let node = vellum_map::Node::decode(volume.blobs.read(BlobKind::Node, &leaf).unwrap()).unwrap();
    assert!(node.is_leaf());
    let (last, total) = (node.last_key().unwrap().to_vec(), node.total());
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
        let head = volume.head().unwrap().unwrap();
        let entry = Entry { id: head, record: volume.catalog.get(&head).unwrap() };
        for scope in [Scope::All, Scope::Snapshot(entry)] {
            let findings = verify(volume, &scope, false, &Meter::default()).unwrap().findings;
            let [finding] = &findings[..] else { panic!("one finding: {findings:#?}") };
            assert!(finding.object.contains(&parent.to_string()), "{finding:?}");
            assert!(finding.problem.contains(&leaf.to_string()), "{finding:?}");
            let hit: Vec<_> = finding.affected.iter().map(|affected| affected.snapshot.clone()).collect();
            assert_eq!(hit, [head.to_string()], "the sound snapshot is not hit");
        }
        volume.set_head(sound).unwrap();
        volume.forget(&head).unwrap();
        vellum_volume::gc::run(volume, &vellum_volume::gc::CollectionRequest::default(), &Meter::default())
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
        let entry = Entry { id, record: volume.catalog.get(&id).unwrap() };
        let amounts = |scope: &Scope, metadata_only| {
            let Report { blobs, bytes, .. } =
                verify(volume, scope, metadata_only, &Meter::default()).unwrap();
            (blobs, bytes)
        };
        let (one, all) = (Scope::Snapshot(entry), Scope::All);
        assert_eq!(amounts(&one, false), amounts(&all, false), "all the store is one snapshot");
        assert_eq!(amounts(&one, true), amounts(&all, true));
        assert!(amounts(&one, true) < amounts(&one, false));
        let (mut blobs, mut bytes) = (0, 0);
        volume.blobs.for_each_entry(|_, place| (blobs, bytes) = (blobs + 1, bytes + u64::from(place.len)));
        assert_eq!(amounts(&all, false), (blobs, bytes));
    }
}

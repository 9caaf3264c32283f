//! Chunks that resemble others: stored as differences, found by every reader of packs, never left without their base.

use std::collections::HashSet;
use std::fs;

use vellum_store::{BlobOptions, BlobStore};
use vellum_types::{BlobId, BlobKind, PackId};

use crate::damage::check_in_parts;
use crate::world::{World, noise};

const KIND: BlobKind = BlobKind::Chunk;
const LEN: usize = 40_000;

/// A content of which every version differs from the others in a few bytes.
fn version(number: u64) -> Vec<u8> {
    let mut content = noise(1000, LEN);
    content[LEN / 2..LEN / 2 + 8].copy_from_slice(&number.to_le_bytes());
    content
}

fn commit(store: &BlobStore, versions: std::ops::Range<u64>) -> (PackId, Vec<BlobId>, u64) {
    let writer = store.create_writer();
    let ids: Vec<_> = versions.map(|number| writer.put_blob(KIND, &version(number)).unwrap()).collect();
    let stats = writer.finish().unwrap();
    (store.locate_blob(&ids[0]).unwrap().pack, ids, stats.bytes_stored)
}

fn assert_readable(store: &BlobStore, ids: &[BlobId], versions: impl IntoIterator<Item = u64>) {
    let wanted: Vec<_> = ids.iter().map(|id| (KIND, *id)).collect();
    let fetched = store.fetch_blobs(&wanted).unwrap();
    for (position, (id, number)) in ids.iter().zip(versions).enumerate() {
        assert_eq!(store.read_blob(KIND, id).unwrap(), version(number));
        assert_eq!(fetched.open_blob(position).unwrap(), version(number));
        // Alone: the base does not come along.
        assert_eq!(store.fetch_blobs(&[(KIND, *id)]).unwrap().open_blob(0).unwrap(), version(number));
    }
}

#[test]
fn versions_of_a_content_take_little_more_than_one() {
    let world = World::new();
    let (pack, ids, stored) = commit(&world.open("a"), 0..20);
    assert!(stored < 2 * LEN as u64, "{stored} bytes");
    let store = world.open("b");
    assert_readable(&store, &ids, 0..);
    assert_eq!(store.check_pack(&pack).unwrap(), []);
    // In parts, a difference and its base come apart.
    let (findings, parts) = check_in_parts(&store, &pack, 1);
    assert_eq!((findings, parts), (Vec::new(), 20));
}

#[test]
fn a_writer_reads_differences_that_it_has_not_finished() {
    let world = World::new();
    let options = BlobOptions { pack_size: 64 << 10, ..BlobOptions::default() };
    let store = world.open_with(world.objects(), &world.local("a"), options);
    let writer = store.create_writer();
    // Noise between the versions closes packs, so that some are open, some under way and some there.
    let mut ids = Vec::new();
    for number in 0..30 {
        ids.push(writer.put_blob(KIND, &version(number)).unwrap());
        writer.put_blob(KIND, &noise(number, 9000)).unwrap();
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(writer.read_blob(KIND, id).unwrap(), version(number as u64));
        }
    }
    writer.finish().unwrap();
    assert_readable(&world.open("b"), &ids, 0..);
}

#[test]
fn many_threads_write_differences() {
    let world = World::new();
    let options = BlobOptions { pack_size: 64 << 10, ..BlobOptions::default() };
    let store = world.open_with(world.objects(), &world.local("a"), options);
    let writer = store.create_writer();
    let ids = parking_lot::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let writer = &writer;
            let ids = &ids;
            scope.spawn(move || {
                for number in (0..200).filter(|number| number % 4 == thread) {
                    let id = writer.put_blob(KIND, &version(number)).unwrap();
                    ids.lock().push((id, number));
                    writer.put_blob(KIND, &noise(number, 5000)).unwrap();
                }
            });
        }
    });
    writer.finish().unwrap();
    let store = world.open("b");
    let (ids, numbers): (Vec<_>, Vec<_>) = ids.into_inner().into_iter().unzip();
    assert_readable(&store, &ids, numbers);
    for pack in store.list_packs().unwrap() {
        assert_eq!(store.check_pack(&pack.id).unwrap(), []);
    }
}

#[test]
fn a_collection_keeps_a_difference_whose_base_goes() {
    let world = World::new();
    let store = world.open("a");
    let (pack, ids, _) = commit(&store, 0..10);
    let live: HashSet<_> = ids[3..6].iter().copied().collect();
    let repacked = store.repack_blobs(&[(pack, live.clone())]).unwrap();
    assert_eq!(repacked.blobs_new, 3);
    assert!(repacked.bytes_stored < 2 * LEN as u64, "they are differences again");
    store.condemn_packs(&[pack]).unwrap();
    store.drop_packs_from_index(&HashSet::from([pack])).unwrap();
    store.delete_pack(&pack).unwrap();
    for store in [store, world.open("b")] {
        assert_readable(&store, &ids[3..6], 3..);
        assert!(store.locate_blob(&ids[0]).is_none());
        for pack in store.list_packs().unwrap() {
            assert_eq!(store.check_pack(&pack.id).unwrap(), []);
        }
    }
}

#[test]
fn an_index_made_anew_finds_differences() {
    let world = World::new();
    let (_, ids, _) = commit(&world.open("a"), 0..10);
    fs::remove_dir_all(world.local("store").join("index")).unwrap();
    let store = world.open("b");
    assert_eq!(store.rebuild_index().unwrap().blobs, 10);
    assert_readable(&store, &ids, 0..);
}

#[test]
fn what_hangs_on_a_damaged_base_is_named_and_stored_again() {
    let world = World::new();
    let store = world.open("a");
    let (pack, ids, _) = commit(&store, 0..4);
    let other = store.create_writer();
    let bystander = other.put_blob(KIND, &noise(5, 500)).unwrap();
    other.finish().unwrap();
    let place = store.locate_blob(&ids[0]).unwrap();
    let file = world.local("store").join(vellum_store::pack::pack_key(&pack).as_str());
    let mut bytes = fs::read(&file).unwrap();
    bytes[place.offset as usize + 100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let findings = store.check_pack(&pack).unwrap();
    let hit: HashSet<_> = findings.iter().filter_map(|finding| finding.blob).collect();
    assert_eq!(hit, ids.iter().map(|id| (KIND, *id)).collect());
    for id in &ids {
        store.read_blob(KIND, id).unwrap_err();
    }
    let (again, _, _) = commit(&store, 0..4);
    assert_ne!(again, pack);
    assert_readable(&store, &ids, 0..);
    assert_eq!(store.read_blob(KIND, &bystander).unwrap(), noise(5, 500));
}

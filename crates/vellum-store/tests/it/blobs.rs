//! Writing and reading blobs.

use vellum_store::{BlobError, BlobOptions};
use vellum_types::{BlobId, BlobKind};

use crate::world::{World, noise};

const KINDS: [BlobKind; 2] = [BlobKind::Chunk, BlobKind::Node];

#[test]
fn what_was_finished_is_read_by_others() {
    let world = World::new();
    let store = world.open("a");
    let contents = [Vec::new(), vec![1], vec![b'x'; 100_000], noise(1, 70_000), noise(2, 4 << 20)];
    let writer = store.create_writer();
    let mut ids = Vec::new();
    for kind in KINDS {
        for content in &contents {
            ids.push((kind, writer.put_blob(kind, content).unwrap(), content));
        }
    }
    for (kind, id, content) in &ids {
        assert_eq!(&writer.read_blob(*kind, id).unwrap(), *content);
        assert!(!store.contains(id));
    }
    let stats = writer.finish().unwrap();
    assert_eq!((stats.blobs_new, stats.blobs_duplicate), (10, 0));
    assert!(stats.bytes_compressed < stats.bytes_new - 190_000);
    for name in ["a", "b"] {
        let store = world.open(name);
        let wanted: Vec<_> = ids.iter().map(|(kind, id, _)| (*kind, *id)).collect();
        let fetched = store.fetch_blobs(&wanted).unwrap();
        for (position, (kind, id, content)) in ids.iter().enumerate() {
            assert!(store.contains(id));
            assert_eq!(&store.read_blob(*kind, id).unwrap(), *content);
            assert_eq!(&fetched.open_blob(position).unwrap(), *content);
        }
    }
}

#[test]
fn a_content_is_stored_once() {
    let world = World::new();
    let store = world.open("a");
    let content = noise(3, 50_000);
    let writer = store.create_writer();
    for _ in 0..3 {
        writer.put_blob(BlobKind::Chunk, &content).unwrap();
    }
    let first = writer.finish().unwrap();
    assert_eq!((first.blobs_new, first.blobs_duplicate), (1, 2));
    let writer = store.create_writer();
    writer.put_blob(BlobKind::Chunk, &content).unwrap();
    let second = writer.finish().unwrap();
    assert_eq!((second.blobs_new, second.blobs_duplicate, second.bytes_stored), (0, 1, 0));
}

#[test]
fn many_packs_from_many_threads() {
    let world = World::new();
    let options = BlobOptions { pack_size: 64 << 10, ..BlobOptions::default() };
    let store = world.open_with(world.objects(), &world.local("a"), options);
    let writer = store.create_writer();
    let ids: Vec<Vec<BlobId>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let writer = &writer;
                scope.spawn(move || {
                    // Half of the contents are the same in all threads.
                    let seed = |i: u64| if i.is_multiple_of(2) { i } else { i + 1000 * thread };
                    let put = |i| {
                        let id = writer.put_blob(BlobKind::Chunk, &noise(seed(i), 5_000)).unwrap();
                        assert_eq!(writer.read_blob(BlobKind::Chunk, &id).unwrap(), noise(seed(i), 5_000));
                        id
                    };
                    (0..200).map(put).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let stats = writer.finish().unwrap();
    assert_eq!(stats.blobs_new, 100 + 4 * 100);
    assert!(stats.packs > 20, "{stats:?}");
    let reader = world.open("b");
    for id in ids.iter().flatten() {
        assert_eq!(
            world.keys.compute_blob_id(BlobKind::Chunk, &reader.read_blob(BlobKind::Chunk, id).unwrap()),
            *id
        );
    }
}

#[test]
fn an_unknown_blob_is_not_found() {
    let world = World::new();
    let error = world.open("a").read_blob(BlobKind::Node, &BlobId([1; 32])).unwrap_err();
    assert!(matches!(error, BlobError::NotFound { .. }), "{error}");
}

#[test]
fn the_kind_is_part_of_the_question() {
    let world = World::new();
    let store = world.open("a");
    let writer = store.create_writer();
    let id = writer.put_blob(BlobKind::Chunk, b"content").unwrap();
    writer.finish().unwrap();
    assert!(matches!(store.read_blob(BlobKind::Node, &id), Err(BlobError::NotFound { .. })));
}

//! Stores behind web servers, as their readers see them while the store changes.

use std::collections::HashSet;
use std::fs::{self, File};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use vellum_store::{
    BlobStore, LocalStore, MeteredStore, ObjectStore, PublishedStore, StoreError, StoreLocation,
    open_store_with_limits, publish_store,
};
use vellum_testkit::{LyingS3, WebServer};
use vellum_types::{BlobId, BlobKind, ErrorKind, PackId};

use crate::services::{key, open_service, short_limits, test_credentials};
use crate::world::{World, noise};

const KIND: BlobKind = BlobKind::Chunk;

fn open_web(url: &str) -> Arc<dyn ObjectStore> {
    // What other tests left in a cache of this user is not used.
    test_credentials();
    open_store_with_limits(&StoreLocation::new(url), &short_limits()).unwrap()
}

fn received_bytes(store: &dyn ObjectStore) -> u64 {
    store.as_metered().unwrap().request_counts().bytes_in
}

/// Reads an object that is listed and gone, several times; returns how many bytes of listings that took.
fn miss_listed_object(reader: &dyn ObjectStore, times: usize) -> u64 {
    let before = received_bytes(reader);
    for _ in 0..times {
        let error = reader.get_object(&key("index/a"), 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("the listing is older than the store"), "{error}");
    }
    received_bytes(reader) - before
}

#[test]
fn a_listing_that_has_a_tag_is_sent_once() {
    let server = LyingS3::start().unwrap();
    let writer = open_service(&server.store_url("store"), &short_limits());
    writer.put_object(&key("index/a"), b"a").unwrap();
    writer.put_object(&key("index/b"), b"b").unwrap();
    publish_store(&writer).unwrap();
    writer.delete_object(&key("index/a")).unwrap();
    let reader = open_web(&format!("http://{}/bucket/store", server.address()));
    let len = server.read_object("store/listing").unwrap().len() as u64;
    assert_eq!(miss_listed_object(&*reader, 3), len, "later answers say that it is the same");
    let requests = server.take_requests();
    assert!(requests.iter().filter(|request| request.key == "store/listing").count() >= 4, "{requests:?}");

    publish_store(&writer).unwrap();
    assert!(matches!(reader.get_object(&key("index/a"), 9), Err(StoreError::NotFound { .. })));
    assert_eq!(reader.get_object(&key("index/b"), 9).unwrap(), b"b");
}

#[test]
fn a_listing_that_has_a_time_is_sent_once_unless_another_could_have_the_same() {
    let world = World::new();
    let dir = world.local("served");
    let writer = LocalStore::create(dir.join("store")).unwrap();
    writer.put_object(&key("index/a"), b"a").unwrap();
    publish_store(&writer).unwrap();
    writer.delete_object(&key("index/a")).unwrap();
    let server = WebServer::start(&dir);
    let listing = dir.join("store/listing");
    let set_time = |time| File::options().write(true).open(&listing).unwrap().set_modified(time).unwrap();
    let len = fs::metadata(&listing).unwrap().len();

    set_time(SystemTime::now() - Duration::from_hours(1));
    assert_eq!(miss_listed_object(&*open_web(&server.store_url("store")), 3), len);
    // In this second the file may change again.
    set_time(SystemTime::now() + Duration::from_hours(1));
    assert_eq!(miss_listed_object(&*open_web(&server.store_url("store")), 3), 4 * len);
}

#[test]
fn a_listing_is_kept_for_the_next_process() {
    let server = LyingS3::start().unwrap();
    let writer = Arc::new(open_service(&server.store_url("store"), &short_limits()));
    writer.put_object(&key("index/a"), b"a").unwrap();
    writer.swap_ref(&key("refs/tag/a"), None, Some(b"first")).unwrap();
    publish_store(&*writer).unwrap();
    let cache = World::new();
    let open = || {
        let service = Arc::new(MeteredStore::new(writer.clone()));
        PublishedStore::new(service, Some(cache.dir.path()))
    };
    let read_ref = |reader: &PublishedStore| reader.get_object(&key("refs/tag/a"), 9).unwrap();
    let len = server.read_object("store/listing").unwrap().len() as u64;
    let first = open();
    assert_eq!(read_ref(&first), b"first");
    assert_eq!(received_bytes(&first), len);
    // The server is asked, and answers that nothing changed.
    let _ = server.take_requests();
    let second = open();
    assert_eq!(read_ref(&second), b"first");
    assert_eq!(received_bytes(&second), 0);
    assert_eq!(server.take_requests().len(), 1);
    // What was listed once, and never changes, is not asked about.
    let third = open();
    assert_eq!(third.object_size(&key("index/a")).unwrap(), 1);
    assert!(server.take_requests().is_empty());

    writer.swap_ref(&key("refs/tag/a"), Some(b"first"), Some(b"other")).unwrap();
    publish_store(&*writer).unwrap();
    assert_eq!(read_ref(&open()), b"other");
    // One that is damaged is read whole.
    fs::write(cache.dir.path().join("listing"), b"vellum-kept-listing-1\n").unwrap();
    let fourth = open();
    assert_eq!(read_ref(&fourth), b"other");
    assert!(received_bytes(&fourth) > 0);
    // A process that has just asked asks again if somebody says that there is something new.
    writer.swap_ref(&key("refs/tag/a"), Some(b"other"), Some(b"third")).unwrap();
    publish_store(&*writer).unwrap();
    assert_eq!(read_ref(&fourth), b"other");
    fourth.expect_new_objects();
    assert_eq!(read_ref(&fourth), b"third");
}

fn put_blobs(store: &BlobStore, seeds: std::ops::Range<u64>) -> (PackId, Vec<BlobId>) {
    let writer = store.create_writer();
    let ids: Vec<_> = seeds.map(|seed| writer.put_blob(KIND, &noise(seed, 1000)).unwrap()).collect();
    writer.finish().unwrap();
    (store.locate_blob(&ids[0]).unwrap().pack, ids)
}

#[test]
fn readers_follow_a_collection() {
    let world = World::new();
    let writer = world.open("writer");
    let (dead, dead_ids) = put_blobs(&writer, 0..3);
    let (half, half_ids) = put_blobs(&writer, 10..13);
    publish_store(&*world.objects()).unwrap();
    let server = WebServer::start(world.dir.path());
    let url = server.store_url("store");
    let before = world.open_over(open_web(&url), "before");
    assert_eq!(before.read_blob(KIND, &dead_ids[0]).unwrap(), noise(0, 1000));

    let live = HashSet::from([half_ids[0]]);
    writer.repack_blobs(&[(half, live)]).unwrap();
    let going = HashSet::from([dead, half]);
    writer.condemn_packs(&[dead, half]).unwrap();
    writer.drop_packs_from_index(&going).unwrap();
    writer.unlist_packs(&going).unwrap();
    // A reader that comes while packs are being deleted finds the copies, too.
    writer.delete_pack(&half).unwrap();
    for reader in [&before, &world.open_over(open_web(&url), "meanwhile")] {
        assert_eq!(reader.read_blob(KIND, &half_ids[0]).unwrap(), noise(10, 1000));
    }
    writer.delete_pack(&dead).unwrap();
    for reader in [before, world.open_over(open_web(&url), "after")] {
        let error = reader.read_blob(KIND, &dead_ids[1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

#[test]
fn readers_follow_merges_of_the_index() {
    let world = World::new();
    let writer = world.open("writer");
    let listing = world.dir.path().join("store/listing");
    let (_, ids) = put_blobs(&writer, 0..2);
    assert!(!listing.exists(), "nobody published it");
    publish_store(&*world.objects()).unwrap();
    let published = fs::read(&listing).unwrap();
    let server = WebServer::start(world.dir.path());
    let url = server.store_url("store");
    let before = open_web(&url);
    before.list_objects("index").unwrap();
    for seed in 1..20 {
        put_blobs(&writer, 100 * seed..100 * seed + 2);
    }
    assert_ne!(fs::read(&listing).unwrap(), published, "the index was merged");
    for (objects, local) in [(before, "before"), (open_web(&url), "after")] {
        let reader = world.open_over(objects, local);
        assert_eq!(reader.read_blob(KIND, &ids[0]).unwrap(), noise(0, 1000), "{local}");
    }
}

//! Writes whose bytes a client has put into the store.

use rustix::io::Errno;
use vellum_fs::{ChunkUploader, StateReader, StoredChunk, StoredWriteTarget};
use vellum_host::ProgressMeter;
use vellum_types::{BlobId, Ino};
use vellum_volume::gc::{CollectionReport, CollectionRequest, run_collection};
use vellum_volume::verify::{VerifyScope, verify_volume};

use crate::stand::{Stand, errno, request};

/// Bytes that repeat never.
fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn at(ino: Ino, offset: u64) -> StoredWriteTarget {
    StoredWriteTarget { ino, offset: Some(offset), kill_suid: false }
}

fn store(stand: &Stand, bytes: &[u8]) -> (ChunkUploader, Vec<StoredChunk>) {
    let uploader = ChunkUploader::new(stand.volume().clone());
    let chunks = uploader.store_contents(&[bytes]).unwrap().remove(0);
    (uploader, chunks)
}

fn collect(stand: &Stand) -> CollectionReport {
    run_collection(stand.volume(), &CollectionRequest::default(), &ProgressMeter::default()).unwrap()
}

fn check_clean(stand: &Stand) {
    let report = verify_volume(stand.volume(), &VerifyScope::All, false, &ProgressMeter::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn what_a_client_has_stored_is_read_before_and_after_it_is_published() {
    let stand = Stand::new();
    let ino = stand.create("file").unwrap().ino;
    stand.content().write(ino, 0, b"begins inline", false).unwrap();
    let bytes = noise(700_000, 1);
    let (uploader, chunks) = store(&stand, &bytes);
    assert_eq!(stand.content().write_stored(at(ino, 5), &chunks).unwrap(), bytes.len());
    let appended = StoredWriteTarget { ino, offset: None, kill_suid: false };
    assert_eq!(stand.content().write_stored(appended, &chunks).unwrap(), bytes.len());
    uploader.end_session().unwrap();
    stand.content().write(ino, 300_000, b"over it", false).unwrap();
    let mut expected = [b"begin", &bytes[..], &bytes].concat();
    expected[300_000..300_007].copy_from_slice(b"over it");
    let read = |stand: &Stand| stand.fs.read(ino, 0, 2_000_000).unwrap();
    assert!(read(&stand) == expected);
    // As after a crash of the process.
    let stand = stand.again();
    assert!(read(&stand) == expected);
    stand.publisher().publish_all().unwrap();
    assert!(read(&stand) == expected);
    check_clean(&stand);
    let stand = stand.elsewhere();
    assert!(read(&stand) == expected);
}

/// The client's session, then the worktree's, then the tree: at no moment is there nothing that protects the chunks.
#[test]
fn nothing_that_a_client_has_stored_is_collected() {
    let stand = Stand::new();
    let ino = stand.create("file").unwrap().ino;
    let bytes = noise(300_000, 2);
    let (uploader, chunks) = store(&stand, &bytes);
    let report = collect(&stand);
    assert_eq!((report.deleted, report.writers.len()), (0, 1));
    // The collector has said that it is going to delete this. So it is not relied on, and the client stores it again.
    assert_eq!(errno(stand.content().write_stored(at(ino, 0), &chunks)), Errno::NODATA);
    assert_eq!(uploader.store_contents(&[&bytes]).unwrap().remove(0), chunks);
    stand.content().write_stored(at(ino, 0), &chunks).unwrap();
    uploader.end_session().unwrap();
    let report = collect(&stand);
    assert_eq!((report.deleted, report.writers.len()), (0, 1));
    let waiting = report.writers[0].session.as_ref().unwrap();
    assert_eq!(waiting.unpublished.as_deref(), Some("main"));
    // Neither does the end of the process let it go.
    let stand = stand.again();
    assert_eq!(collect(&stand).deleted, 0);
    assert!(stand.fs.read(ino, 0, 400_000).unwrap() == bytes);
    stand.publisher().publish_all().unwrap();
    assert!(!stand.names_stored_chunks().unwrap());
    assert_eq!(collect(&stand).writers.len(), 0);
    let stand = stand.elsewhere();
    assert!(stand.fs.read(ino, 0, 400_000).unwrap() == bytes);
    check_clean(&stand);
}

#[test]
fn what_was_overwritten_before_it_was_published_is_collected_afterwards() {
    let stand = Stand::new();
    let ino = stand.create("file").unwrap().ino;
    let (uploader, chunks) = store(&stand, &noise(300_000, 3));
    stand.content().write_stored(at(ino, 0), &chunks).unwrap();
    uploader.end_session().unwrap();
    stand.unlink("file").unwrap();
    stand.publisher().publish_all().unwrap();
    assert!(collect(&stand).deleted > 0);
    check_clean(&stand);
}

#[test]
fn chunks_that_the_store_does_not_have_are_refused_and_change_nothing() {
    let stand = Stand::new();
    let ino = stand.create("file").unwrap().ino;
    stand.content().write(ino, 0, b"as it was", false).unwrap();
    let (uploader, chunks) = store(&stand, &noise(300_000, 4));
    let unknown = StoredChunk { id: BlobId([7; 32]), len: 5000 };
    let with_unknown = [&chunks[..], &[unknown]].concat();
    assert_eq!(errno(stand.content().write_stored(at(ino, 0), &with_unknown)), Errno::NODATA);
    // A node of a tree is no content.
    stand.publisher().publish_all().unwrap();
    let node = StoredChunk { id: stand.live_map().lock_head().state.base.0, len: 4096 };
    assert_eq!(errno(stand.content().write_stored(at(ino, 0), &[node])), Errno::NODATA);
    // Nothing that is stored is longer than what it holds.
    let short = StoredChunk { len: 10, ..chunks[0] };
    assert_eq!(errno(stand.content().write_stored(at(ino, 0), &[short])), Errno::NODATA);
    for len in [0, (4 << 20) + 1, u32::MAX] {
        let wrong = StoredChunk { len, ..chunks[0] };
        assert_eq!(errno(stand.content().write_stored(at(ino, 0), &[wrong])), Errno::INVAL);
    }
    let dir = stand.mkdir("dir").unwrap().ino;
    assert_eq!(errno(stand.content().write_stored(at(dir, 0), &chunks)), Errno::ISDIR);
    assert_eq!(errno(stand.content().write_stored(at(ino, u64::MAX), &chunks)), Errno::FBIG);
    assert_eq!(errno(stand.content().write_stored(at(Ino(999), 0), &chunks)), Errno::STALE);
    assert_eq!(stand.fs.read(ino, 0, 100).unwrap(), b"as it was");
    uploader.end_session().unwrap();
    stand.content().write(ino, 0, b"AS", false).unwrap();
    stand.publisher().publish_all().unwrap();
    assert!(!stand.volume().holds_unpublished("main").unwrap());
}

/// Whoever has the key can say of a chunk that it is longer than it is: readers find out, and the file can be written again.
#[test]
fn a_chunk_that_is_shorter_than_was_said_is_an_error_where_it_is_read() {
    let stand = Stand::new();
    let ino = stand.create("file").unwrap().ino;
    let (uploader, chunks) = store(&stand, &noise(50_000, 5));
    let long = StoredChunk { len: chunks[0].len + 1000, ..chunks[0] };
    stand.content().write_stored(at(ino, 0), &[long]).unwrap();
    uploader.end_session().unwrap();
    assert!(stand.fs.read(ino, u64::from(chunks[0].len), 500).is_err());
    let bytes = noise(long.len as usize, 6);
    stand.content().write(ino, 0, &bytes, false).unwrap();
    assert!(stand.fs.read(ino, 0, 1 << 20).unwrap() == bytes);
    stand.publisher().publish_all().unwrap();
    check_clean(&stand);
}

#[test]
fn what_is_stored_already_is_not_stored_again() {
    let stand = Stand::new();
    let bytes = noise(300_000, 7);
    let (uploader, chunks) = store(&stand, &bytes);
    let again = uploader.store_contents(&[&bytes, &bytes]).unwrap();
    assert_eq!(again, [chunks.clone(), chunks]);
    uploader.end_session().unwrap();
    let packs = stand.volume().blobs.list_packs().unwrap();
    assert!(packs.iter().map(|pack| pack.size).sum::<u64>() < 400_000);
}

#[test]
fn a_snapshot_of_what_a_client_has_stored_has_it() {
    let stand = Stand::new();
    let ino = stand.create("file").unwrap().ino;
    let bytes = noise(300_000, 8);
    let (uploader, chunks) = store(&stand, &bytes);
    stand.content().write_stored(at(ino, 0), &chunks).unwrap();
    uploader.end_session().unwrap();
    let snapshot = stand.create_snapshot(&request()).unwrap();
    stand.content().truncate(ino, 0).unwrap();
    stand.publisher().publish_all().unwrap();
    assert!(!stand.volume().holds_unpublished("main").unwrap());
    collect(&stand);
    let view = stand.fs.open_snapshot_view(snapshot).unwrap();
    assert!(view.read(ino, 0, 400_000).unwrap() == bytes);
}

//! Access for fuzz targets to decoders that are not public: most only read authenticated bytes: the holder of the key, or somebody who
//! plants a plain volume, could write anything there. Not for other callers.
//!
//! Invariant: each function accepts any bytes, and panics only where a decoder broke a promise of its own.

use vellum_types::{BlobId, VolumeId};

use crate::blob::body;
use crate::index::{IndexRecord, IndexRun, IndexRunId, build_run};
use crate::pack;

/// The body of a blob after opening.
pub fn fuzz_blob_body(bytes: &[u8]) {
    if let Ok(body::DecodedBody::Difference(difference)) = body::decode_body(bytes.to_vec()) {
        let _ = difference.apply_to_base(b"");
        let _ = difference.apply_to_base(bytes);
    }
}

/// Header, table and footer of a pack.
///
/// # Panics
/// When a table that decodes encodes to other bytes.
pub fn fuzz_pack(bytes: &[u8]) {
    pack::fuzz_decoders(bytes);
}

/// The body of an index object after opening; what decodes must survive the way through a local run.
///
/// # Panics
/// When it does not.
pub fn fuzz_index_body(bytes: &[u8]) {
    let Ok(record) = IndexRecord::decode(bytes) else { return };
    assert_eq!(record.encode(), bytes, "one content has one encoding");
    let run = IndexRun::from_bytes(build_run(&record, VolumeId([0; 16]), IndexRunId([0; 32])));
    let run = run.unwrap_or_else(|error| panic!("a run that was just built: {error}"));
    assert!(run.iter().eq(record.blobs()), "a local run says what its record says");
    assert!(record.blobs().all(|(id, place)| run.find_blob(&id) == Some(place)), "and finds it");
}

/// The files of a cache.
///
/// # Panics
/// When a decoder accepts what it must not.
pub fn fuzz_cache(bytes: &[u8]) {
    crate::object::fuzz_cache_decoders(bytes);
}

/// One version of a numbered ref.
///
/// # Panics
/// When the version after it does not name it.
pub fn fuzz_ref_version(bytes: &[u8]) {
    crate::object::fuzz_version_decoder(bytes);
}

/// The listing of a published store.
///
/// # Panics
/// When a listing that is read has another form.
pub fn fuzz_listing(bytes: &[u8]) {
    crate::object::fuzz_listing_decoder(bytes);
}

/// What a server answers over SFTP.
pub fn fuzz_sftp(bytes: &[u8]) {
    crate::object::fuzz_sftp_decoder(bytes);
}

/// What a service answers about the parts of an upload.
///
/// # Panics
/// When a tag that is sent is not the one that was read.
pub fn fuzz_part_list(bytes: &[u8]) {
    crate::object::fuzz_part_list(bytes);
}

/// What this machine remembers of an upload.
///
/// # Panics
/// When a record that is read is not the one that is written.
pub fn fuzz_upload_record(bytes: &[u8]) {
    crate::object::fuzz_upload_record(bytes);
}

/// The file of a local run.
pub fn fuzz_local_run(bytes: &[u8]) {
    let Ok(run) = IndexRun::from_bytes(bytes.to_vec()) else { return };
    run.iter().for_each(|(id, _)| {
        run.find_blob(&id);
    });
    run.find_blob(&BlobId([0; 32]));
    run.find_blob(&BlobId([0xff; 32]));
    run.packs().for_each(drop);
}

/// A claim of the right to write.
///
/// # Panics
/// When a claim that is read is not the one that is written.
pub fn fuzz_writer_claim(bytes: &[u8]) {
    crate::object::fuzz_claim_decoder(bytes);
}

//! Comparing content with objects: by their tags if these are MD5 hashes, otherwise by reading both.
//!
//! Invariant: the digests of two files that are compared are of one kind.

use md5::{Digest, Md5};
use vellum_host::ProgressMeter;

use super::{ObjectEnd, parallel};
use crate::ends::{ContentPieces, SourceContent, SourceEnd, TransferPiece};
use crate::error::{Result, SyncError};
use crate::local::receive::{hash_file, hash_zeros};
use crate::model::listing::{ContentDigest, ListingEntry, ListingEntryId, TreeListing};

/// The second half of a digest whose first half is an MD5 hash.
const MD5_MARK: &[u8; 16] = b"\0vellum sync md5";
/// Bytes that are hashed at a time.
const BLOCK: usize = 64 << 10;

/// A pair of files with the same path and size.
struct ComparedPair {
    object: ListingEntryId,
    other: ListingEntryId,
    md5: Option<[u8; 16]>,
}

/// The end that is not an object store, and its listing.
pub struct ComparedTree<'a> {
    /// The end.
    pub end: &'a dyn SourceEnd,
    /// Its listing.
    pub listing: &'a mut TreeListing,
}

impl ObjectEnd {
    /// Records content digests of objects and of the other end's files with the same paths, in both listings.
    pub fn load_checksums(
        &self,
        listing: &mut TreeListing,
        files: &[ListingEntryId],
        other: ComparedTree<'_>,
        meter: &ProgressMeter,
    ) -> Result<()> {
        let pair = |id: &ListingEntryId| {
            let other = other.listing.find_path(&listing.entry(*id).path())?.id();
            let md5 = self.listed_tag(*id).and_then(|tag| tag.as_md5());
            Some(ComparedPair { object: *id, other, md5 })
        };
        let pairs: Vec<ComparedPair> = files.iter().filter_map(pair).collect();
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get).max(4);
        let digests = parallel::map_in_parallel(&pairs, threads, meter, |pair| {
            let file = other.listing.entry(pair.other);
            match pair.md5 {
                // The tag is the MD5 of an object that was uploaded in one part, so only the file has to be
                // read.
                Some(hash) => {
                    let ours = hash_md5(other.end, &file, meter).ok();
                    (Some(extend_md5(&hash)), ours.map(|hash| extend_md5(&hash)))
                }
                None => {
                    let theirs = self.open_pieces(&listing.entry(pair.object));
                    let theirs = theirs.and_then(|mut pieces| hash_pieces(&mut pieces, meter)).ok();
                    (theirs, hash_content(other.end, &file, meter).ok())
                }
            }
        })?;
        for (pair, (theirs, ours)) in pairs.iter().zip(digests) {
            // Both or neither: a digest on one side alone could later be compared with one of the other kind.
            if let (Some(theirs), Some(ours)) = (theirs, ours) {
                listing.set_content_digest(pair.object, theirs);
                other.listing.set_content_digest(pair.other, ours);
            }
        }
        Ok(())
    }
}

fn extend_md5(hash: &[u8; 16]) -> ContentDigest {
    let mut digest = [0; 32];
    let (front, back) = digest.split_at_mut(16);
    front.copy_from_slice(hash);
    back.copy_from_slice(MD5_MARK);
    digest
}

/// Computes the BLAKE3 hash of content that arrives in pieces.
pub(super) fn hash_pieces(pieces: &mut dyn ContentPieces, meter: &ProgressMeter) -> Result<ContentDigest> {
    let mut hasher = blake3::Hasher::new();
    while let Some(piece) = pieces.next_piece()? {
        meter.check_stopped()?;
        match piece {
            TransferPiece::Data(bytes) => drop(hasher.update(bytes)),
            TransferPiece::Hole(len) => hash_zeros(&mut hasher, len),
            TransferPiece::Old { .. } => return Err(SyncError::Unequal),
        }
    }
    Ok(*hasher.finalize().as_bytes())
}

fn hash_content(
    end: &dyn SourceEnd,
    file: &ListingEntry<'_>,
    meter: &ProgressMeter,
) -> Result<ContentDigest> {
    match end.open_content(*file, None)? {
        SourceContent::File(opened) => hash_file(&opened.file, meter),
        SourceContent::Pieces(mut pieces) => hash_pieces(&mut *pieces, meter),
    }
}

fn hash_md5(end: &dyn SourceEnd, file: &ListingEntry<'_>, meter: &ProgressMeter) -> Result<[u8; 16]> {
    let mut hasher = Md5::new();
    match end.open_content(*file, None)? {
        SourceContent::File(opened) => {
            let mut file = &opened.file;
            let mut buffer = vec![0; BLOCK];
            loop {
                meter.check_stopped()?;
                let read =
                    std::io::Read::read(&mut file, &mut buffer).map_err(SyncError::wrap_io_error("read"))?;
                match buffer.get(..read) {
                    None | Some([]) => break,
                    Some(bytes) => hasher.update(bytes),
                }
            }
        }
        SourceContent::Pieces(mut pieces) => {
            while let Some(piece) = pieces.next_piece()? {
                meter.check_stopped()?;
                match piece {
                    TransferPiece::Data(bytes) => hasher.update(bytes),
                    TransferPiece::Hole(len) => hash_zeros_md5(&mut hasher, len),
                    TransferPiece::Old { .. } => return Err(SyncError::Unequal),
                }
            }
        }
    }
    Ok(hasher.finalize().into())
}

fn hash_zeros_md5(hasher: &mut Md5, mut len: u64) {
    const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    while len > 0 {
        let step = usize::try_from(len).unwrap_or(ZEROS.len()).min(ZEROS.len());
        hasher.update(ZEROS.get(..step).unwrap_or_default());
        len -= step as u64;
    }
}

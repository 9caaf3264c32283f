//! Blobs stored as a difference to another blob of the same pack.
//!
//! Layout after the method: length of the plaintext (varint) ‖ the base's id (32), offset (varint) and sealed length
//! (varint) in the pack ‖ a zstd frame with the base's plaintext as its prefix. Invariant: a base is never a difference
//! itself, so that reading a blob decodes two blobs at most. Deliberately absent: which blobs resemble each other.

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_types::limits::BLOB_MAX;
use vellum_types::{BlobId, BlobKind, DecodeError, FieldReader, FieldWriter};
use zstd::zstd_safe::{CCtx, CParameter, DCtx};

use super::{BlobBodyFault, DIFFERENCE, DecodedBody, read_plaintext_len, unseal_body};

/// A difference must have at most this fraction of the plaintext, a divisor: what saves less is not worth decoding
/// two blobs for one.
const GAIN_MIN: usize = 5;
/// Least and largest window, bits: that of the largest base and blob together.
const WINDOW_BITS: std::ops::RangeInclusive<u32> = 17..=23;

/// Where in a pack the base of a difference stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BasePlace {
    pub(crate) id: BlobId,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

impl BasePlace {
    /// The base's sealed bytes in the bytes of its pack.
    pub(crate) fn slice_base<'a>(&self, pack: &'a [u8]) -> Option<&'a [u8]> {
        let start = usize::try_from(self.offset).ok()?;
        pack.get(start..start.checked_add(usize::try_from(self.len).ok()?)?)
    }
}

/// An opened difference.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) base: BasePlace,
    len: usize,
    data: Vec<u8>,
}

impl Difference {
    pub(super) fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let len = read_plaintext_len(reader)?;
        let base = BasePlace {
            id: BlobId(reader.read_array()?),
            offset: reader.read_varint_u32()?,
            len: reader.read_varint_u32()?,
        };
        // Its writer had the key, and may be hostile all the same: the length bounds what is read.
        if base.len as usize > crate::pack::SEALED_MAX {
            return Err(DecodeError::Invalid("length of the base"));
        }
        Ok(Self { base, len, data: reader.read_rest().to_vec() })
    }

    /// The plaintext, checked.
    pub(super) fn resolve_plaintext(
        self,
        keys: &VolumeKeys,
        kind: BlobKind,
        id: &BlobId,
        base_sealed: &[u8],
    ) -> Result<Vec<u8>, BlobBodyFault> {
        // That the base is the right one shows in the result, which is checked.
        let Ok(DecodedBody::Content(base)) = unseal_body(keys, kind, &self.base.id, base_sealed) else {
            return Err(BlobBodyFault::Base);
        };
        let plaintext = self.apply_to_base(&base)?;
        if keys.compute_blob_id(kind, &plaintext) == *id {
            Ok(plaintext)
        } else {
            Err(BlobBodyFault::Identity)
        }
    }

    pub(crate) fn apply_to_base(&self, base: &[u8]) -> Result<Vec<u8>, BlobBodyFault> {
        // A context that borrows a prefix cannot outlive it: one a thread, as for whole blobs, is not to be had.
        let mut context = DCtx::try_create().ok_or(BlobBodyFault::Compression)?;
        context.ref_prefix(base).map_err(|_| BlobBodyFault::Compression)?;
        // The output buffer bounds the length, as decoding is in one piece.
        let mut plaintext = Vec::with_capacity(self.len);
        context.decompress(&mut plaintext, &self.data).map_err(|_| BlobBodyFault::Compression)?;
        if plaintext.len() == self.len { Ok(plaintext) } else { Err(BlobBodyFault::Compression) }
    }
}

/// A blob that is to be stored as a difference.
pub(crate) struct NewDifference<'a> {
    pub(crate) kind: BlobKind,
    pub(crate) id: &'a BlobId,
    pub(crate) plaintext: &'a [u8],
    pub(crate) base: &'a BasePlace,
    pub(crate) base_plaintext: &'a [u8],
}

impl NewDifference<'_> {
    /// Appends the sealed form to `out` and returns the length of its body; appends nothing if that would not be much
    /// shorter than the plaintext.
    pub(crate) fn seal_difference(&self, keys: &VolumeKeys, level: i32, out: &mut Vec<u8>) -> Option<usize> {
        let mut head = FieldWriter::new();
        head.write_u8(DIFFERENCE)
            .write_varint(self.plaintext.len() as u64)
            .write_raw(self.base.id.as_bytes());
        head.write_varint(u64::from(self.base.offset)).write_varint(u64::from(self.base.len));
        let mut body = head.into_vec();
        let room = (self.plaintext.len() / GAIN_MIN).checked_sub(body.len())?;
        body.extend_from_slice(&compress_with_base(level, self.plaintext, self.base_plaintext, room)?);
        out.reserve(body.len() + keys.seal_overhead());
        keys.seal_record(RecordDomain::Blob(self.kind), self.id.as_bytes(), &body, out);
        Some(body.len())
    }
}

fn compress_with_base(level: i32, plaintext: &[u8], base: &[u8], room: usize) -> Option<Vec<u8>> {
    if plaintext.len() > BLOB_MAX {
        return None;
    }
    // From the end of the blob, the window must reach back to the beginning of its base.
    let window = (plaintext.len() + base.len()).next_power_of_two().trailing_zeros();
    let mut context = CCtx::try_create()?;
    context.set_parameter(CParameter::CompressionLevel(level)).ok()?;
    context
        .set_parameter(CParameter::WindowLog(window.clamp(*WINDOW_BITS.start(), *WINDOW_BITS.end())))
        .ok()?;
    context.ref_prefix(base).ok()?;
    let mut data = Vec::with_capacity(room);
    // It fails when the room does not suffice.
    context.compress2(&mut data, plaintext).ok()?;
    Some(data)
}

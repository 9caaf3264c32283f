//! Blobs stored as a difference to another blob of the same pack.
//!
//! Layout after the method: length of the plaintext (varint) ‖ the base's id (32), offset (varint) and sealed length
//! (varint) in the pack ‖ a zstd frame with the base's plaintext as its prefix. Invariant: a base is never a difference
//! itself, so that reading a blob decodes two blobs at most. Deliberately absent: which blobs resemble each other.

use vellum_crypto::{Domain, VolumeKeys};
use vellum_types::limits::BLOB_MAX;
use vellum_types::{BlobId, BlobKind, DecodeError, Reader, Writer};
use zstd::zstd_safe::{CCtx, CParameter, DCtx};

use super::{BodyFault, DIFFERENCE, OpenedBody, open, plaintext_len};

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
    pub(crate) fn slice<'a>(&self, pack: &'a [u8]) -> Option<&'a [u8]> {
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
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = plaintext_len(reader)?;
        let base = BasePlace {
            id: BlobId(reader.array()?),
            offset: reader.varint_u32()?,
            len: reader.varint_u32()?,
        };
        if base.len as usize > crate::pack::SEALED_MAX {
            return Err(DecodeError::Invalid("length of the base"));
        }
        Ok(Self { base, len, data: reader.take_rest().to_vec() })
    }

    /// The plaintext, checked.
    pub(super) fn resolve(
        self,
        keys: &VolumeKeys,
        kind: BlobKind,
        id: &BlobId,
        base_sealed: &[u8],
    ) -> Result<Vec<u8>, BodyFault> {
        let Ok(OpenedBody::Content(base)) = open(keys, kind, &self.base.id, base_sealed) else {
            return Err(BodyFault::Base);
        };
        let plaintext = self.apply(&base)?;
        if keys.blob_id(kind, &plaintext) == *id { Ok(plaintext) } else { Err(BodyFault::Identity) }
    }

    pub(crate) fn apply(&self, base: &[u8]) -> Result<Vec<u8>, BodyFault> {
        let mut context = DCtx::try_create().ok_or(BodyFault::Compression)?;
        context.ref_prefix(base).map_err(|_| BodyFault::Compression)?;
        // The output buffer bounds the length, as decoding is in one piece.
        let mut plaintext = Vec::with_capacity(self.len);
        context.decompress(&mut plaintext, &self.data).map_err(|_| BodyFault::Compression)?;
        if plaintext.len() == self.len { Ok(plaintext) } else { Err(BodyFault::Compression) }
    }
}

/// Appends the sealed form of a blob as a difference to `base` and returns the length of its body; appends nothing if
/// that would not be much shorter than the plaintext.
pub(crate) fn seal_difference(
    keys: &VolumeKeys,
    level: i32,
    (kind, id, plaintext): (BlobKind, &BlobId, &[u8]),
    (place, base): (&BasePlace, &[u8]),
    out: &mut Vec<u8>,
) -> Option<usize> {
    let mut head = Writer::new();
    head.u8(DIFFERENCE).varint(plaintext.len() as u64).raw(place.id.as_bytes());
    head.varint(u64::from(place.offset)).varint(u64::from(place.len));
    let mut body = head.into_vec();
    let data = compress(level, plaintext, base, (plaintext.len() / GAIN_MIN).checked_sub(body.len())?)?;
    body.extend_from_slice(&data);
    out.reserve(body.len() + keys.overhead());
    keys.seal(Domain::Blob(kind), id.as_bytes(), &body, out);
    Some(body.len())
}

fn compress(level: i32, plaintext: &[u8], base: &[u8], room: usize) -> Option<Vec<u8>> {
    if plaintext.len() > BLOB_MAX {
        return None;
    }
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

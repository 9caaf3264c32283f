//! The body of a blob: compressed or raw, then sealed; and back.
//!
//! Layout before sealing: method (u8: 0 raw, 1 zstd, 2 difference) ‖ for zstd and differences the plaintext's length
//! (varint) ‖ for differences the place of the base ‖ data.
//! Invariant: what is opened and resolved has the id that was asked for, or it fails; decoding never allocates more
//! than `BLOB_MAX` and some framing, whatever it is given.

mod difference;

use std::cell::RefCell;

use vellum_crypto::{RecordDomain, UnsealError, VolumeKeys};
use vellum_types::limits::BLOB_MAX;
use vellum_types::{BlobId, BlobKind, DecodeError, FieldReader, FieldWriter};
use zstd::bulk::{Compressor, Decompressor};

pub(crate) use self::difference::{BasePlace, Difference, NewDifference};
use crate::pack::SEALED_MAX;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const DIFFERENCE: u8 = 2;

/// Method byte and the longest varint of a length.
const FRAME_MAX: usize = 11;
/// Blobs below this many bytes are not compressed: zstd's own framing eats the gain.
const COMPRESS_MIN: usize = 64;
/// Blobs up to this many bytes are compressed without a probe: it would cost as much as the attempt.
const PROBE_MIN: usize = 8 << 10;
/// Bytes that the probe looks at, from the middle, where headers do not mislead.
const PROBE_LEN: usize = 4 << 10;
/// Bits per byte above which the sample counts as noise at first sight. 4 KiB of true noise measure 7.95.
const NOISE_BITS: f32 = 7.85;
/// zstd's fastest useful level, for the second look.
const PROBE_LEVEL: i32 = -3;

/// Why the sealed bytes of a blob are not the blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlobBodyFault {
    /// They do not authenticate.
    #[error(transparent)]
    Open(#[from] UnsealError),
    /// They are longer than any sealed blob.
    #[error("it has {0} sealed bytes, more than any blob may have")]
    TooLong(usize),
    /// Method or length are not of this format.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// zstd cannot decode them, or they decode to another length.
    #[error("it does not decompress to the length that it states")]
    Compression,
    /// The content has another id.
    #[error("its content has another id")]
    Identity,
    /// It is a difference to a blob that is not where it should be, or is itself a difference.
    #[error("the blob that it is a difference to is missing or damaged")]
    Base,
}

/// What a sealed blob holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpenedBody {
    /// The plaintext, checked.
    Content(Vec<u8>),
    /// A difference to another blob of the same pack.
    Difference(Difference),
}

impl OpenedBody {
    /// The plaintext. `base` returns the sealed bytes at a place of the same pack; it is called at most once.
    pub(crate) fn resolve_plaintext<E: From<BlobBodyFault>>(
        self,
        keys: &VolumeKeys,
        kind: BlobKind,
        id: &BlobId,
        base: impl FnOnce(&BasePlace) -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        match self {
            Self::Content(plaintext) => Ok(plaintext),
            Self::Difference(difference) => {
                let sealed = base(&difference.base)?;
                Ok(difference.resolve_plaintext(keys, kind, id, &sealed)?)
            }
        }
    }
}

/// What a body holds before its content is checked.
pub(crate) enum DecodedBody {
    Content(Vec<u8>),
    Difference(Difference),
}

struct BodyCoder {
    compressor: Option<(i32, Compressor<'static>)>,
    probe: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
    body: Vec<u8>,
}

thread_local! {
    // zstd contexts are large and slow to make: one of each per thread, reused.
    static CODER: RefCell<BodyCoder> =
        const { RefCell::new(BodyCoder { compressor: None, probe: None, decompressor: None, body: Vec::new() }) };
}

/// Appends the sealed form of a blob to `out`; returns the length of its body before sealing.
pub(crate) fn seal_blob(
    keys: &VolumeKeys,
    level: i32,
    kind: BlobKind,
    id: &BlobId,
    plaintext: &[u8],
    out: &mut Vec<u8>,
) -> usize {
    CODER.with_borrow_mut(|coder| {
        let body = coder.encode_body(level, plaintext);
        out.reserve(body.len() + keys.seal_overhead());
        keys.seal_record(RecordDomain::Blob(kind), id.as_bytes(), body, out);
        body.len()
    })
}

/// Opens a sealed blob; the plaintext of one that is no difference is checked.
pub(crate) fn open_blob(
    keys: &VolumeKeys,
    kind: BlobKind,
    id: &BlobId,
    sealed: &[u8],
) -> Result<OpenedBody, BlobBodyFault> {
    match unseal_body(keys, kind, id, sealed)? {
        DecodedBody::Difference(difference) => Ok(OpenedBody::Difference(difference)),
        DecodedBody::Content(plaintext) if keys.compute_blob_id(kind, &plaintext) == *id => {
            Ok(OpenedBody::Content(plaintext))
        }
        DecodedBody::Content(_) => Err(BlobBodyFault::Identity),
    }
}

/// What a sealed blob holds, authenticated; its content is not checked against its id.
pub(crate) fn unseal_body(
    keys: &VolumeKeys,
    kind: BlobKind,
    id: &BlobId,
    sealed: &[u8],
) -> Result<DecodedBody, BlobBodyFault> {
    if sealed.len() > SEALED_MAX {
        return Err(BlobBodyFault::TooLong(sealed.len()));
    }
    let mut body = Vec::with_capacity(sealed.len());
    keys.open_record(RecordDomain::Blob(kind), id.as_bytes(), sealed, &mut body)?;
    decode_body(body)
}

pub(crate) fn decode_body(mut body: Vec<u8>) -> Result<DecodedBody, BlobBodyFault> {
    let mut reader = FieldReader::new(&body);
    match reader.read_u8()? {
        RAW => {
            // In place: the buffer has the content already, and another one would be as large.
            body.remove(0);
            if body.len() > BLOB_MAX {
                return Err(DecodeError::Invalid("length").into());
            }
            Ok(DecodedBody::Content(body))
        }
        ZSTD => {
            let len = read_plaintext_len(&mut reader)?;
            Ok(DecodedBody::Content(decompress_body(reader.read_rest(), len)?))
        }
        DIFFERENCE => Ok(DecodedBody::Difference(Difference::decode(&mut reader)?)),
        // Of a later version: it is authenticated, so that it is not damage.
        method => Err(DecodeError::Version(method.into()).into()),
    }
}

fn read_plaintext_len(reader: &mut FieldReader<'_>) -> Result<usize, DecodeError> {
    let len = usize::try_from(reader.read_varint()?).map_err(|_| DecodeError::Invalid("length"))?;
    if len > BLOB_MAX { Err(DecodeError::Invalid("length")) } else { Ok(len) }
}

fn decompress_body(data: &[u8], len: usize) -> Result<Vec<u8>, BlobBodyFault> {
    // The output buffer bounds both the length and, as decoding is in one piece, the window.
    CODER.with_borrow_mut(|coder| {
        if coder.decompressor.is_none() {
            coder.decompressor = Decompressor::new().ok();
        }
        let decompressor = coder.decompressor.as_mut().ok_or(BlobBodyFault::Compression)?;
        let plaintext = decompressor.decompress(data, len).map_err(|_| BlobBodyFault::Compression)?;
        if plaintext.len() == len { Ok(plaintext) } else { Err(BlobBodyFault::Compression) }
    })
}

impl BodyCoder {
    /// The body, in a buffer that the next call reuses.
    fn encode_body(&mut self, level: i32, plaintext: &[u8]) -> &[u8] {
        let compressed = if level != 0 && self.is_compressible(plaintext) {
            self.compress_body(level, plaintext)
        } else {
            None
        };
        let len = compressed.unwrap_or_else(|| {
            self.body.clear();
            self.body.push(RAW);
            self.body.extend_from_slice(plaintext);
            self.body.len()
        });
        self.body.get(..len).unwrap_or_default()
    }

    /// Compresses into the buffer; `None` if that does not make it shorter than raw.
    fn compress_body(&mut self, level: i32, plaintext: &[u8]) -> Option<usize> {
        // A context is made for one level, and the level may be changed while the store is open.
        if self.compressor.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
            self.compressor = Some((level, Compressor::new(level).ok()?));
        }
        let (_, compressor) = self.compressor.as_mut()?;
        let mut frame = FieldWriter::from_vec(Vec::with_capacity(FRAME_MAX));
        frame.write_u8(ZSTD).write_varint(plaintext.len() as u64);
        let frame = frame.into_vec();
        // Room for anything that is shorter than raw; zstd fails where that is not enough. The buffer only
        // grows, so that it is not cleared for each blob.
        if self.body.len() < plaintext.len() {
            self.body.resize(plaintext.len(), 0);
        }
        let room = self.body.get_mut(..plaintext.len())?;
        let (head, data) = room.split_at_mut_checked(frame.len())?;
        head.copy_from_slice(&frame);
        let written = compressor.compress_to_buffer(plaintext, data).ok()?;
        Some(frame.len() + written)
    }

    /// Whether compressing is worth an attempt: a glance at the bytes' frequencies, and where these look like
    /// noise, a fast try on a sample.
    fn is_compressible(&mut self, plaintext: &[u8]) -> bool {
        if plaintext.len() < PROBE_MIN {
            return plaintext.len() >= COMPRESS_MIN;
        }
        let middle = plaintext.len() / 2 - PROBE_LEN / 2;
        let sample = plaintext.get(middle..middle + PROBE_LEN).unwrap_or(plaintext);
        if estimate_entropy(sample) < NOISE_BITS {
            return true;
        }
        if self.probe.is_none() {
            self.probe = Compressor::new(PROBE_LEVEL).ok();
        }
        // zstd fails if the output does not fit, so that the size of this buffer is the test: a 32nd must be saved.
        let mut shrunk = [0; PROBE_LEN - PROBE_LEN / 32];
        self.probe.as_mut().is_some_and(|probe| probe.compress_to_buffer(sample, &mut shrunk[..]).is_ok())
    }
}

/// Shannon entropy of the bytes' frequencies, bits per byte.
fn estimate_entropy(sample: &[u8]) -> f32 {
    // Four tables, so that runs of one byte do not wait for their own increment.
    let mut counts = [[0_u32; 256]; 4];
    for four in sample.chunks(4) {
        for (table, byte) in counts.iter_mut().zip(four) {
            table[usize::from(*byte)] += 1;
        }
    }
    // The entropy is log2(n) - sum(c * log2(c)) / n, where n is the length and c the count of each byte: one
    // division instead of 256.
    let total = sample.len() as f32;
    let [a, b, c, d] = &counts;
    let sum: f32 = (0..256)
        .map(|i| (a[i] + b[i] + c[i] + d[i]) as f32)
        .filter(|count| *count > 0.0)
        .map(|count| count * count.log2())
        .sum();
    total.log2() - sum / total
}

#[cfg(test)]
mod tests;

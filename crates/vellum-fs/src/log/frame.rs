//! The bytes of a segment. Everything is little endian; frames begin at multiples of eight.
//!
//! A segment begins with `magic (8) ‖ version u32 ‖ zero u32 ‖ number u64`. Frames follow: `magic u32 ‖ length u32 ‖
//! xxh3 of the data u64 ‖ check u64`, then the data. The check is xxh3 of the header's first 16 bytes, keyed with the
//! frame's place: a copy of a frame elsewhere, in the data of another perhaps, is none. A segment that is complete and
//! on the disk ends with a seal: the same header with another magic, no data, and its own place in place of the hash.

use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes before the first frame.
pub const PREAMBLE: u64 = 24;
/// Bytes of a frame before its data.
pub const HEADER: u64 = 24;

const SEGMENT_MAGIC: &[u8; 8] = b"vellumWL";
const VERSION: u32 = 1;
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"vlfr");
const SEAL_MAGIC: u32 = u32::from_le_bytes(*b"vlse");
/// Frames begin at multiples of it.
pub const ALIGN: u64 = 8;

/// The bytes that a frame takes.
pub fn frame_len(data: u64) -> u64 {
    (HEADER + data).next_multiple_of(ALIGN)
}

/// What a segment begins with.
pub fn encode_preamble(segment: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    let (magic, rest) = bytes.split_at_mut(8);
    magic.copy_from_slice(SEGMENT_MAGIC);
    let (version, number) = rest.split_at_mut(8);
    version[..4].copy_from_slice(&VERSION.to_le_bytes());
    number.copy_from_slice(&segment.to_le_bytes());
    bytes
}

/// The header of a frame at `position`.
pub fn encode_frame_header(segment: u64, position: u64, data: &[u8]) -> [u8; 24] {
    encode_header_fields(segment, position, FRAME_MAGIC, data.len() as u32, xxh3_64(data))
}

/// The seal of a segment whose frames end at `position`.
pub fn encode_seal(segment: u64, position: u64) -> [u8; 24] {
    encode_header_fields(segment, position, SEAL_MAGIC, 0, position)
}

fn encode_header_fields(segment: u64, position: u64, magic: u32, len: u32, hash: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    let (head, check) = bytes.split_at_mut(16);
    head[..4].copy_from_slice(&magic.to_le_bytes());
    head[4..8].copy_from_slice(&len.to_le_bytes());
    head[8..].copy_from_slice(&hash.to_le_bytes());
    // The place is part of the check: a frame in another place, as in a renamed segment or within the data of
    // another frame, is not taken for one.
    check.copy_from_slice(&xxh3_64_with_seed(head, mix_position(segment, position)).to_le_bytes());
    bytes
}

fn mix_position(segment: u64, position: u64) -> u64 {
    segment.rotate_left(32) ^ position
}

/// A header taken apart: magic, length and hash.
fn decode_frame_header(segment: u64, position: u64, bytes: &[u8]) -> Option<(u32, u32, u64)> {
    let (head, rest) = bytes.split_first_chunk::<16>()?;
    let (check, _) = rest.split_first_chunk::<8>()?;
    let (magic, rest) = head.split_first_chunk::<4>()?;
    let (len, hash) = rest.split_first_chunk::<4>()?;
    let good = xxh3_64_with_seed(head, mix_position(segment, position)) == u64::from_le_bytes(*check);
    let hash = u64::from_le_bytes(hash.try_into().ok()?);
    good.then_some((u32::from_le_bytes(*magic), u32::from_le_bytes(*len), hash))
}

/// Whether these bytes, from `position` on, are the seal of the segment.
pub fn is_segment_sealed(segment: u64, position: u64, bytes: &[u8]) -> bool {
    decode_frame_header(segment, position, bytes) == Some((SEAL_MAGIC, 0, position))
}

/// The data of all frames that are whole, in order.
///
/// A frame whose writing never finished has left anything at all in its place, so the next one is looked for wherever
/// one can begin.
pub fn find_whole_frames(segment: u64, bytes: &[u8]) -> Vec<Range<u64>> {
    let mut frames = Vec::new();
    if bytes.get(..PREAMBLE as usize) != Some(&encode_preamble(segment)) {
        return frames;
    }
    let mut position = PREAMBLE;
    while let Some(rest) =
        usize::try_from(position).ok().and_then(|at| bytes.get(at..)).filter(|r| !r.is_empty())
    {
        match parse_whole_frame(segment, position, rest) {
            Some(len) => {
                let start = position + HEADER;
                frames.push(start..start + len);
                position += frame_len(len);
            }
            // A frame of another writer may lie whole behind one that was never finished: places are taken before
            // frames are written, and the frames are not written in the order of their places.
            None => position += ALIGN,
        }
    }
    frames
}

/// The length of the data of a frame that begins here, if it is whole.
fn parse_whole_frame(segment: u64, position: u64, rest: &[u8]) -> Option<u64> {
    // The cheap test first: after a torn frame this is asked at every eighth byte.
    if rest.get(..4)? != FRAME_MAGIC.to_le_bytes() {
        return None;
    }
    let (_, len, hash) = decode_frame_header(segment, position, rest)?;
    let data = rest.get(HEADER as usize..)?.get(..len as usize)?;
    (xxh3_64(data) == hash).then_some(u64::from(len))
}

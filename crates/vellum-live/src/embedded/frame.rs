//! The parts of all files of the engine: a header, then frames.
//!
//! Header: magic, 8 bytes ‖ version, u32 ‖ number of the file, u64 ‖ salt, u64 ‖ checksum of the former, u64.
//! Frame: length of the body, u32 ‖ checksum of the body, u64 ‖ body.
//!
//! All little endian; checksums are XXH3, 64 bits. A frame's is seeded with the salt plus the offset of the frame, so
//! that bytes of another place, of an older file in the same blocks, or made up by a program that writes values, do not
//! pass. The salt is random; it is no secret from who can read the file.

use std::io;

use vellum_types::{DecodeError, FieldReader, FieldWriter};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::folder::EngineFile;

const VERSION: u32 = 1;
/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 36;
/// Bytes of a frame before its body.
pub(crate) const FRAME_HEAD: usize = 12;
/// Bytes of a body at most: what one transaction can take, and what a reader takes into memory at once.
pub(crate) const BODY_MAX: usize = 256 << 20;
/// Bytes that a sequential reader or writer moves at once.
const WINDOW: usize = 1 << 20;

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    /// What kind of file it is.
    pub magic: [u8; 8],
    /// The number in its name.
    pub number: u64,
    /// Goes into the checksums of its frames.
    pub salt: u64,
}

impl FileHeader {
    /// The header of a new file.
    pub(crate) fn new(magic: [u8; 8], number: u64) -> io::Result<Self> {
        let salt = getrandom::u64().map_err(io::Error::other)?;
        Ok(Self { magic, number, salt })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_raw(&self.magic).write_u32(VERSION).write_u64(self.number).write_u64(self.salt);
        let mut bytes = writer.into_vec();
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header of a file of a kind.
    pub(crate) fn decode(bytes: &[u8], magic: [u8; 8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        if reader.read_array()? != magic {
            return Err(DecodeError::Magic);
        }
        let version = reader.read_u32()?;
        let header = Self { magic, number: reader.read_u64()?, salt: reader.read_u64()? };
        // The header is checked as a whole before its version is looked at: a damaged version must not be reported as
        // a later one.
        let summed = bytes.get(..bytes.len() - reader.remaining()).unwrap_or_default();
        if reader.read_u64()? != xxh3_64(summed) {
            return Err(DecodeError::Invalid("checksum"));
        }
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        Ok(header)
    }

    /// Reads the header of an open file.
    pub(crate) fn read_from_file(
        file: &dyn EngineFile,
        magic: [u8; 8],
    ) -> io::Result<Result<Self, DecodeError>> {
        let mut bytes = [0; HEADER_LEN];
        let count = file.read_at(&mut bytes, 0)?;
        Ok(Self::decode(bytes.get(..count).unwrap_or_default(), magic))
    }
}

/// Appends a frame to `out`, which begins at `start` in the file; `body` appends its body.
pub(crate) fn append_frame(out: &mut Vec<u8>, salt: u64, start: u64, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; FRAME_HEAD]);
    body(out);
    let content = out.get(at + FRAME_HEAD..).unwrap_or_default();
    let sum = compute_checksum(content, salt, start + at as u64);
    let len = content.len() as u32;
    if let Some(head) = out.get_mut(at..at + FRAME_HEAD) {
        let (first, second) = head.split_at_mut(4);
        first.copy_from_slice(&len.to_le_bytes());
        second.copy_from_slice(&sum.to_le_bytes());
    }
}

fn compute_checksum(body: &[u8], salt: u64, offset: u64) -> u64 {
    // An offset in the seed makes a frame invalid at any other place.
    xxh3_64_with_seed(body, salt.wrapping_add(offset))
}

/// The length and the checksum in a frame's first bytes.
pub(crate) fn decode_frame_head(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut reader = FieldReader::new(bytes);
    Some((reader.read_u32().ok()? as usize, reader.read_u64().ok()?))
}

/// The body of the frame at the start of `bytes`, which stand at `offset` of a file.
pub(crate) fn decode_frame_body(bytes: &[u8], salt: u64, offset: u64) -> Result<&[u8], DecodeError> {
    let (len, sum) = decode_frame_head(bytes).ok_or(DecodeError::Truncated)?;
    if len > BODY_MAX {
        return Err(DecodeError::Invalid("length"));
    }
    let body = bytes.get(FRAME_HEAD..FRAME_HEAD + len).ok_or(DecodeError::Truncated)?;
    if compute_checksum(body, salt, offset) != sum {
        return Err(DecodeError::Invalid("checksum"));
    }
    Ok(body)
}

/// Writes a new file of frames from its start to its end.
pub(crate) struct FrameWriter<'f> {
    file: &'f dyn EngineFile,
    salt: u64,
    /// Where `out` begins in the file.
    start: u64,
    out: Vec<u8>,
}

impl<'f> FrameWriter<'f> {
    /// Begins with a header.
    pub(crate) fn new(file: &'f dyn EngineFile, header: &FileHeader) -> Self {
        Self { file, salt: header.salt, start: 0, out: header.encode() }
    }

    /// Where the next frame will stand.
    pub(crate) fn offset(&self) -> u64 {
        self.start + self.out.len() as u64
    }

    /// Appends a frame.
    pub(crate) fn push_frame(&mut self, body: &[u8]) -> io::Result<()> {
        if body.len() > BODY_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Frames are collected and written in large pieces, because a file of many small writes takes longer.
        append_frame(&mut self.out, self.salt, self.start, |out| out.extend_from_slice(body));
        if self.out.len() >= WINDOW { self.flush_buffer() } else { Ok(()) }
    }

    /// Ends the file and makes it durable; its name is the caller's affair.
    pub(crate) fn finish_file(mut self) -> io::Result<()> {
        self.flush_buffer()?;
        self.file.sync_file()
    }

    fn flush_buffer(&mut self) -> io::Result<()> {
        self.file.write_at(&self.out, self.start)?;
        self.start = self.offset();
        self.out.clear();
        Ok(())
    }
}

/// Frames of a file, one after the other.
pub(crate) struct FrameIterator<'f> {
    file: &'f dyn EngineFile,
    salt: u64,
    len: u64,
    /// Where the next frame starts.
    offset: u64,
    /// Bytes of the file from `start` on.
    window: Vec<u8>,
    start: u64,
}

/// What stands at a place of a file.
#[derive(Debug)]
pub(crate) enum NextFrame<'a> {
    /// A frame's body.
    Body(&'a [u8]),
    /// Nothing: the file ends here, or holds only zeros from here on.
    End,
    /// No whole frame.
    Broken(DecodeError),
}

impl<'f> FrameIterator<'f> {
    /// The frames from `offset` on.
    pub(crate) fn new(file: &'f dyn EngineFile, salt: u64, offset: u64) -> io::Result<Self> {
        Ok(Self { file, salt, len: file.size()?, offset, window: Vec::new(), start: 0 })
    }

    /// Where the next frame starts.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next frame. After a broken one, it is broken again.
    pub(crate) fn next_frame(&mut self) -> io::Result<NextFrame<'_>> {
        let rest = self.len.saturating_sub(self.offset);
        if rest == 0 {
            return Ok(NextFrame::End);
        }
        let offset = self.offset;
        let Some((len, sum)) = decode_frame_head(self.peek_bytes(FRAME_HEAD)?) else {
            // The file ends within a frame head: a write was interrupted, or the file was cut.
            return Ok(NextFrame::Broken(DecodeError::Truncated));
        };
        // Reserved room: zeros up to the end. A zeroed block in the middle of records is damage, so all of the rest
        // is looked at.
        if (len, sum) == (0, 0) && self.is_rest_blank()? {
            return Ok(NextFrame::End);
        }
        let whole = FRAME_HEAD + len;
        // Checked before anything is read: a damaged length must not ask for memory.
        if len > BODY_MAX || whole as u64 > rest {
            return Ok(NextFrame::Broken(DecodeError::Truncated));
        }
        self.peek_bytes(whole)?;
        let salt = self.salt;
        let at = (offset - self.start) as usize;
        match decode_frame_body(self.window.get(at..).unwrap_or_default(), salt, offset) {
            Ok(body) => {
                self.offset += whole as u64;
                Ok(NextFrame::Body(body))
            }
            Err(error) => Ok(NextFrame::Broken(error)),
        }
    }

    /// Up to `count` bytes from the offset on.
    pub(crate) fn peek_bytes(&mut self, count: usize) -> io::Result<&[u8]> {
        let held = self.start..self.start + self.window.len() as u64;
        let wanted = self.offset..(self.offset + count as u64).min(self.len);
        if wanted.start < held.start || wanted.end > held.end {
            // At least a window is read at once, so that most frames need no read of their own.
            let room = (self.len - self.offset.min(self.len)).min(count.max(WINDOW) as u64);
            self.window.resize(room as usize, 0);
            let read = self.file.read_at(&mut self.window, self.offset)?;
            self.window.truncate(read);
            self.start = self.offset;
        }
        let at = (self.offset - self.start) as usize;
        let end = (at + count).min(self.window.len());
        Ok(self.window.get(at..end).unwrap_or_default())
    }

    /// Whether only zeros follow. Stays where it is.
    fn is_rest_blank(&mut self) -> io::Result<bool> {
        let offset = self.offset;
        let mut is_blank = true;
        while is_blank && self.offset < self.len {
            let bytes = self.peek_bytes(WINDOW)?;
            is_blank = !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0);
            self.offset += bytes.len() as u64;
        }
        self.offset = offset;
        Ok(is_blank)
    }

    /// Goes on one byte further: looking for a frame behind damage.
    pub(crate) fn skip_byte(&mut self) {
        self.offset += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"VLMTEST\n";

    #[test]
    fn a_header_is_read_back_and_any_change_is_noticed() {
        let header = FileHeader { magic: MAGIC, number: 7, salt: 99 };
        let bytes = header.encode();
        assert_eq!(bytes.len(), HEADER_LEN);
        assert_eq!(FileHeader::decode(&bytes, MAGIC), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::decode(&bad, MAGIC).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(FileHeader::decode(&bytes[..len], MAGIC).is_err(), "length {len}");
        }
    }

    #[test]
    fn a_frame_counts_at_its_place_only() {
        let mut out = Vec::new();
        append_frame(&mut out, 5, 100, |body| body.extend_from_slice(b"first"));
        append_frame(&mut out, 5, 100, |body| body.extend_from_slice(b"second"));
        let second = FRAME_HEAD + 5;
        assert_eq!(decode_frame_body(&out, 5, 100), Ok(&b"first"[..]));
        assert_eq!(decode_frame_body(&out[second..], 5, 100 + second as u64), Ok(&b"second"[..]));
        assert!(decode_frame_body(&out, 6, 100).is_err(), "another salt");
        assert!(decode_frame_body(&out, 5, 101).is_err(), "another place");
    }
}

//! Frames, the units of a stream that may be compressed.
//!
//! Bytes: payload length (u32), kind (u8), number (u32), payload, and the lower half of the XXH3 hash of all that
//! (u32); all little endian.
//!
//! Invariant: a payload is no longer than [`FRAME_MAX`], and memory for it grows as it arrives.

use std::io::{self, BufReader, BufWriter, Read, Write};

use xxhash_rust::xxh3::Xxh3;

use super::error::WireError;
use super::greeting::WireCodec;

/// Longest payload, bytes: the longest signature fits.
pub const FRAME_MAX: u32 = 4 << 20;
/// Bytes before the payload.
const HEADER_LEN: usize = 9;
/// Memory that is allocated before the payload has arrived, bytes.
const AHEAD_MAX: usize = 64 << 10;
/// Largest window of a compressed stream, as a power of two: the one that zstd uses at its higher levels.
const WINDOW_LOG_MAX: u32 = 23;
/// The compression level: the fastest one, which keeps up with a disk.
const LEVEL: i32 = 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The kind of a frame.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum FrameKind {
            $($(#[$doc])* $name = $code,)*
        }

        impl TryFrom<u8> for FrameKind {
            type Error = WireError;

            fn try_from(code: u8) -> Result<Self, WireError> {
                match code {
                    $($code => Ok(Self::$name),)*
                    other => Err(WireError::Kind(other)),
                }
            }
        }
    };
}

kinds! {
    /// A keep-alive frame without content.
    Ping = 0,
    /// A part of a message that continues in the next frame.
    Part = 1,
    /// The last part of a message, in JSON.
    Message = 2,
    /// A part of a listing.
    Listing = 3,
    /// A part of a plan.
    Plan = 4,
    /// Hashes of files.
    Digests = 5,
    /// The numbers of files whose content is requested; the frame's number is that of the first stream.
    Open = 6,
    /// A file whose content is requested relative to an old version: its number, and the signature.
    OpenDelta = 7,
    /// Credit: so many more bytes of a stream may be sent.
    Credit = 8,
    /// Cancels a stream.
    Cancel = 9,
    /// Bytes of a stream.
    Data = 10,
    /// All bytes of a stream, and its end.
    Whole = 11,
    /// A range of the old file that is part of a stream.
    Old = 12,
    /// A hole in a stream.
    Hole = 13,
    /// The end of a stream, with the hash of its content unless that is omitted.
    End = 14,
    /// The failure of a stream: the error.
    Fail = 15,
    /// A request like `OpenDelta` for a file that is written over the old one from its start on: no range of the old
    /// file may be used before its own offset.
    OpenInPlace = 16,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireFrame {
    /// Its kind.
    pub kind: FrameKind,
    /// The stream, for frames that belong to one.
    pub number: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

impl WireFrame {
    /// Makes a frame.
    #[must_use]
    pub fn new(kind: FrameKind, number: u32, payload: Vec<u8>) -> Self {
        Self { kind, number, payload }
    }

    fn encode_header(&self) -> [u8; HEADER_LEN] {
        let [a, b, c, d] = (self.payload.len() as u32).to_le_bytes();
        let [e, f, g, h] = self.number.to_le_bytes();
        [a, b, c, d, self.kind as u8, e, f, g, h]
    }
}

fn compute_checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = Xxh3::new();
    hasher.update(header);
    hasher.update(payload);
    hasher.digest() as u32
}

/// The underlying writer, compressed or not.
enum FrameCompressor<W: Write> {
    Plain(BufWriter<W>),
    Zstd(Box<zstd::stream::write::Encoder<'static, BufWriter<W>>>),
}

/// Writes frames.
pub struct WireWriter<W: Write> {
    out: FrameCompressor<W>,
}

impl<W: Write> WireWriter<W> {
    /// Writes to `to`, after the greeting.
    pub fn new(to: W, codec: WireCodec) -> Result<Self, WireError> {
        let to = BufWriter::with_capacity(AHEAD_MAX, to);
        let out = match codec {
            WireCodec::Plain => FrameCompressor::Plain(to),
            WireCodec::Zstd => FrameCompressor::Zstd(Box::new(zstd::stream::write::Encoder::new(to, LEVEL)?)),
        };
        Ok(Self { out })
    }

    /// Writes a frame; it is sent at the next [`Self::flush`].
    pub fn write_frame(&mut self, frame: &WireFrame) -> Result<(), WireError> {
        if frame.payload.len() > FRAME_MAX as usize {
            return Err(WireError::TooLong(frame.payload.len().try_into().unwrap_or(u32::MAX)));
        }
        let header = frame.encode_header();
        let out = self.output_stream();
        out.write_all(&header)?;
        out.write_all(&frame.payload)?;
        Ok(out.write_all(&compute_checksum(&header, &frame.payload).to_le_bytes())?)
    }

    /// Sends all frames that are buffered.
    pub fn flush(&mut self) -> Result<(), WireError> {
        Ok(self.output_stream().flush()?)
    }

    fn output_stream(&mut self) -> &mut dyn Write {
        match &mut self.out {
            FrameCompressor::Plain(out) => out,
            FrameCompressor::Zstd(out) => out,
        }
    }
}

/// Reads frames.
pub struct WireReader<R: Read> {
    from: Box<dyn Read + Send>,
    kind: std::marker::PhantomData<R>,
}

impl<R: Read + Send + 'static> WireReader<R> {
    /// Reads from `from`, after the greeting.
    pub fn new(from: R, codec: WireCodec) -> Result<Self, WireError> {
        let from = BufReader::with_capacity(AHEAD_MAX, from);
        let from: Box<dyn Read + Send> = match codec {
            WireCodec::Plain => Box::new(from),
            WireCodec::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(from)?.single_frame();
                decoder.window_log_max(WINDOW_LOG_MAX)?;
                Box::new(BufReader::with_capacity(AHEAD_MAX, decoder))
            }
        };
        Ok(Self { from, kind: std::marker::PhantomData })
    }

    /// Reads the next frame.
    pub fn read_frame(&mut self) -> Result<WireFrame, WireError> {
        let mut header = [0; HEADER_LEN];
        let Some((first, others)) = header.split_first_mut() else { return Err(WireError::Closed) };
        loop {
            match self.from.read(std::slice::from_mut(first)) {
                // The end of the stream between two frames is a proper end. Within a frame it is a lost
                // connection.
                Ok(0) => return Err(WireError::Closed),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.from.read_exact(others)?;
        let [a, b, c, d, kind, e, f, g, h] = header;
        let len = u32::from_le_bytes([a, b, c, d]);
        if len > FRAME_MAX {
            return Err(WireError::TooLong(len));
        }
        // The length is foreign: memory beyond a small buffer is taken only for bytes that arrived.
        let mut payload = Vec::with_capacity((len as usize).min(AHEAD_MAX));
        if Read::take(&mut self.from, u64::from(len)).read_to_end(&mut payload)? < len as usize {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut check = [0; 4];
        self.from.read_exact(&mut check)?;
        // ssh detects damage by itself; other programs of `--rsh` may not.
        if u32::from_le_bytes(check) != compute_checksum(&header, &payload) {
            return Err(WireError::Damaged);
        }
        Ok(WireFrame { kind: FrameKind::try_from(kind)?, number: u32::from_le_bytes([e, f, g, h]), payload })
    }
}

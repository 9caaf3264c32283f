//! Frames: what is said, one thing at a time, in a stream that may be compressed.
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
/// What memory is taken for before it has arrived, bytes.
const AHEAD_MAX: usize = 64 << 10;
/// Largest window of a compressed stream, as a power of two: what the library takes at its higher levels.
const WINDOW_LOG_MAX: u32 = 23;
/// How hard is compressed: the fastest level that keeps up with a disk.
const LEVEL: i32 = 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What a frame is about.
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
    /// Nothing: the side is still there.
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
    /// The numbers of files whose content is wanted; the frame's number is that of the first stream.
    Open = 6,
    /// A file whose content is wanted in terms of an old one: its number, and the signature.
    OpenDelta = 7,
    /// So many more bytes of a stream may come.
    Credit = 8,
    /// No more of a stream is wanted.
    Cancel = 9,
    /// Bytes of a stream.
    Data = 10,
    /// All bytes of a stream.
    Whole = 11,
    /// A piece of a stream that is in the old file.
    Old = 12,
    /// A hole in a stream.
    Hole = 13,
    /// A stream is complete; the hash of it all may stand here.
    End = 14,
    /// A stream could not be completed: why.
    Fail = 15,
    /// A file whose content is wanted as with `OpenDelta`, to be written over the old one from its start on: no piece may
    /// be in the old file before its own place.
    OpenInPlace = 16,
}

/// One thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireFrame {
    /// What it is about.
    pub kind: FrameKind,
    /// The stream, for frames of one.
    pub number: u32,
    /// The rest.
    pub payload: Vec<u8>,
}

impl WireFrame {
    /// A frame.
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

/// What passes bytes on, compressed or not.
enum FrameCompressor<W: Write> {
    Plain(BufWriter<W>),
    Zstd(Box<zstd::stream::write::Encoder<'static, BufWriter<W>>>),
}

/// The sending end.
pub struct WireWriter<W: Write> {
    out: FrameCompressor<W>,
}

impl<W: Write> WireWriter<W> {
    /// Sends through `to`, where the greeting has gone already.
    pub fn new(to: W, codec: WireCodec) -> Result<Self, WireError> {
        let to = BufWriter::with_capacity(AHEAD_MAX, to);
        let out = match codec {
            WireCodec::Plain => FrameCompressor::Plain(to),
            WireCodec::Zstd => FrameCompressor::Zstd(Box::new(zstd::stream::write::Encoder::new(to, LEVEL)?)),
        };
        Ok(Self { out })
    }

    /// Sends a frame; it is on its way after [`Self::flush`].
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

    /// Lets nothing wait.
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

/// The receiving end.
pub struct WireReader<R: Read> {
    from: Box<dyn Read + Send>,
    kind: std::marker::PhantomData<R>,
}

impl<R: Read + Send + 'static> WireReader<R> {
    /// Receives from `from`, where the greeting has been read already.
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

    /// The next frame.
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

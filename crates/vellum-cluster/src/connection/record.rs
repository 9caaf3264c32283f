//! Frames in encrypted records.
//!
//! A record is a length (16 bits, little-endian) and so many bytes of ciphertext. The plaintext of a frame's first record
//! begins with the length of the frame (32 bits, little-endian); a frame ends where a record ends.
//!
//! Invariant: the number of a record is the nonce of its cipher, so that records cannot be left out, repeated or
//! exchanged. Memory is taken for bytes that have arrived, and a frame has at most the length that its reader allows.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use snow::StatelessTransportState;

use crate::error::{ClusterError, Result};

/// Bytes of the longest message of Noise.
const MESSAGE_MAX: usize = 65_535;
const TAG_LEN: usize = 16;
const PAYLOAD_MAX: usize = MESSAGE_MAX - TAG_LEN;
const RECORD_HEAD_LEN: usize = 2;
const FRAME_HEAD_LEN: usize = 4;

/// Reads the frames of the other side.
pub struct FrameReader {
    /// Buffered: most frames are small, and come several at once.
    stream: BufReader<TcpStream>,
    noise: Arc<StatelessTransportState>,
    /// The number of the next record.
    number: u64,
    frame_max: usize,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

/// Writes frames to the other side.
pub struct FrameWriter {
    stream: TcpStream,
    noise: Arc<StatelessTransportState>,
    number: u64,
    /// Records that were not written yet.
    pending: Vec<u8>,
}

impl FrameReader {
    pub(super) fn new(stream: TcpStream, noise: Arc<StatelessTransportState>, frame_max: usize) -> Self {
        let sealed = vec![0; MESSAGE_MAX];
        let opened = vec![0; MESSAGE_MAX];
        let stream = BufReader::with_capacity(RECORD_HEAD_LEN + MESSAGE_MAX, stream);
        Self { stream, noise, number: 0, frame_max, sealed, opened }
    }

    /// Waits for the next frame, and appends it to `frame`, which is cleared before.
    pub fn read_frame(&mut self, frame: &mut Vec<u8>) -> Result<()> {
        frame.clear();
        let first = self.read_record()?;
        let (head, rest) = self
            .opened
            .get(..first)
            .and_then(|record| record.split_first_chunk::<FRAME_HEAD_LEN>())
            .ok_or(ClusterError::Malformed("a frame without length"))?;
        // Compared before memory is taken; what arrives is appended record by record, so that a length alone takes none.
        let len = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if len > self.frame_max {
            return Err(ClusterError::Malformed("a frame is too long"));
        }
        frame.extend(rest);
        while frame.len() < len {
            let more = self.read_record()?;
            // Without this, empty records would keep the reader busy for ever.
            if more == 0 {
                return Err(ClusterError::Malformed("an empty record"));
            }
            frame.extend(self.opened.iter().take(more));
        }
        if frame.len() > len { Err(ClusterError::Malformed("a frame ends within a record")) } else { Ok(()) }
    }

    /// Reads a record into `opened`; gives its length.
    fn read_record(&mut self) -> Result<usize> {
        let mut head = [0; RECORD_HEAD_LEN];
        self.stream.read_exact(&mut head)?;
        let len = usize::from(u16::from_le_bytes(head));
        // The length is not authenticated, but whoever changes it has the decryption fail.
        let sealed = self.sealed.get_mut(..len).ok_or(ClusterError::Malformed("a record is too long"))?;
        self.stream.read_exact(sealed)?;
        let opened = self
            .noise
            .read_message(self.number, sealed, &mut self.opened)
            .map_err(|_| ClusterError::Malformed("a record does not authenticate"))?;
        self.number += 1;
        Ok(opened)
    }
}

impl FrameWriter {
    pub(super) fn new(stream: TcpStream, noise: Arc<StatelessTransportState>) -> Self {
        Self { stream, noise, number: 0, pending: Vec::new() }
    }

    /// Encrypts a frame. It is sent by [`FrameWriter::flush`], or before if much is waiting.
    pub fn write_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
        // The length goes into the first record, so that a small frame is one record.
        let (first, rest) = frame.split_at(frame.len().min(PAYLOAD_MAX - FRAME_HEAD_LEN));
        self.append_record(&[&len.to_le_bytes(), first].concat())?;
        rest.chunks(PAYLOAD_MAX).try_for_each(|part| self.append_record(part))?;
        // Small frames share a write, and a long answer is not kept in memory twice as a whole.
        if self.pending.len() >= MESSAGE_MAX { self.flush() } else { Ok(()) }
    }

    /// Sends what was written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }

    fn append_record(&mut self, plaintext: &[u8]) -> io::Result<()> {
        let begin = self.pending.len();
        let len = plaintext.len() + TAG_LEN;
        let head = u16::try_from(len).map_err(io::Error::other)?;
        self.pending.extend(head.to_le_bytes());
        self.pending.resize(begin + RECORD_HEAD_LEN + len, 0);
        let place = self.pending.get_mut(begin + RECORD_HEAD_LEN..).unwrap_or_default();
        self.noise.write_message(self.number, plaintext, place).map_err(io::Error::other)?;
        self.number += 1;
        Ok(())
    }
}

impl fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReader").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameWriter").field("stream", &self.stream).finish_non_exhaustive()
    }
}

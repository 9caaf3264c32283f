//! The first bytes each side sends, before anything is compressed.
//!
//! Bytes: the magic `VELLUM-SYNC\n`, the lowest and the highest supported version (u16 each), the codec of what follows
//! (u8), three zeros. Both sides send it at once; the highest common version is used, and frames follow.

use std::io::{Read, Write};

use super::error::WireError;

/// The only version so far.
pub const VERSION: u16 = 1;
/// The magic.
const MAGIC: &[u8; 12] = b"VELLUM-SYNC\n";
/// How many bytes of an unknown answer are shown.
const SHOWN_MAX: usize = 60;

/// The compression of one direction; the sending side chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireCodec {
    /// None.
    Plain,
    /// One zstd stream.
    Zstd,
}

/// The greeting of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// The compression of what follows.
    pub codec: WireCodec,
    /// The lowest supported version.
    pub lowest: u16,
    /// The highest supported version.
    pub highest: u16,
}

impl Greeting {
    /// This program's greeting.
    #[must_use]
    pub fn new(codec: WireCodec) -> Self {
        Self { codec, lowest: VERSION, highest: VERSION }
    }

    /// Sends it.
    pub fn send_to(&self, to: &mut dyn Write) -> Result<(), WireError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.lowest.to_le_bytes());
        bytes.extend(self.highest.to_le_bytes());
        bytes.extend([self.codec as u8, 0, 0, 0]);
        to.write_all(&bytes)?;
        Ok(to.flush()?)
    }

    /// Receives the other side's greeting, and checks that a common version exists.
    pub fn receive_from(from: &mut dyn Read) -> Result<Self, WireError> {
        let mut magic = [0; MAGIC.len()];
        let mut got = 0;
        // The bytes are read one piece at a time, because a shell's message can be shorter than the greeting
        // and must be shown as far as it came.
        while let Some(rest) = magic.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match from.read(rest)? {
                0 => break,
                count => got += count,
            }
        }
        if magic != *MAGIC {
            return Err(unexpected_greeting(magic.get(..got).unwrap_or_default(), from));
        }
        let mut rest = [0; 8];
        from.read_exact(&mut rest)?;
        let [low_a, low_b, high_a, high_b, codec, ..] = rest;
        let lowest = u16::from_le_bytes([low_a, low_b]);
        let highest = u16::from_le_bytes([high_a, high_b]);
        if !(lowest..=highest).contains(&VERSION) {
            return Err(WireError::Version(lowest, highest, VERSION));
        }
        let codec = match codec {
            0 => WireCodec::Plain,
            1 => WireCodec::Zstd,
            other => return Err(WireError::Kind(other)),
        };
        Ok(Self { codec, lowest, highest })
    }
}

/// Describes what was received instead: in most cases the output of a shell's startup files.
fn unexpected_greeting(got: &[u8], from: &mut dyn Read) -> WireError {
    if got.is_empty() {
        return WireError::Closed;
    }
    let mut shown = got.to_vec();
    let mut more = [0; SHOWN_MAX];
    // Some more of the text is read, since the first bytes of a message seldom say enough. This can wait only
    // if the other side neither sends nor closes.
    if shown.len() == MAGIC.len()
        && let Ok(count) = from.read(&mut more)
    {
        shown.extend_from_slice(more.get(..count).unwrap_or_default());
    }
    WireError::Stranger(format!("it sent '{}'", shown.escape_ascii()))
}

//! What client and server send each other.
//!
//! First each side sends a preface in plain ([`preface`]); then two messages of a Noise handshake; from then on frames in
//! encrypted records ([`crate::connection`]). The client's first frame says who it is, the server's first frame says
//! under which session its requests are carried out. docs/shared-worktrees.md describes every byte.
//!
//! The requests are those of the client's kernel, as `linux/fuse.h` lays them out; their bodies and answers are passed on
//! unchanged. Their numbers are little-endian, as on both of the supported processors.
//!
//! Invariant: any bytes are decoded or refused, and no length is trusted before it was compared with a limit.

pub mod fields;
pub mod frame;
pub mod lease;
pub mod preface;
pub mod reclaim;
pub mod weight;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use vellum_fuse::transport::{MAX_WRITE, REQUEST_MAX};

#[cfg(not(target_endian = "little"))]
compile_error!(
    "requests are passed on as the kernel lays them out, which other machines read as little-endian"
);

/// The version of the protocol. A server and its clients must speak the same.
pub const VERSION: u16 = 1;

/// Bytes of a frame that are not a request's or an answer's body: the longest head.
const FRAME_HEAD_MAX: usize = 64;
/// The longest frame of a client, bytes: the largest write.
pub const CLIENT_FRAME_MAX: usize = REQUEST_MAX + FRAME_HEAD_MAX;
/// The longest frame of a server, bytes: the largest read.
pub const SERVER_FRAME_MAX: usize = MAX_WRITE + FRAME_HEAD_MAX;

/// Requests that a client has under way at once, a count: as many as its kernel has of write-back and readahead.
pub const IN_FLIGHT_MAX: usize = 64;
/// What all requests that are under way may weigh, bytes of requests and of answers: what a client can make the server
/// hold in memory.
pub const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// Answers that a server keeps for a client that may not have got them: those of all requests that were under way when
/// the connection broke.
pub const RESULTS_KEPT: usize = IN_FLIGHT_MAX;

/// Marks of requests that are kept, a count: those of all answers that the client may not have got, and as many again for
/// requests that are carried out at the same time.
pub const MARKS_KEPT: usize = 2 * RESULTS_KEPT;
/// Most marks that a server tells a client of, a count.
pub const MARKS_SENT_MAX: usize = 2 * MARKS_KEPT;

/// The opcode of a request that is not the kernel's: a command for the server, whose form is not this protocol's concern.
/// The kernel has no such number.
pub const COMMAND_OPCODE: u32 = 1 << 16;
/// The longest command and the longest answer to one, bytes.
pub const COMMAND_MAX: usize = MAX_WRITE;

/// How often a client says that it is there.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long a client may answer from what it was granted, from before it sent the last heartbeat that was answered.
pub const LEASE_TERM: Duration = Duration::from_secs(5);
/// How long a server waits for what it recalls, from after it has asked for it: the term, and what clocks may differ by in
/// that time.
pub const RECALL_TIME: Duration = Duration::from_millis(5500);
/// Grants that a session has at most, a count.
pub const LEASES_MAX: usize = 65_536;
/// Grants that one frame names, a count: a frame of 36 KiB.
pub const LEASES_IN_FRAME_MAX: usize = 4096;
/// Recalls that a client has neither confirmed nor refused, a count. A server that sends more breaks the protocol.
pub const RECALLS_MAX: usize = 65_536;
/// What a client keeps of answers at most, bytes.
pub const CACHED_BYTES_MAX: usize = 64 << 20;
/// A side that has received nothing for so long considers the connection broken; the server then ends the session.
pub const SESSION_TERM: Duration = Duration::from_secs(10);
/// Time for the whole handshake.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The name of a session. It is random, and never given to another client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; SessionId::LEN]);

impl SessionId {
    /// Bytes of it.
    pub const LEN: usize = 16;
    /// What a client names that has none.
    pub const NONE: Self = Self([0; Self::LEN]);

    /// A new one.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn generate() -> Self {
        let mut bytes = [0; Self::LEN];
        vellum_crypto::fill_random(&mut bytes);
        Self(bytes)
    }
}

impl SessionId {
    /// The number by which the worktree knows the session's requests: enough of the name to be of no other session.
    #[must_use]
    pub fn mark_number(self) -> u64 {
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = self.0;
        u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

/// A text that names no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session is named by 32 hexadecimal digits")]
pub struct InvalidSessionId;

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        let digits = text.as_bytes();
        if digits.len() != 2 * Self::LEN {
            return Err(InvalidSessionId);
        }
        let mut bytes = [0; Self::LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| InvalidSessionId)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| InvalidSessionId)?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_written_and_read() {
        let id = SessionId::generate();
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "00", &"g".repeat(32), &"é".repeat(16)] {
            assert_eq!(text.parse::<SessionId>(), Err(InvalidSessionId));
        }
    }
}

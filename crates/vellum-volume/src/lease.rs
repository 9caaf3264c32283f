//! The lease of a mounted worktree: the right to change it, for a limited time.
//!
//! It is part of the worktree's head, so that one compare-and-swap covers both: a process that publishes must find
//! its own token there (*fencing*), and a process that takes the lease over writes another token. So a holder that
//! was suspended or disconnected cannot change the store any more.
//!
//! A lease has ended if it was released, if its process is known to have ended, or if it was not renewed for its term
//! by the store's clock. The holder counts from before each renewal, by a clock that continues while the machine
//! sleeps: it doubts its lease before another process may take it.

mod judge;
mod keeper;
mod tenure;

use std::fmt;
use std::str::FromStr;

use vellum_crypto::fill_random;
use vellum_types::{DecodeError, FieldReader, FieldWriter, UnixTime};

pub use self::keeper::LeaseKeeper;
pub use self::tenure::{
    BootClock, ChangeGuard, GuardRefusal, HeldLease, LeaseClaimant, MonotonicClock, TakenLease,
};
use crate::session::{SessionObject, current_time};

pub(crate) use self::judge::{is_lease_over, read_store_time};
pub(crate) use self::tenure::leased_error;

/// Term of a lease that is not renewed, seconds: longer than short outages of a store, short enough to wait for.
pub const TERM: u32 = 60;
/// The same in a service, seconds: each renewal is a request that is paid for, and outages are longer.
pub const SERVICE_TERM: u32 = 300;
/// Minimum and maximum term that is accepted from a stored lease, seconds.
const TERMS: std::ops::RangeInclusive<u32> = 1..=24 * 3600;
/// Longest stored session, bytes.
const SESSION_MAX: usize = 4096;

/// Identifies one acquisition of a lease. A live state records the token with which it was changed last: if the head
/// has another, another process has changed the worktree since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseToken(pub [u8; 16]);

impl LeaseToken {
    /// Returns a new, unique token.
    #[must_use]
    pub fn generate() -> Self {
        let mut token = [0; 16];
        fill_random(&mut token);
        Self(token)
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for LeaseToken {
    type Err = DecodeError;

    fn from_str(text: &str) -> Result<Self, DecodeError> {
        let broken = || DecodeError::Invalid("token");
        // The parser of numbers takes a sign, which would be no digit of a token.
        if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(broken());
        }
        let mut token = [0; 16];
        for (place, digits) in token.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| broken())?;
            *place = u8::from_str_radix(digits, 16).map_err(|_| broken())?;
        }
        Ok(Self(token))
    }
}

/// The right to change a worktree, and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The token that a change of the worktree requires.
    pub token: LeaseToken,
    /// The process, and when it last renewed the lease.
    pub session: SessionObject,
    /// Its mountpoint. `None`: it is not a mount.
    pub mountpoint: Option<String>,
    /// The time when it took the lease.
    pub since: UnixTime,
    /// Term of the lease if it is not renewed, seconds.
    pub term: u32,
    /// Whether it was released after everything was published.
    pub ended: bool,
}

impl Lease {
    /// Returns a lease that nobody holds, with the token of the live state.
    #[must_use]
    pub fn new_ended(token: LeaseToken) -> Self {
        let session = SessionObject::for_current_process();
        // The form has no lease without a session: that of this process stands in for it.
        Self { token, session, mountpoint: None, since: current_time(), term: TERM, ended: true }
    }

    /// Returns when it ends unless it is renewed, by the holder's clock.
    #[must_use]
    pub fn expiry_time(&self) -> UnixTime {
        let renewed = self.session.renewed;
        UnixTime { secs: renewed.secs.saturating_add(self.term.into()), ..renewed }
    }

    /// Encodes the lease as a part of the head (docs/format.md).
    pub fn encode(&self, writer: &mut FieldWriter) {
        // The session with its length, so that its own form can change without that of the lease.
        writer.write_raw(&self.token.0).write_bytes(&self.session.encode());
        match &self.mountpoint {
            None => writer.write_u8(0),
            Some(mountpoint) => writer.write_u8(1).write_bytes(mountpoint.as_bytes()),
        };
        self.since.encode(writer);
        writer.write_varint(self.term.into()).write_u8(self.ended.into());
    }

    /// Decodes what [`Self::encode`] wrote. Fails if the term is not 1 second to 24 hours.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let token = LeaseToken(reader.read_array()?);
        let session = SessionObject::decode(reader.read_bytes(SESSION_MAX)?)?;
        let mountpoint = match reader.read_u8()? {
            0 => None,
            // No limit of its own: the ref that the lease is a part of has one.
            1 => Some(reader.read_string(usize::MAX)?.to_owned()),
            _ => return Err(DecodeError::Invalid("mountpoint")),
        };
        let since = UnixTime::decode(reader)?;
        // A foreign term must neither lock others out for ever nor end at once.
        let term = reader.read_varint_u32()?;
        if !TERMS.contains(&term) {
            return Err(DecodeError::Invalid("term"));
        }
        let ended = match reader.read_u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Invalid("end of the lease")),
        };
        Ok(Self { token, session, mountpoint, since, term, ended })
    }
}

/// The holder of a lease, for messages.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionObject { host, pid, .. } = &self.session;
        let mounted =
            self.mountpoint.as_ref().map_or_else(String::new, |place| format!(" mounted on {place}"));
        write!(f, "process {pid} on {host},{mounted} since {}", format_time(self.since))
    }
}

/// A time for a message.
pub(crate) fn format_time(time: UnixTime) -> String {
    // A forged record may have a time that is in no calendar.
    jiff::Timestamp::from_second(time.secs).map_or_else(|_| format!("@{}", time.secs), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_a_token() {
        assert_eq!("0f".repeat(16).parse(), Ok(LeaseToken([0x0f; 16])));
        for text in ["+f".repeat(16), "0f".repeat(15), "0g".repeat(16), "ä".repeat(16)] {
            assert!(text.parse::<LeaseToken>().is_err(), "{text}");
        }
    }
}

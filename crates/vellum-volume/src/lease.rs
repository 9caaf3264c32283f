//! The lease of a mounted worktree: who may change it, and until when.
//!
//! It is a part of the worktree's head, so that one compare-and-swap decides both: whoever publishes must find its own
//! token there (*fencing*), and whoever takes the lease over puts another one. A holder that was asleep or cut off can
//! so do nothing to the store any more, whatever it believes.
//!
//! A lease is over when it was given up, when its process is known to be gone, or when it was not renewed for its term
//! by the store's clock. The holder counts from before each renewal, by a clock that runs on while the machine sleeps:
//! it doubts its lease before anybody else may take it.

mod judge;
mod keeper;
mod tenure;

use std::fmt;
use std::str::FromStr;

use vellum_crypto::fill_random;
use vellum_types::{DecodeError, FieldReader, FieldWriter, UnixTime};

pub use self::keeper::LeaseKeeper;
pub use self::tenure::{BootClock, HeldLease, LeaseClaimant, MonotonicClock, TakenLease};
use crate::session::{SessionObject, current_time};

pub(crate) use self::judge::is_lease_over;
pub(crate) use self::tenure::leased_error;

/// How long a lease counts that is not renewed, seconds: longer than a store's hiccup, short enough to be waited for.
pub const TERM: u32 = 60;
/// The shortest and the longest term that is taken from a stored lease, seconds.
const TERMS: std::ops::RangeInclusive<u32> = 1..=24 * 3600;
/// Longest stored session, bytes.
const SESSION_MAX: usize = 4096;

/// Names one taking of a lease. A live state remembers the one with which it was changed last: if the head has
/// another, somebody else changed the worktree since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseToken(pub [u8; 16]);

impl LeaseToken {
    /// One that nobody else has.
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
        if text.len() != 32 || !text.is_ascii() {
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

/// Who may change a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What whoever changes the worktree must show.
    pub token: LeaseToken,
    /// The process, and when it last renewed the lease.
    pub session: SessionObject,
    /// Where it mounted the worktree; None: it did not.
    pub mountpoint: Option<String>,
    /// Since when it has the lease.
    pub since: UnixTime,
    /// How long the lease counts that is not renewed, seconds.
    pub term: u32,
    /// Whether it was given up, after everything had been published.
    pub ended: bool,
}

impl Lease {
    /// A lease that nobody has: the live state with this token is free.
    #[must_use]
    pub fn new_ended(token: LeaseToken) -> Self {
        let session = SessionObject::for_current_process();
        Self { token, session, mountpoint: None, since: current_time(), term: TERM, ended: true }
    }

    /// When it ends unless it is renewed, by the holder's clock.
    #[must_use]
    pub fn expiry_time(&self) -> UnixTime {
        let renewed = self.session.renewed;
        UnixTime { secs: renewed.secs.saturating_add(self.term.into()), ..renewed }
    }

    /// Adds the stored form.
    pub fn encode(&self, writer: &mut FieldWriter) {
        writer.write_raw(&self.token.0).write_bytes(&self.session.encode());
        match &self.mountpoint {
            None => writer.write_u8(0),
            Some(mountpoint) => writer.write_u8(1).write_bytes(mountpoint.as_bytes()),
        };
        self.since.encode(writer);
        writer.write_varint(self.term.into()).write_u8(self.ended.into());
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let token = LeaseToken(reader.read_array()?);
        let session = SessionObject::decode(reader.read_bytes(SESSION_MAX)?)?;
        let mountpoint = match reader.read_u8()? {
            0 => None,
            1 => Some(reader.read_string(usize::MAX)?.to_owned()),
            _ => return Err(DecodeError::Invalid("mountpoint")),
        };
        let since = UnixTime::decode(reader)?;
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
    jiff::Timestamp::from_second(time.secs).map_or_else(|_| format!("@{}", time.secs), |at| at.to_string())
}

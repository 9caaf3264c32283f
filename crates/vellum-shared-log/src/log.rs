//! What an engine must do to hold the log of a shared worktree.
//!
//! The log is a sequence of bytes with one writer at a time. A writer *claims* it and gets an epoch that is higher than
//! any before; from then on the appends of every earlier writer are refused, also those that were sent first and arrive
//! late. The bytes are sealed before they come here. An engine that lost the log has another incarnation, or none: it
//! is never read as an empty log.

use std::fmt;
use std::time::Duration;

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use crate::error::SharedLogError;

/// Most bytes of one append: engines keep an append whole, and readers take at least one into memory.
pub const APPEND_MAX: usize = 16 << 20;
/// Longest host name or address that is read, bytes.
const NAME_MAX: usize = 4096;

/// Counts the claims of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogEpoch(pub u64);

/// A place in the log: bytes since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

/// Identifies a log since its creation. The worktree's ref names the one that it continues in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogIncarnation(pub [u8; 16]);

impl fmt::Display for LogIncarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A server of the worktree, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRecord {
    /// The host's name.
    pub host: String,
    /// Where it listens for clients, `HOST:PORT`; None if it serves nobody but its own mount.
    pub address: Option<String>,
    /// Identifies the process, also among those of hosts with the same name.
    pub instance: [u8; 16],
}

impl ServerRecord {
    /// Encodes the record as engines keep it (docs/format.md).
    pub fn encode(&self, writer: &mut FieldWriter) {
        writer.write_raw(&self.instance).write_bytes(self.host.as_bytes());
        match &self.address {
            None => writer.write_u8(0),
            Some(address) => writer.write_u8(1).write_bytes(address.as_bytes()),
        };
    }

    /// Decodes what [`Self::encode`] wrote.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let instance = reader.read_array()?;
        let host = reader.read_string(NAME_MAX)?.to_owned();
        let address = match reader.read_u8()? {
            0 => None,
            1 => Some(reader.read_string(NAME_MAX)?.to_owned()),
            _ => return Err(DecodeError::Invalid("address of a server")),
        };
        Ok(Self { host, address, instance })
    }
}

/// What the engine knows of the current server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSighting {
    /// The server.
    pub server: ServerRecord,
    /// The epoch that it claimed.
    pub epoch: LogEpoch,
    /// How long ago it claimed or renewed its claim, by the engine's clock.
    pub age: Duration,
    /// Whether it has given the log up: the next one need not wait.
    pub released: bool,
}

/// A claim that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClaim {
    /// The epoch under which to append.
    pub epoch: LogEpoch,
    /// Which log it is.
    pub incarnation: LogIncarnation,
    /// The oldest position that is kept.
    pub start: LogPosition,
    /// The position behind the last record.
    pub end: LogPosition,
}

/// The log of one worktree in an engine. All functions may be called by several threads; each fails with
/// [`SharedLogError::Unreachable`] if the engine does not answer, after which it is unknown whether it was carried out.
///
/// A value of this trait remembers the log that [`Self::create`] or [`Self::claim`] found last, or the first one that
/// it saw. From then on it fails with [`SharedLogError::Lost`] if the engine has another one, or none. If it never saw
/// one and there is none, it fails with [`SharedLogError::NoLog`].
pub trait SharedLog: Send + Sync {
    /// Creates the log if there is none. Returns which one is there.
    fn create(&self) -> Result<LogIncarnation, SharedLogError>;

    /// Makes `server` the only one that may append, under an epoch higher than any before. `after` is the sighting on
    /// which the decision to claim was based, None if there was no server: if another one has claimed since, it fails
    /// with [`SharedLogError::Fenced`]. After a claim whose answer was lost, the same claim again succeeds.
    fn claim(
        &self,
        expected: LogIncarnation,
        server: &ServerRecord,
        after: Option<LogEpoch>,
    ) -> Result<LogClaim, SharedLogError>;

    /// Renews the claim: the server lives. Fails with [`SharedLogError::Fenced`] if another one has claimed.
    fn renew(&self, epoch: LogEpoch) -> Result<(), SharedLogError>;

    /// Gives the claim up, so that the next server need not wait for its term to end. The epoch is not to be used
    /// afterwards.
    fn release(&self, epoch: LogEpoch) -> Result<(), SharedLogError>;

    /// Appends at the end: all of `records`, [`APPEND_MAX`] bytes at most, or nothing. Returns the new end. Fails with
    /// [`SharedLogError::Fenced`] if a higher epoch was claimed, with [`SharedLogError::Moved`] if `at` is not the end.
    fn append(&self, epoch: LogEpoch, at: LogPosition, records: &[u8])
    -> Result<LogPosition, SharedLogError>;

    /// Returns when everything before `upto` survives a crash of the engine, as far as the engine can promise.
    fn wait_until_durable(&self, upto: LogPosition) -> Result<(), SharedLogError>;

    /// Reads from a position on: whole appends, at least one unless `from` is the end, then as many as fit into `max`
    /// bytes. If `from` is inside of an append, it begins there. Fails with [`SharedLogError::Discarded`] if `from` was
    /// discarded, with [`SharedLogError::Moved`] if the log ends before it.
    fn read(&self, from: LogPosition, max: usize) -> Result<Vec<u8>, SharedLogError>;

    /// Discards the appends that end at or before a position. An append that contains the position stays whole. Fails
    /// with [`SharedLogError::Moved`] if the log ends before it.
    fn discard_before(&self, epoch: LogEpoch, before: LogPosition) -> Result<(), SharedLogError>;

    /// Returns the current server. Waits up to `wait` as long as it is the one with the epoch `known` (None: as long as
    /// there is no server), and has not released the log.
    fn current_server(
        &self,
        known: Option<LogEpoch>,
        wait: Duration,
    ) -> Result<Option<ServerSighting>, SharedLogError>;

    /// Removes the log, as the worktree is not shared any more.
    fn remove(&self, epoch: LogEpoch) -> Result<(), SharedLogError>;
}

//! The keys of a log in etcd, and its state.

use vellum_types::FieldReader;

use super::transaction::{EtcdEntry, EtcdRange};
use crate::key_space::LogKeySpace;
use crate::log::{LogEpoch, LogIncarnation, LogPosition, ServerRecord};

/// The keys of one log. Positions in them are hexadecimal, so that their order is that of the keys.
pub(super) struct EtcdKeys {
    /// The prefixes of the three groups.
    pub state: String,
    pub appends: String,
    pub parts: String,
    /// The keys of the state.
    pub incarnation: String,
    pub epoch: String,
    pub end: String,
    pub server: String,
    pub released: String,
    /// Has the lease that measures the age of the claim.
    pub alive: String,
    state_end: String,
    appends_end: String,
}

/// The state of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EtcdState {
    pub incarnation: LogIncarnation,
    pub epoch: LogEpoch,
    pub start: LogPosition,
    pub end: LogPosition,
    pub server: Option<ServerRecord>,
    pub released: bool,
    /// The lease that measures the age of the claim; 0 if it has ended.
    pub lease: i64,
}

impl EtcdKeys {
    pub fn new(key_space: &LogKeySpace) -> Self {
        let log = format!("vellum/{key_space}");
        let state = format!("{log}/state/");
        let of_state = |name: &str| format!("{state}{name}");
        Self {
            incarnation: of_state("incarnation"),
            epoch: of_state("epoch"),
            end: of_state("end"),
            server: of_state("server"),
            released: of_state("released"),
            alive: of_state("alive"),
            // The character behind '/': behind all keys with the prefix.
            state_end: format!("{log}/state0"),
            appends: format!("{log}/appends/"),
            appends_end: format!("{log}/appends0"),
            parts: format!("{log}/parts/"),
            state,
        }
    }

    pub fn state_end(&self) -> String {
        self.state_end.clone()
    }

    pub fn appends_end(&self) -> String {
        self.appends_end.clone()
    }

    pub fn parts_end(&self) -> String {
        self.parts.trim_end_matches('/').to_owned() + "0"
    }

    pub fn append(&self, at: LogPosition) -> String {
        format!("{}{:016x}", self.appends, at.0)
    }

    /// The prefix of the parts of appends at a position.
    pub fn parts_of(&self, at: LogPosition) -> String {
        format!("{}{:016x}/", self.parts, at.0)
    }

    pub fn part(&self, at: LogPosition, attempt: u64, number: usize) -> String {
        format!("{}{attempt:016x}/{number:08x}", self.parts_of(at))
    }

    /// The position that an append's key names.
    pub fn parse_append(&self, key: &[u8]) -> Option<LogPosition> {
        let digits = std::str::from_utf8(key).ok()?.strip_prefix(&self.appends)?;
        // Another length would be read as a position, too, and stand in another order than its number.
        if digits.len() == 16 { u64::from_str_radix(digits, 16).ok().map(LogPosition) } else { None }
    }

    pub fn state_range(&self) -> EtcdRange<'_> {
        EtcdRange::between(&self.state, &self.state_end)
    }

    pub fn first_append_range(&self) -> EtcdRange<'_> {
        EtcdRange { limit: 1, keys_only: true, ..EtcdRange::between(&self.appends, &self.appends_end) }
    }

    /// The state from what the two ranges above found. None if it is not a state; an inner None if there is no log.
    pub fn parse_state(&self, found: &[Vec<EtcdEntry>]) -> Option<Option<EtcdState>> {
        let [entries, appends] = found else { return None };
        let find = |key: &str| entries.iter().find(|entry| entry.key == key.as_bytes());
        let Some(incarnation) = find(&self.incarnation) else { return Some(None) };
        let number = |key: &str| std::str::from_utf8(&find(key)?.value).ok()?.parse().ok();
        let end = LogPosition(number(&self.end)?);
        let start = match appends.first() {
            // Without appends the log is empty: it begins where it ends, wherever that is.
            None => end,
            Some(first) => self.parse_append(&first.key)?,
        };
        let server = match find(&self.server) {
            None => None,
            Some(entry) => Some(ServerRecord::decode(&mut FieldReader::new(&entry.value)).ok()?),
        };
        Some(Some(EtcdState {
            incarnation: LogIncarnation(<[u8; 16]>::try_from(incarnation.value.as_slice()).ok()?),
            epoch: LogEpoch(number(&self.epoch)?),
            start,
            end,
            server,
            released: find(&self.released)?.value == b"1",
            lease: find(&self.alive).map_or(0, |entry| entry.lease),
        }))
    }
}

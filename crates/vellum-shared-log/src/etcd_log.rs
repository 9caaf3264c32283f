//! The shared log in etcd 3.4 or newer.
//!
//! Each change is one transaction, on the condition that incarnation, epoch and end have the expected values: an append
//! that was sent before a claim and arrives after it changes nothing. What is acknowledged is on the disks of a
//! majority.
//!
//! A large append is stored in parts first, under names that nobody reads, each on the same conditions. The transaction
//! that appends names them, so that it counts whole or not at all. Parts of an attempt that came to nothing are removed
//! with the appends before which they stand.
//!
//! The age of a claim is that of a lease, which each renewal refreshes: etcd has no other clock. Where the log begins
//! is not stored: it is where the first append does, so that a full etcd, which takes deletions only, can discard.

pub(crate) mod append_value;
mod gateway;
mod state;
mod transaction;

use std::time::{Duration, Instant};

use serde_json::json;
use vellum_crypto::fill_random;
use vellum_types::FieldWriter;

use self::append_value::{AppendValue, PART_LEN};
use self::gateway::{EtcdGateway, decode_number};
use self::state::{EtcdKeys, EtcdState};
use self::transaction::{EtcdOutcome, EtcdRange, EtcdTransaction};
use crate::address::LogAddress;
use crate::binding::LogBinding;
use crate::error::SharedLogError;
use crate::key_space::LogKeySpace;
use crate::log::{
    APPEND_MAX, LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, ServerSighting, SharedLog,
};

/// Term of the lease that measures the age of a claim, seconds: longer than anybody waits for a server.
const LEASE_TERM: i64 = 3600;
/// Interval at which who waits for another server asks for it.
const POLL: Duration = Duration::from_millis(300);
/// Appends that are read at once, a count: they are a mebibyte each at most.
const APPENDS_AT_ONCE: u32 = 16;

/// The log of one worktree in etcd.
pub struct EtcdLog {
    gateway: EtcdGateway,
    keys: EtcdKeys,
    binding: LogBinding,
}

impl EtcdLog {
    /// Connects, and checks the version.
    pub fn open(address: &LogAddress, key_space: &LogKeySpace) -> Result<Self, SharedLogError> {
        let gateway = EtcdGateway::new(address)?;
        let version = gateway.read_version().map_err(judge_first_error)?;
        if version.is_empty() {
            let reason = "what answers there is not etcd: it says no version; correct the address".to_owned();
            return Err(SharedLogError::Unfit { engine: gateway.engine().to_owned(), reason });
        }
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let version_pair = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        // Before 3.4 the gateway answers under another path (/v3beta).
        if version_pair < (3, 4) {
            let reason = format!("it is version {version:?}, and 3.4 is the oldest that can: update it");
            return Err(SharedLogError::Unfit { engine: gateway.engine().to_owned(), reason });
        }
        Ok(Self { gateway, keys: EtcdKeys::new(key_space), binding: LogBinding::default() })
    }

    fn commit(&self, transaction: &EtcdTransaction) -> Result<EtcdOutcome, SharedLogError> {
        let answer = self.gateway.request("/v3/kv/txn", &transaction.to_request())?;
        EtcdOutcome::parse(&answer).ok_or_else(|| self.garbled_error("an answer"))
    }

    /// Reads the state of the log that is expected.
    fn read_state(&self) -> Result<EtcdState, SharedLogError> {
        let mut transaction = EtcdTransaction::default();
        // In one transaction: where the log begins and ends is of one moment.
        transaction.read(&self.keys.state_range()).read(&self.keys.first_append_range());
        self.parse_state(&self.commit(&transaction)?)
    }

    /// The state of the log that is expected, from an answer whose first two operations read it.
    fn parse_state(&self, outcome: &EtcdOutcome) -> Result<EtcdState, SharedLogError> {
        let state = self.keys.parse_state(&outcome.found);
        let state = state.ok_or_else(|| self.garbled_error("the state of the log"))?;
        self.binding.check(self.gateway.engine(), state.as_ref().map(|state| state.incarnation))?;
        state.ok_or_else(|| SharedLogError::NoLog { engine: self.gateway.engine().to_owned() })
    }

    /// Commits a transaction as the server with an epoch. Returns the state if it was not carried out although the
    /// epoch is the current one. The transaction reads nothing yet.
    fn commit_as_server(
        &self,
        epoch: LogEpoch,
        transaction: &mut EtcdTransaction,
    ) -> Result<Option<EtcdState>, SharedLogError> {
        let incarnation = match self.binding.expected() {
            Some(expected) => expected,
            None => self.read_state()?.incarnation,
        };
        // What stands for no epoch is nobody's, also while nobody has claimed the log.
        let epoch_text = if epoch.0 == 0 { "none".to_owned() } else { epoch.0.to_string() };
        transaction
            .expect_value(&self.keys.incarnation, &incarnation.0)
            .expect_value(&self.keys.epoch, epoch_text.as_bytes())
            .read_otherwise(&self.keys.state_range())
            .read_otherwise(&self.keys.first_append_range());
        let outcome = self.commit(transaction)?;
        if outcome.succeeded {
            // The transaction was carried out, so the incarnation is this one; if nothing was expected, it is from now on.
            self.binding.check(self.gateway.engine(), Some(incarnation))?;
            return Ok(None);
        }
        let state = self.parse_state(&outcome)?;
        // First the epoch: a server that is fenced must not take the new end for the result of its own append.
        if state.epoch != epoch || epoch.0 == 0 {
            return Err(SharedLogError::Fenced { epoch, current: state.epoch });
        }
        Ok(Some(state))
    }

    /// As [`Self::commit_as_server`], for transactions whose only condition is the epoch.
    fn commit_surely(
        &self,
        epoch: LogEpoch,
        transaction: &mut EtcdTransaction,
    ) -> Result<(), SharedLogError> {
        match self.commit_as_server(epoch, transaction)? {
            None => Ok(()),
            // The log was made anew between the two readings, and claimed as often.
            Some(_) => Err(self.garbled_error("the epoch of the log")),
        }
    }

    fn grant_lease(&self) -> Result<i64, SharedLogError> {
        let answer = self.gateway.request("/v3/lease/grant", &json!({ "TTL": LEASE_TERM.to_string() }))?;
        let lease = decode_number(answer.get("ID")).filter(|lease| *lease != 0);
        lease.ok_or_else(|| self.garbled_error("a lease"))
    }

    /// Refreshes a lease. Returns false if there is none any more.
    fn refresh_lease(&self, lease: i64) -> Result<bool, SharedLogError> {
        let answer = self.gateway.request("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        let left = answer.get("result").and_then(|result| decode_number(result.get("TTL")));
        // etcd answers for a lease that does not exist, too, with a time of zero.
        Ok(left.is_some_and(|left| left > 0))
    }

    /// For how long a lease was not refreshed.
    fn measure_lease(&self, lease: i64) -> Result<Duration, SharedLogError> {
        let answer = self.gateway.request("/v3/lease/timetolive", &json!({ "ID": lease.to_string() }))?;
        // etcd answers -1 for a lease that has ended: then the claim is older than any term.
        let left = decode_number(answer.get("TTL")).unwrap_or(-1).max(0);
        // It says whole seconds, rounded down: the claim may be a second younger, and must not look older than it is.
        let age = (LEASE_TERM - left - 1).max(0);
        Ok(Duration::from_secs(age.unsigned_abs()))
    }

    /// Stores the parts of a large append. Fails as the append would.
    fn put_parts(
        &self,
        epoch: LogEpoch,
        at: LogPosition,
        attempt: u64,
        records: &[u8],
    ) -> Result<(), SharedLogError> {
        for (number, part) in records.chunks(PART_LEN).enumerate() {
            let mut transaction = EtcdTransaction::default();
            // On the condition of the append itself: a server that was fenced must not fill etcd with parts that nobody
            // removes.
            transaction.expect_value(&self.keys.end, at.0.to_string().as_bytes()).put(
                &self.keys.part(at, attempt, number),
                part,
                None,
            );
            if let Some(state) = self.commit_as_server(epoch, &mut transaction)? {
                return Err(SharedLogError::Moved { at, end: state.end });
            }
        }
        Ok(())
    }

    /// Reads the bytes of an append as they were at a revision.
    fn fetch_append(&self, at: LogPosition, value: &[u8], revision: i64) -> Result<Vec<u8>, SharedLogError> {
        let value = AppendValue::decode(value).map_err(|_| self.garbled_error("an append"))?;
        let (attempt, len) = match value {
            AppendValue::Whole(bytes) => return Ok(bytes),
            AppendValue::Parts { attempt, len } => (attempt, len),
        };
        let mut bytes = Vec::new();
        for number in 0..len.div_ceil(PART_LEN) {
            let key = self.keys.part(at, attempt, number);
            // No other key stands between a key and itself with a zero byte behind it.
            let end = format!("{key}\0");
            let mut transaction = EtcdTransaction::default();
            transaction.read(&EtcdRange { revision, ..EtcdRange::between(&key, &end) });
            let outcome = self.commit(&transaction)?;
            let part = outcome.found.first().and_then(|found| found.first());
            bytes.extend_from_slice(&part.ok_or_else(|| self.missing_error(at))?.value);
        }
        if bytes.len() == len { Ok(bytes) } else { Err(self.missing_error(at)) }
    }

    /// Reads the appends from the one that contains `from` on.
    fn collect_appends(
        &self,
        from: LogPosition,
        end: LogPosition,
        max: usize,
        revision: i64,
    ) -> Result<Vec<u8>, SharedLogError> {
        let mut bytes = Vec::new();
        // A reader may ask for any byte, and a key names the first byte of an append.
        let mut next = self.find_append_at(from, revision)?;
        let behind_all = self.keys.appends_end();
        while next < end {
            let first = self.keys.append(next);
            let range =
                EtcdRange { limit: APPENDS_AT_ONCE, revision, ..EtcdRange::between(&first, &behind_all) };
            let mut transaction = EtcdTransaction::default();
            let outcome = self.commit(transaction.read(&range))?;
            let found = outcome.found.first().filter(|found| !found.is_empty());
            for entry in found.ok_or_else(|| self.missing_error(next))? {
                if self.keys.parse_append(&entry.key) != Some(next) {
                    return Err(self.missing_error(next));
                }
                let append = self.fetch_append(next, &entry.value, revision)?;
                // The first one may begin before what is asked for.
                let before = usize::try_from(from.0.saturating_sub(next.0)).unwrap_or(usize::MAX);
                let part = append.get(before..).filter(|part| !part.is_empty());
                let part = part.ok_or_else(|| self.missing_error(next))?;
                // The first append is returned even if it is longer: otherwise a reader would never get past it.
                if !bytes.is_empty() && bytes.len() + part.len() > max {
                    return Ok(bytes);
                }
                bytes.extend_from_slice(part);
                next = LogPosition(next.0 + append.len() as u64);
            }
        }
        Ok(bytes)
    }

    /// Where the append begins that contains a position.
    fn find_append_at(&self, position: LogPosition, revision: i64) -> Result<LogPosition, SharedLogError> {
        let exact = self.keys.append(position);
        let behind = self.keys.append(LogPosition(position.0.saturating_add(1)));
        // Mostly the position is where an append begins. Otherwise etcd reads all that is in the range before it finds
        // the last one: no more than an append can be long.
        let earliest = self.keys.append(LogPosition(position.0.saturating_sub(APPEND_MAX as u64)));
        for first in [exact, earliest] {
            let range = EtcdRange {
                limit: 1,
                is_descending: true,
                keys_only: true,
                revision,
                ..EtcdRange::between(&first, &behind)
            };
            let mut transaction = EtcdTransaction::default();
            let outcome = self.commit(transaction.read(&range))?;
            if let Some(entry) = outcome.found.first().and_then(|found| found.first()) {
                return self.keys.parse_append(&entry.key).ok_or_else(|| self.garbled_error("a key"));
            }
        }
        Err(self.missing_error(position))
    }

    fn describe_server(&self, state: EtcdState) -> Result<Option<ServerSighting>, SharedLogError> {
        let EtcdState { epoch, server, released, lease, .. } = state;
        let Some(server) = server else { return Ok(None) };
        let age = match lease {
            // The key went with its lease, which nobody has refreshed for the whole term.
            0 => Duration::from_secs(LEASE_TERM.unsigned_abs()),
            lease => self.measure_lease(lease)?,
        };
        Ok(Some(ServerSighting { server, epoch, age, released }))
    }

    fn garbled_error(&self, what: &str) -> SharedLogError {
        let reason = format!("{what} is not what Vellum stored: does another program use its keys?");
        SharedLogError::Damaged { engine: self.gateway.engine().to_owned(), reason }
    }

    fn missing_error(&self, at: LogPosition) -> SharedLogError {
        let reason = format!("what was appended at {} is missing: somebody removed it", at.0);
        SharedLogError::Damaged { engine: self.gateway.engine().to_owned(), reason }
    }
}

/// An answer that is not of HTTP comes from another server, and always will.
fn judge_first_error(error: SharedLogError) -> SharedLogError {
    match error {
        // The client tells these by their words alone.
        SharedLogError::Unreachable { engine, reason } if reason.contains("invalid HTTP") => {
            let reason = format!("what answers there is not etcd ({reason}): correct the address");
            SharedLogError::Unfit { engine, reason }
        }
        error => error,
    }
}

impl SharedLog for EtcdLog {
    fn create(&self) -> Result<LogIncarnation, SharedLogError> {
        let mut incarnation = [0; 16];
        fill_random(&mut incarnation);
        let keys = &self.keys;
        let mut transaction = EtcdTransaction::default();
        transaction
            // Appends and parts are removed in the same transaction: an earlier log may have left some, whose positions
            // would be taken for those of this one.
            .expect_absent(&keys.incarnation)
            .delete(&keys.appends, &keys.appends_end())
            .delete(&keys.parts, &keys.parts_end())
            .put(&keys.incarnation, &incarnation, None)
            .put(&keys.epoch, b"0", None)
            .put(&keys.end, b"0", None)
            .put(&keys.released, b"0", None)
            .read_otherwise(&keys.state_range())
            .read_otherwise(&keys.first_append_range());
        let outcome = self.commit(&transaction)?;
        let found = match outcome.succeeded {
            true => LogIncarnation(incarnation),
            false => {
                let state = keys.parse_state(&outcome.found).flatten();
                state.ok_or_else(|| self.garbled_error("the state of the log"))?.incarnation
            }
        };
        self.binding.expect(found);
        Ok(found)
    }

    fn claim(
        &self,
        expected: LogIncarnation,
        server: &ServerRecord,
        after: Option<LogEpoch>,
    ) -> Result<LogClaim, SharedLogError> {
        self.binding.expect(expected);
        let after = after.unwrap_or(LogEpoch(0));
        let next = LogEpoch(after.0 + 1);
        // Looked at before anything is left in etcd: most claims that fail do so here.
        let state = self.read_state()?;
        let lease = if state.epoch == after { Some(self.grant_lease()?) } else { None };
        let mut writer = FieldWriter::new();
        server.encode(&mut writer);
        let keys = &self.keys;
        let mut transaction = EtcdTransaction::default();
        transaction
            .expect_value(&keys.incarnation, &expected.0)
            .expect_value(&keys.epoch, after.0.to_string().as_bytes())
            .put(&keys.epoch, next.0.to_string().as_bytes(), None)
            .put(&keys.server, writer.as_slice(), None)
            .put(&keys.released, b"0", None)
            // The key ends with its lease, which shows in the state that nobody has renewed the claim for a whole term.
            .put(&keys.alive, b"1", lease);
        let (claimed, state) = match lease {
            None => (false, state),
            Some(_) => {
                // The state is read after a success, too: where the log begins and ends belongs to the claim.
                let claimed = self.commit(&transaction)?.succeeded;
                (claimed, self.read_state()?)
            }
        };
        let is_own = state.server.as_ref().is_some_and(|holder| holder.instance == server.instance);
        // If it was not carried out now, it may have been before, and its answer was lost.
        if state.epoch != next || !is_own || (!claimed && state.released) {
            return Err(SharedLogError::Fenced { epoch: after, current: state.epoch });
        }
        Ok(LogClaim { epoch: next, incarnation: expected, start: state.start, end: state.end })
    }

    fn renew(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        let state = self.read_state()?;
        if state.epoch != epoch || epoch.0 == 0 {
            return Err(SharedLogError::Fenced { epoch, current: state.epoch });
        }
        if state.lease != 0 && self.refresh_lease(state.lease)? {
            return Ok(());
        }
        // The lease has ended, and nobody has claimed the log since: the key gets another one.
        let lease = self.grant_lease()?;
        let mut transaction = EtcdTransaction::default();
        transaction.put(&self.keys.alive, b"1", Some(lease));
        self.commit_surely(epoch, &mut transaction)
    }

    fn release(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        let mut transaction = EtcdTransaction::default();
        transaction.put(&self.keys.released, b"1", None);
        self.commit_surely(epoch, &mut transaction)
    }

    fn append(
        &self,
        epoch: LogEpoch,
        at: LogPosition,
        records: &[u8],
    ) -> Result<LogPosition, SharedLogError> {
        if records.len() > APPEND_MAX {
            return Err(SharedLogError::Oversized { len: records.len() });
        }
        let end = LogPosition(at.0 + records.len() as u64);
        let mut transaction = EtcdTransaction::default();
        transaction.expect_value(&self.keys.end, at.0.to_string().as_bytes());
        // An append of nothing only finds out whether epoch and end are as they are expected to be.
        if !records.is_empty() {
            let value = if records.len() <= PART_LEN {
                AppendValue::Whole(records.to_vec())
            } else {
                let mut attempt = [0; 8];
                // Two attempts at one position must not share names: parts of the first could become parts of the second.
                fill_random(&mut attempt);
                let attempt = u64::from_le_bytes(attempt);
                self.put_parts(epoch, at, attempt, records)?;
                AppendValue::Parts { attempt, len: records.len() }
            };
            transaction.put(&self.keys.append(at), &value.encode(), None);
            transaction.put(&self.keys.end, end.0.to_string().as_bytes(), None);
        }
        match self.commit_as_server(epoch, &mut transaction)? {
            None => Ok(end),
            Some(state) => Err(SharedLogError::Moved { at, end: state.end }),
        }
    }

    fn wait_until_durable(&self, _: LogPosition) -> Result<(), SharedLogError> {
        // What is committed is on the disks of a majority.
        Ok(())
    }

    fn read(&self, from: LogPosition, max: usize) -> Result<Vec<u8>, SharedLogError> {
        let mut transaction = EtcdTransaction::default();
        transaction.read(&self.keys.state_range()).read(&self.keys.first_append_range());
        let outcome = self.commit(&transaction)?;
        let state = self.parse_state(&outcome)?;
        if from < state.start {
            return Err(SharedLogError::Discarded { from, start: state.start });
        }
        if state.end < from {
            return Err(SharedLogError::Moved { at: from, end: state.end });
        }
        if from == state.end {
            return Ok(Vec::new());
        }
        // All from one moment, whatever is appended or discarded meanwhile.
        self.collect_appends(from, state.end, max, outcome.revision)
    }

    fn discard_before(&self, epoch: LogEpoch, before: LogPosition) -> Result<(), SharedLogError> {
        let state = self.read_state()?;
        if state.epoch != epoch || epoch.0 == 0 {
            return Err(SharedLogError::Fenced { epoch, current: state.epoch });
        }
        if state.end < before {
            return Err(SharedLogError::Moved { at: before, end: state.end });
        }
        if before <= state.start {
            return Ok(());
        }
        // Only whole appends are removed; the one that contains the position stays.
        let boundary = if before == state.end { before } else { self.find_append_at(before, 0)? };
        let keys = &self.keys;
        let mut transaction = EtcdTransaction::default();
        transaction
            .delete(&keys.appends, &keys.append(boundary))
            .delete(&keys.parts, &keys.parts_of(boundary));
        self.commit_surely(epoch, &mut transaction)
    }

    fn current_server(
        &self,
        known: Option<LogEpoch>,
        wait: Duration,
    ) -> Result<Option<ServerSighting>, SharedLogError> {
        let begun = Instant::now();
        loop {
            let state = match self.read_state() {
                Ok(state) => Some(state),
                Err(SharedLogError::NoLog { .. }) => None,
                Err(error) => return Err(error),
            };
            let server = state.filter(|state| state.server.is_some());
            let left = wait.saturating_sub(begun.elapsed());
            let is_known = server.as_ref().map(|state| state.epoch) == known;
            if !is_known || server.as_ref().is_some_and(|state| state.released) || left.is_zero() {
                return server.map_or(Ok(None), |state| self.describe_server(state));
            }
            // A watch would be a stream that stays open, while every request here has a timeout.
            std::thread::sleep(POLL.min(left));
        }
    }

    fn remove(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        let keys = &self.keys;
        let mut transaction = EtcdTransaction::default();
        transaction
            .delete(&keys.state, &keys.state_end())
            .delete(&keys.appends, &keys.appends_end())
            .delete(&keys.parts, &keys.parts_end());
        self.commit_surely(epoch, &mut transaction)
    }
}

//! The shared log in PostgreSQL 12 or newer.
//!
//! Each operation is one statement that changes the log's row on the condition that the epoch is the current one. An
//! append that was sent before a claim waits for it if both come at once, and then finds the new epoch: it is refused,
//! however late it arrives. What is acknowledged is committed, and so on the disk of the server: it is refused if it is
//! set to answer earlier.
//!
//! Deliberately absent: tables of a user's choice, and `NOTIFY`, which serialises the commits of all who send one.

mod session;
mod statements;
mod tls;

use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::types::{FromSqlOwned, Type};
use vellum_crypto::fill_random;
use vellum_types::{FieldReader, FieldWriter};

use self::session::{PostgresSessions, StatementFailure, TypedParameter};
use self::statements as sql;
use crate::address::LogAddress;
use crate::binding::LogBinding;
use crate::error::SharedLogError;
use crate::key_space::LogKeySpace;
use crate::log::{
    APPEND_MAX, LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, ServerSighting, SharedLog,
};

/// Interval at which who waits for another server asks for it.
const POLL: Duration = Duration::from_millis(200);

/// The log of one worktree in PostgreSQL.
pub struct PostgresLog {
    sessions: PostgresSessions,
    /// Its name in the table.
    name: String,
    binding: LogBinding,
}

/// The state of the log.
struct LogRow {
    epoch: LogEpoch,
    start: LogPosition,
    end: LogPosition,
}

impl PostgresLog {
    /// Connects, and checks whether this server can hold a log.
    pub fn open(address: &LogAddress, key_space: &LogKeySpace) -> Result<Self, SharedLogError> {
        let sessions = PostgresSessions::new(address)?;
        sessions.check_server()?;
        Ok(Self { sessions, name: key_space.to_string(), binding: LogBinding::default() })
    }

    /// Runs a statement on the log, whose name is its first parameter. Without tables there is no log.
    fn query(&self, statement: &str, parameters: &[TypedParameter<'_>]) -> Result<Vec<Row>, SharedLogError> {
        let mut all: Vec<TypedParameter<'_>> = vec![(&self.name, Type::TEXT)];
        all.extend_from_slice(parameters);
        match self.sessions.query(statement, &all) {
            Ok(rows) => Ok(rows),
            Err(StatementFailure::Other(error)) => Err(error),
            Err(StatementFailure::NoTables) => {
                self.binding.check(self.sessions.engine(), None)?;
                Ok(Vec::new())
            }
        }
    }

    fn create_tables(&self) -> Result<(), SharedLogError> {
        let engine = self.sessions.engine();
        let lost = |failure| match failure {
            StatementFailure::Other(error) => error,
            StatementFailure::NoTables => SharedLogError::Unreachable {
                engine: engine.to_owned(),
                reason: "somebody removes its tables".to_owned(),
            },
        };
        let found = self.sessions.query(sql::FIND_TABLES, &[]).map_err(lost)?;
        // Where they are, the user need not be allowed to create any.
        if found.first().map(|row| self.get(row, 0)).transpose()? == Some(true) {
            return Ok(());
        }
        self.sessions.execute_batch(sql::CREATE_TABLES).map_err(lost)
    }

    /// Reads the state of the log that is expected.
    fn read_state(&self) -> Result<LogRow, SharedLogError> {
        let rows = self.query(sql::STATE, &[])?;
        self.parse_state(rows.first())
    }

    fn parse_state(&self, row: Option<&Row>) -> Result<LogRow, SharedLogError> {
        let Some(row) = row else {
            self.binding.check(self.sessions.engine(), None)?;
            // There is none, and none was expected: the binding has failed.
            return Err(SharedLogError::NoLog { engine: self.sessions.engine().to_owned() });
        };
        self.check_incarnation(row)?;
        Ok(LogRow {
            epoch: LogEpoch(self.get_number(row, 1)?),
            start: LogPosition(self.get_number(row, 2)?),
            end: LogPosition(self.get_number(row, 3)?),
        })
    }

    /// The first column is the incarnation.
    fn check_incarnation(&self, row: &Row) -> Result<LogIncarnation, SharedLogError> {
        let bytes: Vec<u8> = self.get(row, 0)?;
        let incarnation = <[u8; 16]>::try_from(bytes).map_err(|_| self.garbled_error("an incarnation"))?;
        let incarnation = LogIncarnation(incarnation);
        self.binding.check(self.sessions.engine(), Some(incarnation))?;
        Ok(incarnation)
    }

    /// Runs a statement as the server with an epoch: with the log's name, incarnation and epoch before its own
    /// parameters. Returns false if it did nothing although the epoch is the current one.
    fn run_as_server(
        &self,
        statement: &str,
        epoch: LogEpoch,
        parameters: &[TypedParameter<'_>],
    ) -> Result<Option<LogRow>, SharedLogError> {
        let incarnation = self.binding.expected().map(|expected| expected.0.to_vec());
        // What stands for no epoch is nobody's, also while nobody has claimed the log.
        let number = if epoch.0 == 0 { -1 } else { to_column(epoch.0) };
        let mut all: Vec<TypedParameter<'_>> = vec![(&incarnation, Type::BYTEA), (&number, Type::INT8)];
        all.extend_from_slice(parameters);
        // The condition is in the statement, and not in a look before it: between two statements another server may claim.
        let rows = self.query(statement, &all)?;
        if let Some(row) = rows.first() {
            self.check_incarnation(row)?;
            return Ok(None);
        }
        // A second statement, only for the reason: that nothing was done is known.
        let state = self.read_state()?;
        if state.epoch != epoch || epoch.0 == 0 {
            return Err(SharedLogError::Fenced { epoch, current: state.epoch });
        }
        Ok(Some(state))
    }

    /// As [`Self::run_as_server`], for statements that do nothing only if the epoch is another one.
    fn run_surely(&self, statement: &str, epoch: LogEpoch) -> Result<(), SharedLogError> {
        match self.run_as_server(statement, epoch, &[])? {
            None => Ok(()),
            // The epoch was claimed between the two statements: by this server.
            Some(_) => Err(self.busy_error()),
        }
    }

    fn join_appends(&self, from: LogPosition, rows: &[Row]) -> Result<Vec<u8>, SharedLogError> {
        let mut bytes = Vec::new();
        let mut next = None;
        for row in rows {
            let at = self.get_number(row, 4)?;
            let append: Vec<u8> = self.get(row, 5)?;
            // The first row has to reach back to `from`, and each further one has to join the one before.
            if next.is_some_and(|next| next != at) || at > from.0 && next.is_none() {
                return Err(self.missing_error());
            }
            next = Some(at.saturating_add(append.len() as u64));
            // The first one may begin before what is asked for.
            let before = usize::try_from(from.0.saturating_sub(at)).unwrap_or(usize::MAX);
            let part = append.get(before..).filter(|part| !part.is_empty());
            bytes.extend_from_slice(part.ok_or_else(|| self.missing_error())?);
        }
        Ok(bytes)
    }

    fn find_server(&self) -> Result<Option<ServerSighting>, SharedLogError> {
        let rows = match self.query(sql::SERVER, &[]) {
            Err(SharedLogError::NoLog { .. }) => return Ok(None),
            rows => rows?,
        };
        let Some(row) = rows.first() else {
            return match self.binding.check(self.sessions.engine(), None) {
                // None was expected: that there is none is an answer.
                Err(SharedLogError::NoLog { .. }) | Ok(()) => Ok(None),
                Err(error) => Err(error),
            };
        };
        self.check_incarnation(row)?;
        let epoch = self.get_number(row, 1)?;
        if epoch == 0 {
            return Ok(None);
        }
        let server: Vec<u8> = self.get(row, 2)?;
        let server = ServerRecord::decode(&mut FieldReader::new(&server));
        let server = server.map_err(|_| self.garbled_error("the server"))?;
        let released = self.get(row, 3)?;
        let age = Duration::from_micros(self.get_number(row, 4)?);
        Ok(Some(ServerSighting { server, epoch: LogEpoch(epoch), age, released }))
    }

    fn get<T: FromSqlOwned>(&self, row: &Row, column: usize) -> Result<T, SharedLogError> {
        row.try_get(column).map_err(|_| self.garbled_error("a column"))
    }

    fn get_number(&self, row: &Row, column: usize) -> Result<u64, SharedLogError> {
        let number: i64 = self.get(row, column)?;
        u64::try_from(number).map_err(|_| self.garbled_error("a number"))
    }

    fn garbled_error(&self, what: &str) -> SharedLogError {
        let reason = format!("{what} is not what Vellum stored: does another program use its tables?");
        SharedLogError::Damaged { engine: self.sessions.engine().to_owned(), reason }
    }

    fn missing_error(&self) -> SharedLogError {
        let reason = "appends are missing in vellum_log_appends: somebody removed them".to_owned();
        SharedLogError::Damaged { engine: self.sessions.engine().to_owned(), reason }
    }

    fn busy_error(&self) -> SharedLogError {
        let reason = "the log is claimed at this moment".to_owned();
        SharedLogError::Unreachable { engine: self.sessions.engine().to_owned(), reason }
    }
}

/// A number as the table holds it.
fn to_column(number: u64) -> i64 {
    // No log grows so long. If one did, no statement would find its position.
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl SharedLog for PostgresLog {
    fn create(&self) -> Result<LogIncarnation, SharedLogError> {
        self.create_tables()?;
        let mut incarnation = vec![0; 16];
        fill_random(&mut incarnation);
        // It does nothing if there is a log already; so the incarnation is read afterwards, whoever was faster.
        self.query(sql::CREATE, &[(&incarnation, Type::BYTEA)])?;
        let rows = self.query(sql::STATE, &[])?;
        // Not checked against what was expected before: this one is expected from now on.
        let row = rows.first().ok_or_else(|| self.busy_error())?;
        let bytes: Vec<u8> = self.get(row, 0)?;
        let found = <[u8; 16]>::try_from(bytes).map_err(|_| self.garbled_error("an incarnation"))?;
        self.binding.expect(LogIncarnation(found));
        Ok(LogIncarnation(found))
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
        let mut writer = FieldWriter::new();
        server.encode(&mut writer);
        let incarnation = expected.0.to_vec();
        let seen = to_column(after.0);
        let claimed = to_column(next.0);
        let record = writer.into_vec();
        let instance = server.instance.to_vec();
        let parameters: [TypedParameter<'_>; 5] = [
            (&incarnation, Type::BYTEA),
            (&seen, Type::INT8),
            (&claimed, Type::INT8),
            (&record, Type::BYTEA),
            (&instance, Type::BYTEA),
        ];
        let rows = self.query(sql::CLAIM, &parameters)?;
        let Some(row) = rows.first() else {
            let current = self.read_state()?.epoch;
            return Err(SharedLogError::Fenced { epoch: after, current });
        };
        let start = LogPosition(self.get_number(row, 0)?);
        let end = LogPosition(self.get_number(row, 1)?);
        Ok(LogClaim { epoch: next, incarnation: expected, start, end })
    }

    fn renew(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        self.run_surely(sql::RENEW, epoch)
    }

    fn release(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        self.run_surely(sql::RELEASE, epoch)
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
        let at_column = to_column(at.0);
        let end_column = to_column(end.0);
        let parameters: [TypedParameter<'_>; 3] =
            [(&at_column, Type::INT8), (&end_column, Type::INT8), (&records, Type::BYTEA)];
        match self.run_as_server(sql::APPEND, epoch, &parameters)? {
            None => Ok(end),
            Some(state) => Err(SharedLogError::Moved { at, end: state.end }),
        }
    }

    fn wait_until_durable(&self, _: LogPosition) -> Result<(), SharedLogError> {
        // What is committed is on the server's disk.
        Ok(())
    }

    fn read(&self, from: LogPosition, max: usize) -> Result<Vec<u8>, SharedLogError> {
        let position = to_column(from.0);
        // The statement adds it to a position, and the sum has to stay within 64 bits.
        let most = to_column(max as u64).min(1 << 40);
        let rows = self.query(sql::READ, &[(&position, Type::INT8), (&most, Type::INT8)])?;
        let state = self.parse_state(rows.first())?;
        if from < state.start {
            return Err(SharedLogError::Discarded { from, start: state.start });
        }
        if state.end < from {
            return Err(SharedLogError::Moved { at: from, end: state.end });
        }
        if from == state.end { Ok(Vec::new()) } else { self.join_appends(from, &rows) }
    }

    fn discard_before(&self, epoch: LogEpoch, before: LogPosition) -> Result<(), SharedLogError> {
        let position = to_column(before.0);
        match self.run_as_server(sql::DISCARD, epoch, &[(&position, Type::INT8)])? {
            None => Ok(()),
            Some(state) => Err(SharedLogError::Moved { at: before, end: state.end }),
        }
    }

    fn current_server(
        &self,
        known: Option<LogEpoch>,
        wait: Duration,
    ) -> Result<Option<ServerSighting>, SharedLogError> {
        let begun = Instant::now();
        loop {
            let sighting = self.find_server()?;
            let left = wait.saturating_sub(begun.elapsed());
            let is_known = sighting.as_ref().map(|sighting| sighting.epoch) == known;
            if !is_known || sighting.as_ref().is_some_and(|sighting| sighting.released) || left.is_zero() {
                return Ok(sighting);
            }
            std::thread::sleep(POLL.min(left));
        }
    }

    fn remove(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        self.run_surely(sql::REMOVE, epoch)
    }
}

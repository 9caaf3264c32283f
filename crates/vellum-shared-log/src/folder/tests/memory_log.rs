//! A log in memory that remembers every byte that it ever had, and goes wrong when it is told to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::SharedLogError;
use crate::log::{LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, ServerSighting, SharedLog};

type Result<T> = std::result::Result<T, SharedLogError>;

/// How an append goes wrong.
#[derive(Debug, Clone, Copy)]
pub enum LogFault {
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is not carried out.
    Away,
    /// It is carried out and acknowledged, and then the engine fails over to a copy that lacks this many appends.
    FailsOver(usize),
    /// The engine is emptied before it.
    Flushed,
    /// It has no room.
    Full,
}

#[derive(Default)]
struct MemoryState {
    incarnation: Option<LogIncarnation>,
    created: u8,
    epoch: u64,
    server: Option<ServerRecord>,
    released: bool,
    start: u64,
    bytes: Vec<u8>,
    /// Where each append begins.
    appends: Vec<u64>,
    /// Where the log ended when it was discarded up to somewhere, and up to where.
    discards: Vec<(u64, u64)>,
    faults: VecDeque<LogFault>,
    is_away: bool,
    /// All appends that were acknowledged are counted.
    acknowledged: usize,
}

#[derive(Default)]
pub struct MemoryLog {
    state: Mutex<MemoryState>,
}

impl MemoryLog {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// The log as it was when it ended there, and where it began then at most.
    pub fn at_moment(&self, end: u64) -> (Self, LogClaim) {
        let state = self.state.lock();
        let start = state.discards.iter().filter(|(at, _)| *at <= end).map(|(_, start)| *start).max();
        let past = MemoryState {
            incarnation: state.incarnation,
            bytes: state.bytes[..end as usize].to_vec(),
            start: start.unwrap_or(0),
            epoch: state.epoch,
            ..MemoryState::default()
        };
        let claim = LogClaim {
            epoch: LogEpoch(state.epoch),
            incarnation: state.incarnation.unwrap(),
            start: LogPosition(past.start),
            end: LogPosition(end),
        };
        (Self { state: Mutex::new(past) }, claim)
    }

    /// Where appends end, those of all times.
    pub fn append_ends(&self) -> Vec<u64> {
        let state = self.state.lock();
        state.appends.iter().skip(1).copied().chain([state.bytes.len() as u64]).collect()
    }

    pub fn end(&self) -> u64 {
        self.state.lock().bytes.len() as u64
    }

    pub fn discard_count(&self) -> usize {
        self.state.lock().discards.len()
    }

    pub fn kept_len(&self) -> u64 {
        let state = self.state.lock();
        state.bytes.len() as u64 - state.start
    }

    pub fn acknowledged(&self) -> usize {
        self.state.lock().acknowledged
    }

    pub fn contains(&self, text: &[u8]) -> bool {
        self.state.lock().bytes.windows(text.len()).any(|window| window == text)
    }

    /// Lets the next appends go wrong, one after the other.
    pub fn inject_faults(&self, faults: impl IntoIterator<Item = LogFault>) {
        self.state.lock().faults.extend(faults);
    }

    pub fn faults_left(&self) -> usize {
        self.state.lock().faults.len()
    }

    pub fn set_away(&self, is_away: bool) {
        self.state.lock().is_away = is_away;
    }

    /// Changes bytes of the log.
    pub fn forge(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.state.lock().bytes);
    }

    pub fn records(&self) -> Vec<std::ops::Range<usize>> {
        let state = self.state.lock();
        let mut at = 0;
        let mut records = Vec::new();
        while at < state.bytes.len() {
            let len = u32::from_le_bytes(state.bytes[at..at + 4].try_into().unwrap()) as usize + 5;
            records.push(at..at + len);
            at += len;
        }
        records
    }
}

impl MemoryState {
    fn check(&self) -> Result<()> {
        if self.is_away {
            return Err(away());
        }
        Ok(())
    }

    fn incarnation(&self, expected: Option<LogIncarnation>) -> Result<LogIncarnation> {
        let expected = expected.unwrap_or(LogIncarnation([self.created; 16]));
        match self.incarnation {
            Some(found) if found == expected => Ok(found),
            found => Err(SharedLogError::Lost { expected, found }),
        }
    }

    fn check_epoch(&self, epoch: LogEpoch) -> Result<()> {
        self.check()?;
        self.incarnation(None)?;
        match self.epoch == epoch.0 {
            true => Ok(()),
            false => Err(SharedLogError::Fenced { epoch, current: LogEpoch(self.epoch) }),
        }
    }

    fn flush(&mut self) {
        *self = Self { created: self.created, faults: std::mem::take(&mut self.faults), ..Self::default() };
    }

    fn fail_over(&mut self, appends: usize) {
        let kept = self.appends.len().saturating_sub(appends);
        if let Some(start) = self.appends.get(kept).copied() {
            self.bytes.truncate(start as usize);
            self.appends.truncate(kept);
        }
    }
}

fn away() -> SharedLogError {
    SharedLogError::Unreachable { engine: "memory".into(), reason: "it is away".into() }
}

impl SharedLog for MemoryLog {
    fn create(&self) -> Result<LogIncarnation> {
        let mut state = self.state.lock();
        state.check()?;
        if state.incarnation.is_none() {
            state.created += 1;
            state.incarnation = Some(LogIncarnation([state.created; 16]));
        }
        Ok(state.incarnation.unwrap())
    }

    fn claim(
        &self,
        expected: LogIncarnation,
        server: &ServerRecord,
        after: Option<LogEpoch>,
    ) -> Result<LogClaim> {
        let mut state = self.state.lock();
        state.check()?;
        let incarnation = state.incarnation(Some(expected))?;
        let current = state.server.is_some().then_some(LogEpoch(state.epoch));
        if current != after {
            let epoch = after.unwrap_or(LogEpoch(0));
            return Err(SharedLogError::Fenced { epoch, current: LogEpoch(state.epoch) });
        }
        state.epoch += 1;
        state.server = Some(server.clone());
        state.released = false;
        let end = LogPosition(state.bytes.len() as u64);
        Ok(LogClaim { epoch: LogEpoch(state.epoch), incarnation, start: LogPosition(state.start), end })
    }

    fn renew(&self, epoch: LogEpoch) -> Result<()> {
        self.state.lock().check_epoch(epoch)
    }

    fn release(&self, epoch: LogEpoch) -> Result<()> {
        let mut state = self.state.lock();
        state.check_epoch(epoch)?;
        state.released = true;
        Ok(())
    }

    fn append(&self, epoch: LogEpoch, at: LogPosition, records: &[u8]) -> Result<LogPosition> {
        let mut state = self.state.lock();
        state.check()?;
        let fault = state.faults.pop_front();
        match fault {
            Some(LogFault::Flushed) => state.flush(),
            Some(LogFault::Away) => return Err(away()),
            Some(LogFault::Full) => {
                return Err(SharedLogError::Full { engine: "memory".into(), reason: "it is full".into() });
            }
            Some(LogFault::AnswerLost | LogFault::FailsOver(_)) | None => {}
        }
        state.check_epoch(epoch)?;
        let end = LogPosition(state.bytes.len() as u64);
        if at != end {
            return Err(SharedLogError::Moved { at, end });
        }
        state.appends.push(end.0);
        state.bytes.extend_from_slice(records);
        let end = LogPosition(state.bytes.len() as u64);
        match fault {
            Some(LogFault::AnswerLost) => return Err(away()),
            Some(LogFault::FailsOver(appends)) => state.fail_over(appends),
            _ => {}
        }
        state.acknowledged += 1;
        Ok(end)
    }

    fn wait_until_durable(&self, _upto: LogPosition) -> Result<()> {
        self.state.lock().check()
    }

    fn read(&self, from: LogPosition, max: usize) -> Result<Vec<u8>> {
        let state = self.state.lock();
        state.check()?;
        let start = LogPosition(state.start);
        if from < start {
            return Err(SharedLogError::Discarded { from, start });
        }
        let rest = &state.bytes[from.0 as usize..];
        // Whole records: appends are made of these.
        let mut len = 0;
        while len < rest.len() && (len == 0 || len < max) {
            let Some(head) = rest[len..].first_chunk::<4>() else { break };
            len += u32::from_le_bytes(*head) as usize + 5;
        }
        Ok(rest[..len.min(rest.len())].to_vec())
    }

    fn discard_before(&self, epoch: LogEpoch, before: LogPosition) -> Result<()> {
        let mut state = self.state.lock();
        state.check_epoch(epoch)?;
        assert!(state.appends.contains(&before.0), "{before:?} is no beginning of an append");
        let end = state.bytes.len() as u64;
        state.discards.push((end, before.0));
        state.start = before.0;
        Ok(())
    }

    fn current_server(&self, _known: Option<LogEpoch>, _wait: Duration) -> Result<Option<ServerSighting>> {
        let state = self.state.lock();
        state.check()?;
        Ok(state.server.clone().map(|server| ServerSighting {
            server,
            epoch: LogEpoch(state.epoch),
            age: Duration::ZERO,
            released: state.released,
        }))
    }

    fn remove(&self, epoch: LogEpoch) -> Result<()> {
        let mut state = self.state.lock();
        state.check_epoch(epoch)?;
        state.flush();
        Ok(())
    }
}

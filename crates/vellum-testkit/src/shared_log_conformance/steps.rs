//! Random steps of several servers, compared with a model that holds everything in memory.

use std::time::Duration;

use vellum_shared_log::{LogEpoch, LogIncarnation, LogPosition, ServerRecord, SharedLog, SharedLogError};

use super::{SharedLogFixture, make_server};
use crate::random::{TestRandom, choose_seed, scale_rounds};

/// Steps of a run.
const STEPS: usize = 250;
/// Processes that have the log open.
const HANDLES: u64 = 3;

/// What a log must be.
struct LogModel {
    incarnation: LogIncarnation,
    epoch: u64,
    server: Option<ServerRecord>,
    is_released: bool,
    appends: Vec<Vec<u8>>,
    /// Where the first of the appends begins.
    start: u64,
}

/// What a step returns, as far as it can be compared.
#[derive(Debug, PartialEq, Eq)]
enum StepOutcome {
    Done,
    Claimed { epoch: u64, start: u64, end: u64 },
    Appended(u64),
    Read(Vec<u8>),
    Fenced { epoch: u64, current: u64 },
    Moved { at: u64, end: u64 },
    Discarded { from: u64, start: u64 },
}

/// Compares an engine with the model.
pub(super) fn check_random_steps(fixture: &dyn SharedLogFixture) {
    let mut random = TestRandom::new(choose_seed());
    // Several, since each one remembers what it has seen, and the others change the log meanwhile.
    let logs: Vec<_> = (0..HANDLES).map(|_| fixture.open_log("steps")).collect();
    let [first, ..] = &logs[..] else { panic!("no log") };
    let incarnation = first.create().expect("a new log");
    let mut model =
        LogModel { incarnation, epoch: 0, server: None, is_released: false, appends: Vec::new(), start: 0 };
    for step in 0..scale_rounds(STEPS) {
        let log = &logs[random.next_below(HANDLES) as usize];
        let name = take_step(&mut random, &**log, &mut model, step);
        // After refused steps, too, which must not have changed anything.
        let sighting = log.current_server(None, Duration::ZERO).expect("a server");
        let seen = sighting.map(|seen| (seen.epoch.0, seen.server, seen.released));
        let expected = model.server.clone().map(|server| (model.epoch, server, model.is_released));
        assert_eq!(seen, expected, "after step {step}, {name}");
    }
}

fn take_step(
    random: &mut TestRandom,
    log: &dyn SharedLog,
    model: &mut LogModel,
    step: usize,
) -> &'static str {
    // Mostly the current one, or nearly all steps would be refused; now and then an older one, none, or one
    // that nobody has yet.
    let epoch = if random.is_one_in(6) { random.next_below(model.epoch + 2) } else { model.epoch };
    let position = random.next_below(model.end() + 3);
    let (name, found, expected) = match random.next_below(12) {
        0 => {
            // Of few servers, so that often the same one claims again.
            let server = make_server(random.next_below(3) as u8);
            let after = (epoch > 0).then_some(LogEpoch(epoch));
            ("claim", judge(log.claim(model.incarnation, &server, after)), model.claim(server, epoch))
        }
        1 => ("renew", judge(log.renew(LogEpoch(epoch))), model.check_epoch(epoch)),
        2 => ("release", judge(log.release(LogEpoch(epoch))), model.release(epoch)),
        3 | 4 => {
            let found = judge(log.discard_before(LogEpoch(epoch), LogPosition(position)));
            ("discard", found, model.discard(epoch, position))
        }
        5..=7 => {
            let max = random.next_below(40) as usize;
            ("read", judge(log.read(LogPosition(position), max)), model.read(position, max))
        }
        _ => {
            let at = if random.is_one_in(5) { position } else { model.end() };
            // Bytes that tell the steps apart, so that a read from a wrong place shows.
            let bytes = vec![step as u8; random.next_below(12) as usize];
            let found = judge(log.append(LogEpoch(epoch), LogPosition(at), &bytes));
            ("append", found, model.append(epoch, at, bytes))
        }
    };
    assert_eq!(found, expected, "step {step}, {name} under epoch {epoch} at {position}");
    name
}

/// What can be compared of a result.
trait ToOutcome {
    fn to_outcome(self) -> StepOutcome;
}

impl ToOutcome for () {
    fn to_outcome(self) -> StepOutcome {
        StepOutcome::Done
    }
}

impl ToOutcome for LogPosition {
    fn to_outcome(self) -> StepOutcome {
        StepOutcome::Appended(self.0)
    }
}

impl ToOutcome for Vec<u8> {
    fn to_outcome(self) -> StepOutcome {
        StepOutcome::Read(self)
    }
}

impl ToOutcome for vellum_shared_log::LogClaim {
    fn to_outcome(self) -> StepOutcome {
        StepOutcome::Claimed { epoch: self.epoch.0, start: self.start.0, end: self.end.0 }
    }
}

fn judge<T: ToOutcome>(done: Result<T, SharedLogError>) -> StepOutcome {
    match done {
        Ok(value) => value.to_outcome(),
        Err(SharedLogError::Fenced { epoch, current }) => {
            StepOutcome::Fenced { epoch: epoch.0, current: current.0 }
        }
        Err(SharedLogError::Moved { at, end }) => StepOutcome::Moved { at: at.0, end: end.0 },
        Err(SharedLogError::Discarded { from, start }) => {
            StepOutcome::Discarded { from: from.0, start: start.0 }
        }
        Err(error) => panic!("a step failed: {error}"),
    }
}

impl LogModel {
    fn end(&self) -> u64 {
        self.start + self.appends.iter().map(|append| append.len() as u64).sum::<u64>()
    }

    /// `Done` if a server with the epoch may change the log.
    fn check_epoch(&self, epoch: u64) -> StepOutcome {
        // Nobody has the epoch that stands for none.
        if epoch == self.epoch && epoch > 0 {
            StepOutcome::Done
        } else {
            StepOutcome::Fenced { epoch, current: self.epoch }
        }
    }

    fn claim(&mut self, server: ServerRecord, after: u64) -> StepOutcome {
        let holder = self.server.as_ref().map(|holder| holder.instance);
        // The same server may repeat a claim whose answer it has not received.
        let is_repeated = self.epoch == after + 1 && holder == Some(server.instance) && !self.is_released;
        if after != self.epoch && !is_repeated {
            return StepOutcome::Fenced { epoch: after, current: self.epoch };
        }
        self.epoch = after + 1;
        self.server = Some(server);
        self.is_released = false;
        StepOutcome::Claimed { epoch: self.epoch, start: self.start, end: self.end() }
    }

    fn release(&mut self, epoch: u64) -> StepOutcome {
        let outcome = self.check_epoch(epoch);
        self.is_released |= outcome == StepOutcome::Done;
        outcome
    }

    fn append(&mut self, epoch: u64, at: u64, bytes: Vec<u8>) -> StepOutcome {
        match self.check_epoch(epoch) {
            StepOutcome::Done if at != self.end() => StepOutcome::Moved { at, end: self.end() },
            StepOutcome::Done => {
                if !bytes.is_empty() {
                    self.appends.push(bytes);
                }
                StepOutcome::Appended(self.end())
            }
            refused => refused,
        }
    }

    fn discard(&mut self, epoch: u64, before: u64) -> StepOutcome {
        match self.check_epoch(epoch) {
            StepOutcome::Done if before > self.end() => StepOutcome::Moved { at: before, end: self.end() },
            StepOutcome::Done => {
                while self.appends.first().is_some_and(|first| self.start + first.len() as u64 <= before) {
                    self.start += self.appends.remove(0).len() as u64;
                }
                StepOutcome::Done
            }
            refused => refused,
        }
    }

    fn read(&self, from: u64, max: usize) -> StepOutcome {
        if from < self.start {
            return StepOutcome::Discarded { from, start: self.start };
        }
        if from > self.end() {
            return StepOutcome::Moved { at: from, end: self.end() };
        }
        let mut bytes = Vec::new();
        let mut at = self.start;
        for append in &self.appends {
            let end = at + append.len() as u64;
            if end > from {
                // The first append is returned even if it is too long: a reader could not get past it otherwise.
                if !bytes.is_empty() && end - from > max as u64 {
                    break;
                }
                bytes.extend_from_slice(&append[from.saturating_sub(at) as usize..]);
            }
            at = end;
        }
        StepOutcome::Read(bytes)
    }
}

//! Operations of a history, and the log in which a worker records them.
//!
//! A log has two lines for each operation: `I TIME NAME ARGUMENT...` before it begins; `D TIME RESULT...` after it
//! succeeded, `F TIME ERRNO` after it certainly had no effect, or `U TIME ERRNO` after it failed otherwise.

use std::fmt;

/// An operation of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// The worker that did it.
    pub client: usize,
    /// When it began, nanoseconds.
    pub start: u64,
    /// When it ended; None if the worker did not live to see it, or does not know whether it was carried out.
    pub end: Option<u64>,
    /// What was done, as its history names it.
    pub name: String,
    /// With what.
    pub arguments: Vec<u64>,
    /// What became of it.
    pub outcome: HistoryOutcome,
}

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryOutcome {
    /// It succeeded, and returned this.
    Done(Vec<u64>),
    /// It failed with this error and had no effect.
    Failed(i32),
    /// It may or may not have had its effect, or may have it later. The error, if there was one.
    Unknown(Option<i32>),
}

/// What no filesystem could have answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryViolation(pub String);

impl fmt::Display for HistoryViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for HistoryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, start, end, name, arguments, outcome } = self;
        write!(f, "[{start}, ")?;
        match end {
            Some(end) => write!(f, "{end}]")?,
            None => f.write_str("?")?,
        }
        write!(f, " client {client}: {name}{} -> ", format_numbers(arguments))?;
        match outcome {
            HistoryOutcome::Done(results) => write!(f, "ok{}", format_numbers(results)),
            HistoryOutcome::Failed(errno) => write!(f, "errno {errno}"),
            HistoryOutcome::Unknown(Some(errno)) => write!(f, "unknown, errno {errno}"),
            HistoryOutcome::Unknown(None) => f.write_str("unknown"),
        }
    }
}

impl HistoryEvent {
    /// Whether it certainly had ended before the other began.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        self.end.is_some_and(|end| end < other.start)
    }

    /// Its results, if it succeeded.
    #[must_use]
    pub fn results(&self) -> Option<&[u64]> {
        match &self.outcome {
            HistoryOutcome::Done(results) => Some(results),
            HistoryOutcome::Failed(_) | HistoryOutcome::Unknown(_) => None,
        }
    }

    /// An argument; 0 if there are fewer, as of a log whose last line was cut off.
    #[must_use]
    pub fn argument(&self, position: usize) -> u64 {
        self.arguments.get(position).copied().unwrap_or(0)
    }

    /// Whether its outcome is unknown.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.outcome, HistoryOutcome::Unknown(_))
    }
}

/// Numbers behind a word.
pub(super) fn format_numbers(numbers: &[u64]) -> String {
    numbers.iter().map(|number| format!(" {number}")).collect()
}

/// The operations of a worker's log. A last line without its end, of a worker that was killed, is left out.
///
/// # Panics
/// Panics if it is no log.
pub(super) fn parse_log(client: usize, text: &str) -> Vec<HistoryEvent> {
    let mut events: Vec<HistoryEvent> = Vec::new();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let time = words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        if what == "I" {
            let name = words.next().unwrap_or_default().to_owned();
            // Until its end is read, which is missing if the worker was killed.
            let outcome = HistoryOutcome::Unknown(None);
            let arguments = parse_numbers(words);
            events.push(HistoryEvent { client, start: time, end: None, name, arguments, outcome });
            continue;
        }
        // A worker does one thing after the other, so that an end is that of the last start.
        let event = events.last_mut().unwrap_or_else(|| panic!("an end without a start: {line}"));
        let results = parse_numbers(words);
        let errno = results.first().and_then(|errno| i32::try_from(*errno).ok());
        event.outcome = match what {
            "D" => HistoryOutcome::Done(results),
            "F" => HistoryOutcome::Failed(errno.unwrap_or_default()),
            "U" => HistoryOutcome::Unknown(errno),
            _ => panic!("{line}"),
        };
        // What is unknown may have its effect later, so that this is not the end of it.
        event.end = (!event.is_unknown()).then_some(time);
    }
    events
}

fn parse_numbers<'a>(words: impl Iterator<Item = &'a str>) -> Vec<u64> {
    words.map(|word| word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))).collect()
}

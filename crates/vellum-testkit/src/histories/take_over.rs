//! When a server was replaced.

use super::event::HistoryEvent;
use super::worker::now;

/// The time in which another server continued from the log of one that was lost. Changes that had been answered and not synced
/// may be missing from then on: all from some moment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeOver {
    /// Before it, all answers were those of the lost server; nanoseconds by the clock of the history.
    pub start: u64,
    /// After it, all are those of the next one.
    pub end: u64,
}

impl TakeOver {
    /// The time that something takes by which a server is replaced.
    pub fn measure(replace: impl FnOnce()) -> Self {
        let start = now();
        replace();
        Self { start, end: now() }
    }

    /// Whether the lost server may have answered at least a part of an operation.
    pub(super) fn may_lose(self, event: &HistoryEvent) -> bool {
        event.start <= self.end
    }

    /// Whether the next server may have answered at least a part of an operation.
    pub(super) fn may_precede(self, event: &HistoryEvent) -> bool {
        event.end.is_none_or(|end| end >= self.start)
    }

    /// Whether an operation that is missing was not to be kept: nothing that came after it, and was complete before, is there.
    pub(super) fn explains_loss(self, lost: &HistoryEvent, kept: &[&HistoryEvent]) -> bool {
        let is_later = |event: &&HistoryEvent| lost.is_before(event) && !self.may_precede(event);
        self.may_lose(lost) && !kept.iter().any(is_later)
    }
}

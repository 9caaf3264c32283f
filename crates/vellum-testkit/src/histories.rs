//! Histories: what concurrent programs did to a filesystem on several mounts and what they saw, with the times of each
//! operation by one clock; and checkers that say whether one filesystem could have answered so.
//!
//! Programs are processes: a test binary that runs itself again on each host (see [`run_worker_if_asked`]). Each operation is
//! recorded before it begins and after it ended, so that of a process that is killed the operation remains whose outcome
//! nobody knows.
//!
//! Invariant: a checker reports a violation only if no order of the operations explains what was seen, where each operation
//! took place between its two times; one whose outcome is unknown may have taken place at any later time, or never.

mod append;
mod counter;
mod directory;
mod durable;
mod event;
mod files;
mod held;
mod linearize;
mod moves;
mod ranges;
mod register;
mod run;
mod several_kernels;
mod snapshots;
mod take_over;
mod visible;
mod worker;

pub use self::event::{HistoryEvent, HistoryOutcome, HistoryViolation};
pub use self::run::{HistoryMounts, HistoryPlan, HistoryReport, run_history};
pub use self::take_over::TakeOver;
pub use self::worker::{now as history_time, run_worker_if_asked};

/// What programs do, and what must be true of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryKind {
    /// Small files are written and read as a whole: in place, truncated first, and by a renamed temporary file. Each is a
    /// register: linearizable.
    Register,
    /// Records are appended to shared files: none is lost, torn or doubled; those of one writer are in order; a reader sees
    /// all that were complete when it began.
    Append,
    /// Names of one directory are created exclusively, removed, renamed, replaced and exchanged: the directory is a map,
    /// linearizable.
    Directory,
    /// Directories are moved into each other: each is in exactly one place, and none into itself; linearizable.
    Moves,
    /// Counters are incremented under `fcntl`, OFD and `flock` locks: no two hold one at once, and no increment is lost.
    Counter,
    /// Files are created, appended to and replaced, with `fsync`: what was acknowledged is there afterwards.
    Durable,
    /// Files that one program changes and all others read: what is opened after a close shows what was closed, in content,
    /// size and name.
    Visible,
    /// Files are open while others remove their names: who has one open reads what it wrote last.
    Held,
    /// One file is written, cut off, extended and mapped at random places under locks: who has the lock finds what the one
    /// before has left.
    Ranges,
    /// Snapshots are taken while files are written: each shows one moment, on all mounts, and stays. Without
    /// [`SNAPSHOT_PROGRAM`] none are taken.
    Snapshots,
}

/// The variable of workers that names the program which takes snapshots: `PROGRAM snapshot --tag TAG`, in a mount, which then
/// shows each of them in `.vellum/snapshots/TAG`.
pub const SNAPSHOT_PROGRAM: &str = "VELLUM_HISTORY_SNAPSHOT";

impl HistoryKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Register,
        Self::Append,
        Self::Directory,
        Self::Moves,
        Self::Counter,
        Self::Durable,
        Self::Visible,
        Self::Held,
        Self::Ranges,
        Self::Snapshots,
    ];

    /// The name by which a worker is started, and which messages show.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Append => "append",
            Self::Directory => "directory",
            Self::Moves => "moves",
            Self::Counter => "counter",
            Self::Durable => "durable",
            Self::Visible => "visible",
            Self::Held => "held",
            Self::Ranges => "ranges",
            Self::Snapshots => "snapshots",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What no filesystem could have answered, also if another server continued from a log without what was not synced.
    #[must_use]
    pub fn check(self, events: &[HistoryEvent], take_over: Option<TakeOver>) -> Vec<HistoryViolation> {
        match self {
            Self::Register => register::check(events, take_over),
            Self::Append => append::check(events, take_over),
            Self::Directory => directory::check(events, take_over),
            Self::Moves => moves::check(events, take_over),
            Self::Counter => counter::check(events, take_over),
            Self::Durable => durable::check(events),
            Self::Visible => visible::check(events, take_over),
            Self::Held => held::check(events, take_over),
            Self::Ranges => ranges::check(events, take_over),
            Self::Snapshots => snapshots::check(events, take_over),
        }
    }
}

//! A line of the access log: caller, operation, result, duration.
//!
//! ```text
//! 1700000000.250000 [uid:5,gid:6,pid:7] read (2,4096,8192): ok 4096 <0.000120>
//! ```
//!
//! Invariants: one request is one line. Names are quoted, and quotes in them are escaped, so that a line can be parsed
//! whatever a file is called. The thread that serves a request only records what the line needs ([`LineNote`]), and
//! reads one clock, once before and once after; the thread that writes the log formats it, with the time of day.
//!
//! docs/measuring.md describes the arguments; `vellum-bench` parses them.

use std::fmt::{Display, Formatter, Result};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use vellum_fs::{AttributeChanges, FilesystemStatistics, FsError, TimeChange};

use super::{RequestKind, ServedRequest};
use crate::wire::{EntryAnswer, FuseOperation};

/// Arguments that a request has at most, besides the node.
const ARGUMENTS: usize = 4;

/// The result of a request as a line has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineOutcome {
    /// Success without further details.
    Done,
    /// A number of bytes, or a position in a file.
    Number(u64),
    /// An inode: its number, mode and size.
    Inode(u64, u32, u64),
    /// A failure.
    Failed(Errno),
}

/// A result of a request that can be logged.
pub trait LineDetail {
    /// What a line has of it.
    fn line_outcome(&self) -> LineOutcome;
}

/// Implements [`LineDetail`] for results of which only the success is logged.
macro_rules! impl_done_outcome {
    ($($answer:ty),+) => {
        $(impl LineDetail for $answer {
            fn line_outcome(&self) -> LineOutcome {
                LineOutcome::Done
            }
        })+
    };
}

impl_done_outcome!((), FilesystemStatistics);

impl LineDetail for EntryAnswer {
    fn line_outcome(&self) -> LineOutcome {
        LineOutcome::Inode(self.attr.ino, self.attr.mode, self.attr.size)
    }
}

impl LineDetail for Vec<u8> {
    fn line_outcome(&self) -> LineOutcome {
        LineOutcome::Number(self.len() as u64)
    }
}

impl LineDetail for Arc<[u8]> {
    fn line_outcome(&self) -> LineOutcome {
        LineOutcome::Number(self.len() as u64)
    }
}

impl LineDetail for u32 {
    fn line_outcome(&self) -> LineOutcome {
        LineOutcome::Number(u64::from(*self))
    }
}

impl LineDetail for u64 {
    fn line_outcome(&self) -> LineOutcome {
        LineOutcome::Number(*self)
    }
}

/// An argument of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RequestArgument {
    None,
    // A copy: another thread formats the line, when the request may be gone.
    Name(Box<[u8]>),
    Number(u64),
    Octal(u32),
    Flags(u32),
    // Boxed, or each argument of each line would take the room of all attributes.
    Set(Box<AttributeChanges>),
}

/// One moment by the monotonic clock and by the time of day, to convert from the one to the other.
#[derive(Debug, Clone, Copy)]
pub struct ClockPair {
    moment: Instant,
    of_day: SystemTime,
}

impl ClockPair {
    /// The current moment.
    pub fn now() -> Self {
        Self { moment: Instant::now(), of_day: SystemTime::now() }
    }

    /// The time of day of an earlier moment, since 1970.
    fn duration_since_epoch(&self, at: Instant) -> Duration {
        let ago = self.moment.saturating_duration_since(at);
        self.of_day.checked_sub(ago).and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default()
    }
}

/// What a line is made from.
#[derive(Debug, Clone)]
pub struct LineNote {
    began: Instant,
    took: Duration,
    kind: RequestKind,
    uid: u32,
    gid: u32,
    pid: u32,
    node: u64,
    // An array, so that a read or a write is recorded without an allocation.
    arguments: [RequestArgument; ARGUMENTS],
    outcome: LineOutcome,
}

impl LineNote {
    /// Records a request that began at `began` and took `took`.
    pub fn new<T: LineDetail>(
        kind: RequestKind,
        request: ServedRequest<'_>,
        began: Instant,
        took: Duration,
        done: &std::result::Result<T, FsError>,
    ) -> Self {
        let head = request.head;
        Self {
            began,
            took,
            kind,
            uid: head.uid,
            gid: head.gid,
            pid: head.pid,
            node: head.node,
            arguments: collect_arguments(request.operation),
            outcome: done
                .as_ref()
                .map_or_else(|error| LineOutcome::Failed(error.errno()), LineDetail::line_outcome),
        }
    }

    /// The line, with the time of day at which the request was answered.
    pub fn to_log_line<'n>(&'n self, clock: &ClockPair) -> AccessLogLine<'n> {
        AccessLogLine { of: self, at: clock.duration_since_epoch(self.began + self.took) }
    }
}

/// A line of the access log.
#[derive(Debug)]
pub struct AccessLogLine<'n> {
    of: &'n LineNote,
    at: Duration,
}

impl Display for AccessLogLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}.{:06} ", self.at.as_secs(), self.at.subsec_micros())?;
        self.of.fmt(f)
    }
}

/// The line without the time of day.
impl Display for LineNote {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "[uid:{},gid:{},pid:{}] ", self.uid, self.gid, self.pid)?;
        write!(f, "{} ({}", self.kind.name(), self.node)?;
        self.arguments.iter().try_for_each(|argument| argument.fmt(f))?;
        match self.outcome {
            LineOutcome::Done => write!(f, "): ok")?,
            LineOutcome::Number(number) => write!(f, "): ok {number}")?,
            LineOutcome::Inode(ino, mode, size) => write!(f, "): ok {ino},0{mode:o},{size}")?,
            LineOutcome::Failed(error) => write!(f, "): {error}")?,
        }
        writeln!(f, " <{:.6}>", self.took.as_secs_f64())
    }
}

impl Display for RequestArgument {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::None => Ok(()),
            Self::Name(name) => write!(f, ",\"{}\"", name.escape_ascii()),
            Self::Number(number) => write!(f, ",{number}"),
            Self::Octal(number) => write!(f, ",0{number:o}"),
            Self::Flags(flags) => write!(f, ",{flags:#x}"),
            Self::Set(set) => write_set_fields(f, set),
        }
    }
}

/// The arguments of an operation, besides the node.
fn collect_arguments(what: &FuseOperation<'_>) -> [RequestArgument; ARGUMENTS] {
    use FuseOperation as Do;
    let name = |name: &[u8]| RequestArgument::Name(name.into());
    let number = RequestArgument::Number;
    let octal = RequestArgument::Octal;
    let flags = RequestArgument::Flags;
    // Of content and values only the length: a log of them would be as large as they are.
    let len = |bytes: &[u8]| RequestArgument::Number(bytes.len() as u64);
    match *what {
        Do::Lookup { name: n } | Do::Unlink { name: n } | Do::Rmdir { name: n } => pad_arguments([name(n)]),
        Do::Removexattr { name: n } => pad_arguments([name(n)]),
        Do::Setattr(set) => pad_arguments([RequestArgument::Set(Box::new(set))]),
        Do::Symlink { name: n, target } => pad_arguments([name(n), name(target)]),
        Do::Mknod { name: n, mode, device, umask } => [name(n), octal(mode), flags(device), octal(umask)],
        Do::Mkdir { name: n, mode, umask } => pad_arguments([name(n), octal(mode), octal(umask)]),
        Do::Tmpfile { mode, umask } => pad_arguments([octal(mode), octal(umask)]),
        Do::Create { name: n, flags: how, mode, umask } => [name(n), flags(how), octal(mode), octal(umask)],
        Do::Open { flags: how } => pad_arguments([flags(how)]),
        Do::Rename { name: n, to_dir, to_name, flags: how } => {
            [name(n), number(to_dir), name(to_name), flags(how)]
        }
        Do::Link { node, name: n } => pad_arguments([name(n), number(node)]),
        Do::Read { offset, len, .. } => pad_arguments([number(u64::from(len)), number(offset)]),
        Do::Write { offset, flags: how, data } => {
            pad_arguments([len(data), number(offset), flags(how.kernel_bits())])
        }
        Do::WriteStored { offset, flags: how, chunks } => {
            pad_arguments([number(chunks.count_bytes()), number(offset), flags(how.kernel_bits())])
        }
        Do::Fsync { data_only } | Do::Fsyncdir { data_only } => pad_arguments([number(u64::from(data_only))]),
        Do::Setxattr { name: n, value, flags: how, .. } => pad_arguments([name(n), len(value), flags(how)]),
        Do::Getxattr { name: n, room } => pad_arguments([name(n), number(u64::from(room))]),
        Do::Listxattr { room } => pad_arguments([number(u64::from(room))]),
        Do::Readdir { offset, room } | Do::Readdirplus { offset, room } => {
            pad_arguments([number(u64::from(room)), number(offset)])
        }
        Do::Fallocate { offset, len, mode } => pad_arguments([flags(mode), number(offset), number(len)]),
        Do::Lseek { offset, whence } => pad_arguments([number(offset), number(u64::from(whence))]),
        Do::CopyFileRange { offset, to, to_offset, len, .. } => {
            [number(offset), number(to), number(to_offset), number(len)]
        }
        // These have no arguments, or are not logged.
        Do::Getattr | Do::Statx | Do::Readlink | Do::Statfs => pad_arguments([]),
        Do::Init(_) | Do::Destroy | Do::Forget { .. } | Do::BatchForget(_) => pad_arguments([]),
        Do::Ioctl { command, .. } => pad_arguments([flags(command)]),
        Do::Getlk(lock) | Do::Setlk { lock, .. } => [
            number(u64::from(lock.kind)),
            number(lock.start),
            number(lock.end),
            flags(u32::from(lock.is_flock)),
        ],
        Do::Opendir | Do::Flush { .. } | Do::Release { .. } | Do::Releasedir => pad_arguments([]),
        Do::Interrupt { .. } | Do::Unknown => pad_arguments([]),
    }
}

/// Fills up the arguments.
fn pad_arguments<const N: usize>(given: [RequestArgument; N]) -> [RequestArgument; ARGUMENTS] {
    let mut all = [const { RequestArgument::None }; ARGUMENTS];
    all.iter_mut().zip(given).for_each(|(place, argument)| *place = argument);
    all
}

/// Writes the attributes that are set, by name.
fn write_set_fields(f: &mut Formatter<'_>, set: &AttributeChanges) -> Result {
    if let Some(mode) = set.mode {
        write!(f, ",mode=0{mode:o}")?;
    }
    let numbers = [("uid", set.uid.map(u64::from)), ("gid", set.gid.map(u64::from)), ("size", set.size)];
    for (name, value) in numbers {
        if let Some(value) = value {
            write!(f, ",{name}={value}")?;
        }
    }
    let times = [("atime", set.atime), ("mtime", set.mtime), ("ctime", set.ctime.map(TimeChange::At))];
    for (name, time) in times {
        match time {
            Some(TimeChange::Now) => write!(f, ",{name}=now")?,
            Some(TimeChange::At(time)) => write!(f, ",{name}={}.{:09}", time.secs, time.nanos)?,
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

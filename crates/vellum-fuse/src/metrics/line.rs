//! A line of the access log: caller, operation, result, duration.
//!
//! ```text
//! 1700000000.250000 [uid:5,gid:6,pid:7] read (2,4096,8192): ok 4096 <0.000120>
//! ```
//!
//! Invariants: one request is one line; names stand in quotes, and a quote within them is escaped, so that a line can be
//! taken apart whatever a file is called. Whoever serves a request only notes what the line is made of ([`LineNote`]), and
//! looks at one clock, once before and once after: text, with the time of day, is made of it by the thread that writes the
//! log. docs/measuring.md tells what the arguments mean; `vellum-bench` reads
//! them.

use std::fmt::{Display, Formatter, Result};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use vellum_fs::{AttributeChanges, FilesystemStatistics, FsError, TimeChange};

use super::{RequestKind, ServedRequest};
use crate::wire::{EntryAnswer, FuseOperation};

/// Most arguments of a request behind the node.
const ARGUMENTS: usize = 4;

/// What stands behind `ok`, or what went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineOutcome {
    /// It is done, and there is nothing more to tell.
    Done,
    /// So many bytes, or a place in a file.
    Number(u64),
    /// An inode: its number, mode and size.
    Inode(u64, u32, u64),
    /// It failed.
    Failed(Errno),
}

/// What of an answer stands in a line.
pub trait LineDetail {
    /// That.
    fn line_outcome(&self) -> LineOutcome;
}

/// Who says only that it is done.
macro_rules! impl_done_outcome {
    ($($answer:ty),+) => {
        $(impl LineDetail for $answer {
            fn line_outcome(&self) -> LineOutcome {
                LineOutcome::Done
            }
        })+
    };
}

// How full the filesystem is and what it lists would be lines of their own.
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
    Name(Box<[u8]>),
    Number(u64),
    Octal(u32),
    Flags(u32),
    Set(Box<AttributeChanges>),
}

/// A moment, by the clock that only goes on and by that of the day: what happened by the one is told by the other.
#[derive(Debug, Clone, Copy)]
pub struct ClockPair {
    moment: Instant,
    of_day: SystemTime,
}

impl ClockPair {
    /// This moment.
    pub fn now() -> Self {
        Self { moment: Instant::now(), of_day: SystemTime::now() }
    }

    /// When that was, since 1970: a moment that is past.
    fn duration_since_epoch(&self, at: Instant) -> Duration {
        let ago = self.moment.saturating_duration_since(at);
        self.of_day.checked_sub(ago).and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default()
    }
}

/// What a line is made of.
#[derive(Debug, Clone)]
pub struct LineNote {
    /// When it began, and how long it took.
    began: Instant,
    took: Duration,
    kind: RequestKind,
    who: (u32, u32, u32),
    node: u64,
    arguments: [RequestArgument; ARGUMENTS],
    outcome: LineOutcome,
}

impl LineNote {
    /// A request that is done.
    pub fn new<T: LineDetail>(
        kind: RequestKind,
        request: ServedRequest<'_>,
        (began, took): (Instant, Duration),
        done: &std::result::Result<T, FsError>,
    ) -> Self {
        let head = request.head;
        Self {
            began,
            took,
            kind,
            who: (head.uid, head.gid, head.pid),
            node: head.node,
            arguments: collect_arguments(request.operation),
            outcome: done
                .as_ref()
                .map_or_else(|error| LineOutcome::Failed(error.errno()), LineDetail::line_outcome),
        }
    }

    /// The line, with the time of day of when it was done.
    pub fn to_log_line<'n>(&'n self, clock: &ClockPair) -> AccessLogLine<'n> {
        AccessLogLine { of: self, at: clock.duration_since_epoch(self.began + self.took) }
    }
}

/// A line.
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

/// All but the time of day.
impl Display for LineNote {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (uid, gid, pid) = self.who;
        write!(f, "[uid:{uid},gid:{gid},pid:{pid}] ")?;
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

/// What stands behind the node.
fn collect_arguments(what: &FuseOperation<'_>) -> [RequestArgument; ARGUMENTS] {
    use FuseOperation as Do;
    let name = |name: &[u8]| RequestArgument::Name(name.into());
    let number = RequestArgument::Number;
    let octal = RequestArgument::Octal;
    let flags = RequestArgument::Flags;
    let len = |bytes: &[u8]| RequestArgument::Number(bytes.len() as u64);
    match *what {
        Do::Lookup { name: n } | Do::Unlink { name: n } | Do::Rmdir { name: n } => pad_arguments([name(n)]),
        Do::Removexattr { name: n } => pad_arguments([name(n)]),
        Do::Setattr(set) => pad_arguments([RequestArgument::Set(Box::new(set))]),
        Do::Symlink { name: n, target } => pad_arguments([name(n), name(target)]),
        Do::Mknod { name: n, mode, device, umask } => [name(n), octal(mode), flags(device), octal(umask)],
        Do::Mkdir { name: n, mode, umask } => pad_arguments([name(n), octal(mode), octal(umask)]),
        Do::Tmpfile { mode, umask } => pad_arguments([octal(mode), octal(umask)]),
        Do::Rename { name: n, to_dir, to_name, flags: how } => {
            [name(n), number(to_dir), name(to_name), flags(how)]
        }
        Do::Link { node, name: n } => pad_arguments([name(n), number(node)]),
        Do::Read { offset, len, .. } => pad_arguments([number(u64::from(len)), number(offset)]),
        Do::Write { offset, flags: how, data } => {
            pad_arguments([len(data), number(offset), flags(how.kernel_bits())])
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
        // These have none, or are no requests that are watched.
        Do::Getattr | Do::Statx | Do::Readlink | Do::Statfs => pad_arguments([]),
        Do::Init(_) | Do::Destroy | Do::Forget { .. } | Do::BatchForget(_) => pad_arguments([]),
        Do::Ioctl { command, .. } => pad_arguments([flags(command)]),
        Do::Release | Do::Unknown => pad_arguments([]),
    }
}

/// So many arguments, and no more.
fn pad_arguments<const N: usize>(given: [RequestArgument; N]) -> [RequestArgument; ARGUMENTS] {
    let mut all = [const { RequestArgument::None }; ARGUMENTS];
    all.iter_mut().zip(given).for_each(|(place, argument)| *place = argument);
    all
}

/// The attributes that are to be set, by name: the others stay.
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

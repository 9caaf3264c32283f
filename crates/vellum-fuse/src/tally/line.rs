//! A line of the access log: who asked what, how it ended, and how long it took.
//!
//! ```text
//! 1700000000.250000 [uid:5,gid:6,pid:7] read (2,4096,8192): ok 4096 <0.000120>
//! ```
//!
//! Invariants: one request is one line; names stand in quotes, and a quote within them is escaped, so that a line can be
//! taken apart whatever a file is called. docs/measuring.md tells what the arguments mean; `vellum-bench` reads them.

use std::fmt::{Display, Formatter, Result, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vellum_fs::{FsError, SetAttr, SetTime, Statfs};

use super::Asked;
use crate::dirs;
use crate::wire::{Entry, Operation};

/// What of an answer stands behind `ok`.
pub trait Told {
    /// Writes it.
    fn tell(&self, out: &mut String);
}

/// Who says only that it is done.
macro_rules! nothing_to_tell {
    ($($answer:ty),+) => {
        $(impl Told for $answer {
            fn tell(&self, _: &mut String) {}
        })+
    };
}

// How full the filesystem is and what it lists would be lines of their own.
nothing_to_tell!((), Statfs, Arc<dirs::Listing>);

impl Told for Entry {
    fn tell(&self, out: &mut String) {
        let attr = &self.attr;
        put(out, format_args!(" {},0{:o},{}", attr.ino, attr.mode, attr.size));
    }
}

impl Told for Vec<u8> {
    fn tell(&self, out: &mut String) {
        put(out, format_args!(" {}", self.len()));
    }
}

impl Told for Arc<[u8]> {
    fn tell(&self, out: &mut String) {
        put(out, format_args!(" {}", self.len()));
    }
}

impl Told for u32 {
    fn tell(&self, out: &mut String) {
        put(out, format_args!(" {self}"));
    }
}

impl Told for u64 {
    fn tell(&self, out: &mut String) {
        put(out, format_args!(" {self}"));
    }
}

/// The line of a request that ended now.
pub fn line<T: Told>(asked: Asked<'_>, took: Duration, done: &std::result::Result<T, FsError>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (head, mut out) = (asked.head, String::with_capacity(LINE_USUAL));
    put(&mut out, format_args!("{}.{:06} ", now.as_secs(), now.subsec_micros()));
    put(&mut out, format_args!("[uid:{},gid:{},pid:{}] ", head.uid, head.gid, head.pid));
    put(&mut out, format_args!("{} ({}{}): ", asked.op.name(), head.node, Arguments(asked.what)));
    match done {
        Ok(answer) => {
            out.push_str("ok");
            answer.tell(&mut out);
        }
        Err(error) => put(&mut out, format_args!("{}", error.errno())),
    }
    put(&mut out, format_args!(" <{:.6}>\n", took.as_secs_f64()));
    out
}

/// Bytes that most lines stay under.
const LINE_USUAL: usize = 160;

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(what);
}

/// A name, in quotes.
struct Quoted<'a>(&'a [u8]);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// What stands behind the node, each with a comma before it.
struct Arguments<'a>(&'a Operation<'a>);

impl Display for Arguments<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        use Operation as Do;
        match *self.0 {
            Do::Lookup { name } | Do::Unlink { name } | Do::Rmdir { name } | Do::Removexattr { name } => {
                write!(f, ",{}", Quoted(name))
            }
            Do::Setattr(ref set) => fields(f, set),
            Do::Symlink { name, target } => write!(f, ",{},{}", Quoted(name), Quoted(target)),
            Do::Mknod { name, mode, device, umask } => {
                write!(f, ",{},0{mode:o},{device:#x},0{umask:o}", Quoted(name))
            }
            Do::Mkdir { name, mode, umask } => write!(f, ",{},0{mode:o},0{umask:o}", Quoted(name)),
            Do::Tmpfile { mode, umask } => write!(f, ",0{mode:o},0{umask:o}"),
            Do::Rename { name, to_dir, to_name, flags } => {
                write!(f, ",{},{to_dir},{},{flags:#x}", Quoted(name), Quoted(to_name))
            }
            Do::Link { node, name } => write!(f, ",{},{node}", Quoted(name)),
            Do::Read { offset, len } => write!(f, ",{len},{offset}"),
            Do::Write { offset, flags, data } => write!(f, ",{},{offset},{:#x}", data.len(), flags.0),
            Do::Fsync { data_only } | Do::Fsyncdir { data_only } => write!(f, ",{}", u8::from(data_only)),
            Do::Setxattr { name, value, flags } => {
                write!(f, ",{},{},{flags:#x}", Quoted(name), value.len())
            }
            Do::Getxattr { name, room } => write!(f, ",{},{room}", Quoted(name)),
            Do::Listxattr { room } => write!(f, ",{room}"),
            Do::Readdir { offset, room } | Do::Readdirplus { offset, room } => {
                write!(f, ",{room},{offset}")
            }
            Do::Fallocate { offset, len, mode } => write!(f, ",{mode:#x},{offset},{len}"),
            Do::Lseek { offset, whence } => write!(f, ",{offset},{whence}"),
            Do::CopyFileRange { offset, to, to_offset, len, .. } => {
                write!(f, ",{offset},{to},{to_offset},{len}")
            }
            // These have none, or are no requests that are watched.
            Do::Getattr | Do::Statx | Do::Readlink | Do::Statfs => Ok(()),
            Do::Init(_) | Do::Destroy | Do::Forget { .. } | Do::BatchForget(_) => Ok(()),
            Do::Release | Do::Unknown => Ok(()),
        }
    }
}

/// The attributes that are to be set, by name: the others stay.
fn fields(f: &mut Formatter<'_>, set: &SetAttr) -> Result {
    if let Some(mode) = set.mode {
        write!(f, ",mode=0{mode:o}")?;
    }
    let numbers = [("uid", set.uid.map(u64::from)), ("gid", set.gid.map(u64::from)), ("size", set.size)];
    for (name, value) in numbers {
        if let Some(value) = value {
            write!(f, ",{name}={value}")?;
        }
    }
    let times = [("atime", set.atime), ("mtime", set.mtime), ("ctime", set.ctime.map(SetTime::At))];
    for (name, time) in times {
        match time {
            Some(SetTime::Now) => write!(f, ",{name}=now")?,
            Some(SetTime::At(time)) => write!(f, ",{name}={}.{:09}", time.secs, time.nanos)?,
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

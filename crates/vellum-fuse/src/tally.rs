//! What a mount has done: counters of requests, and lines about each while somebody reads them.

pub mod access_log;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vellum_fs::{FsError, Result};

use access_log::AccessLog;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are called what FUSE calls them")]
pub enum Op {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Symlink,
    Rename,
    Link,
    Read,
    Write,
    Fsync,
    Opendir,
    Readdir,
    Fsyncdir,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Fallocate,
    Lseek,
    CopyFileRange,
    Statx,
    Tmpfile,
}

const NAMES: [&str; 27] = [
    "lookup",
    "getattr",
    "setattr",
    "readlink",
    "mknod",
    "mkdir",
    "unlink",
    "rmdir",
    "symlink",
    "rename",
    "link",
    "read",
    "write",
    "fsync",
    "opendir",
    "readdir",
    "fsyncdir",
    "statfs",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "fallocate",
    "lseek",
    "copy_file_range",
    "statx",
    "tmpfile",
];

impl Op {
    fn name(self) -> &'static str {
        NAMES.get(self as usize).copied().unwrap_or("?")
    }
}

/// A request: what is asked, by whom, about what.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// What is asked.
    pub op: Op,
    /// User, group and process that ask.
    pub who: (u32, u32, u32),
    /// The node.
    pub node: u64,
    /// The name in it, where there is one.
    pub name: &'a [u8],
}

/// Counters, and the log of requests.
#[derive(Debug, Default)]
pub struct Tally {
    counts: [AtomicU64; NAMES.len()],
    failed: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    /// The log of requests.
    pub log: Arc<AccessLog>,
}

impl Tally {
    /// Carries out a request, counts it, and logs it if somebody reads the log.
    pub fn watch<T>(&self, asked: Asked<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(count) = self.counts.get(asked.op as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let started = self.log.is_read().then(Instant::now);
        let done = work();
        if done.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(started) = started {
            self.log.append(line(asked, started.elapsed(), done.as_ref().err()).as_bytes());
        }
        done
    }

    /// Counts bytes that were read.
    pub fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that were written.
    pub fn written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The counters as text: a name and a number in each line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut line = |name: &str, value: u64| {
            // Writing into a String does not fail.
            let _ = writeln!(text, "{name} {value}");
        };
        for (name, count) in NAMES.iter().zip(&self.counts) {
            line(name, load(count));
        }
        line("failed", load(&self.failed));
        line("bytes_read", load(&self.read));
        line("bytes_written", load(&self.written));
        text
    }
}

fn line(asked: Asked<'_>, took: Duration, failure: Option<&FsError>) -> String {
    let (uid, gid, pid) = asked.who;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut line = format!(
        "{}.{:06} [uid:{uid},gid:{gid},pid:{pid}] {} (node:{:#x}",
        now.as_secs(),
        now.subsec_micros(),
        asked.op.name(),
        asked.node
    );
    if !asked.name.is_empty() {
        line += &format!(",{}", asked.name.escape_ascii());
    }
    let outcome = failure.map_or_else(|| "ok".into(), |error| error.errno().to_string());
    line += &format!("): {outcome} <{:.6}>\n", took.as_secs_f64());
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn requests_are_counted_and_failures_too() {
        let tally = Tally::default();
        let asked = Asked { op: Op::Lookup, who: (0, 0, 1), node: 1, name: b"x" };
        tally.watch(asked, || Ok(())).unwrap();
        tally.watch::<()>(asked, || Err(Errno::NOENT.into())).unwrap_err();
        assert!(tally.text().contains("lookup 2\n"), "{}", tally.text());
        assert!(tally.text().contains("failed 1\n"));
        assert_eq!(Op::CopyFileRange.name(), "copy_file_range");
    }

    #[test]
    fn names_are_escaped_in_lines() {
        let asked = Asked { op: Op::Mkdir, who: (5, 6, 7), node: 1, name: b"a\nb" };
        let text = line(asked, Duration::ZERO, None);
        assert!(text.contains("[uid:5,gid:6,pid:7] mkdir (node:0x1,a\\nb): ok <"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}

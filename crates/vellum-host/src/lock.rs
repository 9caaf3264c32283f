//! Waiting for a file's lock that another process holds; the wait is reported, and can be ended.

#![expect(
    clippy::disallowed_methods,
    reason = "the kernel's list of locks is no file that somebody could replace"
)]
//!
//! Invariant: no thread waits in the kernel, where neither would be possible. Without an observer a wait lasts until
//! the lock is released.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Stat, flock};
use rustix::io::Errno;

use crate::wait::{self, LongWait};

/// Shorter waits are not reported.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Takes the exclusive lock of a file; `object` names what it protects.
pub fn lock_exclusive(file: &impl AsFd, object: impl Fn() -> String) -> io::Result<()> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        // A blocking `flock` cannot be ended by another thread, and tells nobody whom it waits for.
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if start.elapsed() >= PATIENCE
            && !wait::go_on_waiting(|| LongWait::Lock { object: object(), holder: find_lock_holder(file) })
        {
            // The kind of this error is that of an operation that was stopped on request.
            return Err(Errno::INTR.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The process that holds the lock of an open file.
fn find_lock_holder(file: &impl AsFd) -> Option<u32> {
    find_holder(&rustix::fs::fstat(file).ok()?)
}

/// The process that holds the lock of a file; None if nobody does, or if that process is not visible here.
#[must_use]
pub fn find_file_lock_holder(path: &Path) -> Option<u32> {
    find_holder(&rustix::fs::stat(path).ok()?)
}

/// The holder of the lock of a file, from the kernel's list of locks.
fn find_holder(stat: &Stat) -> Option<u32> {
    let major = rustix::fs::major(stat.st_dev);
    let minor = rustix::fs::minor(stat.st_dev);
    // As the kernel writes it: the device in hexadecimal, the inode number in decimal.
    let wanted = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 1234 fe:01:5678 0 EOF
    // Lines with `->` are processes that wait for the lock.
    let found = locks.lines().filter(|line| !line.contains("->")).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&wanted.as_str()))
            .then(|| fields.get(4)?.parse().ok())
    });
    // The kernel shows 0 for a process that is dead or not visible in this PID namespace.
    found.flatten().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use super::*;

    #[test]
    fn a_long_wait_names_the_holder_and_ends_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            std::fs::File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.path().join("lock"))
                .unwrap()
        };
        let held = open();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        wait::observe_long_waits(|wait| {
            let LongWait::Lock { object, holder } = wait else { return true };
            assert_eq!(object, "the test");
            assert_eq!(*holder, Some(std::process::id()));
            false
        });
        assert_eq!(find_file_lock_holder(&dir.path().join("lock")), Some(std::process::id()));
        let refused = lock_exclusive(&open(), || "the test".into()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Interrupted);
        drop(held);
        assert_eq!(find_file_lock_holder(&dir.path().join("lock")), None);
        assert_eq!(find_file_lock_holder(&dir.path().join("nothing")), None);
        lock_exclusive(&open(), || "the test".into()).unwrap();
    }
}

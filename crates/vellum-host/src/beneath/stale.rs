//! Entries with temporary names that killed writers left.
//!
//! Invariant: nothing that a living writer may still need is removed. Writers hold the lock of a file or directory as long
//! as its name is temporary; other entries have no locks and go by their age.

use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use vellum_types::{FileKind, UnixTime};

use super::{BeneathError, HeldDir, remove_stale_hidden_dir, stat_file};

/// Age of symlinks, FIFOs, sockets and devices that no writer needs any more: it renames them at once, so this leaves
/// room for a machine that was suspended, and for clocks of file servers that differ.
const STALE_AGE: Duration = Duration::from_secs(3600);

/// Removes an entry with a temporary name that a killed writer left; false if its writer may be alive.
pub fn remove_stale_entry(parent: &HeldDir, temp: &[u8]) -> Result<bool, BeneathError> {
    remove_stale_entry_at(parent, temp, SystemTime::now())
}

fn remove_stale_entry_at(parent: &HeldDir, temp: &[u8], now: SystemTime) -> Result<bool, BeneathError> {
    let stat = parent.stat(temp)?;
    match stat.kind {
        FileKind::Dir => remove_stale_hidden_dir(parent, temp),
        FileKind::File => remove_stale_file(parent, temp),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => {
            // The change time is that of the last of the writer's calls; the others can be what it was told to set.
            let is_stale = now
                .duration_since(SystemTime::UNIX_EPOCH)
                .is_ok_and(|now| is_older(stat.ctime, now.saturating_sub(STALE_AGE)));
            if is_stale {
                parent.unlink(temp)?;
            }
            Ok(is_stale)
        }
    }
}

fn is_older(time: UnixTime, limit: Duration) -> bool {
    // A change before 1970 was made by no writer, and tells nothing.
    u64::try_from(time.secs).is_ok_and(|secs| secs < limit.as_secs())
}

fn remove_stale_file(parent: &HeldDir, temp: &[u8]) -> Result<bool, BeneathError> {
    let opened = parent.open_file(temp)?;
    // Its writer is alive, or the filesystem has no locks that could tell.
    if flock(&opened.file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    // Before the lock was granted, its writer may have given the file its own name and ended, and another one may have
    // made a file of this name.
    if !parent.stat(temp)?.is_same_file(&stat_file(&opened.file)?) {
        return Ok(false);
    }
    parent.unlink(temp).map(|()| true)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::beneath::{SpecialFile, new_temp_name};

    #[test]
    fn symlinks_and_fifos_of_killed_writers_are_removed_when_they_are_old() {
        let temp = tempfile::tempdir().unwrap();
        let dir = HeldDir::open_root(temp.path()).unwrap();
        let link = new_temp_name().unwrap();
        let fifo = new_temp_name().unwrap();
        dir.create_symlink(&link, b"nowhere").unwrap();
        dir.create_special(&fifo, SpecialFile::Fifo, 0o600).unwrap();
        for name in &[link, fifo] {
            assert!(!remove_stale_entry(&dir, name).unwrap(), "its writer may be alive");
            let later = SystemTime::now() + STALE_AGE + Duration::from_secs(2);
            assert!(remove_stale_entry_at(&dir, name, later).unwrap());
            assert!(dir.stat(name).unwrap_err().is_not_found());
        }
    }

    #[test]
    fn files_are_removed_unless_a_writer_holds_their_lock() {
        let temp = tempfile::tempdir().unwrap();
        let dir = HeldDir::open_root(temp.path()).unwrap();
        let name = new_temp_name().unwrap();
        let file = dir.create_file(&name, 0o600).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!remove_stale_entry(&dir, &name).unwrap());
        drop(file);
        assert!(remove_stale_entry(&dir, &name).unwrap());
        assert!(dir.stat(&name).unwrap_err().is_not_found());
    }
}

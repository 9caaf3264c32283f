//! The watched directories of one tree.
//!
//! Invariant: after [`WatchedTree::refresh_watches`] exactly the directories that rules do not exclude are watched,
//! each with the rules of its current path; a directory that was moved keeps its watch descriptor.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use vellum_host::beneath::HeldDir;
use vellum_types::FileKind;

use crate::error::{Result, SyncError};
use crate::local::scan::{EntryFilter, is_own_name, read_rule_file};
use crate::model::path::{join_path, split_path};

/// The events that are requested for a directory: changes, and no reads.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::EXCL_UNLINK);
/// Bytes of events that are read at once: some hundred events.
const EVENTS_BUFFER: usize = 16 << 10;

/// The result of reading events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEvent {
    /// No relevant change.
    Nothing,
    /// Something changed.
    Change,
    /// The kernel dropped events.
    Overflow,
}

/// Whether all directories are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchCoverage {
    /// All are watched.
    Whole,
    /// The limit of watches was reached: other directories have to be scanned periodically.
    Partial,
}

struct WatchedDirectory {
    judge: Arc<dyn EntryFilter>,
    /// The number of the last refresh that found it.
    round: u64,
}

/// A directory to be watched: its path, and the rules of the directory that contains it.
type DirectoryToWatch = (Vec<u8>, Arc<dyn EntryFilter>);

/// The watched directories of one tree.
pub struct WatchedTree {
    root: HeldDir,
    rules: Arc<dyn EntryFilter>,
    instance: OwnedFd,
    watched: HashMap<i32, WatchedDirectory>,
    round: u64,
}

impl AsFd for WatchedTree {
    /// Becomes readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.instance.as_fd()
    }
}

impl WatchedTree {
    /// Creates the inotify instance, without watches yet.
    pub fn new(root: HeldDir, rules: Arc<dyn EntryFilter>) -> Result<Self> {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let instance =
            inotify::init(flags).map_err(|errno| SyncError::wrap_io_error("watch")(errno.into()))?;
        Ok(Self { root, rules, instance, watched: HashMap::new(), round: 0 })
    }

    /// The number of watched directories.
    #[must_use]
    pub fn len(&self) -> usize {
        self.watched.len()
    }

    /// Whether no directory is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Watches the directories that exist now, and no others.
    pub fn refresh_watches(&mut self) -> Result<WatchCoverage> {
        self.round += 1;
        let mut coverage = WatchCoverage::Whole;
        let mut waiting = vec![(Vec::new(), self.rules.clone())];
        while let Some((path, judge)) = waiting.pop() {
            match self.watch_dir(&path, &judge) {
                Ok(below) => waiting.extend(below),
                // ENOSPC means that `fs.inotify.max_user_watches` is reached. The caller checks such a tree
                // periodically as well.
                Err(error) if is_watch_limit(&error) => coverage = WatchCoverage::Partial,
                // The directory was removed after its name was read, or may not be read. The next run reports
                // that.
                Err(SyncError::Beneath(_)) if !path.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        let round = self.round;
        let stale: Vec<i32> =
            self.watched.iter().filter(|(_, watched)| watched.round != round).map(|(wd, _)| *wd).collect();
        for wd in stale {
            self.watched.remove(&wd);
            // This fails if the directory was deleted, because the kernel has removed its watch already.
            let _ = inotify::remove_watch(&self.instance, wd);
        }
        Ok(coverage)
    }

    /// Watches one directory; returns its subdirectories, with the rules that apply in it.
    fn watch_dir(&mut self, path: &[u8], above: &Arc<dyn EntryFilter>) -> Result<Vec<DirectoryToWatch>> {
        let (dir_path, name) = split_path(path);
        // A new descriptor for each refresh: the names are read from its beginning.
        let dir = if path.is_empty() {
            self.root.reopen_to_read()?
        } else {
            self.root.resolve_dir(dir_path)?.open_dir(name)?
        };
        let read = |name: &[u8]| read_rule_file(&dir, name);
        let judge = above.enter_dir(name, &read)?.unwrap_or_else(|| above.clone());
        // The watch is added first, so that changes while the names are read cause events.
        let wd = dir.add_inotify_watch(&self.instance, EVENTS)?;
        self.watched.insert(wd, WatchedDirectory { judge: judge.clone(), round: self.round });
        let mut below = Vec::new();
        for listed in dir.read_names()?.iter().filter(|listed| listed.is_dir != Some(false)) {
            let is_dir = match listed.is_dir {
                Some(is_dir) => is_dir,
                None => dir.stat(listed.name).is_ok_and(|stat| stat.kind == FileKind::Dir),
            };
            if is_dir && !is_own_name(listed.name) && judge.evaluate_entry(listed.name, true).transfer {
                below.push((join_path(path, listed.name), judge.clone()));
            }
        }
        Ok(below)
    }

    /// Reads the available events without waiting.
    pub fn read_events(&mut self) -> Result<WatchEvent> {
        let mut noticed = WatchEvent::Nothing;
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BUFFER];
        let mut reader = inotify::Reader::new(&self.instance, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(noticed),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(SyncError::wrap_io_error("watch")(errno.into())),
            };
            // The kernel dropped events. Their subjects are unknown, so everything has to be scanned.
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                noticed = WatchEvent::Overflow;
                continue;
            }
            let is_dir = event.events().contains(ReadFlags::ISDIR);
            let name = event.file_name().map(std::ffi::CStr::to_bytes);
            let concerns = match (self.watched.get(&event.wd()), name) {
                // Temporary files of a run that writes here are no changes of the user's. Counting them would
                // start the next run when one ends.
                (Some(_), Some(name)) if is_own_name(name) => false,
                (Some(watched), Some(name)) => watched.judge.evaluate_entry(name, is_dir).transfer,
                // The directory itself was changed, moved or deleted.
                (Some(_), None) => !event.events().contains(ReadFlags::IGNORED),
                // The last words of a watch that was given up.
                (None, _) => false,
            };
            if concerns && noticed == WatchEvent::Nothing {
                noticed = WatchEvent::Change;
            }
        }
    }
}

/// Whether the limit of watches or of open files was reached.
fn is_watch_limit(error: &SyncError) -> bool {
    match error {
        SyncError::Beneath(error) => {
            matches!(error.errno(), Some(Errno::NOSPC | Errno::MFILE | Errno::NFILE))
        }
        _ => false,
    }
}

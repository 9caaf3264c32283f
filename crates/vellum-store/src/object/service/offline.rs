//! Whether requests are sent at all: not while the user is offline by choice, nor right after the service did not answer.
//!
//! The choice is a file in the cache of the store, so that it counts for all processes of a user, and stays. Invariant: a
//! request that is not sent fails at once.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_host::private_dir::create_private_dir;
use vellum_types::LookupResult;

use crate::object::cache::CacheDisk;
use crate::object::open::RequestLimits;

/// The file whose existence means that the user chose to be offline.
const OFFLINE_FILE: &str = "offline";

/// Why a request is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithheldRequest {
    /// The user chose so.
    Offline,
    /// Whoever opened the store wants only what is here.
    OnlyCached,
    /// The service did not answer a moment ago.
    Unanswered,
}

impl WithheldRequest {
    pub fn describe(self) -> &'static str {
        match self {
            Self::Offline => "requests are switched off: 'vellum offline off' switches them on",
            Self::OnlyCached => "it is not in the cache, and nothing is sent",
            Self::Unanswered => "the service did not answer a moment ago",
        }
    }
}

/// Decides whether requests are sent.
pub(super) struct RequestSwitch {
    /// The disk with the file; none if there is no place for it.
    disk: Option<Arc<CacheDisk>>,
    /// What the user chose, when the disk answered last.
    was_offline: AtomicBool,
    sends_requests: bool,
    /// For how long nothing is sent after the service did not answer.
    break_for: Duration,
    broken: Mutex<Option<Instant>>,
    /// Whether requests are sent during a break, too.
    ignores_silence: AtomicBool,
}

impl RequestSwitch {
    /// The switch in the cache of a store.
    pub fn new(cache: Option<&Path>, limits: &RequestLimits) -> Self {
        Self {
            disk: cache.map(CacheDisk::for_folder),
            was_offline: AtomicBool::new(false),
            sends_requests: limits.sends_requests,
            break_for: limits.break_for,
            broken: Mutex::new(None),
            ignores_silence: AtomicBool::new(false),
        }
    }

    /// Why a request is not to be sent now.
    pub fn find_obstacle(&self) -> Option<WithheldRequest> {
        if !self.sends_requests {
            return Some(WithheldRequest::OnlyCached);
        }
        // Looked up for each request, which costs microseconds: the switch must work on mounts that are running.
        if let Some(disk) = &self.disk
            && let Ok(is_offline) = disk.run(is_offline)
        {
            self.was_offline.store(is_offline, Ordering::Relaxed);
        }
        if self.was_offline.load(Ordering::Relaxed) {
            return Some(WithheldRequest::Offline);
        }
        let is_broken = self.broken.lock().is_some_and(|since| since.elapsed() < self.break_for);
        let is_withheld = is_broken && !self.ignores_silence.load(Ordering::Relaxed);
        is_withheld.then_some(WithheldRequest::Unanswered)
    }

    /// Ends breaks for good.
    pub fn ignore_silence(&self) {
        self.ignores_silence.store(true, Ordering::Relaxed);
    }

    /// The service did not answer, however often it was asked.
    pub fn note_unanswered(&self) {
        *self.broken.lock() = Some(Instant::now());
    }
}

/// Switches requests off or on, in the cache of a store. True if that changed anything.
pub(in crate::object) fn set_offline(cache: &Path, is_offline: bool) -> io::Result<bool> {
    let file = cache.join(OFFLINE_FILE);
    if is_offline {
        create_private_dir(cache)?;
        // `O_EXCL`, so that only one of two commands reports a change.
        let made = File::options().write(true).create_new(true).mode(0o600).open(&file);
        return match made {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        };
    }
    Ok(fs::remove_file(&file).none_if_missing()?.is_some())
}

/// Whether requests are switched off.
pub(in crate::object) fn is_offline(cache: &Path) -> io::Result<bool> {
    // A folder that cannot be read has no such file: requests are sent, as they are without a cache.
    Ok(cache.join(OFFLINE_FILE).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_withheld_while_the_file_is_there() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let cache = dir.path().join("cache");
        let limits = RequestLimits { break_for: Duration::from_hours(1), ..RequestLimits::default() };
        let switch = RequestSwitch::new(Some(&cache), &limits);
        assert_eq!(switch.find_obstacle(), None);
        assert!(set_offline(&cache, true)? && !set_offline(&cache, true)?);
        assert!(is_offline(&cache)?);
        assert_eq!(switch.find_obstacle(), Some(WithheldRequest::Offline));
        assert!(set_offline(&cache, false)? && !set_offline(&cache, false)?);
        assert_eq!(switch.find_obstacle(), None);
        switch.note_unanswered();
        assert_eq!(switch.find_obstacle(), Some(WithheldRequest::Unanswered));
        switch.ignore_silence();
        assert_eq!(switch.find_obstacle(), None);
        let limits = RequestLimits { sends_requests: false, ..limits };
        let switch = RequestSwitch::new(None, &limits);
        assert_eq!(switch.find_obstacle(), Some(WithheldRequest::OnlyCached));
        Ok(())
    }
}

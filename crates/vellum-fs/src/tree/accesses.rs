//! Access times that no change has recorded yet.
//!
//! Reading alone must not make a worktree differ from its snapshot: so an access time is kept and shown from here
//! only, and goes into the map with the next change of the inode's attributes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vellum_types::{Ino, InodeAttr, MapKey, MapKeyRef, UnixTime};

/// Most inodes that are remembered, some MiB: above that all are forgotten, as they are when the worktree is closed.
const MOST: usize = 1 << 16;

/// Times of accesses.
#[derive(Debug, Default)]
pub struct AccessTimes {
    times: Mutex<HashMap<Ino, UnixTime>>,
    /// Whether there are any: most changes need not look.
    any: AtomicBool,
}

impl AccessTimes {
    /// Remembers an access.
    pub fn record_access(&self, ino: Ino, time: UnixTime) {
        let mut times = self.times.lock();
        if times.len() >= MOST {
            times.clear();
        }
        times.insert(ino, time);
        self.any.store(true, Ordering::Release);
    }

    /// Puts what is remembered into attributes that were read from the map.
    pub fn apply_access_time(&self, ino: Ino, attr: &mut InodeAttr) {
        if self.any.load(Ordering::Acquire)
            && let Some(time) = self.times.lock().get(&ino)
        {
            // A time that somebody set may be later than the access.
            attr.atime = attr.atime.max(*time);
        }
    }

    /// Forgets the inodes whose attributes were changed.
    pub fn forget_changed(&self, changed: &[MapKey]) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut times = self.times.lock();
        for key in changed {
            if let Ok(MapKeyRef::Attr(ino)) = MapKeyRef::parse(key.as_bytes()) {
                times.remove(&ino);
            }
        }
    }

    /// Forgets everything.
    pub fn forget_all(&self) {
        // `any` stays: for nothing to be found costs a look, and no wrong answer.
        self.times.lock().clear();
    }
}

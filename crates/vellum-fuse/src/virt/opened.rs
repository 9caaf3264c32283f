//! Virtual files that are open: text made when it was opened, or the log of requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use vellum_fs::Result;

use crate::tally::access_log::Reader;

/// What an open virtual file reads.
#[derive(Debug, Clone)]
pub enum Opened {
    /// This text.
    Text(Arc<[u8]>),
    /// Requests, as they come.
    Log(Arc<Reader>),
}

/// The table of open virtual files.
#[derive(Debug, Default)]
pub struct VirtualFiles {
    open: Mutex<HashMap<u64, Opened>>,
    next: AtomicU64,
}

impl VirtualFiles {
    /// Adds a file; gives its handle.
    pub fn add(&self, opened: Opened) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(handle, opened);
        handle
    }

    /// What a handle reads.
    pub fn get(&self, handle: u64) -> Result<Opened> {
        Ok(self.lock().get(&handle).cloned().ok_or(Errno::BADF)?)
    }

    /// Closes a handle.
    pub fn close(&self, handle: u64) {
        self.lock().remove(&handle);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Opened>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

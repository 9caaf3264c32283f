//! The thread that removes orphans after the kernel has forgotten them.
//!
//! The kernel forgets a removed file right after its name is removed. Removing each orphan at once would be one
//! transaction per file; all that are released within a few milliseconds are removed in one transaction.
//!
//! Invariant: a released orphan is removed soon, and before the thread ends.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use vellum_fs::LiveFilesystem;
use vellum_host::error_chain::format_error_chain;

use super::FailureObserver;

/// For how long released inodes are collected.
const GATHER: Duration = Duration::from_millis(10);

/// Removes released orphans until it is dropped.
pub(crate) struct OrphanRemover {
    shared: Arc<OrphanRemoverShared>,
    thread: Option<JoinHandle<()>>,
}

struct OrphanRemoverShared {
    fs: Arc<LiveFilesystem>,
    report: Arc<FailureObserver>,
    state: Mutex<OrphanRemoverState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OrphanRemoverState {
    is_requested: bool,
    is_over: bool,
}

impl OrphanRemover {
    /// Starts the thread.
    pub fn start(fs: Arc<LiveFilesystem>, report: Arc<FailureObserver>) -> io::Result<Self> {
        let shared =
            Arc::new(OrphanRemoverShared { fs, report, state: Mutex::default(), changed: Condvar::new() });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("vellum-orphans".into())
            .spawn(move || for_thread.run_remover())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has the thread remove what is released.
    pub fn request_removal(&self) {
        let mut state = self.shared.state.lock();
        if !state.is_requested {
            state.is_requested = true;
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for OrphanRemover {
    fn drop(&mut self) {
        // Set under the lock, so that the thread cannot miss it between its look and its wait.
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl OrphanRemoverShared {
    fn run_remover(&self) {
        loop {
            let is_over = self.wait_for_request();
            if let Err(error) = self.fs.epochs().remove_released_orphans()
                // The loss of the lease is reported once, by the thread that discovers it.
                && !error.is_fenced_error()
            {
                // They are removed when the worktree is mounted the next time.
                (self.report)(&format!(
                    "files without a name cannot be removed: {}",
                    format_error_chain(&error)
                ));
            }
            if is_over {
                return;
            }
        }
    }

    /// Waits for a request, and then a while for further ones. Returns true if the thread is to end.
    fn wait_for_request(&self) -> bool {
        let idle = |state: &mut OrphanRemoverState| !state.is_requested && !state.is_over;
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, idle);
        // Orphans that are released meanwhile are removed in the same transaction. A mount that ends does not wait
        // for more.
        self.changed.wait_while_for(&mut state, |state| !state.is_over, GATHER);
        // Reset before the removal and under the lock: an orphan that is released during the removal requests another
        // one.
        state.is_requested = false;
        state.is_over
    }
}

//! The thread that renews a lease as long as its worktree is mounted.

use std::sync::Arc;
use std::thread::JoinHandle;

use vellum_host::fork_safe::{Condvar, Mutex};
use vellum_store::RequestPurpose;

use super::HeldLease;
use crate::error::VolumeError;

/// Renews a lease until it is dropped, or the lease is lost.
pub struct LeaseKeeper {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread to end.
#[derive(Default)]
struct StopSignal {
    is_set: Mutex<bool>,
    wake: Condvar,
}

impl LeaseKeeper {
    /// Starts the thread. It calls `when_lost` once, if another process takes the lease.
    pub fn start(
        tenure: Arc<HeldLease>,
        when_lost: impl FnOnce(&VolumeError) + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(StopSignal::default());
        let stopped = stop.clone();
        let keep = move || {
            RequestPurpose::Upkeep.set_for_thread();
            while !wait_for_renewal(&stopped, &tenure) {
                // A store that is away is tried again; whoever writes meanwhile looks for itself.
                let _ = tenure.renew_lease();
                if let Some(error) = tenure.lease_loss() {
                    return when_lost(&error);
                }
            }
        };
        let thread = std::thread::Builder::new().name("lease".into()).spawn(keep)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Waits until a renewal is due; returns true if the thread is to stop.
fn wait_for_renewal(signal: &StopSignal, tenure: &HeldLease) -> bool {
    let mut is_set = signal.is_set.lock();
    signal.wake.wait_while_for(&mut is_set, |is_set| !*is_set, tenure.renewal_period());
    *is_set
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        // Set under the lock that the thread waits with, so the notification cannot fall between its check and its
        // wait.
        *self.stop.is_set.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already.
            let _ = thread.join();
        }
    }
}

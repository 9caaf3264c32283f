//! The thread that renews a lease as long as its worktree is mounted.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::HeldLease;
use crate::error::VolumeError;

/// Renews a lease until it is dropped, or the lease is lost.
pub struct LeaseKeeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseKeeper {
    /// Starts the thread. It calls `when_lost` once, if another process takes the lease.
    pub fn start(
        tenure: Arc<HeldLease>,
        when_lost: impl FnOnce(&VolumeError) + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let keep = move || {
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
fn wait_for_renewal((stop, wake): &(Mutex<bool>, Condvar), tenure: &HeldLease) -> bool {
    let mut stop = stop.lock();
    wake.wait_while_for(&mut stop, |stop| !*stop, tenure.renewal_period());
    *stop
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        let (stop, wake) = &*self.stop;
        *stop.lock() = true;
        wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already.
            let _ = thread.join();
        }
    }
}

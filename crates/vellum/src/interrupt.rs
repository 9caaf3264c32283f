//! Ctrl-C: the first one asks the running operation to stop cleanly, the second one kills it.
//!
//! Deliberately absent: what stopping means for an operation; it checks its meter between two items.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use vellum_host::wait::LongWait;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static FINISHES: AtomicBool = AtomicBool::new(false);
static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// From now on a signal sets the flag, and a second one ends the process as it would have without us.
/// Called when a long operation starts: commands without one die at once, as usual.
pub fn install_signal_handlers() -> Arc<AtomicBool> {
    // Once for the process: of two sets of handlers, the second one's conditional handler would find the flag that
    // the first one has just set, and the first signal would kill.
    let stop_flag = ASKED.get_or_init(|| {
        let stop_flag = Arc::new(AtomicBool::new(false));
        let first = SIGNAL.get_or_init(Arc::default);
        for signal in [SIGINT, SIGTERM] {
            // Errors are ignored: the kernel refuses a handler for SIGKILL and SIGSTOP only.
            let _ = flag::register_usize(signal, first.clone(), usize::try_from(signal).unwrap_or_default());
            // In this order: the handler of the second signal finds the flag set by the first.
            let _ = flag::register_conditional_default(signal, stop_flag.clone());
            let _ = flag::register(signal, stop_flag.clone());
        }
        stop_flag
    });
    stop_flag.clone()
}

/// From now on an operation under way is finished before the first signal is heeded.
pub fn finish_before_stop() {
    FINISHES.store(true, Ordering::Relaxed);
}

/// Whether the operation under way is to stop.
pub fn should_stop(flag: &AtomicBool) -> bool {
    is_stop_requested(flag) && !FINISHES.load(Ordering::Relaxed)
}

/// The exit code of a process that stopped because it was asked to: 128 and the signal, as shells have it. None if no
/// signal has arrived.
pub fn signal_exit_code() -> Option<u8> {
    /// What a shell adds to the number of the signal that ended a process.
    const BY_SIGNAL: usize = 128;
    let signal = SIGNAL.get()?.load(Ordering::Relaxed);
    // Zero: no signal has arrived.
    u8::try_from(BY_SIGNAL + signal).ok().filter(|_| signal != 0)
}

/// Whether the user asked to stop.
pub fn is_stop_requested(flag: &AtomicBool) -> bool {
    // Relaxed is enough: the flag stands for itself, and no other data is published with it.
    flag.load(Ordering::Relaxed)
}

/// Forgets a Ctrl-C that was meant for a program which has the terminal. A request to end stays.
pub fn forget_ctrl_c(flag: &AtomicBool) {
    let ctrl_c = usize::try_from(SIGINT).unwrap_or_default();
    let is_last = |last: &Arc<AtomicUsize>| {
        last.compare_exchange(ctrl_c, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    // The number of the signal before the flag, as the handlers set them.
    if SIGNAL.get().is_some_and(is_last) {
        flag.store(false, Ordering::Relaxed);
    }
}

/// Reports long waits, each cause once, and ends them when the user asked to stop.
pub fn observe_long_waits() {
    // Waits happen in any thread, and the user interface belongs to the main one: what is said here goes to standard
    // error directly.
    vellum_host::wait::observe_long_waits(|wait| {
        static LOCK_REPORTED: AtomicBool = AtomicBool::new(false);
        static STORE_REPORTED: AtomicBool = AtomicBool::new(false);
        static CLAIM_REPORTED: AtomicBool = AtomicBool::new(false);
        match wait {
            LongWait::Lock { object, holder } => {
                if !LOCK_REPORTED.swap(true, Ordering::Relaxed) {
                    let holder =
                        holder.map_or_else(|| "another process".into(), |pid| format!("process {pid}"));
                    print_to_stderr(&format!(
                        "warning: waiting for {holder}, which holds the lock of {object}; Ctrl-C stops"
                    ));
                }
            }
            // A slow answer alone is no reason for a warning: the request is still under way. As any other wait, it
            // can be ended by Ctrl-C.
            LongWait::StoreAnswer => {}
            LongWait::StoreRetry { store, reason, .. } => {
                if !STORE_REPORTED.swap(true, Ordering::Relaxed) {
                    print_to_stderr(&format!("warning: {store}: {reason}; trying again, Ctrl-C stops"));
                }
            }
            LongWait::WriterClaim { store, pause } => {
                if !CLAIM_REPORTED.swap(true, Ordering::Relaxed) {
                    let seconds = pause.as_secs();
                    print_to_stderr(&format!(
                        "checking for {seconds} s that no other machine writes to {store}; Ctrl-C stops"
                    ));
                }
            }
        }
        // The first long wait installs the handlers: from then on Ctrl-C ends the wait with an error, in order,
        // instead of killing the process.
        !should_stop(&install_signal_handlers())
    });
}

/// Nobody may read standard error any more, which is no reason to end the work, as `eprintln` would.
fn print_to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

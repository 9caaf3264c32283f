//! The private runtime on which requests run, so that callers may or may not be inside a runtime of their own.

use std::pin::Pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tokio::runtime::Runtime;
use vellum_host::per_process::PerProcess;
use vellum_host::wait::{LongWait, go_on_waiting};

use super::exchange::{ExchangeRecord, current_record, record_exchange};

/// Worker threads of the runtime, a count: they only wait for sockets.
const RUNTIME_THREADS: usize = 2;
/// How often a wait checks whether it is to end.
const TICK: Duration = Duration::from_millis(50);

/// Why a future was not run to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunError {
    /// The user asked to stop.
    Interrupted,
    /// The system has no threads for the runtime.
    NoRuntime,
}

/// Runs a future to its end on the private runtime, which is made when first needed. On request it is dropped before that.
pub(super) fn run_future<F>(future: F) -> Result<F::Output, RunError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    wait_for_future(future, &|| go_on_waiting(|| LongWait::StoreAnswer))
}

/// The same for a future that must not be dropped half-way: its requests have deadlines, so it ends.
pub(super) fn run_future_to_end<F>(future: F) -> Result<F::Output, RunError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    wait_for_future(future, &|| true)
}

fn wait_for_future<F>(future: F, may_wait: &dyn Fn() -> bool) -> Result<F::Output, RunError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    // A fork has none of its threads: a request that was spawned there would never be sent.
    static RUNTIME: PerProcess<Option<Runtime>> = PerProcess::new();
    let start = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(RUNTIME_THREADS).thread_name("vellum-store").enable_all().build().ok()
    };
    let runtime = RUNTIME.get_or_init(start).as_ref().ok_or(RunError::NoRuntime)?;
    // `block_on` would panic if the caller is inside a runtime of its own.
    let (done, result) = mpsc::sync_channel(1);
    let task = runtime.spawn(async move {
        // Nobody waits any more if the wait was interrupted.
        let _ = done.send(future.await);
    });
    loop {
        match result.recv_timeout(TICK) {
            Ok(output) => return Ok(output),
            // The task panicked, or the runtime is gone.
            Err(RecvTimeoutError::Disconnected) => return Err(RunError::NoRuntime),
            Err(RecvTimeoutError::Timeout) if may_wait() => {}
            Err(RecvTimeoutError::Timeout) => {
                // The request ends with its connection. Whether the service has carried it out stays unknown.
                task.abort();
                return Err(RunError::Interrupted);
            }
        }
    }
}

/// Runs parts of one operation at the same time, on the runtime that the operation runs on.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuntimeSpawner;

impl opendal::Execute for RuntimeSpawner {
    fn execute(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // Requests of the part count for what the operation is for. They have a record of their own, since answers
        // to other parts would replace theirs.
        let purpose = current_record().map(|record| record.purpose()).unwrap_or_default();
        tokio::spawn(record_exchange(ExchangeRecord::for_purpose(purpose), future));
    }
}

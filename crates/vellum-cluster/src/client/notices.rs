//! The thread that tells the kernel what to drop, and then what waits for that: the confirmation of a recall, or a request
//! that changes what the kernel had cached.
//!
//! The kernel can hold a notice up until a request is answered that needs no lease, such as a read. So the thread neither
//! takes requests, nor sends them, nor receives answers.
//!
//! Invariant: what is enqueued is done in its order. So what the kernel was told, or is about to be told, to drop, is
//! dropped before anything is done that was enqueued later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use vellum_fuse::wire::{FuseRequest, RequestHeader};

use super::ClientShared;
use super::cached_answers::{BegunChange, RecallConfirmation};
use super::kernel_grants::KernelNotice;
use super::queue::OperationReply;
use crate::protocol::LEASE_TERM;

/// What the kernel of a mount has cached.
pub trait KernelCaches: Send + Sync + 'static {
    /// Whether [`KernelCaches::drop_names`] does what it says.
    fn can_drop_names(&self) -> bool;
    /// Whether anything else is mounted in the mount, which [`KernelCaches::drop_names`] would unmount.
    fn holds_mounts(&self) -> bool;
    /// Drops all names of the mount, also those whose lookups are under way. Must not wait for anything.
    fn drop_names(&self);
    /// Drops the attributes of a node, also those that it was answered and has not noted yet.
    fn drop_attributes(&self, node: u64);
    /// Takes note that no names are cached any more, since something is mounted there.
    fn note_names_end(&self);
}

/// What waits until the kernel has dropped something.
pub enum NoticeTask {
    /// The confirmation of a recall.
    Recall(RecallConfirmation),
    /// A request that changes something.
    Change(WaitingChange),
    /// Nothing but the end of the connection.
    Loss(Vec<KernelNotice>),
}

/// A request that is sent when the kernel has dropped what it changes.
pub struct WaitingChange {
    pub header: RequestHeader,
    pub body: Vec<u8>,
    pub change: BegunChange,
    pub reply: OperationReply,
}

impl WaitingChange {
    pub fn new(request: &FuseRequest<'_>, change: BegunChange, reply: OperationReply) -> Self {
        Self { header: request.header, body: request.body().to_vec(), change, reply }
    }
}

/// The tasks of the thread.
#[derive(Default)]
pub struct NoticeQueue {
    state: Mutex<NoticeState>,
    changed: Condvar,
}

#[derive(Default)]
struct NoticeState {
    /// None: there is no kernel that caches anything.
    kernel: Option<Arc<dyn KernelCaches>>,
    tasks: VecDeque<NoticeTask>,
    is_busy: bool,
    has_ended: bool,
}

impl NoticeQueue {
    /// From now on there is a kernel that caches something.
    pub fn attach_kernel(&self, kernel: Arc<dyn KernelCaches>) {
        self.state.lock().kernel = Some(kernel);
    }

    /// Adds a task.
    pub fn enqueue_task(&self, task: NoticeTask) {
        let mut state = self.state.lock();
        if !state.has_ended {
            state.tasks.push_back(task);
            self.changed.notify_all();
        }
    }

    /// Whether everything is done that was enqueued.
    pub fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    /// Waits until everything is done that was enqueued, for `time` at most.
    pub fn wait_until_idle(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.is_idle() && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    /// Waits for `time`, or until the client ends.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.has_ended && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    /// The client ends: requests that wait fail.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        let tasks = std::mem::take(&mut state.tasks);
        // The kernel's device stays open as long as anybody has it.
        state.kernel = None;
        drop(state);
        self.changed.notify_all();
        drop(tasks);
    }

    /// The next task, and whom it concerns; None: the client has ended.
    fn next_task(&self) -> Option<(NoticeTask, Arc<dyn KernelCaches>)> {
        let mut state = self.state.lock();
        state.is_busy = false;
        self.changed.notify_all();
        loop {
            if state.has_ended {
                return None;
            }
            if let Some(kernel) = state.kernel.clone()
                && let Some(task) = state.tasks.pop_front()
            {
                state.is_busy = true;
                return Some((task, kernel));
            }
            self.changed.wait(&mut state);
        }
    }
}

impl NoticeState {
    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && !self.is_busy
    }
}

/// Does what is enqueued until the client ends.
pub fn run_notices(shared: &ClientShared) {
    while let Some((task, kernel)) = shared.notices.next_task() {
        match task {
            NoticeTask::Recall(confirmation) => {
                send_notices(shared, &*kernel, &confirmation.notices);
                shared.queue.lock().confirm_recall(&confirmation);
                shared.changed.notify_one();
            }
            NoticeTask::Change(waiting) => {
                send_notices(shared, &*kernel, &waiting.change.notices);
                let failed = shared.queue.lock().add_waiting_change(waiting);
                shared.changed.notify_one();
                if let Some(failed) = failed {
                    failed.send_answer();
                }
            }
            NoticeTask::Loss(notices) => send_notices(shared, &*kernel, &notices),
        }
    }
}

fn send_notices(shared: &ClientShared, kernel: &dyn KernelCaches, notices: &[KernelNotice]) {
    for notice in notices {
        match notice {
            KernelNotice::Names if kernel.holds_mounts() => {
                // Otherwise a task before this one has waited.
                if shared.queue.lock().end_kernel_names() {
                    // Until the kernel uses no name any more that it was ever told. That is sooner than the server gives this
                    // client up.
                    shared.notices.pause(LEASE_TERM);
                    kernel.note_names_end();
                }
            }
            KernelNotice::Names => kernel.drop_names(),
            KernelNotice::Attributes(node) => kernel.drop_attributes(*node),
        }
    }
}

//! Takes the requests of a mount's kernel.
//!
//! Invariant: a thread that takes requests waits for nothing but a lock that is held for a moment.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use vellum_fuse::transport::{DeferredReply, RequestService};
use vellum_fuse::wire::{FuseAnswer, FuseOperation, FuseRequest, Opcode, RequestHeader};

use super::notices::{NoticeTask, WaitingChange};
use super::queue::OperationReply;
use super::{ClientShared, CloseGuarantee};

/// Forwards the requests of a mount.
pub struct ForwardingService {
    shared: Arc<ClientShared>,
}

impl ForwardingService {
    pub(super) fn new(shared: Arc<ClientShared>) -> Self {
        Self { shared }
    }

    /// Answers the end of a descriptor when everything that was changed before is durable.
    fn close_durably(&self, request: &FuseRequest<'_>, later: DeferredReply<'_>) -> FuseAnswer {
        let header = RequestHeader { opcode: Opcode::Fsync.number(), ..request.header };
        let mut queue = self.shared.queue.lock();
        // Also if it cannot be made durable: the locks of the descriptor end with it. Nobody waits for this answer, as the
        // next request is answered after it.
        queue.add_request(request, OperationReply::Nobody);
        let is_lost = queue.take_loss(&header);
        if !is_lost {
            let sync = FuseRequest::from_parts(header, &SYNC_BODY);
            queue.add_request(&sync, OperationReply::Kernel(later.into_pending()));
        }
        drop(queue);
        self.shared.changed.notify_one();
        if is_lost { FuseAnswer::Failed(Errno::IO) } else { FuseAnswer::Later }
    }
}

/// The body of an `fsync` (`fuse_fsync_in`) of content and attributes. The server needs no handle.
const SYNC_BODY: [u8; 16] = [0; 16];

impl RequestService for ForwardingService {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        if !matches!(operation, FuseOperation::Forget { .. } | FuseOperation::BatchForget(_)) {
            self.shared.kernel_requests.fetch_add(1, Ordering::Relaxed);
        }
        match operation {
            // The handshake was before the first request that arrives here.
            FuseOperation::Init(_) => return FuseAnswer::Failed(Errno::IO),
            FuseOperation::Destroy => return FuseAnswer::Done,
            FuseOperation::Unknown => return FuseAnswer::Failed(Errno::NOSYS),
            FuseOperation::Forget { times } => {
                self.shared.queue.lock().forget_node(request.header.node, times);
            }
            FuseOperation::BatchForget(forgotten) => {
                let mut queue = self.shared.queue.lock();
                forgotten.iter_nodes().for_each(|(node, times)| queue.forget_node(node, times));
            }
            FuseOperation::Interrupt { unique } => {
                let interrupted = self.shared.queue.lock().interrupt_request(unique);
                self.shared.changed.notify_one();
                if let Some(interrupted) = interrupted {
                    interrupted.send_answer();
                }
            }
            // The server keeps nothing of open directories.
            FuseOperation::Releasedir => return FuseAnswer::Done,
            // A program that has only read waits for nothing.
            FuseOperation::Flush { .. }
                if self.shared.options.close == CloseGuarantee::Durable
                    && self.shared.queue.lock().has_to_sync(request.header.node) =>
            {
                return self.close_durably(request, later);
            }
            FuseOperation::Write { data, .. } if self.shared.stores_write(data.len()) => {
                self.shared.enqueue_upload(request, later.into_pending());
                return FuseAnswer::Later;
            }
            _ => {
                let mut queue = self.shared.queue.lock();
                // In one step with adding the request: a loss that is noted in between finds it among those that wait.
                if queue.refuses(request) {
                    return FuseAnswer::Failed(Errno::IO);
                }
                if let Some(answer) = queue.find_cached(request, &operation) {
                    return answer;
                }
                let change = queue.begin_change(request, &operation);
                let reply = OperationReply::Kernel(later.into_pending());
                // What the kernel is about to drop, the queue takes to be dropped.
                if change.changes_nothing() || change.notices.is_empty() && self.shared.notices.is_idle() {
                    queue.add_change(request, Some(&operation), change, reply);
                    drop(queue);
                    self.shared.changed.notify_one();
                } else {
                    let waiting = WaitingChange::new(request, change, reply);
                    self.shared.notices.enqueue_task(NoticeTask::Change(waiting));
                }
                return FuseAnswer::Later;
            }
        }
        // Nobody waits for the server to know: it is told with the next request, or the next heartbeat.
        FuseAnswer::None
    }
}

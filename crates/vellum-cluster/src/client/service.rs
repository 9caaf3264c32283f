//! Takes the requests of a mount's kernel.
//!
//! Invariant: a thread that takes requests waits for nothing but a lock that is held for a moment.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_fuse::transport::{DeferredReply, RequestService};
use vellum_fuse::wire::{FuseAnswer, FuseOperation, FuseRequest};

use super::ClientShared;
use super::queue::OperationReply;

/// Forwards the requests of a mount.
pub struct ForwardingService {
    shared: Arc<ClientShared>,
}

impl ForwardingService {
    pub(super) fn new(shared: Arc<ClientShared>) -> Self {
        Self { shared }
    }
}

impl RequestService for ForwardingService {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
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
            _ if self.shared.queue.lock().is_lock_lost(request) => return FuseAnswer::Failed(Errno::IO),
            _ => {
                let mut queue = self.shared.queue.lock();
                // In one step with adding the request: a loss that is noted in between finds it among those that wait.
                if queue.take_loss(&request.header) {
                    return FuseAnswer::Failed(Errno::IO);
                }
                if let Some(answer) = queue.find_cached(request, &operation) {
                    return answer;
                }
                queue.add_request(request, Some(&operation), OperationReply::Kernel(later.into_pending()));
                drop(queue);
                self.shared.changed.notify_one();
                return FuseAnswer::Later;
            }
        }
        // Nobody waits for the server to know: it is told with the next request, or the next heartbeat.
        FuseAnswer::None
    }
}

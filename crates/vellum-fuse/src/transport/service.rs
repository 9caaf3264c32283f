//! The service that answers requests, and the way that an answer takes back.
//!
//! A request comes from the kernel of this machine, or was forwarded by another machine; its answer goes back there.
//!
//! Invariant: a request that is answered later is answered with `EIO` if its [`PendingAnswer`] is dropped.

use std::sync::Arc;

use rustix::io::Errno;

use super::device::FuseDevice;
use super::gate::ChangePermit;
use super::pending::PendingRequests;
use super::ring::{RequestRing, RingSlot};
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest, MalformedRequest};

/// Answers requests.
pub trait RequestService: Send + Sync + 'static {
    /// Answers a request. If it returns [`FuseAnswer::Later`], it must have taken the request with
    /// [`DeferredReply::into_pending`].
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer;

    /// Whether a read of this content would only copy from memory. May always return false.
    fn is_content_cached(&self, _node: u64, _offset: u64, _len: u32) -> bool {
        false
    }

    /// Whether a write of so many bytes may have to wait until there is room for it. May always return false; then such a
    /// write holds up others.
    fn may_write_wait(&self, _len: usize) -> bool {
        false
    }

    /// Whether any change may have to wait until it is known that it is allowed. May always return false, as for writes.
    fn may_change_wait(&self) -> bool {
        false
    }
}

/// Takes the answers to requests that another machine has forwarded.
pub trait AnswerSink: Send + Sync {
    /// Takes the answer to a request. Must not block: the thread may have other requests to answer.
    fn accept_answer(&self, unique: u64, answer: FuseAnswer);
}

/// Where an answer is written: to where its request came from.
#[derive(Clone)]
pub(super) enum ReplyPath {
    Device(Arc<FuseDevice>),
    Ring(Arc<RequestRing>, RingSlot),
    Forwarded(Arc<dyn AnswerSink>),
}

/// The right to answer a request later, from another thread.
#[derive(Clone, Copy)]
pub struct DeferredReply<'w> {
    path: &'w ReplyPath,
    unique: u64,
    /// Where the request is to be crossed out when it is answered.
    pending: Option<&'w Arc<PendingRequests>>,
    permit: Option<&'w ChangePermit>,
}

/// A request that is to be answered later.
pub struct PendingAnswer {
    path: ReplyPath,
    unique: u64,
    pending: Option<Arc<PendingRequests>>,
    /// Until the request is answered.
    _permit: Option<ChangePermit>,
    is_answered: bool,
}

impl<'w> DeferredReply<'w> {
    pub(super) fn new(path: &'w ReplyPath, unique: u64) -> Self {
        Self { path, unique, pending: None, permit: None }
    }

    /// The same right; a later answer ends the request in `pending`.
    pub(super) fn with_pending(self, pending: &'w Arc<PendingRequests>) -> Self {
        Self { pending: Some(pending), ..self }
    }

    /// The same right; `permit` is kept until the request is answered.
    pub(super) fn with_permit(self, permit: &'w ChangePermit) -> Self {
        Self { permit: Some(permit), ..self }
    }

    /// Takes the request, to be answered from any thread.
    #[must_use]
    pub fn into_pending(self) -> PendingAnswer {
        let path = self.path.clone();
        let pending = self.pending.cloned();
        let permit = self.permit.cloned();
        PendingAnswer { path, unique: self.unique, pending, _permit: permit, is_answered: false }
    }
}

impl PendingAnswer {
    /// Answers the request.
    pub fn send_answer(mut self, answer: FuseAnswer) {
        self.deliver_answer(answer);
    }

    fn deliver_answer(&mut self, answer: FuseAnswer) {
        // Set first: a panic below must not answer a second time.
        self.is_answered = true;
        match &self.path {
            ReplyPath::Device(device) => device.send_answer(self.unique, answer),
            ReplyPath::Ring(ring, slot) => {
                // If the ring is gone, so is the mount, and no process waits for the answer.
                // This thread may be one that tells the kernel what to drop, and waits for it: so it does not submit
                // by itself.
                let _ = ring.answer_slot(*slot, self.unique, answer);
                ring.defer_submission();
            }
            ReplyPath::Forwarded(sink) => sink.accept_answer(self.unique, answer),
        }
        if let Some(pending) = &self.pending {
            pending.end_request(self.unique);
        }
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        if !self.is_answered {
            self.deliver_answer(FuseAnswer::Failed(Errno::IO));
        }
    }
}

/// Has a request of the device answered. A malformed one fails with `EIO`.
pub(super) fn answer_device_request(
    service: &impl RequestService,
    device: &Arc<FuseDevice>,
    request: &FuseRequest<'_>,
    operation: Result<FuseOperation<'_>, MalformedRequest>,
) -> FuseAnswer {
    let path = ReplyPath::Device(device.clone());
    match operation {
        Ok(operation) => {
            service.answer_request(request, operation, DeferredReply::new(&path, request.header.unique))
        }
        Err(_) => FuseAnswer::Failed(Errno::IO),
    }
}

/// Has a request answered that another machine has forwarded: `sink` gets the answer, now or later. A malformed request
/// fails with `EIO`.
pub fn answer_forwarded_request(
    service: &dyn RequestService,
    request: &FuseRequest<'_>,
    sink: &Arc<dyn AnswerSink>,
) {
    let unique = request.header.unique;
    let path = ReplyPath::Forwarded(sink.clone());
    let answer = match request.decode_operation() {
        Ok(operation) => service.answer_request(request, operation, DeferredReply::new(&path, unique)),
        Err(_) => FuseAnswer::Failed(Errno::IO),
    };
    // A request that is answered later may have been answered by now.
    if !matches!(answer, FuseAnswer::Later) {
        sink.accept_answer(unique, answer);
    }
}

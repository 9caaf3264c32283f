//! The gate in front of a service, at which operations wait that change what other machines have cached.
//!
//! Invariant: what the gate gives for an operation is kept until the operation is done, also if it is answered later.

use std::any::Any;
use std::sync::Arc;

use super::service::{DeferredReply, RequestService};
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest};

/// What is dropped when an operation is done.
pub type ChangePermit = Arc<dyn Any + Send + Sync>;

/// Lets operations through.
pub trait ChangeGate: Send + Sync + 'static {
    /// Waits until an operation may be carried out, which `service` will do. None: it changes nothing.
    fn begin_change(
        &self,
        service: &dyn RequestService,
        request: &FuseRequest<'_>,
        operation: &FuseOperation<'_>,
    ) -> Option<ChangePermit>;

    /// Whether a change may have to wait now.
    fn may_wait(&self) -> bool;
}

/// A service behind a gate.
pub struct GatedService<S> {
    service: S,
    gate: Option<Arc<dyn ChangeGate>>,
}

impl<S> GatedService<S> {
    /// A service behind a gate; None: nothing waits.
    pub fn new(service: S, gate: Option<Arc<dyn ChangeGate>>) -> Self {
        Self { service, gate }
    }
}

impl<S: RequestService> RequestService for GatedService<S> {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let gate = self.gate.as_ref();
        let permit = gate.and_then(|gate| gate.begin_change(&self.service, request, &operation));
        match &permit {
            Some(permit) => self.service.answer_request(request, operation, later.with_permit(permit)),
            None => self.service.answer_request(request, operation, later),
        }
    }

    fn is_content_cached(&self, node: u64, offset: u64, len: u32) -> bool {
        self.service.is_content_cached(node, offset, len)
    }

    fn may_write_wait(&self, len: usize) -> bool {
        self.service.may_write_wait(len)
    }

    fn may_change_wait(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.may_wait()) || self.service.may_change_wait()
    }
}

impl RequestService for Arc<dyn RequestService> {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        (**self).answer_request(request, operation, later)
    }

    fn is_content_cached(&self, node: u64, offset: u64, len: u32) -> bool {
        (**self).is_content_cached(node, offset, len)
    }

    fn may_write_wait(&self, len: usize) -> bool {
        (**self).may_write_wait(len)
    }

    fn may_change_wait(&self) -> bool {
        (**self).may_change_wait()
    }
}

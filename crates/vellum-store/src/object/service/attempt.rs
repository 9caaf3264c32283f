//! Sending requests of a store: when, how often, and with which credentials.
//!
//! Invariant: a request that may not be carried out twice is sent by [`ServiceStore::attempt`], which sends it once.

use std::sync::Arc;
use std::time::Duration;

use opendal::Operator;
use vellum_types::ErrorKind;

use super::failure::{FailedRequest, FailureClass};
use super::gate::RequestGate;
use super::hedge::{EndedAttempt, HEDGED_BELOW, send_hedged, send_once};
use super::retry::{RetrySchedule, pause_before_retry};
use super::runtime::{RunError, run_future};
use super::{Attempt, RequestSubject, ServiceStore, operator};
use crate::error::StoreError;
use crate::object::RequestPurpose;

impl ServiceStore {
    /// Sends a request once.
    pub(super) fn attempt<T, F>(
        &self,
        subject: RequestSubject<'_>,
        gate: &Arc<RequestGate>,
        request: impl FnOnce(Operator) -> F,
    ) -> Result<Attempt<T>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = opendal::Result<T>> + Send + 'static,
    {
        self.admit_attempt(subject, gate, |operator, purpose| send_once(purpose, request(operator)))
    }

    /// Sends a small read, and once more if somebody waits for it and the answer takes unusually long.
    fn attempt_hedged<T, F>(
        &self,
        subject: RequestSubject<'_>,
        request: impl Fn(Operator) -> F,
    ) -> Result<Attempt<T>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = opendal::Result<T>> + Send + 'static,
    {
        if RequestPurpose::current() != RequestPurpose::Foreground {
            return self.attempt(subject, &self.pool.reads, request);
        }
        self.admit_attempt(subject, &self.pool.reads, |operator, _| {
            let delay = self.pool.hedging.begin_request(self.limits.hedge_after_min);
            send_hedged(Arc::clone(&self.pool), delay, request(operator.clone()), request(operator))
        })
    }

    /// Waits until a request may be sent, sends it, and counts what came of it.
    fn admit_attempt<T, F>(
        &self,
        subject: RequestSubject<'_>,
        gate: &Arc<RequestGate>,
        send: impl FnOnce(Operator, RequestPurpose) -> F,
    ) -> Result<Attempt<T>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = EndedAttempt<T>> + Send + 'static,
    {
        // Asked before the gate: a request that is not sent must not wait behind those that are.
        if let Some(obstacle) = self.switch.find_obstacle() {
            return Err(self.service_error(subject, ErrorKind::Io, obstacle.describe().into()));
        }
        let purpose = RequestPurpose::current();
        // The permit bounds requests under way. It is held until the answer has arrived, not only while the request
        // is sent.
        let _permit = gate.enter(purpose);
        // Cloned, so that requests under way do not keep others from loading new credentials.
        let operator = self.operator.read().clone();
        let ended =
            run_future(send(operator, purpose)).map_err(|error| self.wrap_run_error(subject, error))?;
        // Any status is an answer, even that of an error: the service can be reached.
        if ended.is_answered {
            self.budget.note_answer();
        }
        if let Some(service_clock) = ended.service_clock {
            self.clock.note_service_clock(service_clock);
        }
        self.pool.traffic.count_discarded(purpose, ended.discarded);
        match &ended.attempt {
            Ok(_) => gate.speed_up(),
            Err(failed) if failed.classify() == FailureClass::Throttled => gate.slow_down(),
            Err(_) => {}
        }
        Ok(ended.attempt)
    }

    /// Sends a request that may be carried out more than once, until it succeeds or fails for good.
    pub(super) fn repeat<T, F>(
        &self,
        subject: RequestSubject<'_>,
        gate: &Arc<RequestGate>,
        request: impl Fn(Operator) -> F,
    ) -> Result<Attempt<T>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = opendal::Result<T>> + Send + 'static,
    {
        let attempt = || self.attempt(subject, gate, &request);
        self.repeat_for(subject, self.limits.retry_for, attempt)
    }

    /// The same for a read of at most `max` bytes.
    pub(super) fn repeat_read<T, F>(
        &self,
        subject: RequestSubject<'_>,
        max: u64,
        request: impl Fn(Operator) -> F,
    ) -> Result<Attempt<T>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = opendal::Result<T>> + Send + 'static,
    {
        if max >= HEDGED_BELOW {
            return self.repeat(subject, &self.pool.reads, request);
        }
        self.repeat_for(subject, self.limits.retry_for, || self.attempt_hedged(subject, &request))
    }

    /// Makes attempts for a time until one succeeds or fails for good.
    pub(super) fn repeat_for<T>(
        &self,
        subject: RequestSubject<'_>,
        retry_for: Duration,
        attempt: impl Fn() -> Result<Attempt<T>, StoreError>,
    ) -> Result<Attempt<T>, StoreError> {
        let mut schedule = self.budget.begin(retry_for);
        let mut can_reload = true;
        loop {
            match attempt()? {
                Ok(output) => return Ok(Ok(output)),
                Err(failed) if self.may_repeat(subject, &failed, &mut schedule, &mut can_reload)? => {}
                Err(failed) => return Ok(Err(failed)),
            }
        }
    }

    /// Decides whether a failed request is repeated, and waits for the right time. Credentials that are refused are
    /// loaded again, once: they may have been renewed since.
    pub(super) fn may_repeat(
        &self,
        subject: RequestSubject<'_>,
        failed: &FailedRequest,
        schedule: &mut RetrySchedule<'_>,
        can_reload: &mut bool,
    ) -> Result<bool, StoreError> {
        if failed.classify() == FailureClass::CredentialsRefused && std::mem::take(can_reload) {
            // Once for each call: credentials that are refused again have not been renewed.
            self.reload_credentials()?;
            return Ok(true);
        }
        match schedule.next_pause(failed) {
            None => {
                // The service was silent for as long as it may be tried. Requests that follow fail at once for a
                // while, instead of waiting as long one after another.
                if failed.exchange.status.is_none() && failed.classify() == FailureClass::Transient {
                    self.switch.note_unanswered();
                    self.budget.note_silence();
                }
                Ok(false)
            }
            Some(pause) if pause_before_retry(&self.location, failed, pause) => {
                self.pool.traffic.count_retry(RequestPurpose::current());
                Ok(true)
            }
            Some(_) => Err(self.wrap_run_error(subject, RunError::Interrupted)),
        }
    }

    fn reload_credentials(&self) -> Result<(), StoreError> {
        let credentials = self.credentials.as_deref();
        let operator = operator::build_operator(
            &self.address,
            credentials,
            &self.limits,
            &self.bandwidth,
            &self.pool.traffic,
        )?;
        // Both are made before either is replaced, so that an error leaves the old ones in use.
        *self.multipart.write() = operator::build_multipart_client(&self.address, credentials, &operator)?;
        *self.operator.write() = operator;
        Ok(())
    }
}

//! Second requests for answers that take unusually long.
//!
//! Invariants: at most one request in [`HEDGED_PART`] is sent twice, and only reads that somebody waits for. The answer that
//! comes first and is one counts; the other request is cancelled. A second request never waits for room: without room
//! the service is busy, and more requests would not help.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::Attempt;
use super::exchange::{ExchangeRecord, record_exchange};
use super::failure::{FailedRequest, FailureClass};
use super::pool::RequestPool;
use crate::object::RequestPurpose;

/// Objects and ranges of less than these bytes are read twice if they take long: sending a large one again costs more than
/// it saves.
pub(super) const HEDGED_BELOW: u64 = 1 << 20;
/// Of so many requests at most one is sent twice: 5 %.
const HEDGED_PART: u64 = 20;
/// Requests whose times are kept, a count.
const TIMES_MAX: usize = 1000;
/// Times without which nothing is known of what is usual, a count.
const TIMES_MIN: usize = 20;

/// Decides when a request is sent twice.
#[derive(Default)]
pub(super) struct HedgePolicy {
    state: Mutex<HedgeState>,
}

#[derive(Default)]
struct HedgeState {
    /// What the last requests took.
    times: VecDeque<Duration>,
    /// Requests that could have been sent twice.
    eligible: u64,
    hedges: u64,
}

/// How a request ended, or the two that were sent for one answer.
pub(super) struct EndedAttempt<T> {
    pub attempt: Attempt<T>,
    /// Whether the service answered, be it with an error.
    pub is_answered: bool,
    /// The service's clock, as it was in an answer.
    pub service_clock: Option<SystemTime>,
    /// Bytes of objects that were received in vain.
    pub discarded: u64,
}

/// A request under way.
struct SentRequest<T> {
    record: ExchangeRecord,
    future: Pin<Box<dyn Future<Output = opendal::Result<T>> + Send>>,
    /// How it failed, once it did.
    failed: Option<FailedRequest>,
}

impl HedgePolicy {
    /// Counts a request that may be sent twice. Returns after which time, at least `min`; none: too little is known.
    pub fn begin_request(&self, min: Duration) -> Option<Duration> {
        let mut state = self.state.lock();
        state.eligible += 1;
        if state.times.len() < TIMES_MIN {
            return None;
        }
        let mut times: Vec<_> = state.times.iter().copied().collect();
        // Selecting from a thousand times takes a while, and every request passes here.
        drop(state);
        // Of requests that are slower than 95 of 100 there are just as many as may be sent twice.
        let place = times.len() * 95 / 100;
        Some((*times.select_nth_unstable(place).1).max(min))
    }

    /// Whether a second request may be sent; it counts as sent.
    fn take_hedge(&self) -> bool {
        let mut state = self.state.lock();
        // Of all so far, and not of the last ones: a service that has become slow must not be asked twice for
        // everything.
        let may = (state.hedges + 1) * HEDGED_PART <= state.eligible;
        state.hedges += u64::from(may);
        may
    }

    /// Notes what an answer took.
    fn note_time(&self, time: Duration) {
        let mut state = self.state.lock();
        if state.times.len() == TIMES_MAX {
            state.times.pop_front();
        }
        state.times.push_back(time);
    }
}

impl<T> SentRequest<T> {
    fn send(
        purpose: RequestPurpose,
        request: impl Future<Output = opendal::Result<T>> + Send + 'static,
    ) -> Self
    where
        T: 'static,
    {
        let record = ExchangeRecord::for_purpose(purpose);
        let future = Box::pin(record_exchange(record.clone(), request));
        Self { record, future, failed: None }
    }

    /// What becomes of its output.
    fn end(&self, output: opendal::Result<T>) -> Attempt<T> {
        output.map_err(|error| FailedRequest { error, exchange: Box::new(self.record.read_exchange()) })
    }
}

/// Sends a request once.
pub(super) async fn send_once<T: 'static>(
    purpose: RequestPurpose,
    request: impl Future<Output = opendal::Result<T>> + Send + 'static,
) -> EndedAttempt<T> {
    let mut sent = SentRequest::send(purpose, request);
    let output = sent.future.as_mut().await;
    finish(&sent, output)
}

/// Sends a read, and once more if there is no answer after `delay`.
pub(super) async fn send_hedged<T: 'static, F>(
    pool: Arc<RequestPool>,
    delay: Option<Duration>,
    first: F,
    second: F,
) -> EndedAttempt<T>
where
    F: Future<Output = opendal::Result<T>> + Send + 'static,
{
    let started = Instant::now();
    // Only requests that somebody waits for come here.
    let purpose = RequestPurpose::Foreground;
    let mut sent = SentRequest::send(purpose, first);
    let ended = match delay {
        None => None,
        Some(delay) => tokio::time::timeout(delay, sent.future.as_mut()).await.ok(),
    };
    let ended = match ended {
        Some(output) => finish(&sent, output),
        None if delay.is_none() => {
            let output = sent.future.as_mut().await;
            finish(&sent, output)
        }
        None => match pool.reads.try_enter_foreground() {
            // Held until both requests have ended, as the first one's permit is.
            Some(_permit) if pool.hedging.take_hedge() => {
                pool.traffic.count_hedge();
                race_requests(&pool, sent, SentRequest::send(purpose, second)).await
            }
            Some(_) | None => {
                let output = sent.future.as_mut().await;
                finish(&sent, output)
            }
        },
    };
    // How long a failure takes says nothing about answers: most are refused at once, or time out.
    if ended.attempt.is_ok() {
        pool.hedging.note_time(started.elapsed());
    }
    ended
}

fn finish<T>(sent: &SentRequest<T>, output: opendal::Result<T>) -> EndedAttempt<T> {
    let discarded = if output.is_ok() { 0 } else { sent.record.received_count() };
    let exchange = sent.record.read_exchange();
    EndedAttempt {
        attempt: sent.end(output),
        is_answered: exchange.status.is_some(),
        service_clock: exchange.date,
        discarded: discarded + sent.record.skipped_count(),
    }
}

/// Waits for the first answer of two requests. A failure that another try may mend is no answer, as long as the other
/// request is under way. Dropping a request closes its connection.
async fn race_requests<T>(
    pool: &RequestPool,
    mut first: SentRequest<T>,
    mut second: SentRequest<T>,
) -> EndedAttempt<T> {
    let (is_second, output) = poll_fn(|context| {
        for (is_second, sent) in [(false, &mut first), (true, &mut second)] {
            // A future that has ended must not be polled again.
            if sent.failed.is_some() {
                continue;
            }
            let Poll::Ready(output) = sent.future.as_mut().poll(context) else { continue };
            match sent.end(output) {
                Err(failed) if may_succeed_later(&failed) => sent.failed = Some(failed),
                answer => return Poll::Ready((is_second, Some(answer))),
            }
        }
        if first.failed.is_some() && second.failed.is_some() {
            return Poll::Ready((false, None));
        }
        Poll::Pending
    })
    .await;
    if is_second {
        pool.traffic.count_won_hedge();
    }
    let records = [&first.record, &second.record];
    let exchanges = records.map(ExchangeRecord::read_exchange);
    let is_answered = exchanges.iter().any(|exchange| exchange.status.is_some());
    let service_clock = exchanges.iter().find_map(|exchange| exchange.date);
    // Of both: the one that lost may have received a part of its answer.
    let received: u64 = records.iter().map(|record| record.received_count() + record.skipped_count()).sum();
    let used = match &output {
        Some(Ok(_)) => if is_second { &second } else { &first }.record.received_count(),
        Some(Err(_)) | None => 0,
    };
    // Of two failures the first is told: the second only repeats it.
    let failed = || first.failed.take().or_else(|| second.failed.take()).map(Err);
    let attempt = output.or_else(failed).unwrap_or_else(|| {
        let error = opendal::Error::new(opendal::ErrorKind::Unexpected, "no answer");
        Err(FailedRequest { error, exchange: Box::default() })
    });
    EndedAttempt { attempt, is_answered, service_clock, discarded: received.saturating_sub(used) }
}

fn may_succeed_later(failed: &FailedRequest) -> bool {
    match failed.classify() {
        FailureClass::Transient
        | FailureClass::Garbled
        | FailureClass::Throttled
        | FailureClass::Conflict => true,
        FailureClass::Final | FailureClass::ConditionFailed | FailureClass::CredentialsRefused => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_request_waits_for_what_is_unusual() {
        let policy = HedgePolicy::default();
        let min = Duration::from_millis(50);
        for number in 0..TIMES_MIN {
            assert_eq!(policy.begin_request(min), None, "request {number}");
            policy.note_time(Duration::from_millis(10));
        }
        assert_eq!(policy.begin_request(min), Some(min));
        // A thousand later ones replace them.
        for time in 0..1000 {
            policy.note_time(Duration::from_millis(time));
        }
        assert_eq!(policy.begin_request(min), Some(Duration::from_millis(950)));
        assert_eq!(policy.state.lock().times.len(), TIMES_MAX);
    }

    #[test]
    fn one_request_in_twenty_is_sent_twice_and_no_more() {
        let policy = HedgePolicy::default();
        for number in 1..=1000_u64 {
            policy.begin_request(Duration::ZERO);
            assert_eq!(policy.take_hedge(), number % HEDGED_PART == 0, "request {number}");
            assert!(!policy.take_hedge());
        }
    }
}

//! HTTP for OpenDAL's services, with deadlines and without trust.
//!
//! Invariant: a request ends. It may take as long as it makes progress, but fails once nothing moved for
//! [`ServiceTransport::silence_max`]. Redirects are not followed: they would send credentials to a server that the
//! user has not named. An answer that is encoded, or is another range than the one that was requested, is refused.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use opendal::{Buffer, ErrorKind as DalKind, HttpBody, HttpTransport};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use crate::object::bandwidth::{BandwidthMeter, TransferredBytes};
use crate::object::traffic::{ServiceRequestKind, TrafficMeter};

use super::exchange::{
    ExchangeRecord, TransportFailureKind, current_record, record_answer, record_end_of_object, record_failure,
};
use super::no_answer::{describe_send_error, innermost_error};

/// Bytes before the requested range that are read and dropped when a server sends the whole object instead.
const SKIPPED_MAX: u64 = 64 << 10;
/// Largest body of an answer that is not an object, bytes: a listing of 1,000 keys of 1,024 bytes, escaped.
const TEXT_MAX: u64 = 16 << 20;

/// Sends requests and supervises them.
pub(super) struct ServiceTransport {
    client: reqwest::Client,
    silence_max: Duration,
    bandwidth: Arc<BandwidthMeter>,
    traffic: Arc<TrafficMeter>,
}

impl ServiceTransport {
    pub fn new(
        client: reqwest::Client,
        silence_max: Duration,
        bandwidth: Arc<BandwidthMeter>,
        traffic: Arc<TrafficMeter>,
    ) -> Self {
        Self { client, silence_max, bandwidth, traffic }
    }
}

impl HttpTransport for ServiceTransport {
    async fn fetch(&self, request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        let uri = request.uri().clone();
        let (parts, body) = request.into_parts();
        let wanted = RequestedAnswer::from_request(&parts.method, &parts.headers, uri.query());
        let url = reqwest::Url::parse(&uri.to_string())
            .map_err(|e| opendal::Error::new(DalKind::Unexpected, "invalid request address").set_source(e))?;
        let record = current_record();
        let purpose = record.as_ref().map(ExchangeRecord::purpose).unwrap_or_default();
        self.traffic.count_request(purpose, classify_request(&parts.method, uri.query()));
        let activity = Arc::new(LastActivity::begin());
        let mut sending =
            self.client.request(parts.method, url).headers(parts.headers).version(parts.version);
        if !body.is_empty() {
            sending = sending.body(reqwest::Body::wrap(UploadBody {
                rest: body,
                activity: Arc::clone(&activity),
                pace: BodyPace::new(&self.bandwidth),
            }));
        }
        let answer = match limit_silence(self.silence_max, &activity, sending.send()).await {
            Some(answer) => answer.map_err(|error| describe_send_error(&error))?,
            None => {
                let message = format!("no answer for {} s", self.silence_max.as_secs());
                return Err(transport_error(TransportFailureKind::Unanswered, message));
            }
        };
        record_answer(answer.status(), answer.headers());
        let skipped = wanted.check_answer(answer.status(), answer.headers())?;
        let mut response =
            Response::builder().status(answer.status()).version(answer.version()).extension(uri);
        if let Some(headers) = response.headers_mut() {
            headers.clone_from(answer.headers());
        }
        // An answer to `HEAD` announces the length of a body that it does not have.
        let announced = (!wanted.is_head).then(|| answer.content_length()).flatten();
        let limits = BodyLimits {
            skipped,
            max: wanted.max_body(answer.status()),
            announced,
            record,
            is_error: !answer.status().is_success(),
            is_object: wanted.is_object,
        };
        let body = DownloadBody::new(
            answer.bytes_stream(),
            self.silence_max,
            limits,
            BodyPace::new(&self.bandwidth),
        );
        // The length is checked by the body itself: OpenDAL's error would not distinguish a truncated answer from
        // other failures.
        response
            .body(HttpBody::new(body, None))
            .map_err(|e| opendal::Error::new(DalKind::Unexpected, "invalid answer").set_source(e))
    }
}

/// What services charge a request as.
fn classify_request(method: &Method, query: Option<&str>) -> ServiceRequestKind {
    let is_listing = query.is_some_and(|query| {
        let kinds = ["list-type=", "comp=list", "uploadId="];
        query.split('&').any(|part| kinds.iter().any(|kind| part.starts_with(kind)))
    });
    match method.as_str() {
        "GET" if is_listing => ServiceRequestKind::List,
        "GET" => ServiceRequestKind::Get,
        "HEAD" => ServiceRequestKind::Head,
        // WebDAV lists a folder, and describes a file, by this method.
        "PROPFIND" => ServiceRequestKind::List,
        "DELETE" => ServiceRequestKind::Delete,
        // `PUT`, `POST`, and what WebDAV has for moving files and making folders.
        _ => ServiceRequestKind::Put,
    }
}

/// What an answer must be like.
struct RequestedAnswer {
    is_head: bool,
    is_object: bool,
    range: Option<RequestedRange>,
}

/// The first and the last byte of a ranged request.
#[derive(Debug, Clone, Copy)]
struct RequestedRange {
    first: u64,
    last: Option<u64>,
}

impl RequestedAnswer {
    fn from_request(method: &Method, headers: &HeaderMap, query: Option<&str>) -> Self {
        let range = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(parse_range);
        let is_object = method == Method::GET && !query.is_some_and(is_listing_query);
        Self { is_head: method == Method::HEAD, is_object, range }
    }

    /// Checks status and headers; returns how many bytes of the body stand before the requested range.
    fn check_answer(&self, status: StatusCode, headers: &HeaderMap) -> opendal::Result<u64> {
        if !status.is_success() {
            return Ok(0);
        }
        let garbled = |message: String| Err(transport_error(TransportFailureKind::Garbled, message));
        // Some S3 servers store and return `aws-chunked`, which describes the upload, not the bytes.
        if headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity" && value != "aws-chunked") {
            return garbled("the answer is compressed, which was not requested".to_owned());
        }
        let Some(wanted) = self.range else { return Ok(0) };
        // A server may ignore `Range`, and send the whole object with status 200 (RFC 9110). A short beginning is
        // skipped; reading a long one would cost more than the range is worth.
        if status != StatusCode::PARTIAL_CONTENT {
            let len = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
            if let Some(len) = len
                && wanted.last.is_some_and(|last| last >= len)
            {
                record_end_of_object(len);
            }
            return if wanted.first <= SKIPPED_MAX {
                Ok(wanted.first)
            } else {
                garbled("the service sent the whole object instead of a range".to_owned())
            };
        }
        let given =
            headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).and_then(parse_content_range);
        match given {
            Some(GivenRange { range, object_len })
                // A range may end early, at the end of the object, but never late.
                if range.first == wanted.first && range.last <= wanted.last.or(range.last) =>
            {
                if let Some(len) = object_len
                    && wanted.last.is_some_and(|last| last >= len)
                {
                    record_end_of_object(len);
                }
                Ok(0)
            }
            Some(GivenRange { range, .. }) => garbled(format!(
                "the service sent bytes from {} instead of from {}",
                range.first, wanted.first
            )),
            None => garbled("the service did not say which range it sent".to_owned()),
        }
    }

    /// Most bytes that the body may have.
    fn max_body(&self, status: StatusCode) -> u64 {
        match (status.is_success() && self.is_object, self.range) {
            // Its size is bounded where it is collected.
            (true, None | Some(RequestedRange { last: None, .. })) => u64::MAX,
            (true, Some(RequestedRange { first, last: Some(last) })) => {
                (last.saturating_sub(first)).saturating_add(1)
            }
            (false, _) => TEXT_MAX,
        }
    }
}

/// Whether a query asks for a listing: S3 has `list-type`, and `uploadId` for the parts of an upload, Azure `comp=list`, and
/// all three, Google included, name the folder as the prefix, unless it is the root. Reads of objects have none of these, but may have a signature.
fn is_listing_query(query: &str) -> bool {
    let names =
        ["list-type", "comp", "restype", "prefix", "delimiter", "maxResults", "pageToken", "uploadId"];
    query.split('&').filter_map(|field| field.split('=').next()).any(|name| names.contains(&name))
}

fn parse_range(text: &str) -> Option<RequestedRange> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some(RequestedRange { first: first.parse().ok()?, last: last.parse().ok() })
}

/// The range that a service sends, as its header states it.
struct GivenRange {
    range: RequestedRange,
    object_len: Option<u64>,
}

fn parse_content_range(text: &str) -> Option<GivenRange> {
    let (range, object_len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let range = RequestedRange { first: first.parse().ok()?, last: Some(last.parse().ok()?) };
    Some(GivenRange { range, object_len: object_len.parse().ok() })
}

/// When something was last sent or received.
struct LastActivity(Mutex<Instant>);

impl LastActivity {
    fn begin() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn note(&self) {
        *self.0.lock() = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock()
    }
}

/// Waits for a future as long as there is activity at least every `silence_max`; `None` if there is none.
async fn limit_silence<F: Future>(
    silence_max: Duration,
    activity: &LastActivity,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    loop {
        // The body notes activity while the future runs. So the deadline may have moved when the timer ends.
        let deadline = activity.last() + silence_max;
        if let Ok(output) = tokio::time::timeout_at(deadline, &mut future).await {
            return Some(output);
        }
        if activity.last() + silence_max <= Instant::now() {
            return None;
        }
    }
}

/// Keeps one body to the limits of bandwidth.
struct BodyPace {
    bandwidth: Arc<BandwidthMeter>,
    /// Until more may follow.
    wait: Option<Pin<Box<Sleep>>>,
}

impl BodyPace {
    fn new(bandwidth: &Arc<BandwidthMeter>) -> Self {
        Self { bandwidth: Arc::clone(bandwidth), wait: None }
    }

    fn count_bytes(&mut self, direction: TransferredBytes, bytes: usize) {
        let wait = self.bandwidth.count_bytes(direction, bytes);
        self.wait = (!wait.is_zero()).then(|| Box::pin(tokio::time::sleep(wait)));
    }

    /// Ready when more may follow.
    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(context));
            self.wait = None;
        }
        Poll::Ready(())
    }
}

/// A body that is being sent.
struct UploadBody {
    rest: Buffer,
    activity: Arc<LastActivity>,
    pace: BodyPace,
}

impl http_body::Body for UploadBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        ready!(self.pace.poll_wait(context));
        // It is polled when the connection has room again: the previous step has left.
        self.activity.note();
        let step = self.rest.len().min(self.pace.bandwidth.choose_step());
        if step == 0 {
            return Poll::Ready(None);
        }
        self.pace.count_bytes(TransferredBytes::Sent, step);
        let piece = self.rest.slice(..step).to_bytes();
        self.rest = self.rest.slice(step..);
        Poll::Ready(Some(Ok(http_body::Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// What a body may and must have.
struct BodyLimits {
    /// Bytes that are dropped at the beginning.
    skipped: u64,
    /// Most bytes that are passed on; what follows is not read.
    max: u64,
    /// Bytes that the service announced, with those that are dropped.
    announced: Option<u64>,
    /// Where the beginning of an error's body is kept, and bytes of objects are counted.
    record: Option<ExchangeRecord>,
    is_error: bool,
    is_object: bool,
}

/// A body that is being received.
struct DownloadBody<S> {
    pieces: S,
    silence_max: Duration,
    silence: Pin<Box<Sleep>>,
    limits: BodyLimits,
    received: u64,
    passed_on: u64,
    pace: BodyPace,
}

impl<S> DownloadBody<S> {
    fn new(pieces: S, silence_max: Duration, limits: BodyLimits, pace: BodyPace) -> Self {
        let silence = Box::pin(tokio::time::sleep(silence_max));
        Self { pieces, silence_max, silence, limits, received: 0, passed_on: 0, pace }
    }

    /// The part of a piece that was asked for.
    fn trim_piece(&mut self, piece: &Bytes) -> Bytes {
        let before = self.received;
        self.received += piece.len() as u64;
        let skipped = self.limits.skipped.saturating_sub(before).min(piece.len() as u64);
        // Never negative, since what is passed on is cut to it.
        let room = self.limits.max - self.passed_on;
        let start = usize::try_from(skipped).unwrap_or(piece.len());
        let len = (piece.len() - start).min(usize::try_from(room).unwrap_or(usize::MAX));
        self.passed_on += len as u64;
        match &self.limits.record {
            Some(record) if self.limits.is_error => record.keep_error_body(piece),
            Some(record) if self.limits.is_object => record.count_received(len as u64, skipped),
            Some(_) | None => {}
        }
        piece.slice(start..start + len)
    }

    fn check_end(&self) -> Option<opendal::Result<Buffer>> {
        match self.limits.announced {
            Some(announced) if self.received < announced => Some(Err(transport_error(
                TransportFailureKind::Garbled,
                format!("the answer ended after {} of {announced} bytes", self.received),
            ))),
            Some(_) | None => None,
        }
    }
}

impl<S: Stream<Item = reqwest::Result<Bytes>> + Unpin> Stream for DownloadBody<S> {
    type Item = opendal::Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            // What was asked for is complete: whatever follows is not waited for.
            if self.passed_on == self.limits.max {
                return Poll::Ready(None);
            }
            if self.pace.wait.is_some() {
                ready!(self.pace.poll_wait(context));
                // The service was not silent: this process did not read.
                let deadline = Instant::now() + self.silence_max;
                self.silence.as_mut().reset(deadline);
            }
            let Poll::Ready(piece) = Pin::new(&mut self.pieces).poll_next(context) else {
                ready!(self.silence.as_mut().poll(context));
                let message = format!("the answer stopped for {} s", self.silence_max.as_secs());
                return Poll::Ready(Some(Err(transport_error(TransportFailureKind::Unanswered, message))));
            };
            let deadline = Instant::now() + self.silence_max;
            self.silence.as_mut().reset(deadline);
            match piece {
                None => return Poll::Ready(self.check_end()),
                Some(Err(error)) => {
                    let message = format!("the answer was cut off: {}", innermost_error(&error));
                    return Poll::Ready(Some(Err(transport_error(TransportFailureKind::Garbled, message))));
                }
                Some(Ok(piece)) => {
                    self.pace.count_bytes(TransferredBytes::Received, piece.len());
                    let piece = self.trim_piece(&piece);
                    if !piece.is_empty() {
                        return Poll::Ready(Some(Ok(Buffer::from(piece))));
                    }
                }
            }
        }
    }
}

/// An error of this transport, recorded for the operation.
pub(super) fn transport_error(kind: TransportFailureKind, message: String) -> opendal::Error {
    record_failure(kind, &message);
    let error = opendal::Error::new(DalKind::Unexpected, message);
    match kind {
        TransportFailureKind::Hopeless => error,
        TransportFailureKind::Unanswered | TransportFailureKind::Garbled => error.set_temporary(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_of_all_services_are_limited_and_objects_are_not() {
        let max = |query| {
            RequestedAnswer::from_request(&Method::GET, &HeaderMap::new(), query).max_body(StatusCode::OK)
        };
        for listing in [
            "list-type=2&prefix=packs%2F",
            "restype=container&comp=list",
            "restype=container&comp=list&prefix=packs%2F",
            "prefix=packs%2F&maxResults=1000",
            "pageToken=x",
            "part-number-marker=1000&uploadId=x",
        ] {
            assert_eq!(max(Some(listing)), TEXT_MAX, "{listing}");
        }
        for object in
            [None, Some("alt=media"), Some("sv=2024&sp=rl&sig=list-type"), Some("generation=7&alt=media")]
        {
            assert_eq!(max(object), u64::MAX, "{object:?}");
        }
    }
}

//! What the service answered to the requests of one operation, beyond what OpenDAL passes on.
//!
//! Invariant: recording changes no answer. An operation that runs outside [`record_exchange`] is not recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use crate::object::RequestPurpose;

/// Most of the body of an error that is kept, bytes: services name the cause in the first lines.
const ERROR_BODY_MAX: usize = 4096;

tokio::task_local! {
    static EXCHANGE: ExchangeRecord;
}

/// What one operation is for, and what was answered to it so far. Copies are of the same operation.
#[derive(Debug, Clone)]
pub(super) struct ExchangeRecord {
    purpose: RequestPurpose,
    exchange: Arc<Mutex<Exchange>>,
    /// Bytes of objects that were received and passed on.
    received: Arc<AtomicU64>,
    /// Bytes of objects that were received and are not part of what was asked for.
    skipped: Arc<AtomicU64>,
}

impl ExchangeRecord {
    /// The record of an operation that is about to begin.
    pub fn for_purpose(purpose: RequestPurpose) -> Self {
        Self { purpose, exchange: Arc::default(), received: Arc::default(), skipped: Arc::default() }
    }

    /// What the operation is for.
    pub fn purpose(&self) -> RequestPurpose {
        self.purpose
    }

    /// The last answer.
    pub fn read_exchange(&self) -> Exchange {
        self.exchange.lock().clone()
    }

    /// Counts a part of an object.
    pub fn count_received(&self, passed_on: u64, skipped: u64) {
        self.received.fetch_add(passed_on, Ordering::Relaxed);
        self.skipped.fetch_add(skipped, Ordering::Relaxed);
    }

    /// Adds to what is kept of an error's body.
    pub fn keep_error_body(&self, piece: &[u8]) {
        let mut exchange = self.exchange.lock();
        let room = ERROR_BODY_MAX.saturating_sub(exchange.error_body.len());
        exchange.error_body.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    /// Bytes of objects that were received and passed on.
    pub fn received_count(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes of objects that were received and dropped.
    pub fn skipped_count(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }
}

/// The last answer of a service to an operation.
#[derive(Debug, Clone, Default)]
pub(super) struct Exchange {
    /// The status, if an answer came.
    pub status: Option<StatusCode>,
    /// How long the service asks the client to wait.
    pub retry_after: Option<Duration>,
    /// The service's clock.
    pub date: Option<SystemTime>,
    /// The region of the bucket, as the service reports it.
    pub region: Option<String>,
    /// The length of the object, if it ends before the range that was requested does.
    pub end_of_object: Option<u64>,
    /// Azure's code of the error, which is all that answers without a body have.
    pub code_header: Option<String>,
    /// The beginning of an error's body.
    pub error_body: Vec<u8>,
    /// Why no answer came, or not all of it, in words.
    pub failure: Option<TransportFailure>,
}

/// Why an answer is missing.
#[derive(Debug, Clone)]
pub(super) struct TransportFailure {
    pub kind: TransportFailureKind,
    pub message: String,
}

/// Kinds of missing answers, by what repeating the request can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransportFailureKind {
    /// Nothing was sent, and nothing will be: the name does not exist, or the certificate is wrong.
    Hopeless,
    /// Nothing arrived within the time allowed, or the connection failed.
    Unanswered,
    /// The answer is not what was asked for, or is cut off.
    Garbled,
}

impl Exchange {
    /// The service's own code and message, as far as they can be read from the body.
    pub fn describe_error(&self) -> Option<String> {
        // What is kept of it may end within a character.
        let body = String::from_utf8_lossy(&self.error_body);
        let code = self.error_code();
        let message = find_element(&body, "Message").or_else(|| find_json_text(&body, "message"));
        // The first line says what happened. Azure's next ones number the request, and say when it was.
        let message = message.and_then(|message| message.lines().next()).map(str::to_owned);
        let text = match (code, message) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return None,
        };
        // It is shown on terminals, which obey control characters.
        Some(text.chars().filter(|char| !char.is_control()).collect())
    }

    /// The service's own code of the error.
    pub fn error_code(&self) -> Option<String> {
        let body = String::from_utf8_lossy(&self.error_body);
        find_element(&body, "Code").map(str::to_owned).or_else(|| self.code_header.clone())
    }
}

/// The text of an XML element without parts.
fn find_element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.find(&format!("<{name}>"))? + name.len() + 2;
    let len = text[start..].find('<')?;
    Some(text[start..start + len].trim()).filter(|found| !found.is_empty())
}

/// The first text of a JSON field, without escapes.
fn find_json_text<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = &text[text.find(&format!("\"{name}\""))? + name.len() + 2..];
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    Some(&rest[..rest.find('"')?])
}

/// Runs an operation, and records what is answered to its requests.
pub(super) async fn record_exchange<F: Future>(record: ExchangeRecord, operation: F) -> F::Output {
    EXCHANGE.scope(record, operation).await
}

/// The record of the operation that runs now.
pub(super) fn current_record() -> Option<ExchangeRecord> {
    EXCHANGE.try_with(Clone::clone).ok()
}

/// What was answered to the operation that runs now.
pub(super) fn current_exchange() -> Option<Arc<Mutex<Exchange>>> {
    EXCHANGE.try_with(|record| Arc::clone(&record.exchange)).ok()
}

/// Records an answer's status and headers.
pub(super) fn record_answer(status: StatusCode, headers: &HeaderMap) {
    let Some(exchange) = current_exchange() else { return };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Each request of an operation replaces the record of the preceding one: the operation ended with the last.
    *exchange.lock() = Exchange {
        status: Some(status),
        // The other form, a date, is not sent by services of objects.
        retry_after: text("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
        date: text("date").and_then(parse_http_date),
        region: text("x-amz-bucket-region").map(str::to_owned),
        end_of_object: None,
        code_header: text("x-ms-error-code").map(str::to_owned),
        error_body: Vec::new(),
        failure: None,
    };
}

/// Records that the object ends before the requested range does.
pub(super) fn record_end_of_object(len: u64) {
    if let Some(exchange) = current_exchange() {
        exchange.lock().end_of_object = Some(len);
    }
}

/// Records that no answer came, or not all of it.
pub(super) fn record_failure(kind: TransportFailureKind, message: &str) {
    if let Some(exchange) = current_exchange() {
        exchange.lock().failure = Some(TransportFailure { kind, message: message.to_owned() });
    }
}

/// A date as HTTP writes it: `Tue, 24 Nov 2026 13:05:23 GMT`.
fn parse_http_date(text: &str) -> Option<SystemTime> {
    jiff::fmt::rfc2822::parse(text).ok().map(|zoned| zoned.timestamp().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_services_are_read_from_xml_and_json() {
        let describe = |body: &str| {
            Exchange { error_body: body.as_bytes().to_vec(), ..Exchange::default() }.describe_error()
        };
        let xml =
            "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>";
        assert_eq!(describe(xml).as_deref(), Some("SlowDown: Reduce your rate"));
        assert_eq!(describe("<Error><Code>NoSuchBucket</Code></Error>").as_deref(), Some("NoSuchBucket"));
        let json = r#"{"error": {"code": 403, "message": "no access"}}"#;
        assert_eq!(describe(json).as_deref(), Some("no access"));
        assert_eq!(describe("<Message>\u{1b}[2Jno access</Message>").as_deref(), Some("[2Jno access"));
        let azure =
            "<Error><Code>BlobAlreadyExists</Code><Message>It exists.\nRequestId:1\nTime:2</Message></Error>";
        assert_eq!(describe(azure).as_deref(), Some("BlobAlreadyExists: It exists."));
        assert_eq!(describe("<Error><Code>cut off"), None);
        assert_eq!(describe(""), None);
    }

    #[test]
    fn dates_of_http_are_read() {
        let date = parse_http_date("Tue, 24 Nov 2026 13:05:23 GMT");
        assert_eq!(date, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_525_523)));
        assert_eq!(parse_http_date("yesterday"), None);
    }
}

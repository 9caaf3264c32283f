//! Answers, and the headers that each has.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, REFERRER_POLICY, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use vellum_json::{FailureJson, VersionedJson, error_code};
use vellum_types::ErrorKind;

use crate::command_line::CommandFailure;
use crate::web::events::EventStream;

/// What scripts and styles of the page may do: only its own files, and nothing that makes code of text.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";
/// What content of a volume may do when a browser shows it all the same: nothing.
const CONTENT_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";
/// What never changes need not be asked for again.
const IMMUTABLE: &str = "private, max-age=31536000, immutable";

/// A request that cannot be answered.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    hint: Option<String>,
}

impl ApiError {
    /// An error; `code` is one of docs/json.md.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None }
    }

    /// The same with what may help.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// As docs/json.md has failures.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({ "code": self.code, "message": self.message, "hint": self.hint })
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<vellum_library::Error> for ApiError {
    fn from(error: vellum_library::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Denied => StatusCode::FORBIDDEN,
            ErrorKind::Usage | ErrorKind::Unsupported => StatusCode::BAD_REQUEST,
            ErrorKind::Corrupt | ErrorKind::NoSpace | ErrorKind::Interrupted | ErrorKind::Io => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let status = match error.errno() {
            // A directory where a file was asked for, or the other way round.
            Some(_) if status == StatusCode::INTERNAL_SERVER_ERROR && error.kind() == ErrorKind::Io => {
                StatusCode::BAD_REQUEST
            }
            _ => status,
        };
        Self::new(status, error_code(error.kind()), error.to_string())
    }
}

impl From<CommandFailure> for ApiError {
    fn from(CommandFailure { code, message, hint }: CommandFailure) -> Self {
        // Those that docs/json.md lists.
        let known = match code.as_str() {
            "not_found" => (StatusCode::NOT_FOUND, "not_found"),
            "conflict" => (StatusCode::CONFLICT, "conflict"),
            "denied" => (StatusCode::FORBIDDEN, "denied"),
            "usage" => (StatusCode::BAD_REQUEST, "usage"),
            "unsupported" => (StatusCode::BAD_REQUEST, "unsupported"),
            "corrupt" => (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
            "no_space" => (StatusCode::INTERNAL_SERVER_ERROR, "no_space"),
            "interrupted" => (StatusCode::INTERNAL_SERVER_ERROR, "interrupted"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "io"),
        };
        Self { hint, ..Self::new(known.0, known.1, message) }
    }
}

/// The body of an answer.
pub enum AnswerBody {
    /// All of it.
    Whole(Option<Bytes>),
    /// What a thread reads meanwhile. A part that is an error cuts the answer off, so that it is not taken for whole.
    Parts {
        /// The parts.
        parts: Receiver<std::io::Result<Bytes>>,
        /// Bytes that are not sent.
        left: u64,
    },
    /// What is told until somebody ends it.
    Events(EventStream),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            // Taken out, so that the next poll finds nothing and ends the body.
            Self::Whole(whole) => Poll::Ready(whole.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Parts { parts, left } => parts.poll_recv(context).map(|part| {
                Some(part?.map(|bytes| {
                    // The size hint is what is left: HTTP sends the length from it, and takes an early end for a broken
                    // answer.
                    *left = left.saturating_sub(bytes.len() as u64);
                    Frame::data(bytes)
                }))
            }),
            Self::Events(events) => events.poll_event(context).map(|event| Some(Ok(Frame::data(event?)))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Parts { left, .. } => SizeHint::with_exact(*left),
            // Without a length, HTTP sends it in chunks.
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer.
pub type Answer = Response<AnswerBody>;

/// How long an answer holds.
#[derive(Debug, Clone)]
pub enum Freshness {
    /// It is asked for again each time.
    Now,
    /// It is of something immutable, and has this tag.
    Forever(String),
}

/// An answer of the API.
pub fn json_answer(value: &impl Serialize, freshness: &Freshness) -> Result<Answer, ApiError> {
    let failed = |error: serde_json::Error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "io", format!("cannot write the answer: {error}"))
    };
    let bytes = serde_json::to_vec(&VersionedJson::new(value)).map_err(failed)?;
    let mut answer = whole_answer(StatusCode::OK, "application/json", bytes.into());
    set_freshness(&mut answer, freshness);
    Ok(answer)
}

/// The answer to a request that failed.
pub fn error_answer(error: ApiError) -> Answer {
    let failure = FailureJson::new(error.code, error.message, error.hint);
    // Of strings: that it cannot be written is not possible.
    let bytes = serde_json::to_vec(&VersionedJson::new(&failure)).unwrap_or_default();
    let mut answer = whole_answer(error.status, "application/json", bytes.into());
    if error.status == StatusCode::SERVICE_UNAVAILABLE {
        // Such a refusal is for want of threads or of room for downloads, and soon over.
        set(&mut answer, RETRY_AFTER, "1");
    }
    answer
}

/// A file of the page.
pub fn asset_answer(content_type: &'static str, content: &'static [u8], tag: &str) -> Answer {
    let mut answer = whole_answer(StatusCode::OK, content_type, Bytes::from_static(content));
    set(&mut answer, CONTENT_SECURITY_POLICY, PAGE_POLICY);
    // Kept but asked about each time: after an update the page must fit the API of the same version.
    set(&mut answer, CACHE_CONTROL, "no-cache");
    set(&mut answer, ETAG, tag);
    answer
}

/// What is told from now on.
pub fn event_answer(events: EventStream) -> Answer {
    let mut answer = Response::new(AnswerBody::Events(events));
    set_common(&mut answer);
    set(&mut answer, CONTENT_TYPE, "text/event-stream");
    // The end of the stream is the end of its connection, for which the server waits when it ends.
    set(&mut answer, CONNECTION, "close");
    set(&mut answer, CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    set(&mut answer, CACHE_CONTROL, "no-store");
    answer
}

/// That what the client has is still so.
pub fn unchanged_answer(freshness: &Freshness) -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(None));
    *answer.status_mut() = StatusCode::NOT_MODIFIED;
    set_common(&mut answer);
    set_freshness(&mut answer, freshness);
    answer
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentPart {
    /// Where it begins.
    pub start: u64,
    /// How many bytes it has.
    pub len: u64,
    /// How many the file has.
    pub total: u64,
    /// Whether a part was asked for, not the file.
    pub is_range: bool,
}

/// Content of a volume: bytes that no browser shows as anything.
pub fn content_answer(body: AnswerBody, part: ContentPart, freshness: &Freshness) -> Answer {
    let mut answer = Response::new(body);
    if part.is_range {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        let last = (part.start + part.len).saturating_sub(1);
        set(&mut answer, CONTENT_RANGE, &format!("bytes {}-{last}/{}", part.start, part.total));
    }
    set_common(&mut answer);
    // A file of the volume may be a page with scripts. Shown under this origin, these could use the token.
    set(&mut answer, CONTENT_TYPE, "application/octet-stream");
    set(&mut answer, CONTENT_DISPOSITION, "attachment");
    set(&mut answer, CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    set(&mut answer, CONTENT_LENGTH, &part.len.to_string());
    set(&mut answer, ACCEPT_RANGES, "bytes");
    set_freshness(&mut answer, freshness);
    answer
}

/// That the file is shorter than what was asked for.
pub fn unsatisfiable_answer(total: u64) -> Answer {
    let message = format!("the file has {total} bytes");
    let mut answer = error_answer(ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "usage", message));
    // RFC 9110 has the length here, from which a client sees what it could ask for.
    set(&mut answer, CONTENT_RANGE, &format!("bytes */{total}"));
    answer
}

fn whole_answer(status: StatusCode, content_type: &'static str, bytes: Bytes) -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(Some(bytes)));
    *answer.status_mut() = status;
    set_common(&mut answer);
    set(&mut answer, CONTENT_TYPE, content_type);
    set(&mut answer, CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    // The default, which failures keep: what is missing now may be there at the next request.
    set(&mut answer, CACHE_CONTROL, "no-store");
    answer
}

/// What every answer has.
fn set_common(answer: &mut Answer) {
    // Otherwise a browser looks into the content, and may find HTML in what is sent as bytes.
    set(answer, X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(answer, REFERRER_POLICY, "no-referrer");
    // Pages of other sites may embed answers as pictures or scripts without asking, and keep a handle on windows that they open:
    // these two headers make browsers refuse both.
    set(answer, HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    set(answer, HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
}

fn set_freshness(answer: &mut Answer, freshness: &Freshness) {
    match freshness {
        // What is in the volume stays out of the disk cache of the browser where it is of no use there.
        Freshness::Now => set(answer, CACHE_CONTROL, "no-store"),
        Freshness::Forever(tag) => {
            set(answer, CACHE_CONTROL, IMMUTABLE);
            set(answer, ETAG, tag);
        }
    }
}

fn set(answer: &mut Answer, name: HeaderName, value: &str) {
    // What is put here is made of digits and fixed words.
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

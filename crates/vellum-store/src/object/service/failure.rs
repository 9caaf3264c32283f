//! Failed requests: what repeating them can do, and what a user should read.

use std::time::SystemTime;

use opendal::ErrorKind as DalKind;
use vellum_types::ErrorKind;

use super::clock::measure_lead;
use super::exchange::{Exchange, TransportFailureKind};

/// Codes of services that do not accept the credentials, whatever they are asked for. Those that do not allow one thing
/// have others.
const CREDENTIALS_REFUSED: [&str; 7] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "InvalidToken",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    // Azure's.
    "AuthenticationFailed",
];

/// A request that failed, with what the service answered.
#[derive(Debug)]
pub(super) struct FailedRequest {
    pub error: opendal::Error,
    pub exchange: Box<Exchange>,
}

/// What can be done about a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureClass {
    /// Repeating it gives the same answer.
    Final,
    /// It may succeed later. It may also have been carried out.
    Transient,
    /// The service asks for fewer requests.
    Throttled,
    /// The answer was wrong or cut off.
    Garbled,
    /// The condition of a conditional request is not met.
    ConditionFailed,
    /// Another conditional request for the same object is under way.
    Conflict,
    /// The credentials expired, or are not valid any more, or never were.
    CredentialsRefused,
}

impl FailedRequest {
    /// What can be done about it.
    pub fn classify(&self) -> FailureClass {
        // The transport knows better than OpenDAL why there is no answer.
        if let Some(failure) = &self.exchange.failure {
            return match failure.kind {
                TransportFailureKind::Hopeless => FailureClass::Final,
                TransportFailureKind::Unanswered => FailureClass::Transient,
                TransportFailureKind::Garbled => FailureClass::Garbled,
            };
        }
        // The object is shorter than the range. The caller takes what there is; a repetition would not change it.
        if self.exchange.end_of_object.is_some() {
            return FailureClass::Final;
        }
        let code = self.exchange.error_code();
        let status = self.exchange.status.map(|status| status.as_u16());
        match (status, code.as_deref()) {
            // Services ask for fewer requests with status 429 or 503. Some send a code with another status.
            (_, Some("SlowDown" | "TooManyRequests" | "ServerBusy")) | (Some(429 | 503), _) => {
                return FailureClass::Throttled;
            }
            (_, Some(code)) if CREDENTIALS_REFUSED.contains(&code) => {
                return FailureClass::CredentialsRefused;
            }
            // What services without such codes answer: Google's, and servers of WebDAV and of plain files.
            (Some(401), _) => return FailureClass::CredentialsRefused,
            (_, Some("RequestTimeout" | "InternalError")) | (Some(408 | 499 | 500 | 502 | 504), _) => {
                return FailureClass::Transient;
            }
            // Azure's answer to a creation whose condition is not met has the status of a conflict.
            (_, Some("BlobAlreadyExists")) => return FailureClass::ConditionFailed,
            // S3 answers 409 while another conditional request for the same key is under way.
            (Some(409), _) => return FailureClass::Conflict,
            // The service reported success, and OpenDAL could not make sense of the rest.
            (Some(200..300), _) if self.error.kind() == DalKind::Unexpected => return FailureClass::Garbled,
            _ => {}
        }
        match self.error.kind() {
            DalKind::ConditionNotMatch | DalKind::AlreadyExists => FailureClass::ConditionFailed,
            DalKind::RateLimited => FailureClass::Throttled,
            DalKind::Conflict => FailureClass::Conflict,
            _ if self.error.is_temporary() => FailureClass::Transient,
            _ => FailureClass::Final,
        }
    }

    /// Whether the bucket or container is missing, and not an object in it.
    pub fn is_missing_bucket(&self) -> bool {
        match self.exchange.error_code().as_deref() {
            Some("NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted") => true,
            Some(_) => false,
            // Google's answer has one code for both.
            None => self.exchange.describe_error().is_some_and(|text| text.contains("bucket does not exist")),
        }
    }

    /// Whether the service does not know the upload in parts that the request is about.
    pub fn is_missing_upload(&self) -> bool {
        // Azure's answer to a list with blocks that it has removed.
        matches!(self.exchange.error_code().as_deref(), Some("NoSuchUpload" | "InvalidBlockList"))
    }

    /// Whether the condition of the request is not met.
    pub fn is_condition_failure(&self) -> bool {
        self.classify() == FailureClass::ConditionFailed
    }

    /// The kind of the error that callers get.
    pub fn error_kind(&self) -> ErrorKind {
        // A mistake in the address: the service did its work.
        if self.is_missing_bucket() {
            return ErrorKind::Usage;
        }
        match self.classify() {
            FailureClass::Garbled => ErrorKind::Corrupt,
            FailureClass::Conflict => ErrorKind::Conflict,
            FailureClass::CredentialsRefused => ErrorKind::Denied,
            FailureClass::Transient | FailureClass::Throttled => ErrorKind::Io,
            FailureClass::Final | FailureClass::ConditionFailed => match self.error.kind() {
                DalKind::PermissionDenied => ErrorKind::Denied,
                DalKind::Unsupported => ErrorKind::Unsupported,
                DalKind::ConfigInvalid => ErrorKind::Usage,
                DalKind::NotFound => ErrorKind::NotFound,
                _ => match self.exchange.status.map(|status| status.as_u16()) {
                    Some(401 | 403) => ErrorKind::Denied,
                    Some(501) => ErrorKind::Unsupported,
                    _ => ErrorKind::Io,
                },
            },
        }
    }

    /// What happened, in one line.
    pub fn describe(&self) -> String {
        if let Some(failure) = &self.exchange.failure {
            return failure.message.clone();
        }
        let Some(status) = self.exchange.status else {
            // Nothing was sent: no credentials, for example.
            return self.error.message().to_owned();
        };
        if status.is_success() {
            return format!("the answer cannot be used: {}", self.error.message());
        }
        let code = self.exchange.error_code();
        if code.as_deref() == Some("RequestTimeTooSkewed") {
            return describe_skew(self.exchange.date);
        }
        if let Some(region) = &self.exchange.region
            && (status.is_redirection() || code.as_deref() == Some("AuthorizationHeaderMalformed"))
        {
            return format!("the bucket is in another region: add 'region={region}' to the address");
        }
        if status.is_redirection() {
            return format!(
                "the service redirects elsewhere (status {}), which is not followed",
                status.as_u16()
            );
        }
        match self.exchange.describe_error() {
            Some(text) => format!("the service answered {}: {text}", status.as_u16()),
            None => format!(
                "the service answered {} {}",
                status.as_u16(),
                status.canonical_reason().unwrap_or_default()
            ),
        }
    }
}

/// How far this machine's clock is from the service's.
fn describe_skew(service_clock: Option<SystemTime>) -> String {
    match service_clock {
        Some(service_clock) => describe_clock_lead(measure_lead(service_clock)),
        None => "this machine's clock is wrong, says the service".to_owned(),
    }
}

/// In words, by how many seconds this machine's clock is ahead.
#[must_use]
pub fn describe_clock_lead(lead: i64) -> String {
    let word = if lead >= 0 { "fast" } else { "slow" };
    format!("this machine's clock is {} min {word}", lead.unsigned_abs().div_ceil(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_with(body: &str, code_header: Option<&str>) -> FailedRequest {
        let exchange = Exchange {
            status: Some(http::StatusCode::NOT_FOUND),
            error_body: body.as_bytes().to_vec(),
            code_header: code_header.map(str::to_owned),
            ..Exchange::default()
        };
        FailedRequest {
            error: opendal::Error::new(DalKind::NotFound, "missing"),
            exchange: Box::new(exchange),
        }
    }

    #[test]
    fn a_missing_bucket_is_no_missing_object() {
        for (body, code) in [
            ("<Error><Code>NoSuchBucket</Code></Error>", None),
            ("", Some("ContainerNotFound")),
            (r#"{"error": {"code": 404, "message": "The specified bucket does not exist."}}"#, None),
        ] {
            let failed = failed_with(body, code);
            assert!(failed.is_missing_bucket() && failed.error_kind() == ErrorKind::Usage, "{body}");
        }
        for (body, code) in [
            ("<Error><Code>NoSuchKey</Code></Error>", None),
            ("", Some("BlobNotFound")),
            (r#"{"error": {"code": 404, "message": "No such object: bucket/config"}}"#, None),
            ("", None),
        ] {
            let failed = failed_with(body, code);
            assert!(!failed.is_missing_bucket() && failed.error_kind() == ErrorKind::NotFound, "{body}");
        }
    }
}

//! The requests of S3 about uploads in parts. OpenDAL sends them, too, but does not show by which id the service knows an
//! upload, so that no later run could continue it.
//!
//! Invariant: a request has the credentials, the address and the way of the operator beside it. Deliberately absent:
//! repetition, and what an upload is for.

mod answer;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use opendal::raw::percent_encode_path;
use opendal::{Buffer, ErrorKind as DalKind, Operator};
use reqsign_aws_v4::Credential;
use reqsign_core::{Context, OsEnv, Signer};
use reqsign_file_read_tokio::TokioFileRead;

pub(crate) use self::answer::fuzz_decoder;
pub(super) use self::answer::{PartPage, StoredPart};
use self::answer::{find_text, parse_part_page};
use super::exchange::current_exchange;

/// For how long an address is asked to be valid, of which only the path is used.
const ADDRESS_VALIDITY: Duration = Duration::from_secs(10);
/// The algorithm by which the service encrypts an object. With keys of its own, tags of parts stay hashes of their bytes.
const ENCRYPTION_HEADER: &str = "x-amz-server-side-encryption";
/// The service's own keys.
const SERVICE_KEYS: &str = "AES256";

/// Sends requests about uploads in parts.
#[derive(Clone)]
pub(super) struct MultipartClient {
    signer: Signer<Credential>,
    operator: Operator,
}

/// An upload as the service has begun it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BegunUpload {
    /// By which the service knows it.
    pub id: String,
    /// Whether the tags of its parts are hashes of their bytes.
    pub has_hashes: bool,
}

/// The condition on which parts become an object.
#[derive(Debug, Clone)]
pub(super) enum FinishCondition {
    /// The key has no object.
    Absent,
    /// It has the object with this tag.
    Tag(String),
}

/// One request.
struct MultipartRequest<'a> {
    method: Method,
    path: &'a str,
    query: String,
    headers: HeaderMap,
    body: Bytes,
}

impl MultipartClient {
    pub fn new(signer: Signer<Credential>, operator: Operator) -> Self {
        Self { signer, operator }
    }

    /// Begins an upload of an object with this metadata.
    pub async fn begin_upload(&self, path: &str, metadata: (String, String)) -> opendal::Result<BegunUpload> {
        let mut headers = HeaderMap::new();
        let (name, value) = metadata;
        headers.insert(parse_header_name(&format!("x-amz-meta-{name}"))?, parse_header_value(&value)?);
        let request =
            MultipartRequest { headers, ..MultipartRequest::new(Method::POST, path, "uploads".to_owned()) };
        let answer = self.send_request(request).await?;
        let encryption = answer.headers().get(ENCRYPTION_HEADER);
        let has_hashes = encryption.is_none_or(|algorithm| algorithm == SERVICE_KEYS);
        let body = answer.into_body().to_bytes();
        let id = find_text(&String::from_utf8_lossy(&body), "UploadId");
        let id = id.ok_or_else(|| unusable_answer("it has no id of the upload"))?;
        Ok(BegunUpload { id, has_hashes })
    }

    /// Sends a part; returns its tag.
    pub async fn send_part(
        &self,
        path: &str,
        upload: &str,
        number: u32,
        body: Bytes,
    ) -> opendal::Result<String> {
        // The id is a text of the service's own, and may have characters that mean something in a query.
        let query = format!("partNumber={number}&uploadId={}", percent_encode_path(upload));
        let request = MultipartRequest { body, ..MultipartRequest::new(Method::PUT, path, query) };
        let answer = self.send_request(request).await?;
        let tag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok());
        tag.map(str::to_owned).ok_or_else(|| unusable_answer("the part has no tag"))
    }

    /// The parts after a number that the service has, as many as it lists at once.
    pub async fn list_parts(&self, path: &str, upload: &str, after: u32) -> opendal::Result<PartPage> {
        let mut query = format!("uploadId={}", percent_encode_path(upload));
        if after > 0 {
            query = format!("part-number-marker={after}&{query}");
        }
        let answer = self.send_request(MultipartRequest::new(Method::GET, path, query)).await?;
        parse_part_page(&answer.into_body().to_bytes()).ok_or_else(|| unusable_answer("it lists no parts"))
    }

    /// Makes an object of parts, which are numbered from 1.
    pub async fn finish_upload(
        &self,
        path: &str,
        upload: &str,
        tags: &[String],
        condition: Option<FinishCondition>,
    ) -> opendal::Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        let has_old_version = match condition {
            None => false,
            Some(FinishCondition::Absent) => {
                headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
                false
            }
            Some(FinishCondition::Tag(tag)) => {
                headers.insert(IF_MATCH, parse_header_value(&tag)?);
                true
            }
        };
        let query = format!("uploadId={}", percent_encode_path(upload));
        let body = answer::format_part_list(tags).into();
        let request = MultipartRequest { headers, body, ..MultipartRequest::new(Method::POST, path, query) };
        let answer = match self.send_request(request).await {
            // The object with that tag is not there any more.
            Err(error) if has_old_version && has_error_code("NoSuchKey") => {
                return Err(opendal::Error::new(DalKind::ConditionNotMatch, error.message().to_owned()));
            }
            answer => answer?,
        };
        // The service may begin its answer with success before it has made the object, and then fail.
        let body = answer.into_body().to_bytes();
        match find_text(&String::from_utf8_lossy(&body), "Code") {
            None => Ok(()),
            Some(code) => {
                // Failures are classified by what is recorded, and this answer was recorded as a success
                // without a body.
                if let Some(exchange) = current_exchange() {
                    exchange.lock().error_body = body.to_vec();
                }
                Err(opendal::Error::new(
                    kind_of_code(&code),
                    format!("the parts did not become an object: {code}"),
                ))
            }
        }
    }

    /// Gives up an upload, and its parts.
    pub async fn abort_upload(&self, path: &str, upload: &str) -> opendal::Result<()> {
        let query = format!("uploadId={}", percent_encode_path(upload));
        self.send_request(MultipartRequest::new(Method::DELETE, path, query)).await.map(drop)
    }

    async fn send_request(&self, request: MultipartRequest<'_>) -> opendal::Result<Response<Buffer>> {
        // OpenDAL knows the endpoint, the style of addresses, and how keys are written. Its signature is not used: it
        // is one of another request.
        let object = self.operator.presign_stat(request.path, ADDRESS_VALIDITY).await?;
        let base = object.uri().to_string();
        let base = base.split('?').next().unwrap_or_default();
        let mut head = Request::builder()
            .method(request.method)
            .uri(format!("{base}?{}", request.query))
            .header(CONTENT_LENGTH, request.body.len());
        if let Some(headers) = head.headers_mut() {
            headers.extend(request.headers);
        }
        let unusable = |error: http::Error| {
            opendal::Error::new(DalKind::Unexpected, "invalid request").set_source(error)
        };
        let (mut parts, ()) = head.body(()).map_err(unusable)?.into_parts();
        let transport = self.operator.context().http_transport();
        // The signer may have to load credentials: from files, from the environment, or by a request.
        let context =
            Context::new().with_file_read(TokioFileRead).with_http_send(transport.clone()).with_env(OsEnv);
        let signed = self.signer.clone().with_context(context).sign(&mut parts, None).await;
        signed.map_err(|error| {
            opendal::Error::new(DalKind::Unexpected, "the request cannot be signed").set_source(error)
        })?;
        // The HTTP client writes it, as the version of the protocol demands.
        parts.headers.remove(HOST);
        let body = Buffer::from(request.body);
        let answer = transport.send(Request::from_parts(parts, body)).await?;
        match answer.status() {
            status if status.is_success() => Ok(answer),
            status => Err(describe_refusal(status)),
        }
    }
}

impl<'a> MultipartRequest<'a> {
    /// A request without headers and body.
    fn new(method: Method, path: &'a str, query: String) -> Self {
        Self { method, path, query, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// The error of an answer; its code and message are in the record of the exchange.
fn describe_refusal(status: StatusCode) -> opendal::Error {
    let kind = match status.as_u16() {
        403 => DalKind::PermissionDenied,
        404 => DalKind::NotFound,
        412 => DalKind::ConditionNotMatch,
        429 => DalKind::RateLimited,
        501 => DalKind::Unsupported,
        _ => DalKind::Unexpected,
    };
    let error = opendal::Error::new(kind, format!("status {}", status.as_u16()));
    if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        error.set_temporary()
    } else {
        error
    }
}

/// What a code means in the body of an answer that began with success.
fn kind_of_code(code: &str) -> DalKind {
    match code {
        "PreconditionFailed" => DalKind::ConditionNotMatch,
        "NoSuchUpload" => DalKind::NotFound,
        _ => DalKind::Unexpected,
    }
}

/// Whether the last answer has this code.
fn has_error_code(code: &str) -> bool {
    current_exchange().is_some_and(|exchange| exchange.lock().error_code().as_deref() == Some(code))
}

fn unusable_answer(reason: &str) -> opendal::Error {
    opendal::Error::new(DalKind::Unexpected, reason)
}

fn parse_header_name(name: &str) -> opendal::Result<HeaderName> {
    HeaderName::try_from(name)
        .map_err(|error| opendal::Error::new(DalKind::Unexpected, "invalid header").set_source(error))
}

fn parse_header_value(value: &str) -> opendal::Result<HeaderValue> {
    HeaderValue::try_from(value)
        .map_err(|error| opendal::Error::new(DalKind::Unexpected, "invalid header").set_source(error))
}

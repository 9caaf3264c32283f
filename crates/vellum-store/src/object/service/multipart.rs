//! The requests of S3 and Azure about uploads in parts. OpenDAL sends them, too, but does not show by which id the service
//! knows an upload, so that no later run could continue it.
//!
//! Invariant: a request has the credentials, the address and the way of the operator beside it. Deliberately absent:
//! repetition, and what an upload is for.

mod answer;
mod blocks;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use opendal::raw::percent_encode_path;
use opendal::{Buffer, ErrorKind as DalKind, Operator};
use reqsign_aws_v4::Credential;
use reqsign_core::{Context, OsEnv, Signer, SigningCredential};
use reqsign_file_read_tokio::TokioFileRead;

pub(crate) use self::answer::fuzz_decoder;
pub(super) use self::answer::{PartPage, StoredPart};
use self::answer::{find_text, parse_part_page};
pub(super) use self::blocks::AzureBlockClient;
use super::exchange::current_exchange;

/// For how long an address is asked to be valid, of which only the path is used.
const ADDRESS_VALIDITY: Duration = Duration::from_secs(10);
/// The algorithm by which the service encrypts an object. With keys of its own, tags of parts stay hashes of their bytes.
const ENCRYPTION_HEADER: &str = "x-amz-server-side-encryption";
/// The service's own keys.
const SERVICE_KEYS: &str = "AES256";

/// Sends requests about uploads in parts.
#[derive(Clone)]
pub(super) enum MultipartClient {
    /// To S3.
    S3(S3PartClient),
    /// To Azure.
    Azure(AzureBlockClient),
}

/// Sends requests about uploads in parts to S3.
#[derive(Clone)]
pub(super) struct S3PartClient {
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

/// What makes an object of parts, which are numbered from 1.
#[derive(Debug, Clone)]
pub(super) struct UploadFinish {
    /// By which the service knows the upload.
    pub id: String,
    /// The tags of the parts.
    pub tags: Vec<String>,
    /// Metadata of the object. S3 was given it when the upload was begun.
    pub metadata: (String, String),
    /// What must stand at the key.
    pub condition: Option<FinishCondition>,
}

/// One request about an object.
struct MultipartRequest {
    method: Method,
    query: String,
    headers: HeaderMap,
    body: Bytes,
}

impl MultipartClient {
    /// Begins an upload of an object with this metadata.
    pub async fn begin_upload(&self, path: &str, metadata: (String, String)) -> opendal::Result<BegunUpload> {
        match self {
            Self::S3(client) => client.begin_upload(path, metadata).await,
            Self::Azure(client) => client.begin_upload(),
        }
    }

    /// Sends a part; returns its tag.
    pub async fn send_part(
        &self,
        path: &str,
        upload: &str,
        number: u32,
        body: Bytes,
    ) -> opendal::Result<String> {
        match self {
            Self::S3(client) => client.send_part(path, upload, number, body).await,
            Self::Azure(client) => client.send_part(path, upload, number, body).await,
        }
    }

    /// The parts after a number that the service has, as many as it lists at once.
    pub async fn list_parts(&self, path: &str, upload: &str, after: u32) -> opendal::Result<PartPage> {
        match self {
            Self::S3(client) => client.list_parts(path, upload, after).await,
            Self::Azure(client) => client.list_parts(path, upload).await,
        }
    }

    /// Makes an object of parts.
    pub async fn finish_upload(&self, path: &str, finish: &UploadFinish) -> opendal::Result<()> {
        match self {
            Self::S3(client) => client.finish_upload(path, finish).await,
            Self::Azure(client) => client.finish_upload(path, finish).await,
        }
    }

    /// Gives up an upload, and its parts.
    pub async fn abort_upload(&self, path: &str, upload: &str) -> opendal::Result<()> {
        match self {
            Self::S3(client) => client.abort_upload(path, upload).await,
            // There is no such request: Azure removes what became no object after a week.
            Self::Azure(_) => Ok(()),
        }
    }
}

impl S3PartClient {
    pub fn new(signer: Signer<Credential>, operator: Operator) -> Self {
        Self { signer, operator }
    }

    /// Begins an upload of an object with this metadata.
    pub async fn begin_upload(&self, path: &str, metadata: (String, String)) -> opendal::Result<BegunUpload> {
        let mut headers = HeaderMap::new();
        let (name, value) = metadata;
        headers.insert(parse_header_name(&format!("x-amz-meta-{name}"))?, parse_header_value(&value)?);
        let request =
            MultipartRequest { headers, ..MultipartRequest::new(Method::POST, "uploads".to_owned()) };
        let answer = self.send_request(path, request).await?;
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
        let query = format!("partNumber={number}&uploadId={}", percent_encode_path(upload));
        let request = MultipartRequest { body, ..MultipartRequest::new(Method::PUT, query) };
        let answer = self.send_request(path, request).await?;
        let tag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok());
        tag.map(str::to_owned).ok_or_else(|| unusable_answer("the part has no tag"))
    }

    /// The parts after a number that the service has, as many as it lists at once.
    pub async fn list_parts(&self, path: &str, upload: &str, after: u32) -> opendal::Result<PartPage> {
        let mut query = format!("uploadId={}", percent_encode_path(upload));
        if after > 0 {
            query = format!("part-number-marker={after}&{query}");
        }
        let answer = self.send_request(path, MultipartRequest::new(Method::GET, query)).await?;
        parse_part_page(&answer.into_body().to_bytes()).ok_or_else(|| unusable_answer("it lists no parts"))
    }

    /// Makes an object of parts.
    pub async fn finish_upload(&self, path: &str, finish: &UploadFinish) -> opendal::Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        add_condition(&mut headers, finish.condition.as_ref())?;
        let has_old_version = matches!(finish.condition, Some(FinishCondition::Tag(_)));
        let query = format!("uploadId={}", percent_encode_path(&finish.id));
        let body = answer::format_part_list(&finish.tags).into();
        let request = MultipartRequest { headers, body, ..MultipartRequest::new(Method::POST, query) };
        let answer = match self.send_request(path, request).await {
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
        self.send_request(path, MultipartRequest::new(Method::DELETE, query)).await.map(drop)
    }

    async fn send_request(&self, path: &str, request: MultipartRequest) -> opendal::Result<Response<Buffer>> {
        // OpenDAL knows the endpoint, the style of addresses, and how keys are written. Its signature is not used: it
        // is one of another request.
        let object = self.operator.presign_stat(path, ADDRESS_VALIDITY).await?;
        let base = object.uri().to_string();
        let base = base.split('?').next().unwrap_or_default();
        request.send_signed(base, &self.signer, &self.operator).await
    }
}

impl MultipartRequest {
    /// A request without headers and body.
    fn new(method: Method, query: String) -> Self {
        Self { method, query, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// Signs it, sends it to the address of an object, and returns the answer if it reports success.
    async fn send_signed<C: SigningCredential>(
        self,
        base: &str,
        signer: &Signer<C>,
        operator: &Operator,
    ) -> opendal::Result<Response<Buffer>> {
        let mut head = Request::builder()
            .method(self.method)
            .uri(format!("{base}?{}", self.query))
            .header(CONTENT_LENGTH, self.body.len());
        if let Some(headers) = head.headers_mut() {
            headers.extend(self.headers);
        }
        let unusable = |error: http::Error| {
            opendal::Error::new(DalKind::Unexpected, "invalid request").set_source(error)
        };
        let (mut parts, ()) = head.body(()).map_err(unusable)?.into_parts();
        let transport = operator.context().http_transport();
        let context =
            Context::new().with_file_read(TokioFileRead).with_http_send(transport.clone()).with_env(OsEnv);
        let signed = signer.clone().with_context(context).sign(&mut parts, None).await;
        signed.map_err(|error| {
            opendal::Error::new(DalKind::Unexpected, "the request cannot be signed").set_source(error)
        })?;
        // The HTTP client writes it, as the version of the protocol demands.
        parts.headers.remove(HOST);
        let body = Buffer::from(self.body);
        let answer = transport.send(Request::from_parts(parts, body)).await?;
        match answer.status() {
            status if status.is_success() => Ok(answer),
            status => Err(describe_refusal(status)),
        }
    }
}

/// Adds what must stand at the key.
fn add_condition(headers: &mut HeaderMap, condition: Option<&FinishCondition>) -> opendal::Result<()> {
    match condition {
        None => {}
        Some(FinishCondition::Absent) => {
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        Some(FinishCondition::Tag(tag)) => {
            headers.insert(IF_MATCH, parse_header_value(tag)?);
        }
    }
    Ok(())
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

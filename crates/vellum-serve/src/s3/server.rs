//! Requests: from the guard to `s3s`, and what it answers.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use s3s::Body;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::{GatewayAccess, GatewayAuth};
use super::body::PermitBody;
use super::bucket::TreeBucket;
use super::errors::explain_failure;
use super::guard::check_request;
use crate::credentials::GatewayCredentials;
use crate::error::{Result, ServeError};
use crate::gateway_listener::RequestPlaces;
use crate::http_gateway::HttpGateway;
use crate::received_file::remove_leftovers;
use crate::request_body::RequestBody;
use crate::request_sender::RequestRefusal;
use crate::served_tree::ServedTree;

/// Largest XML of a request, bytes: 10,000 parts with their checksums, or 1,000 keys.
const XML_MAX: usize = 4 << 20;
/// Requests with XML at once: it is read into memory.
const XML_REQUESTS: usize = 4;

/// Where to listen, what to serve, and to whom.
pub struct S3Settings {
    /// An address of this machine; port 0 stands for a free one.
    pub listen: SocketAddr,
    /// The name of the bucket.
    pub bucket: String,
    /// The tree.
    pub tree: ServedTree,
    /// Whether a worktree may be written.
    pub can_write: bool,
    /// Who may use it: names are access keys, passwords are secret keys.
    pub credentials: GatewayCredentials,
}

/// A gateway that listens.
pub struct S3Server {
    http: HttpGateway,
    service: S3Service,
}

/// What all requests use.
#[derive(Clone)]
struct SharedGateway {
    service: S3Service,
    places: RequestPlaces,
    xml_places: Arc<Semaphore>,
}

type S3Answer = Response<PermitBody<Body>>;

/// Fails unless clients can name such a bucket.
pub fn check_bucket_name(name: &str) -> Result<()> {
    if s3s::path::check_bucket_name(name) { Ok(()) } else { Err(ServeError::BucketName(name.to_owned())) }
}

impl S3Server {
    /// Begins to listen. Fails if others than this machine could connect, or if the bucket's name cannot be one.
    pub fn bind(settings: S3Settings) -> Result<Self> {
        let S3Settings { listen, bucket, tree, can_write, credentials } = settings;
        check_bucket_name(&bucket)?;
        let http = HttpGateway::bind(listen)?;
        let can_write = can_write && tree.worktree().is_some();
        if let Some(worktree) = tree.worktree().filter(|_| can_write) {
            remove_leftovers(worktree)?;
        }
        let credentials = Arc::new(credentials);
        let mut service = S3ServiceBuilder::new(TreeBucket::new(bucket, tree, can_write));
        // With this, `s3s` checks signatures, and asks whether a request may be carried out.
        service.set_auth(GatewayAuth(credentials.clone()));
        service.set_access(GatewayAccess { credentials, can_write });
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_MAX;
        service.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        Ok(Self { http, service: service.build() })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }

    /// Answers requests until a signal asks it to end.
    pub fn run(self) -> Result<()> {
        let shared = SharedGateway {
            service: self.service,
            places: RequestPlaces::new(),
            xml_places: Arc::new(Semaphore::new(XML_REQUESTS)),
        };
        self.http.run(move |request| {
            let shared = shared.clone();
            async move { shared.answer_request(request).await.unwrap_or_else(|refusal| write_refusal(&refusal)) }
        })
    }
}

impl SharedGateway {
    async fn answer_request(
        &self,
        request: Request<Incoming>,
    ) -> std::result::Result<S3Answer, RequestRefusal> {
        let (head, incoming) = request.into_parts();
        check_request(&head)?;
        let busy = RequestRefusal {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "too many requests are under way",
        };
        let permit = self.places.acquire().await.ok_or(busy)?;
        // Held until it is answered. Only these have a body that is read into memory.
        let _xml = if head.method == Method::POST { self.acquire_xml_place().await } else { None };
        let body = Body::http_body(RequestBody::upload(incoming));
        match self.service.call(Request::from_parts(head, body)).await {
            Ok(answer) => Ok(explain_failure(answer).map(|body| PermitBody::new(body, Some(permit)))),
            Err(_) => Err(RequestRefusal {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                reason: "the request cannot be answered",
            }),
        }
    }

    // A semaphore that nobody closes always gives a permit at last: what holds one is bounded in time by its client's silence.
    async fn acquire_xml_place(&self) -> Option<OwnedSemaphorePermit> {
        self.xml_places.clone().acquire_owned().await.ok()
    }
}

/// A refusal as S3 writes it.
fn write_refusal(refusal: &RequestRefusal) -> S3Answer {
    let RequestRefusal { status, reason } = refusal;
    let code = match *status {
        StatusCode::FORBIDDEN => "AccessDenied",
        StatusCode::SERVICE_UNAVAILABLE => "SlowDown",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalError",
        _ => "InvalidRequest",
    };
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{reason}</Message></Error>"
    );
    let mut answer = Response::new(PermitBody::new(Body::from(xml), None));
    *answer.status_mut() = *status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    if *status == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

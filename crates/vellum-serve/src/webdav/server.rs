//! Requests: from the guard to `dav-server`, and what it answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use dav_server::memls::MemLs;
use dav_server::{DavHandler, DavMethodSet};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};

use super::body::AnswerBody;
use super::filesystem::DavTree;
use super::guard::{DavGuard, check_xml};
use crate::content_blocks::BLOCK;
use crate::credentials::GatewayCredentials;
use crate::error::Result;
use crate::gateway_listener::RequestPlaces;
use crate::http_gateway::HttpGateway;
use crate::received_file::remove_leftovers;
use crate::request_body::RequestBody;
use crate::request_sender::RequestRefusal;
use crate::served_tree::ServedTree;

/// Time for the body of a request that is no upload.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Largest body of a request that is no upload, bytes.
const BODY_MAX: usize = 64 << 10;

/// Where to listen, what to serve, and to whom.
pub struct WebdavSettings {
    /// An address of this machine; port 0 stands for a free one.
    pub listen: SocketAddr,
    /// The tree.
    pub tree: ServedTree,
    /// Whether a worktree may be written.
    pub can_write: bool,
    /// Who may use it.
    pub credentials: GatewayCredentials,
}

/// A gateway that listens.
pub struct WebdavServer {
    http: HttpGateway,
    shared: Arc<SharedGateway>,
}

/// What all requests use.
struct SharedGateway {
    tree: ServedTree,
    can_write: bool,
    guard: DavGuard,
    locks: Option<Box<MemLs>>,
    places: RequestPlaces,
}

type DavAnswer = Response<AnswerBody>;

impl WebdavServer {
    /// Begins to listen. Fails if others than this machine could connect.
    pub fn bind(settings: WebdavSettings) -> Result<Self> {
        let http = HttpGateway::bind(settings.listen)?;
        let WebdavSettings { tree, can_write, credentials, .. } = settings;
        let can_write = can_write && tree.worktree().is_some();
        if let Some(worktree) = tree.worktree().filter(|_| can_write) {
            remove_leftovers(worktree)?;
        }
        let shared = SharedGateway {
            guard: DavGuard::new(credentials, can_write),
            // Finder and others write only where they can lock. The locks end with this process.
            locks: can_write.then(MemLs::new),
            places: RequestPlaces::new(),
            tree,
            can_write,
        };
        Ok(Self { http, shared: Arc::new(shared) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }

    /// Answers requests until a signal asks it to end.
    pub fn run(self) -> Result<()> {
        let shared = self.shared;
        self.http.run(move |request| {
            let shared = shared.clone();
            async move { answer_request(&shared, request).await.unwrap_or_else(|refusal| refuse(&refusal)) }
        })
    }
}

async fn answer_request(
    shared: &SharedGateway,
    request: Request<Incoming>,
) -> std::result::Result<DavAnswer, RequestRefusal> {
    let (mut head, incoming) = request.into_parts();
    shared.guard.check_request(&mut head)?;
    let busy =
        RequestRefusal { status: StatusCode::SERVICE_UNAVAILABLE, reason: "too many requests are under way" };
    let permit = shared.places.acquire().await.ok_or(busy)?;
    let body = match head.method.as_str() {
        "PUT" => RequestBody::upload(incoming),
        _ => {
            let whole = read_body(incoming).await?;
            check_xml(&whole)?;
            RequestBody::Whole(Some(whole))
        }
    };
    let has_failed = Arc::new(AtomicBool::new(false));
    let tree = DavTree::new(shared.tree.clone(), shared.can_write, has_failed.clone());
    let mut handler = DavHandler::builder()
        .filesystem(Box::new(tree))
        .methods(if shared.can_write { DavMethodSet::WEBDAV_RW } else { DavMethodSet::WEBDAV_RO })
        .autoindex(false)
        .read_buf_size(BLOCK);
    if let Some(locks) = &shared.locks {
        handler = handler.locksystem(locks.clone());
    }
    let answer = handler.build_handler().handle(Request::from_parts(head, body)).await;
    Ok(answer.map(|body| AnswerBody::new(body, has_failed, permit)))
}

/// The whole body of a request, which is short XML or nothing.
async fn read_body(incoming: Incoming) -> std::result::Result<Bytes, RequestRefusal> {
    let refused = |status, reason| RequestRefusal { status, reason };
    match tokio::time::timeout(BODY_TIME, Limited::new(incoming, BODY_MAX).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => {
            Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "the body breaks off, or is longer than 64 KiB"))
        }
        Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

fn refuse(refusal: &RequestRefusal) -> DavAnswer {
    let mut answer = Response::new(AnswerBody::text(refusal.reason));
    *answer.status_mut() = refusal.status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if refusal.status == StatusCode::UNAUTHORIZED {
        headers
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"Vellum\", charset=\"UTF-8\""));
    }
    if refusal.status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

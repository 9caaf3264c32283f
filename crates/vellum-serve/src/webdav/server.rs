//! Connections and requests: at most so many at once, each bounded in size and time.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use dav_server::memls::MemLs;
use dav_server::{DavHandler, DavMethodSet};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY, RETRY_AFTER,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::body::{AnswerBody, RequestBody};
use super::filesystem::DavTree;
use super::guard::{DavGuard, DavRefusal, check_xml};
use crate::credentials::GatewayCredentials;
use crate::end_signal::EndSignal;
use crate::error::{Result, ServeError};
use crate::served_tree::ServedTree;

/// Connections at once. Those beyond wait in the kernel.
const CONNECTIONS: usize = 1000;
/// Requests under way at once.
const REQUESTS: usize = 64;
/// Time that a request waits to be one of them.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// Threads that read and write the tree.
const THREADS: usize = 32;
/// Time for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Time for the body of a request that is no upload.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Largest head of a request, and what is buffered of an upload, bytes.
const BUFFER_MAX: usize = 64 << 10;
/// Largest body of a request that is no upload, bytes.
const BODY_MAX: usize = 64 << 10;
/// Bytes that are read from a file at once.
const READ_AT_ONCE: usize = 256 << 10;
/// Time for requests that are under way when the gateway ends.
const END_TIME: Duration = Duration::from_secs(10);
/// What content of the tree may do when a browser shows it: nothing. It could use the password that the browser keeps.
const CONTENT_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

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
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    signal: EndSignal,
    shared: Arc<SharedGateway>,
}

/// What all requests use.
struct SharedGateway {
    tree: ServedTree,
    can_write: bool,
    guard: DavGuard,
    locks: Option<Box<MemLs>>,
    requests: Arc<Semaphore>,
}

type DavAnswer = Response<AnswerBody>;

impl WebdavServer {
    /// Begins to listen. Fails if others than this machine could connect.
    pub fn bind(settings: WebdavSettings) -> Result<Self> {
        // The password travels in plain text, and the content does, too.
        if !settings.listen.ip().is_loopback() {
            return Err(ServeError::NotLoopback(settings.listen));
        }
        let refused = |source| ServeError::Listen { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let runtime = Builder::new_multi_thread()
            // These only move bytes. Whatever reads from the tree may wait for a store, and has threads of its own.
            .worker_threads(2)
            // `dav-server` descends into XML and directories by recursion.
            .thread_stack_size(8 << 20)
            .max_blocking_threads(THREADS)
            .enable_all()
            .build()
            .map_err(ServeError::for_action("start threads"))?;
        let signal = EndSignal::install().map_err(ServeError::for_action("catch signals"))?;
        let WebdavSettings { tree, can_write, credentials, .. } = settings;
        let can_write = can_write && tree.worktree().is_some();
        let shared = SharedGateway {
            guard: DavGuard::new(credentials, can_write),
            // Finder and others write only where they can lock. The locks end with this process.
            locks: can_write.then(MemLs::new),
            requests: Arc::new(Semaphore::new(REQUESTS)),
            tree,
            can_write,
        };
        Ok(Self { runtime, listener, address, signal, shared: Arc::new(shared) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until a signal asks it to end.
    pub fn run(self) -> Result<()> {
        let Self { runtime, listener, address, signal, shared } = self;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|source| ServeError::Listen { address, source })?;
            let connections = Arc::new(Semaphore::new(CONNECTIONS));
            let (end, ending) = watch::channel(false);
            tokio::select! {
                () = accept_connections(&listener, &shared, &connections, &ending) => {}
                waited = signal.wait() => waited.map_err(ServeError::for_action("wait for a signal"))?,
            }
            drop(listener);
            // Those that are idle end at once, the others with the answer that is under way.
            let _ = end.send(true);
            let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
            let _ = tokio::time::timeout(END_TIME, connections.acquire_many(all)).await;
            Ok(())
        })
    }
}

async fn accept_connections(
    listener: &tokio::net::TcpListener,
    shared: &Arc<SharedGateway>,
    connections: &Arc<Semaphore>,
    ending: &watch::Receiver<bool>,
) {
    // A semaphore that nobody closes always gives a permit at last.
    while let Ok(permit) = connections.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve_connection(stream, shared.clone(), permit, ending.clone()));
            }
            // Of one connection, or for want of file descriptors, which others give back.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve_connection(
    stream: tokio::net::TcpStream,
    shared: Arc<SharedGateway>,
    _permit: OwnedSemaphorePermit,
    mut ending: watch::Receiver<bool>,
) {
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move {
            let mut answer =
                answer_request(&shared, request).await.unwrap_or_else(|refusal| refuse(&refusal));
            set_common(answer.headers_mut());
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(BUFFER_MAX);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    // A connection that breaks is the client's affair.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ending.wait_for(|ends| *ends) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

async fn answer_request(
    shared: &SharedGateway,
    request: Request<Incoming>,
) -> std::result::Result<DavAnswer, DavRefusal> {
    let (mut head, incoming) = request.into_parts();
    shared.guard.check_request(&mut head)?;
    let waiting = tokio::time::timeout(REQUEST_WAIT, shared.requests.clone().acquire_owned()).await;
    let Ok(Ok(permit)) = waiting else {
        return Err(DavRefusal {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "too many requests are under way",
        });
    };
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
        .read_buf_size(READ_AT_ONCE);
    if let Some(locks) = &shared.locks {
        handler = handler.locksystem(locks.clone());
    }
    let answer = handler.build_handler().handle(Request::from_parts(head, body)).await;
    Ok(answer.map(|body| AnswerBody::new(body, has_failed, permit)))
}

/// The whole body of a request, which is short XML or nothing.
async fn read_body(incoming: Incoming) -> std::result::Result<Bytes, DavRefusal> {
    let refused = |status, reason| DavRefusal { status, reason };
    match tokio::time::timeout(BODY_TIME, Limited::new(incoming, BODY_MAX).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => {
            Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "the body breaks off, or is longer than 64 KiB"))
        }
        Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

fn refuse(refusal: &DavRefusal) -> DavAnswer {
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

/// What every answer has.
fn set_common(headers: &mut HeaderMap) {
    // A file of the tree may be a page with scripts. Shown under this address, these could read and write the tree.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let resource_policy = HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(resource_policy, HeaderValue::from_static("same-origin"));
}

//! What gateways over HTTP have in common: connections and requests, at most so many at once, and their end.

use std::convert::Infallible;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::end_signal::EndSignal;
use crate::error::{Result, ServeError};

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
/// Largest head of a request, and what is buffered of an upload, bytes.
const BUFFER_MAX: usize = 64 << 10;
/// Time for requests that are under way when the gateway ends.
const END_TIME: Duration = Duration::from_secs(10);
/// What content of the tree may do when a browser shows it: nothing. It could use the password that the browser keeps.
const CONTENT_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

/// A gateway that listens.
pub struct HttpGateway {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    signal: EndSignal,
}

/// The places for requests that are under way.
#[derive(Clone)]
pub struct RequestPlaces(Arc<Semaphore>);

impl RequestPlaces {
    /// As many as there are.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(REQUESTS)))
    }

    /// Waits for one. None: there was none for too long.
    pub async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        tokio::time::timeout(REQUEST_WAIT, self.0.clone().acquire_owned()).await.ok()?.ok()
    }
}

impl Default for RequestPlaces {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpGateway {
    /// Begins to listen. Fails if others than this machine could connect.
    pub fn bind(listen: SocketAddr) -> Result<Self> {
        // The content travels in plain text, and passwords may, too.
        if !listen.ip().is_loopback() {
            return Err(ServeError::NotLoopback(listen));
        }
        let refused = |source| ServeError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).map_err(refused)?;
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
        Ok(Self { runtime, listener, address, signal })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until a signal asks it to end.
    pub fn run<F, T, B>(self, answer: F) -> Result<()>
    where
        F: Fn(Request<Incoming>) -> T + Clone + Send + Sync + 'static,
        T: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let Self { runtime, listener, address, signal } = self;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|source| ServeError::Listen { address, source })?;
            let connections = Arc::new(Semaphore::new(CONNECTIONS));
            let (end, ending) = watch::channel(false);
            tokio::select! {
                () = accept_connections(&listener, &answer, &connections, &ending) => {}
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

async fn accept_connections<F, T, B>(
    listener: &tokio::net::TcpListener,
    answer: &F,
    connections: &Arc<Semaphore>,
    ending: &watch::Receiver<bool>,
) where
    F: Fn(Request<Incoming>) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    // A semaphore that nobody closes always gives a permit at last.
    while let Ok(permit) = connections.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                // An answer's head is sent before its content is read. The kernel would keep a short content back until the
                // client has acknowledged the head, for which clients take 40 ms.
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve_connection(stream, answer.clone(), permit, ending.clone()));
            }
            // Of one connection, or for want of file descriptors, which others give back.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve_connection<F, T, B>(
    stream: tokio::net::TcpStream,
    answer: F,
    _permit: OwnedSemaphorePermit,
    mut ending: watch::Receiver<bool>,
) where
    F: Fn(Request<Incoming>) -> T + Send + Sync + 'static,
    T: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = service_fn(|request| {
        let answering = answer(request);
        async move {
            let mut answer = answering.await;
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

/// What every answer has.
fn set_common(headers: &mut HeaderMap) {
    // A file of the tree may be a page with scripts. Shown under this address, these could read and write the tree.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let resource_policy = HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(resource_policy, HeaderValue::from_static("same-origin"));
}

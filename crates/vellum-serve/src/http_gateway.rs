//! Gateways over HTTP: their connections, and what every answer has.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
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
use tokio::net::TcpStream;

use crate::error::{Result, ServeError};
use crate::gateway_listener::{GatewayEnding, GatewayListener};

/// Time for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Largest head of a request, and what is buffered of an upload, bytes.
const BUFFER_MAX: usize = 64 << 10;
/// What content of the tree may do when a browser shows it: nothing. It could use the password that the browser keeps.
const CONTENT_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

/// A gateway that listens.
pub struct HttpGateway(GatewayListener);

impl HttpGateway {
    /// Begins to listen. Fails if others than this machine could connect.
    pub fn bind(listen: SocketAddr) -> Result<Self> {
        // The content travels in plain text, and passwords may, too.
        if !listen.ip().is_loopback() {
            return Err(ServeError::NotLoopback(listen));
        }
        Ok(Self(GatewayListener::bind(listen)?))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Answers requests until a signal asks it to end.
    pub fn run<F, T, B>(self, answer: F) -> Result<()>
    where
        F: Fn(Request<Incoming>) -> T + Clone + Send + Sync + 'static,
        T: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.0.run(|stream, ending| serve_connection(stream, answer.clone(), ending))
    }
}

async fn serve_connection<F, T, B>(stream: TcpStream, answer: F, mut ending: GatewayEnding)
where
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

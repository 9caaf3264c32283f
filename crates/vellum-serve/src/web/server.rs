//! Connections and requests: at most so many at once, each bounded in size and time.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderMap, IF_NONE_MATCH, RANGE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vellum_library::Volume;

use crate::end_signal::EndSignal;
use crate::error::{Result, ServeError};
use crate::token::AccessToken;
use crate::web::actions::{ActionSettings, ActionState, answer_command};
use crate::web::answer::{
    Answer, AnswerBody, ApiError, Freshness, content_answer, error_answer, event_answer, unchanged_answer,
    unsatisfiable_answer,
};
use crate::web::api::{ApiState, answer_question, open_content, parse_range};
use crate::web::assets::answer_asset;
use crate::web::events::{ConnectionEnd, EventHub, watch_volume};
use crate::web::guard::RequestGuard;
use crate::web::route::{ApiRequest, PathInSnapshot, Route, parse_route};
use crate::web::tickets::TicketUse;

/// Connections at once: a browser opens six.
const CONNECTIONS: usize = 64;
/// Contents that are sent at once: each keeps a thread.
const DOWNLOADS: usize = 16;
/// Commands that run at once; others wait.
const COMMANDS: usize = 8;
/// Requests that wait for a thread.
const WAITING: usize = 256;
/// Threads that read from the volume.
const THREADS: usize = 32;
/// Time for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time for the body of a request.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Time for streams to end in order when the server ends.
const STREAM_END_TIME: Duration = Duration::from_secs(1);
/// Largest head of a request, bytes.
const HEAD_MAX: usize = 16 << 10;
/// Largest body of a request, bytes.
const BODY_MAX: usize = 1 << 20;

/// Where to listen, and what requests have to show.
pub struct WebSettings {
    /// An address of this machine; port 0 stands for a free one.
    pub listen: SocketAddr,
    /// The token.
    pub token: AccessToken,
    /// What the page may change, and how.
    pub actions: ActionSettings,
}

/// A server that listens.
pub struct WebServer {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    signal: EndSignal,
    shared: Arc<SharedServer>,
}

/// What all requests use.
struct SharedServer {
    state: Arc<ApiState>,
    actions: Arc<ActionState>,
    events: Arc<EventHub>,
    guard: RequestGuard,
    waiting: Arc<Semaphore>,
    commands: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
}

impl WebServer {
    /// Begins to listen. Fails if others than this machine could connect.
    pub fn bind(volume: Volume, settings: WebSettings) -> Result<Self> {
        // The token travels in plain text, and the content does, too: on a network anybody in between would read both.
        if !settings.listen.ip().is_loopback() {
            return Err(ServeError::NotLoopback(settings.listen));
        }
        let refused = |source| ServeError::Listen { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).map_err(refused)?;
        // The runtime takes over only sockets that do not block.
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .map_err(|error| ServeError::for_action("get random bytes")(error.into()))?;
        let runtime = Builder::new_multi_thread()
            // These only move bytes. Whatever reads from the volume may wait for a store, and has threads of its own.
            .worker_threads(2)
            .max_blocking_threads(THREADS)
            .enable_all()
            .build()
            .map_err(ServeError::for_action("start threads"))?;
        let signal = EndSignal::install().map_err(ServeError::for_action("catch signals"))?;
        let shared = SharedServer {
            state: Arc::new(ApiState::new(volume, key, settings.actions.place())),
            actions: Arc::new(ActionState::new(settings.actions)),
            events: Arc::default(),
            // The port that the system gave: port 0 would match no Host.
            guard: RequestGuard::new(address.port(), settings.token),
            waiting: Arc::new(Semaphore::new(WAITING)),
            commands: Arc::new(Semaphore::new(COMMANDS)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS)),
        };
        Ok(Self { runtime, listener, address, signal, shared: Arc::new(shared) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until a signal asks it to end. What is being changed then is finished first.
    pub fn run(self) -> Result<()> {
        let Self { runtime, listener, address, signal, shared } = self;
        let done = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|source| ServeError::Listen { address, source })?;
            let watching = watch_volume(shared.events.clone(), shared.state.clone(), shared.actions.clone());
            tokio::spawn(watching);
            tokio::select! {
                () = accept_connections(&listener, &shared) => {}
                ended = signal.wait() => ended.map_err(ServeError::for_action("wait for signals"))?,
            }
            // Who connects now is refused, instead of waiting for nothing.
            drop(listener);
            // Pages see the end of their streams at once, and not only when what is being changed is done.
            shared.events.close();
            // The end of this process would kill the command. Ctrl-C reaches the command, too, which then stops by itself.
            shared.actions.finish_changes().await;
            // Their last bytes are still to be sent. Who does not take them is not waited for.
            let _ = tokio::time::timeout(STREAM_END_TIME, shared.events.wait_until_taken()).await;
            Ok(())
        });
        shared.actions.remove_plan_files();
        // Threads that read may wait for a store.
        runtime.shutdown_background();
        done
    }
}

async fn accept_connections(listener: &tokio::net::TcpListener, shared: &Arc<SharedServer>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    // A semaphore that nobody closes always gives a permit at last.
    // Before the connection is accepted: those beyond the limit wait in the kernel, and take no memory here.
    while let Ok(permit) = connections.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Otherwise the kernel keeps a short content, or an event, back until what was sent before is acknowledged.
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve_connection(stream, shared.clone(), permit));
            }
            // Of one connection, or for want of file descriptors, which others give back.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve_connection(
    stream: tokio::net::TcpStream,
    shared: Arc<SharedServer>,
    _permit: OwnedSemaphorePermit,
) {
    let end = ConnectionEnd::default();
    let own = end.clone();
    let service = service_fn(move |request| {
        let shared = shared.clone();
        let own = own.clone();
        async move {
            // A refusal is an answer, too. An error here would close the connection without a word.
            let answer = answer_request(&shared, request, own).await.unwrap_or_else(error_answer);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    // Without these, a client that sends a byte now and then would keep one of CONNECTIONS for ever.
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_MAX);
    // A connection that breaks is the client's affair.
    tokio::select! {
        _ = http.serve_connection(TokioIo::new(stream), service) => {}
        () = end.wait() => {}
    }
}

async fn answer_request(
    shared: &Arc<SharedServer>,
    request: Request<Incoming>,
    connection: ConnectionEnd,
) -> std::result::Result<Answer, ApiError> {
    let (head, body) = request.into_parts();
    // First of all, also for assets: a page of another site must not even learn that this server is here.
    shared.guard.check_sender(&head.headers)?;
    let query = head.uri.query().unwrap_or_default();
    // Before the address is looked at: it tells those without the token nothing.
    let path = head.uri.path();
    if path.starts_with("/api/") {
        shared.guard.check_token(&head.headers)?;
    }
    match parse_route(head.method.as_str(), path, query)? {
        // Without the token: the page itself is the same for everybody, and holds nothing of the volume.
        Route::Asset(name) => Ok(if_changed(answer_asset(&name)?, &head.headers)),
        // Without the token, which a link cannot show: who has a ticket has shown it before.
        Route::Download(ticket) => match shared.state.tickets.redeem(&ticket, Instant::now()) {
            // Without the headers: a ticket is used up, so a range or a revalidation could not be followed by another
            // request.
            TicketUse::Granted(place) => answer_content(shared, place, &HeaderMap::new()).await,
            TicketUse::Gone => Err(ApiError::new(
                StatusCode::GONE,
                "not_found",
                "this link was used already, or is older than a minute",
            )),
        },
        Route::Events { wants_figures } => {
            Ok(event_answer(shared.events.add_listener(wants_figures, connection)?))
        }
        Route::Api(ApiRequest::Content(place)) => answer_content(shared, place, &head.headers).await,
        Route::Command(asked) => {
            // Commands are processes: fewer of them than of threads that read.
            let _waiting = shared.waiting.clone().try_acquire_owned().map_err(|_| busy())?;
            let _permit = shared.commands.clone().acquire_owned().await.map_err(|_| busy())?;
            let body = read_body(&head.method, &head.headers, body).await?;
            answer_command(&shared.state, &shared.actions, asked, &body).await
        }
        Route::Api(asked) => {
            let body = read_body(&head.method, &head.headers, body).await?;
            let answer = run_blocking(shared, move |state| answer_question(state, &asked, &body)).await?;
            Ok(if_changed(answer, &head.headers))
        }
    }
}

/// The body of a POST, which has to be JSON: a form of another site cannot send that.
async fn read_body(
    method: &Method,
    headers: &HeaderMap,
    body: Incoming,
) -> std::result::Result<bytes::Bytes, ApiError> {
    if *method != Method::POST {
        return Ok(bytes::Bytes::new());
    }
    if headers.get(CONTENT_TYPE).is_none_or(|value| value != "application/json") {
        let message = "the body has to be application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "usage", message));
    }
    let collected = tokio::time::timeout(BODY_TIME, Limited::new(body, BODY_MAX).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "usage", "the body is longer than 1 MiB"))
        }
        Ok(Err(_)) => Err(ApiError::new(StatusCode::BAD_REQUEST, "usage", "the body breaks off")),
        Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "usage", "the body did not arrive in time")),
    }
}

/// Reads from the volume on a thread that may wait.
async fn run_blocking<T: Send + 'static>(
    shared: &Arc<SharedServer>,
    read: impl FnOnce(&ApiState) -> std::result::Result<T, ApiError> + Send + 'static,
) -> std::result::Result<T, ApiError> {
    // Refused instead of queued without limit: each that waits takes memory, and its client may have left.
    let permit = shared.waiting.clone().try_acquire_owned().map_err(|_| busy())?;
    let own = shared.clone();
    let reading = tokio::task::spawn_blocking(move || {
        // Held by the thread and not by the request: a client that goes away does not stop the reading.
        let _permit = permit;
        read(&own.state)
    });
    // Only a panic of that thread comes here. This request fails, and the server goes on.
    let failed =
        |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "io", "the request could not be carried out");
    reading.await.map_err(failed)?
}

fn busy() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "conflict", "too many requests are waiting")
}

async fn answer_content(
    shared: &Arc<SharedServer>,
    place: PathInSnapshot,
    headers: &HeaderMap,
) -> std::result::Result<Answer, ApiError> {
    // Fewer than there are threads: slow downloads must leave some for the page.
    let permit = shared.downloads.clone().try_acquire_owned().map_err(|_| busy())?;
    let reader = run_blocking(shared, move |state| open_content(state, &place)).await?;
    if is_known(headers, &reader.freshness) {
        return Ok(unchanged_answer(&reader.freshness));
    }
    let range = headers.get(RANGE).and_then(|value| value.to_str().ok());
    // The file is there already, so that a refusal can say how long it is.
    let Ok(part) = parse_range(range, reader.size()) else { return Ok(unsatisfiable_answer(reader.size())) };
    let freshness = reader.freshness.clone();
    let (parts, read) = reader.into_parts(part);
    // Not through `run_blocking`: this lasts as long as the client takes, and is counted by `downloads`. A HEAD request comes
    // here, too; its body is dropped unread, and with it the receiver, so that the thread ends soon.
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        read();
    });
    Ok(content_answer(AnswerBody::Parts { parts, left: part.len }, part, &freshness))
}

fn is_known(headers: &HeaderMap, freshness: &Freshness) -> bool {
    match freshness {
        Freshness::Now => false,
        // Compared as a whole: a list of tags, or a weak one, costs an answer that could have been spared, and nothing else.
        Freshness::Forever(tag) => headers.get(IF_NONE_MATCH).is_some_and(|known| known == tag.as_str()),
    }
}

/// The answer, or that what the client has is the same.
fn if_changed(answer: Answer, headers: &HeaderMap) -> Answer {
    let tag = answer.headers().get(ETAG);
    if tag.is_none() || tag != headers.get(IF_NONE_MATCH) {
        return answer;
    }
    let mut unchanged = answer;
    // The headers stay: a 304 repeats those about caching, as RFC 9110 has it.
    *unchanged.body_mut() = AnswerBody::Whole(None);
    *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
    unchanged
}

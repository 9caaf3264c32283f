//! etcd's JSON gateway: requests over HTTP, so that no gRPC is needed.
//!
//! Keys and values are base64 there, and 64-bit numbers are texts.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use crate::address::{LogAddress, read_authorities};
use crate::error::SharedLogError;

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request: etcd itself gives up after about 7 seconds without a leader.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Longest answer, bytes: two appends in base64, and what surrounds them.
const ANSWER_MAX: usize = 64 << 20;
/// Longest error of a server that is shown, characters.
const REASON_MAX: usize = 300;

/// The servers of one etcd.
pub(super) struct EtcdGateway {
    runtime: Runtime,
    client: reqwest::Client,
    /// The addresses of the servers. The first is tried first.
    endpoints: Mutex<Vec<String>>,
    user: Option<(String, Zeroizing<String>)>,
    token: Mutex<Option<String>>,
    /// For messages.
    engine: String,
}

/// An answer that is no success.
enum RequestFailure {
    /// The server was not reached: nothing was carried out.
    NotConnected(SharedLogError),
    /// The token is not valid any more.
    TokenExpired,
    /// Another reason.
    Final(SharedLogError),
}

impl EtcdGateway {
    /// Prepares requests. Nothing is sent.
    pub fn new(address: &LogAddress) -> Result<Self, SharedLogError> {
        // An error means that the process has chosen one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let engine = format!("etcd at {}", address.describe_hosts());
        let unfit = |reason: String| SharedLogError::Unfit { engine: engine.clone(), reason };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("etcd-log")
            .enable_all()
            .build()
            .map_err(|error| unfit(format!("no thread can be started: {error}")))?;
        // Proxies are for what is outside; a log's engine is near.
        let mut client = reqwest::Client::builder()
            .no_proxy()
            // A redirect could lead the token to another host.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT);
        if let Some(pem) = read_authorities(address, &engine)? {
            let certificates = reqwest::Certificate::from_pem_bundle(&pem);
            let certificates =
                certificates.map_err(|error| unfit(format!("'ca' has no certificates: {error}")))?;
            client = client.tls_certs_only(certificates);
        }
        let client = client.build().map_err(|error| unfit(format!("requests cannot be made: {error}")))?;
        let scheme = if address.has_tls { "https" } else { "http" };
        let endpoints = address.hosts.iter().map(|host| format!("{scheme}://{host}")).collect();
        let password = address.password.clone().unwrap_or_default();
        let user = address.user.clone().map(|user| (user, password));
        Ok(Self { runtime, client, endpoints: Mutex::new(endpoints), user, token: Mutex::default(), engine })
    }

    /// What messages call the servers.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The version of the server, as it calls it.
    pub fn read_version(&self) -> Result<String, SharedLogError> {
        let answer = self.send("/version", None)?;
        Ok(answer.get("etcdserver").and_then(Value::as_str).unwrap_or_default().to_owned())
    }

    /// Sends a request, and returns the answer.
    pub fn request(&self, path: &str, body: &Value) -> Result<Value, SharedLogError> {
        self.send(path, Some(body))
    }

    fn send(&self, path: &str, body: Option<&Value>) -> Result<Value, SharedLogError> {
        let mut last = None;
        let count = self.endpoints.lock().len();
        // Once more than there are servers: a token may have to be fetched anew.
        for _ in 0..=count {
            let endpoint = self.endpoints.lock().first().cloned().unwrap_or_default();
            let sent = match self.ensure_token(&endpoint) {
                Ok(()) => self.send_once(&endpoint, path, body),
                Err(failure) => Err(failure),
            };
            match sent {
                Ok(answer) => return Ok(answer),
                Err(RequestFailure::TokenExpired) => *self.token.lock() = None,
                Err(RequestFailure::Final(error)) => return Err(error),
                Err(RequestFailure::NotConnected(error)) => {
                    // The next one, now and in later requests.
                    let mut endpoints = self.endpoints.lock();
                    // Another thread may have moved on already; moving twice would come back to the server that is away.
                    if endpoints.first() == Some(&endpoint) {
                        endpoints.rotate_left(1);
                    }
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| self.refused_error("the user's token expires at once")))
    }

    /// Proves who the user is, if that has not been done.
    fn ensure_token(&self, endpoint: &str) -> Result<(), RequestFailure> {
        let Some((user, password)) = &self.user else { return Ok(()) };
        if self.token.lock().is_some() {
            return Ok(());
        }
        let body = json!({ "name": user, "password": password.as_str() });
        let answer = self.send_once(endpoint, "/v3/auth/authenticate", Some(&body))?;
        let token = answer.get("token").and_then(Value::as_str);
        let missing = || RequestFailure::Final(self.refused_error("it returned no token for the user"));
        *self.token.lock() = Some(token.ok_or_else(missing)?.to_owned());
        Ok(())
    }

    fn send_once(&self, endpoint: &str, path: &str, body: Option<&Value>) -> Result<Value, RequestFailure> {
        let url = format!("{endpoint}{path}");
        let mut request = match body {
            None => self.client.get(url),
            Some(body) => {
                self.client.post(url).header(CONTENT_TYPE, "application/json").body(body.to_string())
            }
        };
        if let Some(token) = &*self.token.lock() {
            request = request.header(AUTHORIZATION, token);
        }
        let exchanged = self.runtime.block_on(async {
            let mut answer = request.send().await?;
            let mut bytes = Vec::new();
            while let Some(piece) = answer.chunk().await? {
                bytes.extend_from_slice(&piece);
                // It is cut off, and then does not parse: the length in the header is only what the server says.
                if bytes.len() > ANSWER_MAX {
                    break;
                }
            }
            Ok((answer.status(), bytes))
        });
        let (status, bytes) = exchanged.map_err(|error: reqwest::Error| {
            let is_unconnected = error.is_connect();
            let reason = describe_error_chain(&error.without_url());
            let error = SharedLogError::Unreachable { engine: self.engine.clone(), reason };
            // A request that was sent may have been carried out, and is not repeated at another server: the caller reads
            // how the log stands.
            if is_unconnected { RequestFailure::NotConnected(error) } else { RequestFailure::Final(error) }
        })?;
        let answer = serde_json::from_slice::<Value>(&bytes);
        match answer {
            Ok(answer) if status.is_success() => Ok(answer),
            Ok(answer) => Err(self.judge_refusal(&answer)),
            Err(_) => {
                let reason = format!(
                    "what answers there is not etcd (status {}): correct the address",
                    status.as_u16()
                );
                Err(RequestFailure::Final(self.refused_error(&reason)))
            }
        }
    }

    fn judge_refusal(&self, answer: &Value) -> RequestFailure {
        let text = answer.get("error").or_else(|| answer.get("message")).and_then(Value::as_str);
        let reason: String = text.unwrap_or("it gave no reason").chars().take(REASON_MAX).collect();
        let engine = self.engine.clone();
        // Their texts are all that tells these apart. The second comes when users or roles were changed since.
        if reason.contains("invalid auth token") || reason.contains("revision of auth store is old") {
            return RequestFailure::TokenExpired;
        }
        RequestFailure::Final(if reason.contains("database space exceeded") {
            let reason = "its database has reached its quota: compact and defragment it, then disarm the alarm ('etcdctl \
                          compact', 'etcdctl defrag', 'etcdctl alarm disarm')"
                .to_owned();
            SharedLogError::Full { engine, reason }
        } else if ["permission denied", "authentication failed", "user name is empty", "too large"]
            .iter()
            .any(|refusal| reason.contains(refusal))
        {
            SharedLogError::Unfit { engine, reason }
        } else {
            SharedLogError::Unreachable { engine, reason }
        })
    }

    fn refused_error(&self, reason: &str) -> SharedLogError {
        SharedLogError::Unfit { engine: self.engine.clone(), reason: reason.to_owned() }
    }
}

/// The error with its causes, since the client names only the first.
fn describe_error_chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// Bytes as the gateway takes them.
pub(super) fn encode_bytes(bytes: &[u8]) -> Value {
    Value::String(STANDARD.encode(bytes))
}

/// Bytes as the gateway returns them; an empty value is left out.
pub(super) fn decode_bytes(value: Option<&Value>) -> Option<Vec<u8>> {
    match value {
        None => Some(Vec::new()),
        Some(value) => STANDARD.decode(value.as_str()?).ok(),
    }
}

/// A number, which may be a text; zero is left out.
pub(super) fn decode_number(value: Option<&Value>) -> Option<i64> {
    match value {
        None => Some(0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(value) => value.as_i64(),
    }
}

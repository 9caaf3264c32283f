//! A server with the protocol of S3 whose answers are wrong according to a script.
//!
//! Invariant: without a script it is a correct store: conditions are checked and changes are atomic. Signatures are not
//! checked; tests with a real server cover them.

mod generated;
mod http;
mod objects;

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub use self::generated::GeneratedObjects;
use self::http::{HttpReply, HttpRequest};
use self::objects::{S3Conditions, S3Objects};

/// The requests that a fault affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Match {
    /// The method: `GET`, `HEAD`, `PUT`, `DELETE`, `POST` for the begin and the end of multipart uploads, or `LIST` for
    /// a listing; `ANY` matches all of them.
    pub method: &'static str,
    /// The prefix of the key, or of a listing's prefix.
    pub key: String,
    /// How many matching requests are answered correctly before the first fault.
    pub skip: u32,
    /// How many faults there are.
    pub times: u32,
}

/// The fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum S3Lie {
    /// Replies with a status and an error code, without an effect.
    Fail(S3Failure),
    /// Has its effect, and closes the connection without a reply.
    LoseReply,
    /// Closes the connection without an effect.
    Disconnect,
    /// Neither replies nor closes, until the server ends.
    Hang,
    /// Has its effect, and neither replies nor closes, until the server ends.
    HangAfter,
    /// Announces the whole body, and closes after this many bytes.
    CutBody(usize),
    /// Announces the whole body, sends this many bytes, and then nothing until the server ends.
    StallBody(usize),
    /// Announces and sends only this many bytes, as if that were all.
    ShortBody(usize),
    /// Sends the range that begins this many bytes later, and announces that range.
    ShiftRange(u64),
    /// Sends the whole object with status 200 to a ranged request.
    WholeObject,
    /// Sends bytes without an end.
    EndlessBody,
    /// Marks the body as compressed.
    ClaimGzip,
    /// Flips the lowest bit of this byte of the body.
    FlipBit(usize),
    /// Ignores the conditions of the request.
    IgnoreConditions,
    /// Ignores the `If-Match` of the request.
    IgnoreIfMatch,
    /// Replies to a request with a condition by 501.
    RefuseConditions,
    /// Replies to a request with `If-Match` by 501.
    RefuseIfMatch,
    /// Refuses requests that are signed with this access key, by 403 and this code.
    RefuseKey(&'static str, &'static str),
    /// Redirects to this address.
    Redirect(String),
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Failure {
    /// The status.
    pub status: u16,
    /// The code in the body; empty for a body without one.
    pub code: &'static str,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
}

impl S3Failure {
    /// An error reply without further headers.
    #[must_use]
    pub fn new(status: u16, code: &'static str) -> Self {
        Self { status, code, headers: Vec::new() }
    }
}

/// A request that the server received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Request {
    /// `GET`, `HEAD`, `PUT`, `DELETE`; a listing is `LIST`.
    pub method: &'static str,
    /// The key, or the prefix of a listing.
    pub key: String,
    /// The number of the part that it uploads.
    pub part: Option<u32>,
    /// The length of its body, bytes.
    pub bytes: usize,
}

#[derive(Default)]
struct S3State {
    objects: S3Objects,
    script: Vec<(S3Match, S3Lie)>,
    requests: Vec<S3Request>,
    /// Requests with a fault.
    told_lies: usize,
}

/// The server. It ends when it is dropped.
pub struct LyingS3 {
    address: SocketAddr,
    shared: Arc<S3Shared>,
}

struct S3Shared {
    state: Mutex<S3State>,
    is_over: AtomicBool,
    /// Signalled when the server ends.
    over: Condvar,
    /// Held by connections that wait for the end.
    waiting: Mutex<()>,
}

impl LyingS3 {
    /// Starts a server with an empty bucket for each name.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(S3Shared {
            state: Mutex::default(),
            is_over: AtomicBool::new(false),
            over: Condvar::new(),
            waiting: Mutex::new(()),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The connection that only woke this thread is not served.
                if accepting.is_over.load(Ordering::Relaxed) {
                    break;
                }
                let shared = Arc::clone(&accepting);
                // Clients keep connections open and use several at once.
                std::thread::spawn(move || shared.serve_connection(stream));
            }
        });
        Ok(Self { address, shared })
    }

    /// The address of a store in this server.
    #[must_use]
    pub fn store_url(&self, folder: &str) -> String {
        self.store_url_at(folder, &format!("http://{}", self.address))
    }

    /// The address of a store in this server, if the server is reached at another endpoint.
    #[must_use]
    pub fn store_url_at(&self, folder: &str, endpoint: &str) -> String {
        format!("s3://bucket/{folder}?endpoint={endpoint}&region=test")
    }

    /// Where the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a fault for matching requests. Earlier faults take precedence.
    pub fn add_lie(&self, requests: S3Match, lie: S3Lie) {
        self.shared.state.lock().script.push((requests, lie));
    }

    /// Removes all faults.
    pub fn tell_truth(&self) {
        self.shared.state.lock().script.clear();
    }

    /// Adds objects of which only the names exist.
    pub fn add_generated_objects(&self, generated: GeneratedObjects) {
        self.shared.state.lock().objects.generated.push(generated);
    }

    /// From now on a reply to a listing has at most so many keys.
    pub fn set_page_size(&self, keys: usize) {
        self.shared.state.lock().objects.page = keys;
    }

    /// The requests since the last call.
    #[must_use]
    pub fn take_requests(&self) -> Vec<S3Request> {
        std::mem::take(&mut self.shared.state.lock().requests)
    }

    /// The bytes of an object.
    #[must_use]
    pub fn read_object(&self, key: &str) -> Option<Vec<u8>> {
        self.shared.state.lock().objects.find_bytes(key).map(<[u8]>::to_vec)
    }

    /// The modification time that was stored with an object.
    #[must_use]
    pub fn read_mtime(&self, key: &str) -> Option<String> {
        self.shared.state.lock().objects.find_mtime(key).map(str::to_owned)
    }

    /// The number of requests with a fault so far.
    #[must_use]
    pub fn count_told_lies(&self) -> usize {
        self.shared.state.lock().told_lies
    }

    /// The number of multipart uploads that are in progress.
    #[must_use]
    pub fn count_unfinished_uploads(&self) -> usize {
        self.shared.state.lock().objects.uploads.len()
    }

    /// The numbers of the parts of all multipart uploads in progress, sorted.
    #[must_use]
    pub fn list_stored_parts(&self) -> Vec<u32> {
        let state = self.shared.state.lock();
        let mut parts: Vec<u32> =
            state.objects.uploads.values().flat_map(|upload| upload.parts.keys().copied()).collect();
        parts.sort_unstable();
        parts
    }

    /// Forgets all multipart uploads in progress, as services do with old ones.
    pub fn forget_uploads(&self) {
        self.shared.state.lock().objects.uploads.clear();
    }

    /// The keys of all objects.
    #[must_use]
    pub fn list_keys(&self) -> Vec<String> {
        self.shared.state.lock().objects.list_keys()
    }

    /// All objects, as [`Self::restore_objects`] takes them.
    #[must_use]
    pub fn copy_objects(&self) -> BTreeMap<String, Vec<u8>> {
        let keys = self.list_keys();
        keys.into_iter().filter_map(|key| self.read_object(&key).map(|bytes| (key, bytes))).collect()
    }

    /// Makes these all objects, without a request.
    pub fn restore_objects(&self, objects: &BTreeMap<String, Vec<u8>>) {
        self.shared.state.lock().objects.replace_objects(objects);
    }

    /// Changes an object without a request.
    pub fn overwrite_object(&self, key: &str, bytes: &[u8]) {
        self.shared.state.lock().objects.put_object(key, bytes.to_vec());
    }
}

impl Drop for LyingS3 {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.over.notify_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl S3Shared {
    fn serve_connection(&self, mut stream: TcpStream) {
        // A client that forgets a connection must not keep its thread until the end of the tests.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
        // Otherwise the kernel would hold back small replies until the client acknowledges earlier ones, and
        // tests would wait.
        let _ = stream.set_nodelay(true);
        let Ok(reading) = stream.try_clone() else { return };
        let mut reader = BufReader::new(reading);
        while let Ok(Some(request)) = HttpRequest::read_from(&mut reader, &stream) {
            if !self.answer_request(&mut stream, &request) {
                break;
            }
        }
    }

    /// Replies to a request; false if the connection is to be closed.
    fn answer_request(&self, stream: &mut TcpStream, request: &HttpRequest) -> bool {
        // Held while the request is carried out: a condition and the change that rests on it are one step.
        let mut state = self.state.lock();
        // Those with a fault as well: tests count what clients send.
        state.requests.push(S3Request {
            method: request.operation(),
            key: request.key(),
            part: request.part_number(),
            bytes: request.body.len(),
        });
        let Some(lie) = state.find_lie(request) else {
            let reply = state.objects.carry_out(request, S3Conditions::All);
            drop(state);
            return reply.write_to(stream).is_ok();
        };
        let mut reply = match &lie {
            S3Lie::Fail(failure) => HttpReply::for_failure(failure),
            S3Lie::Disconnect => return false,
            S3Lie::Hang => {
                drop(state);
                self.wait_for_end();
                return false;
            }
            S3Lie::Redirect(to) => HttpReply::for_redirect(to),
            S3Lie::IgnoreConditions => state.objects.carry_out(request, S3Conditions::None),
            S3Lie::IgnoreIfMatch => state.objects.carry_out(request, S3Conditions::Absence),
            S3Lie::RefuseConditions
                if request.header("if-match").or(request.header("if-none-match")).is_some() =>
            {
                HttpReply::for_failure(&S3Failure::new(501, "NotImplemented"))
            }
            S3Lie::RefuseIfMatch if request.header("if-match").is_some() => {
                HttpReply::for_failure(&S3Failure::new(501, "NotImplemented"))
            }
            S3Lie::RefuseKey(key, code) if request.is_signed_with(key) => {
                HttpReply::for_failure(&S3Failure::new(403, code))
            }
            S3Lie::WholeObject => state.objects.carry_out(&request.without_range(), S3Conditions::All),
            S3Lie::ShiftRange(by) => {
                state.objects.carry_out(&request.with_later_range(*by), S3Conditions::All)
            }
            S3Lie::RefuseConditions
            | S3Lie::RefuseIfMatch
            | S3Lie::RefuseKey(..)
            | S3Lie::LoseReply
            | S3Lie::HangAfter
            | S3Lie::CutBody(_)
            | S3Lie::StallBody(_)
            | S3Lie::ShortBody(_)
            | S3Lie::EndlessBody
            | S3Lie::ClaimGzip
            | S3Lie::FlipBit(_) => state.objects.carry_out(request, S3Conditions::All),
        };
        // A reply is written without it: one that hangs would hold up all other connections.
        drop(state);
        match lie {
            S3Lie::LoseReply => return false,
            S3Lie::HangAfter => {
                self.wait_for_end();
                return false;
            }
            S3Lie::CutBody(len) => {
                let _ = reply.write_beginning(stream, len);
                return false;
            }
            S3Lie::StallBody(len) => {
                if reply.write_beginning(stream, len).is_ok() {
                    self.wait_for_end();
                }
                return false;
            }
            S3Lie::EndlessBody => {
                write_without_end(stream, &reply);
                return false;
            }
            S3Lie::ShortBody(len) => reply.body.truncate(len),
            S3Lie::ClaimGzip => reply.headers.push(("content-encoding", "gzip".to_owned())),
            S3Lie::FlipBit(at) => {
                if let Some(byte) = reply.body.get_mut(at) {
                    *byte ^= 1;
                }
            }
            S3Lie::Fail(_)
            | S3Lie::Disconnect
            | S3Lie::Hang
            | S3Lie::ShiftRange(_)
            | S3Lie::WholeObject
            | S3Lie::IgnoreConditions
            | S3Lie::IgnoreIfMatch
            | S3Lie::RefuseConditions
            | S3Lie::RefuseIfMatch
            | S3Lie::RefuseKey(..)
            | S3Lie::Redirect(_) => {}
        }
        reply.write_to(stream).is_ok()
    }

    fn wait_for_end(&self) {
        let mut waiting = self.waiting.lock();
        while !self.is_over.load(Ordering::Relaxed) {
            // With a timeout: the end is signalled without this lock, so that the signal may come between the
            // look and the wait.
            self.over.wait_for(&mut waiting, Duration::from_millis(100));
        }
    }
}

impl S3State {
    /// The fault for a request, if there is one.
    fn find_lie(&mut self, request: &HttpRequest) -> Option<S3Lie> {
        let operation = request.operation();
        let key = request.key();
        for (requests, lie) in &mut self.script {
            let is_meant = requests.method == "ANY" || requests.method == operation;
            // Lies that are used up stay in the script and are passed over.
            if requests.times == 0 || !is_meant || !key.starts_with(&requests.key) {
                continue;
            }
            if requests.skip > 0 {
                requests.skip -= 1;
                continue;
            }
            requests.times -= 1;
            self.told_lies += 1;
            return Some(lie.clone());
        }
        None
    }
}

/// Sends the headers of a reply without its length, and then bytes until the client closes the connection.
fn write_without_end(stream: &mut TcpStream, reply: &HttpReply) {
    // A client that neither reads nor closes would block this thread forever.
    let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
    if reply.write_unbounded_head(stream).is_ok() {
        while stream.write_all(&[7; 1 << 16]).is_ok() {}
    }
}

//! A store in a directory of another machine, over SFTP.
//!
//! Invariant: an object appears whole or not at all: it is written under another name, made durable, and then gets its name
//! by a hard link, which fails if the name is taken. Each call ends. After a connection was cut the call is repeated on
//! another one, and what is unclear is read back. Refs are not replaced, since SFTP has no condition for that: see
//! [`super::NumberedRefStore`].

mod channel;
mod files;
mod listing;
mod put;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_types::ErrorKind;

use self::channel::{ConnectionFailure, SftpChannel};
pub(crate) use self::wire::fuzz_decoder as fuzz_sftp_decoder;
use self::wire::{SftpReply, StatusCode};
use super::address::SftpAddress;
use super::bandwidth::BandwidthMeter;
use super::service::wait_before_repeat;
use super::{
    ObjectInfo, ObjectKey, ObjectStore, RequestLimits, StoreGuarantees, check_read_length, key, probe,
};
use crate::error::StoreError;

/// Ranged gets worth having under way at once for one caller, a count.
const PARALLEL_GETS: usize = 8;
/// The pause before the first repeat; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// A store over SFTP.
pub struct SftpStore {
    address: SftpAddress,
    /// The program that reaches the server: `ssh`, or one that takes what `ssh` takes.
    program: PathBuf,
    limits: RequestLimits,
    bandwidth: Arc<BandwidthMeter>,
    location: String,
    /// The connection in use. All threads share it.
    channel: Mutex<Option<Arc<SftpChannel>>>,
    was_reached: AtomicBool,
    has_swept: AtomicBool,
}

/// Why a call failed on one connection.
#[derive(Debug)]
enum SftpFailure {
    /// The connection.
    Connection(ConnectionFailure),
    /// There is no such file or directory.
    Missing,
    /// Something else than a file is there.
    NotAFile,
    /// The object has more bytes than it may have.
    TooLarge(u64),
    /// The server refused.
    Refused { kind: ErrorKind, message: String },
}

type SftpResult<T> = Result<T, SftpFailure>;

impl From<ConnectionFailure> for SftpFailure {
    fn from(failure: ConnectionFailure) -> Self {
        Self::Connection(failure)
    }
}

impl SftpFailure {
    /// The failure that an unexpected answer stands for.
    fn from_reply(reply: SftpReply) -> Self {
        let SftpReply::Status { code, message } = reply else {
            return Self::Refused {
                kind: ErrorKind::Corrupt,
                message: "the server mixed up its answers".into(),
            };
        };
        let kind = match code {
            StatusCode::Missing => return Self::Missing,
            StatusCode::Denied => ErrorKind::Denied,
            StatusCode::Unsupported => ErrorKind::Unsupported,
            StatusCode::Done | StatusCode::EndOfFile | StatusCode::Failed(_) => ErrorKind::Io,
        };
        let message = match (message.is_empty(), code) {
            // Escaped, since it may have control characters, and is shown in a terminal.
            (false, _) => format!("the server answered: {}", message.escape_debug()),
            (true, StatusCode::Failed(number)) => format!("the server answered status {number}"),
            (true, _) => format!("the server answered: {code:?}"),
        };
        Self::Refused { kind, message }
    }
}

/// Expects that a request was carried out.
fn expect_done(reply: SftpReply) -> SftpResult<()> {
    match reply {
        SftpReply::Status { code: StatusCode::Done, .. } => Ok(()),
        other => Err(SftpFailure::from_reply(other)),
    }
}

impl SftpStore {
    /// A store at an address, whose limits of bandwidth are in the folder `cache`. Nothing is sent.
    #[must_use]
    pub fn open(
        address: SftpAddress,
        program: PathBuf,
        limits: &RequestLimits,
        cache: Option<&Path>,
    ) -> Self {
        Self {
            bandwidth: Arc::new(BandwidthMeter::new(cache)),
            location: address.to_string(),
            address,
            program,
            limits: limits.clone(),
            channel: Mutex::new(None),
            was_reached: AtomicBool::new(false),
            has_swept: AtomicBool::new(false),
        }
    }

    /// The path of an object or a folder on the server.
    fn server_path(&self, key: &str) -> String {
        match (self.address.path.as_str(), key) {
            (root, "") => root.to_owned(),
            ("/", key) => format!("/{key}"),
            (root, key) => format!("{root}/{key}"),
        }
    }

    /// The connection, made if there is none that can be used.
    fn get_channel(&self) -> Result<Arc<SftpChannel>, ConnectionFailure> {
        if !self.limits.sends_requests {
            return Err(ConnectionFailure::unwanted());
        }
        // Locked while connecting, which may take a minute: other threads need the same connection.
        let mut current = self.channel.lock();
        if let Some(channel) = current.as_ref().filter(|channel| channel.is_usable()) {
            return Ok(Arc::clone(channel));
        }
        // The old connection is closed before a new one is made, so there is never more than one.
        *current = None;
        let channel = Arc::new(SftpChannel::connect(
            &self.program,
            &self.address,
            self.limits.silence_max,
            &self.bandwidth,
        )?);
        self.was_reached.store(true, Ordering::Relaxed);
        *current = Some(Arc::clone(&channel));
        Ok(channel)
    }

    /// Does something on a connection, and again on another one if the connection fails. `work` gets whether an earlier
    /// try may have done it.
    fn repeat<T>(&self, mut work: impl FnMut(&SftpChannel, bool) -> SftpResult<T>) -> SftpResult<T> {
        let start = Instant::now();
        let mut pause = PAUSE_MIN;
        let mut is_uncertain = false;
        loop {
            let failure = match self.get_channel() {
                Ok(channel) => match work(&channel, is_uncertain) {
                    Err(SftpFailure::Connection(failure)) => {
                        // The request may have been carried out although its answer was lost. A repeated `put` must
                        // not report its own object as somebody else's.
                        is_uncertain = true;
                        failure
                    }
                    done => return done,
                },
                Err(failure) => failure,
            };
            // A host that never answered is more likely mistyped than away: the user learns of it soon.
            let was_reached = self.was_reached.load(Ordering::Relaxed);
            let allowed = if was_reached {
                self.limits.retry_for
            } else {
                self.limits.retry_for.min(self.limits.first_answer_max)
            };
            if !failure.is_transient || start.elapsed() + pause > allowed {
                return Err(failure.into());
            }
            if !wait_before_repeat(&self.location, &failure.message, pause) {
                let message = "interrupted".to_owned();
                return Err(SftpFailure::Refused { kind: ErrorKind::Interrupted, message });
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn wrap_failure(&self, action: &'static str, key: &str, failure: SftpFailure) -> StoreError {
        let place = self.location.clone();
        let key = key.to_owned();
        match failure {
            SftpFailure::Connection(ConnectionFailure { kind, message, .. })
            | SftpFailure::Refused { kind, message } => {
                StoreError::Service { place, key, action, kind, message }
            }
            SftpFailure::Missing => StoreError::NotFound { place, key },
            SftpFailure::NotAFile => StoreError::NotAFile { place, key },
            // Only `get_object` reports this to callers, and it names the maximum itself.
            SftpFailure::TooLarge(size) => StoreError::TooLarge { place, key, size, max: 0 },
        }
    }
}

impl ObjectStore for SftpStore {
    fn describe_location(&self) -> String {
        self.location.clone()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        let path = self.server_path(key.as_str());
        self.repeat(|channel, _| files::read_file(channel, &path, max)).map_err(|failure| match failure {
            SftpFailure::TooLarge(size) => {
                StoreError::TooLarge { place: self.location.clone(), key: key.to_string(), size, max }
            }
            failure => self.wrap_failure("read", key.as_str(), failure),
        })
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.get_range_up_to(key, offset, len)?;
        check_read_length(self, key, bytes, len)
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        let path = self.server_path(key.as_str());
        self.repeat(|channel, _| files::read_file_range(channel, &path, offset, max))
            .map_err(|failure| self.wrap_failure("read", key.as_str(), failure))
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        let path = self.server_path(key.as_str());
        self.repeat(|channel, _| files::read_size(channel, &path))
            .map_err(|failure| self.wrap_failure("read", key.as_str(), failure))
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let is_new = self
            .repeat(|channel, is_uncertain| self.put_on(channel, key, bytes, is_uncertain))
            .map_err(|failure| self.wrap_failure("write", key.as_str(), failure))?;
        if is_new {
            Ok(())
        } else {
            Err(StoreError::Exists { place: self.location.clone(), key: key.to_string() })
        }
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        match (expected, new) {
            // Creation is the one condition that SFTP has: a link to a name that is taken fails.
            (None, Some(bytes)) => match self.put_object(key, bytes) {
                Err(StoreError::Exists { place, key }) => Err(StoreError::Changed { place, key }),
                put => put,
            },
            (None, None) | (Some(_), _) => Err(StoreError::Service {
                place: self.location.clone(),
                key: key.to_string(),
                action: "change",
                kind: ErrorKind::Unsupported,
                message: "SFTP does not replace files on a condition".to_owned(),
            }),
        }
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let folder = key::check_folder(folder)?;
        let mut found = self
            .repeat(|channel, _| self.list_on(channel, folder))
            .map_err(|failure| self.wrap_failure("list", folder, failure))?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        // A server may list a file twice if others come and go meanwhile.
        found.dedup_by(|a, b| a.key == b.key);
        Ok(found)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let path = self.server_path(key.as_str());
        match self.repeat(|channel, _| files::remove_file(channel, &path)) {
            // A repeated deletion finds nothing, which is what was asked for.
            Ok(()) | Err(SftpFailure::Missing) => Ok(()),
            Err(failure) => Err(self.wrap_failure("delete", key.as_str(), failure)),
        }
    }

    fn parallel_get_count(&self) -> usize {
        PARALLEL_GETS
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn probe_guarantees(&self) -> Result<StoreGuarantees, StoreError> {
        probe::probe_store(self, &|| {
            Ok(Box::new(Self::open(self.address.clone(), self.program.clone(), &self.limits, None)))
        })
    }
}

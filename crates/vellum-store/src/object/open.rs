//! From an address to a store.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use vellum_types::ErrorKind;

use super::{
    BlockStore, ClaimPace, LocalStore, MemoryObjectStore, MeteredStore, ObjectStore, PackCache,
    PublishedStore, ServiceStore, SftpStore, SingleWriterStore, StoreAddress,
};
use crate::error::StoreError;

/// Stores in memory live as long as the process and are found again by name.
static MEMORY: LazyLock<Mutex<HashMap<String, Arc<MemoryObjectStore>>>> = LazyLock::new(Mutex::default);

/// Where a store is, and what opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreLocation {
    /// A path or an address; see [`StoreAddress`].
    pub url: String,
    /// The name of the credentials of this user that open the service; by default what the service's own programs
    /// use (environment, profile, role of the machine).
    pub credentials: Option<String>,
}

/// How long requests to a service may take.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// For how long requests that fail are repeated before the failure is returned.
    pub retry_for: Duration,
    /// The same as long as the service has not answered at all, or not since it was silent: the address may be wrong, or
    /// the network away, which a user wants to learn soon.
    pub first_answer_max: Duration,
    /// For how long a request may stay without any progress before it counts as failed.
    pub silence_max: Duration,
    /// For how long nothing is sent after the service did not answer, however often it was asked: programs that look at
    /// many files get their errors at once, and not one after another.
    pub break_for: Duration,
    /// How long a small read that somebody waits for is at least waited for before it is sent a second time.
    pub hedge_after_min: Duration,
    /// Whether anything is sent at all. If not, there is only what caches on this machine hold, and everything else fails at
    /// once.
    pub sends_requests: bool,
}

impl StoreLocation {
    /// A store that needs no credentials of its own.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), credentials: None }
    }

    /// The location as it can be kept; see [`StoreAddress::resolve_against`].
    pub fn resolve_against(&self, base: &Path) -> Result<Self, StoreError> {
        let url = StoreAddress::parse(&self.url)?.resolve_against(base);
        Ok(Self { url, credentials: self.credentials.clone() })
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        let chosen = RETRY_TIME.get().copied();
        Self {
            retry_for: chosen.unwrap_or(Duration::from_mins(5)),
            first_answer_max: chosen.unwrap_or(Duration::from_secs(15)),
            silence_max: Duration::from_secs(10),
            break_for: Duration::from_secs(5),
            hedge_after_min: Duration::from_millis(50),
            sends_requests: true,
        }
    }
}

/// For how long this process repeats failed requests, if somebody chose that.
static RETRY_TIME: OnceLock<Duration> = OnceLock::new();

/// Sets for how long this process repeats failed requests, whether a service has answered before or not. Counts for
/// stores that are opened afterwards with [`RequestLimits::default`]; a second call changes nothing.
pub fn set_retry_time(time: Duration) {
    // The choice of a command line, of which a process has one.
    let _ = RETRY_TIME.set(time);
}

/// The time that [`set_retry_time`] has set, if it was called.
#[must_use]
pub fn chosen_retry_time() -> Option<Duration> {
    RETRY_TIME.get().copied()
}

/// Opens the store at an address, and counts its requests. A directory must exist; a service is not asked.
pub fn open_store(location: &StoreLocation) -> Result<Arc<dyn ObjectStore>, StoreError> {
    open_store_with_limits(location, &RequestLimits::default())
}

/// Like [`open_store`], with the caller's limits for requests.
pub fn open_store_with_limits(
    location: &StoreLocation,
    limits: &RequestLimits,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    match StoreAddress::parse(&location.url)? {
        StoreAddress::Directory(path) => Ok(Arc::new(MeteredStore::new(Arc::new(LocalStore::open(path)?)))),
        StoreAddress::Memory(name) => Ok(Arc::new(MeteredStore::new(find_memory_store(&name)))),
        StoreAddress::Service(address) => {
            let credentials = location.credentials.as_deref();
            let cache = PackCache::for_address(&address);
            // The cache's folder also has what this user has chosen for the store: that it is used offline, and its bandwidth.
            let folder = cache.as_ref().map(PackCache::folder);
            let service = ServiceStore::open(address.clone(), credentials, limits, folder)?;
            // Requests are counted below the listings: what these answer is not sent to the server.
            if address.kind.is_read_only() {
                let published = PublishedStore::new(Arc::new(MeteredStore::new(Arc::new(service))), folder);
                return Ok(Arc::new(BlockStore::new(Arc::new(published), cache)));
            }
            let store: Arc<dyn ObjectStore> = match (address.has_single_writer(), folder) {
                (false, _) => Arc::new(service),
                (true, Some(folder)) => {
                    Arc::new(SingleWriterStore::new(service, folder, ClaimPace::default()))
                }
                // Processes share the right by files in that folder: without one, each would take it from the other.
                (true, None) => {
                    return Err(StoreError::Address {
                        url: address.to_string(),
                        reason:
                            "the right to write is kept in a cache of this user: set HOME or XDG_CACHE_HOME"
                                .to_owned(),
                        kind: ErrorKind::Usage,
                    });
                }
            };
            // Requests are counted below the pieces: what comes from a cache is not a request.
            Ok(Arc::new(BlockStore::new(Arc::new(MeteredStore::new(store)), cache)))
        }
        StoreAddress::Sftp(address) => {
            if location.credentials.is_some() {
                return Err(StoreError::Address {
                    url: address.to_string(),
                    reason: "ssh has its own configuration, keys and agent: leave out --credentials"
                        .to_owned(),
                    kind: ErrorKind::Usage,
                });
            }
            let cache = PackCache::for_address(&address);
            let folder = cache.as_ref().map(PackCache::folder);
            let store = SftpStore::open(address, find_ssh(), limits, folder);
            Ok(Arc::new(BlockStore::new(Arc::new(MeteredStore::new(Arc::new(store))), cache)))
        }
    }
}

/// Like [`open_store`], and creates the directory if there is none.
pub fn create_store(location: &StoreLocation) -> Result<Arc<dyn ObjectStore>, StoreError> {
    match StoreAddress::parse(&location.url)? {
        StoreAddress::Directory(path) => Ok(Arc::new(MeteredStore::new(Arc::new(LocalStore::create(path)?)))),
        // Nothing has to be made: the folder in a service or on a server comes with the first object.
        StoreAddress::Memory(_) | StoreAddress::Service(_) | StoreAddress::Sftp(_) => open_store(location),
    }
}

/// The program that reaches other hosts: `ssh`, or what `VELLUM_SSH` names.
fn find_ssh() -> PathBuf {
    let named = std::env::var_os("VELLUM_SSH").filter(|named| !named.is_empty());
    named.map_or_else(|| "ssh".into(), PathBuf::from)
}

fn find_memory_store(name: &str) -> Arc<MemoryObjectStore> {
    let mut stores = MEMORY.lock();
    let store = stores
        .entry(name.to_owned())
        .or_insert_with(|| Arc::new(MemoryObjectStore::new(&format!("memory://{name}"))));
    Arc::clone(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stores_are_found_again_by_name() -> Result<(), StoreError> {
        let open = |url: &str| open_store(&StoreLocation::new(url));
        let key = super::super::ObjectKey::new("x")?;
        open("memory://url-test")?.put_object(&key, b"1")?;
        assert_eq!(open("memory://url-test")?.get_object(&key, 9)?, b"1");
        assert!(open("memory://url-test-other")?.get_object(&key, 9).is_err());
        Ok(())
    }
}

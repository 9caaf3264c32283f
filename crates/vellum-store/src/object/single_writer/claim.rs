//! The right to write to a store that takes no conditions: one object, `.writer`, that names a machine.
//!
//! Who wants the right writes the object, waits for longer than a request of somebody else can be on its way, and reads it
//! back. Who has it checks the object again before writes that come later. Invariant, as long as the store returns what
//! was last written and requests arrive within [`ClaimPace::settle`]: two machines never have the right at once. Both may
//! fail. Processes of one user on one machine share the right, by files in the cache of the store.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FlockOperation, flock};
use vellum_host::lock::lock_exclusive;
use vellum_host::private_dir::create_private_dir;
use vellum_host::process::host_name;
use vellum_host::wait::{LongWait, sleep_unless_stopped};
use vellum_types::ErrorKind;

use crate::error::StoreError;
use crate::object::{ObjectStore, ServiceStore};

/// The object that names the machine with the right to write.
const CLAIM_OBJECT: &str = ".writer";
/// How objects begin that are written to learn the service's time. They lie where what a killed process leaves is removed.
const CLOCK_OBJECT: &str = ".tmp/clock-";
/// Longest claim, bytes.
const CLAIM_MAX: u64 = 256;
/// What a claim begins with.
const MAGIC: &str = "vellum-writer-1";
/// Locked while the right is acquired and refs are changed.
const LOCK_FILE: &str = "writer.lock";
/// Locked (shared) by all processes that use the right: the last one gives it back.
const USERS_FILE: &str = "writer.users";
/// The claim of this machine.
const ID_FILE: &str = "writer.id";
/// Tries to write a claim fast enough, a count.
const TRIES: u32 = 5;

/// The times on which the right rests.
#[derive(Debug, Clone, Copy)]
pub struct ClaimPace {
    /// Between the look at a claim and one's own in its place, at most.
    pub look_to_write: Duration,
    /// After a new claim was written, until it counts: longer than `look_to_write`, a check's age and a request together.
    pub settle: Duration,
    /// Age of a check that still counts: `look_to_write` or more, so that the next check sees who was as fast.
    pub check_age: Duration,
    /// Age after which a claim is written again.
    pub renew_age: Duration,
    /// Age after which a claim counts as abandoned: longer than any upload.
    pub abandoned_age: Duration,
}

impl Default for ClaimPace {
    fn default() -> Self {
        Self {
            look_to_write: Duration::from_secs(3),
            settle: Duration::from_secs(12),
            check_age: Duration::from_secs(3),
            renew_age: Duration::from_mins(1),
            abandoned_age: Duration::from_mins(10),
        }
    }
}

/// The right to write of this process.
pub(super) struct WriterClaim {
    folder: PathBuf,
    pace: ClaimPace,
    state: Mutex<ClaimState>,
}

#[derive(Default)]
struct ClaimState {
    /// Locked by this process; none before the first use.
    users: Option<File>,
    checked: Option<Instant>,
    written: Option<Instant>,
}

/// The right, and the lock that keeps other processes of this machine from changing refs meanwhile.
pub(super) struct HeldClaim<'a> {
    _state: MutexGuard<'a, ClaimState>,
    _lock: File,
}

/// The content of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredClaim {
    id: String,
    /// Whether its machine may be writing.
    is_active: bool,
}

impl StoredClaim {
    fn encode(&self) -> String {
        let word = if self.is_active { "active" } else { "released" };
        format!("{MAGIC} {word} {}\n", self.id)
    }

    /// Decodes the object. Whatever cannot be decoded may be a claim that is just being written: it counts as somebody
    /// else's.
    fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let mut words = text.strip_suffix('\n').unwrap_or_default().split(' ');
        let claim = match (words.next(), words.next(), words.next(), words.next()) {
            (Some(MAGIC), Some("active"), Some(id), None) => Some((id, true)),
            (Some(MAGIC), Some("released"), Some(id), None) => Some((id, false)),
            _ => None,
        };
        let (id, is_active) = claim.filter(|(id, _)| !id.is_empty()).unwrap_or(("", true));
        Self { id: id.to_owned(), is_active }
    }
}

impl WriterClaim {
    /// The right to write to a store whose cache is this folder. Nothing is sent.
    pub fn new(folder: &Path, pace: ClaimPace) -> Self {
        Self { folder: folder.to_owned(), pace, state: Mutex::default() }
    }

    /// Acquires the right, or makes sure that this machine still has it.
    pub fn hold(&self, service: &ServiceStore) -> Result<HeldClaim<'_>, StoreError> {
        // The mutex orders the threads of this process, the file lock the processes of this machine.
        let mut state = self.state.lock();
        let lock = self.lock_file(service)?;
        if state.checked.is_none_or(|checked| checked.elapsed() >= self.pace.check_age) {
            self.check(service, &mut state)?;
        }
        Ok(HeldClaim { _state: state, _lock: lock })
    }

    fn check(&self, service: &ServiceStore, state: &mut ClaimState) -> Result<(), StoreError> {
        let id = self.read_or_make_id().map_err(|error| self.local_error(service, error))?;
        // Locked for as long as this store is open; the system releases the lock of a killed process. The lock
        // shows other processes that the right is in use.
        if state.users.is_none() {
            let users = self.open_file(USERS_FILE).map_err(|error| self.local_error(service, error))?;
            // Only the end of another process locks it otherwise, for a moment and under the lock that is held here.
            flock(&users, FlockOperation::LockShared)
                .map_err(|errno| self.local_error(service, errno.into()))?;
            state.users = Some(users);
        }
        for _ in 0..TRIES {
            let looked = Instant::now();
            let found = read_claim(service)?;
            let is_ours = found.as_ref().is_some_and(|found| found.id == id);
            let is_active = found.as_ref().is_some_and(|found| found.is_active);
            if is_ours && is_active && state.written.is_some_and(|at| at.elapsed() < self.pace.renew_age) {
                state.checked = Some(looked);
                return Ok(());
            }
            // A released claim can be taken at once. That of another machine is taken only if it is old.
            if !is_ours && is_active {
                self.expect_abandoned(service)?;
            }
            let claim = StoredClaim { id: id.clone(), is_active: true };
            self.write_claim(service, &claim)?;
            // Another machine that saw the same claim may have written its own meanwhile, unless both were fast.
            if looked.elapsed() > self.pace.look_to_write {
                continue;
            }
            // The machine that had the right last need not wait: whoever acquired it since would have replaced the
            // claim.
            if !is_ours {
                self.settle(service, &claim)?;
            }
            // Counted from the look, so the claim is renewed too early rather than too late.
            state.written = Some(looked);
            state.checked = Some(Instant::now());
            return Ok(());
        }
        Err(claim_error(service, ErrorKind::Io, "the service answers too slowly".to_owned()))
    }

    fn write_claim(&self, service: &ServiceStore, claim: &StoredClaim) -> Result<(), StoreError> {
        // Repeated for a short time only: what is late does not count.
        service.write_in_place(CLAIM_OBJECT, claim.encode().as_bytes(), self.pace.look_to_write)
    }

    /// Waits until no earlier claim can still be on its way, and reads the claim back.
    fn settle(&self, service: &ServiceStore, claim: &StoredClaim) -> Result<(), StoreError> {
        let pause = self.pace.settle;
        let wait = || LongWait::WriterClaim { store: service.describe_location(), pause };
        if !sleep_unless_stopped(pause, wait) {
            return Err(claim_error(service, ErrorKind::Interrupted, "interrupted".to_owned()));
        }
        if read_claim(service)?.as_ref() == Some(claim) {
            // Another writer was here before, and may have died while it wrote.
            service.remove_abandoned_objects();
            return Ok(());
        }
        let reason = "another machine began to write at the same time: try again when it is done";
        Err(claim_error(service, ErrorKind::Conflict, reason.to_owned()))
    }

    /// Fails unless the claim of another machine is so old that it has died.
    fn expect_abandoned(&self, service: &ServiceStore) -> Result<(), StoreError> {
        // The age is measured with the service's clock only, since this machine's clock may be wrong.
        let clock = format!("{CLOCK_OBJECT}{:016x}", getrandom::u64().unwrap_or_default());
        service.write_in_place(&clock, b"", self.pace.look_to_write)?;
        let claimed = service.find_write_time(CLAIM_OBJECT);
        let now = service.find_write_time(&clock);
        // Deleted before the answers are looked at, so that an error leaves nothing behind.
        service.delete_path(&clock)?;
        let times = match claimed {
            Ok(claimed) => claimed.zip(now?),
            // It is just being written again, or was removed by hand. Reading it back shows which machine wrote it.
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some((claimed, now)) = times else {
            let reason = format!(
                "another machine has the right to write, and the service does not tell since when: if that machine \
                 no longer writes, delete the object '{CLAIM_OBJECT}'"
            );
            return Err(claim_error(service, ErrorKind::Conflict, reason));
        };
        let age = now.duration_since(claimed).unwrap_or_default();
        if age > self.pace.abandoned_age {
            return Ok(());
        }
        let wait = self.pace.abandoned_age.saturating_sub(age).as_secs().div_ceil(60).max(1);
        let reason = format!(
            "another machine has the right to write, and used it {} s ago; it ends when that machine is done, or \
             {wait} min after it died",
            age.as_secs()
        );
        Err(claim_error(service, ErrorKind::Conflict, reason))
    }

    /// Gives the right back, unless another process of this machine uses it. If that fails, the right stays with this
    /// machine until it is abandoned.
    pub fn release(&self, service: &ServiceStore) {
        let state = self.state.lock();
        let Some(users) = &state.users else { return };
        let Ok(_lock) = self.lock_file(service) else { return };
        // Other processes hold the lock (shared): the last of them gives the right back.
        // Converting a shared lock may lose it; see flock(2). That does no harm, since this process is done, and the
        // lock of the machine is held.
        if flock(users, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let Ok(id) = self.read_or_make_id() else { return };
        match read_claim(service) {
            // A claim that another machine has acquired meanwhile is left alone.
            Ok(Some(found)) if found.id == id && found.is_active => {
                let released = StoredClaim { is_active: false, ..found };
                if let Err(error) = self.write_claim(service, &released) {
                    tracing::debug!(%error, "the right to write is not given back");
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the right to write is not given back"),
        }
    }

    /// Keeps other processes of this machine from changing refs, without acquiring the right to write.
    pub fn lock_file(&self, service: &ServiceStore) -> Result<File, StoreError> {
        let lock = || -> io::Result<File> {
            create_private_dir(&self.folder)?;
            let file = self.open_file(LOCK_FILE)?;
            lock_exclusive(&file, || format!("the right to write to {}", service.describe_location()))?;
            Ok(file)
        };
        lock().map_err(|error| self.local_error(service, error))
    }

    fn open_file(&self, name: &str) -> io::Result<File> {
        let path = self.folder.join(name);
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    /// The name of this machine in claims: random, since the service must not learn more. A copy of the folder on another
    /// machine is another writer.
    fn read_or_make_id(&self) -> io::Result<String> {
        let file = self.open_file(ID_FILE)?;
        let mut text = String::new();
        // One that is damaged is made anew: this machine then waits as if it were another.
        if (&file).take(CLAIM_MAX).read_to_string(&mut text).is_ok()
            && let Some((id, host)) = text.trim_end().split_once(' ')
            && id.len() == 32
            && host == host_name()
        {
            return Ok(id.to_owned());
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        drop(file);
        // Renamed into place, so that a killed process leaves no half of a name. The temporary name can be a fixed
        // one, because callers hold the lock of the machine.
        let temporary = self.folder.join(format!("{ID_FILE}.tmp"));
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{id} {}", host_name())?;
        fs::rename(&temporary, self.folder.join(ID_FILE))?;
        Ok(id)
    }

    fn local_error(&self, service: &ServiceStore, error: io::Error) -> StoreError {
        let kind = ErrorKind::from_io_error(&error);
        let folder = self.folder.display();
        claim_error(service, kind, format!("the right to write is kept in {folder}, which fails: {error}"))
    }
}

fn read_claim(service: &ServiceStore) -> Result<Option<StoredClaim>, StoreError> {
    match service.read_path(CLAIM_OBJECT, CLAIM_MAX) {
        Ok(found) => Ok(found.map(|bytes| StoredClaim::parse(&bytes))),
        Err(StoreError::TooLarge { .. }) => Ok(Some(StoredClaim::parse(b""))),
        Err(error) => Err(error),
    }
}

fn claim_error(service: &ServiceStore, kind: ErrorKind, message: String) -> StoreError {
    let place = service.describe_location();
    StoreError::Service { place, key: "objects".to_owned(), action: "write", kind, message }
}

/// For the fuzzer.
///
/// # Panics
/// When a claim that is read is not the one that is written.
pub(crate) fn fuzz_decoder(bytes: &[u8]) {
    let claim = StoredClaim::parse(bytes);
    let is_nobodys = claim.id.is_empty();
    assert!(claim.is_active || !is_nobodys, "what is no claim counts as somebody else's");
    assert!(is_nobodys || claim.encode().as_bytes() == bytes, "a claim has one form");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_claim_counts_as_somebody_elses() {
        for is_active in [true, false] {
            let claim = StoredClaim { id: "0123".to_owned(), is_active };
            let text = claim.encode();
            assert_eq!(StoredClaim::parse(text.as_bytes()), claim);
            for end in 0..text.len() {
                let cut = StoredClaim::parse(&text.as_bytes()[..end]);
                assert!(cut.is_active && cut.id.is_empty(), "{cut:?}");
            }
        }
        for text in
            ["vellum-writer-1 active \n", "vellum-writer-2 released 1\n", "vellum-writer-1 released 1 2\n"]
        {
            assert!(StoredClaim::parse(text.as_bytes()).is_active, "{text}");
        }
    }
}

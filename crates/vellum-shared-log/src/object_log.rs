//! The shared log in the object store itself: no other service is needed. An append costs a put and a get.
//!
//! Objects: the *head* `log-heads/<worktree>`, which changes by compare-and-swap, and one object for each append,
//! `live/<worktree>/<incarnation>/<epoch>/<position>`, created on the condition that it is absent.
//!
//! # Why an old server's append never counts
//!
//! An append (1) creates its object, then (2) reads the head, and succeeds only if its epoch is still the current one
//! and the log does not begin behind it. A claim (1) swaps the head, so that the next epoch is the current one, then
//! (2) lists the objects of the epoch before, then (3) swaps the head again, with the end of that epoch. Readers take
//! from an ended epoch what stands before its end, and no more.
//!
//! - *What was acknowledged is in the log.* The append's read of the head came before the claim's first swap, or it
//!   would
//!   have seen the new epoch. So its object was there before the swap, and the listing, which comes after the swap, has
//!   it.
//! - *What comes late does not count and is not acknowledged.* An object that is created after the listing stands
//!   behind the
//!   end, which never changes, and its read of the head sees the new epoch. It does not matter how long the request was
//!   on
//!   its way, or how long the process stood still, between any two steps: no clock is involved.
//! - *What came between the swap and the listing* counts, and is not acknowledged: its server learns that it is fenced.
//!   That is an append whose answer was lost.
//! - *A position is used once.* In one epoch only its server appends. If an append may have been stored without an
//!   answer,
//!   the next one finds the name taken, and fails with [`SharedLogError::Moved`]. A name becomes free again when its
//!   object is discarded, but then the log begins behind it, which the read of the head shows.
//! - *Claims.* The swap of the head lets one of several succeed. A server that stops between its two swaps leaves two
//!   epochs open; whoever comes next seals both, before anything is appended. A reader of the open epoch lists it and
//!   then
//!   reads the head: if the epoch is still the current one, all that it saw is in the log, by the first argument.
//!
//! The incarnation is part of every name, so that nothing of an older log is taken for this one's. It rests on what
//! [`ObjectStore`] promises: conditional creation, compare-and-swap, and listings that show what was stored.

mod age;
mod head;
mod listing;
mod record;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_crypto::fill_random;
use vellum_store::{ObjectKey, ObjectStore, StoreError};
use vellum_types::ErrorKind;

use self::age::HeadWatch;
use self::head::{HEAD_MAX, LogHead, SealedEpoch};
use self::record::{LogRecord, RecordPlace, record_key_text};
use crate::binding::LogBinding;
use crate::error::SharedLogError;
use crate::log::{
    APPEND_MAX, LogClaim, LogEpoch, LogIncarnation, LogPosition, ServerRecord, ServerSighting, SharedLog,
};

/// The folder of heads.
const HEADS_FOLDER: &str = "log-heads";
/// The folder of appends.
const APPENDS_FOLDER: &str = "live";
/// Tries to change a head that others change too, a count: each failure is the success of somebody else.
const SWAP_TRIES: u32 = 100;
/// Interval at which the head is read by who waits for another server. A directory costs nothing to read.
const POLL_LOCAL: Duration = Duration::from_millis(20);
/// The same in a service, where each read is paid for.
const POLL_REMOTE: Duration = Duration::from_millis(500);

/// The log of one worktree in the object store.
pub struct ObjectLog {
    objects: Arc<dyn ObjectStore>,
    /// The folder of the worktree's appends.
    folder: String,
    head_key: ObjectKey,
    binding: LogBinding,
    state: Mutex<ObjectLogState>,
}

/// What is remembered between calls. Nothing of it has to be true for the log to be right.
#[derive(Default)]
struct ObjectLogState {
    /// Where the log ended, under the epoch in which this process appended last.
    end: Option<(LogEpoch, LogPosition)>,
    watch: HeadWatch,
}

/// A head, and its bytes as they are stored.
struct StoredHead {
    head: LogHead,
    bytes: Vec<u8>,
}

impl ObjectLog {
    /// The log of the worktree, whose name in the store is `worktree`: one component of an object's key. Nothing is
    /// read.
    pub fn new(objects: Arc<dyn ObjectStore>, worktree: &str) -> Result<Self, SharedLogError> {
        let head_key = ObjectKey::new(format!("{HEADS_FOLDER}/{worktree}"));
        let engine = objects.describe_location();
        let head_key =
            head_key.ok().filter(|_| !worktree.contains('/')).ok_or_else(|| SharedLogError::Unfit {
                engine,
                reason: format!("{worktree:?} cannot be part of an object's key"),
            })?;
        let folder = format!("{APPENDS_FOLDER}/{worktree}");
        Ok(Self { objects, folder, head_key, binding: LogBinding::default(), state: Mutex::default() })
    }

    /// Reads the head; None if there is none.
    fn find_head(&self) -> Result<Option<StoredHead>, SharedLogError> {
        match self.objects.get_object(&self.head_key, HEAD_MAX) {
            Ok(bytes) => {
                let head = LogHead::decode(&bytes)
                    .map_err(|error| self.damaged_error(format!("{}: {error}", self.head_key)))?;
                Ok(Some(StoredHead { head, bytes }))
            }
            // No head is an answer, and not a failure: whether it should be there is for the binding to say.
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.wrap_error(&error)),
        }
    }

    /// Reads the head of the log that is expected.
    fn read_head(&self) -> Result<StoredHead, SharedLogError> {
        let stored = self.find_head()?;
        let engine = self.objects.describe_location();
        self.binding.check(&engine, stored.as_ref().map(|stored| stored.head.incarnation))?;
        stored.ok_or(SharedLogError::NoLog { engine })
    }

    /// Changes the head. `change` may be called several times; it fails to leave the head as it is.
    fn update_head(
        &self,
        mut change: impl FnMut(&mut LogHead) -> Result<(), SharedLogError>,
    ) -> Result<LogHead, SharedLogError> {
        // Each failed swap is the success of somebody else, so this ends early, unless somebody writes in a loop.
        for _ in 0..SWAP_TRIES {
            let StoredHead { mut head, bytes } = self.read_head()?;
            change(&mut head)?;
            if self.swap_head(Some(&bytes), Some(&head))? {
                return Ok(head);
            }
        }
        let reason = format!("{} is changed by others all the time", self.head_key);
        Err(SharedLogError::Unreachable { engine: self.objects.describe_location(), reason })
    }

    /// Returns false if the head is another one than expected.
    fn swap_head(&self, expected: Option<&[u8]>, new: Option<&LogHead>) -> Result<bool, SharedLogError> {
        let new = new.map(LogHead::encode);
        match self.objects.swap_ref(&self.head_key, expected, new.as_deref()) {
            Ok(()) => Ok(true),
            Err(StoreError::Changed { .. }) => Ok(false),
            Err(error) => Err(self.wrap_error(&error)),
        }
    }

    /// Changes the head, as the server with this epoch.
    fn update_as_server(
        &self,
        epoch: LogEpoch,
        mut change: impl FnMut(&mut LogHead) -> Result<(), SharedLogError>,
    ) -> Result<LogHead, SharedLogError> {
        self.update_head(|head| {
            check_epoch(head, epoch)?;
            change(head)
        })
    }

    /// Returns a head with one open epoch, or none: decides the ends of the epochs that have ended.
    fn settle_head(&self) -> Result<LogHead, SharedLogError> {
        let mut head = self.read_head()?.head;
        while !head.ended_epochs().is_empty() {
            // Listed after the head showed that the epochs have ended; see the top of this file.
            let (sealed, end) = self.find_ends(&head)?;
            let open = head.open.clone();
            head = self.update_head(|head| {
                // If others sealed them, or one more has claimed the log, it is for the next round to see.
                if head.open == open {
                    head.sealed.extend(&sealed);
                    head.open_start = end;
                    // Some epochs have ended, so that there is one more than those: the current one, which stays open.
                    head.open.drain(..open.len() - 1);
                }
                Ok(())
            })?;
        }
        Ok(head)
    }

    /// The ends of the epochs that have ended, and where the current one begins.
    fn find_ends(&self, head: &LogHead) -> Result<(Vec<SealedEpoch>, LogPosition), SharedLogError> {
        let mut sealed = Vec::new();
        let mut start = head.open_start;
        for epoch in head.ended_epochs().iter().copied() {
            // From where the log begins: what stood before may have been removed, and would look like a gap.
            let first = RecordPlace { epoch, at: start.max(head.start) };
            let end = self.find_epoch_end(head.incarnation, first)?;
            // Of an epoch without appends, and of one whose appends are all discarded, nothing has to be known.
            // The head is read with each append, so it keeps no more than readers need.
            if start < end && head.start < end {
                sealed.push(SealedEpoch { epoch, start, end });
            }
            start = end;
        }
        Ok((sealed, start))
    }

    /// Where the log ends.
    fn find_log_end(&self) -> Result<LogPosition, SharedLogError> {
        // Only the open epoch is listed.
        Ok(self.list_log(LogPosition(u64::MAX))?.end)
    }

    /// Fails unless `at` is the end of the log and the epoch the current one.
    fn check_end(&self, epoch: LogEpoch, at: LogPosition) -> Result<(), SharedLogError> {
        let end = self.find_log_end()?;
        // After the listing: if the epoch is still the current one, nobody has sealed it below the end that was found.
        check_epoch(&self.read_head()?.head, epoch)?;
        self.state.lock().end = Some((epoch, end));
        if end == at { Ok(()) } else { Err(SharedLogError::Moved { at, end }) }
    }

    fn record_key(
        &self,
        incarnation: LogIncarnation,
        place: RecordPlace,
    ) -> Result<ObjectKey, SharedLogError> {
        ObjectKey::new(record_key_text(&self.folder, incarnation, place))
            .map_err(|error| self.wrap_error(&error))
    }

    /// Stores an append. Returns false if the name is taken.
    fn put_record(&self, record: &LogRecord<'_>) -> Result<bool, SharedLogError> {
        let key = self.record_key(record.incarnation, record.place)?;
        match self.objects.put_object(&key, &record.encode()) {
            Ok(()) => Ok(true),
            Err(StoreError::Exists { .. }) => Ok(false),
            Err(error) => Err(self.wrap_error(&error)),
        }
    }

    fn damaged_error(&self, reason: String) -> SharedLogError {
        SharedLogError::Damaged { engine: self.objects.describe_location(), reason }
    }

    fn wrap_error(&self, error: &StoreError) -> SharedLogError {
        let engine = self.objects.describe_location();
        let reason = error.to_string();
        match error.kind() {
            ErrorKind::NoSpace => SharedLogError::Full { engine, reason },
            ErrorKind::Corrupt | ErrorKind::NotFound => SharedLogError::Damaged { engine, reason },
            ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::Usage => {
                SharedLogError::Unfit { engine, reason }
            }
            ErrorKind::Conflict | ErrorKind::Interrupted | ErrorKind::Io => {
                SharedLogError::Unreachable { engine, reason }
            }
        }
    }
}

/// Decodes any bytes as each of the objects.
pub(crate) fn fuzz_decoders(bytes: &[u8]) {
    if let Ok(head) = LogHead::decode(bytes) {
        assert_eq!(head.encode(), bytes, "one head has one encoding");
    }
    if let Ok(record) = LogRecord::decode(bytes) {
        assert_eq!(record.encode(), bytes, "one append has one encoding");
    }
}

fn check_epoch(head: &LogHead, epoch: LogEpoch) -> Result<(), SharedLogError> {
    match head.current_epoch() {
        Some(current) if current == epoch => Ok(()),
        current => Err(SharedLogError::Fenced { epoch, current: current.unwrap_or(LogEpoch(0)) }),
    }
}

impl SharedLog for ObjectLog {
    fn create(&self) -> Result<LogIncarnation, SharedLogError> {
        loop {
            if let Some(stored) = self.find_head()? {
                self.binding.expect(stored.head.incarnation);
                return Ok(stored.head.incarnation);
            }
            let mut incarnation = [0; 16];
            fill_random(&mut incarnation);
            // Where another process was faster, its log is found in the next round.
            self.swap_head(None, Some(&LogHead::new(LogIncarnation(incarnation))))?;
        }
    }

    fn claim(
        &self,
        expected: LogIncarnation,
        server: &ServerRecord,
        after: Option<LogEpoch>,
    ) -> Result<LogClaim, SharedLogError> {
        self.binding.expect(expected);
        // What stands for no epoch is none.
        let after = after.filter(|after| after.0 > 0);
        let claimed = self.update_head(|head| {
            let current = head.current_epoch();
            let next = LogEpoch(after.map_or(0, |after| after.0) + 1);
            // By the process, and not by its host: after a restart it knows nothing of what the claim before has appended.
            let is_own = head.server.as_ref().is_some_and(|holder| holder.instance == server.instance);
            if current == Some(next) && is_own && !head.is_released {
                // This claim was carried out, and its answer was lost.
            } else if current == after {
                head.open.push(next);
            } else {
                let epoch = after.unwrap_or(LogEpoch(0));
                return Err(SharedLogError::Fenced { epoch, current: current.unwrap_or(LogEpoch(0)) });
            }
            head.server = Some(server.clone());
            head.is_released = false;
            // Without a new value, a swap of a head that is otherwise the same would leave no trace, and age is measured by
            // changes.
            head.renewals += 1;
            Ok(())
        })?;
        let epoch = claimed.current_epoch().unwrap_or(LogEpoch(0));
        // Step 2 and 3 of a claim: this seals what came before, so that no append of an old server can still count.
        let end = self.find_log_end()?;
        let head = self.read_head()?.head;
        check_epoch(&head, epoch)?;
        self.state.lock().end = Some((epoch, end));
        tracing::debug!(epoch = epoch.0, end = end.0, "shared log claimed");
        Ok(LogClaim { epoch, incarnation: expected, start: head.start, end })
    }

    fn renew(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        self.update_as_server(epoch, |head| {
            head.renewals += 1;
            Ok(())
        })?;
        Ok(())
    }

    fn release(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        self.update_as_server(epoch, |head| {
            head.renewals += 1;
            head.is_released = true;
            Ok(())
        })?;
        Ok(())
    }

    fn append(
        &self,
        epoch: LogEpoch,
        at: LogPosition,
        records: &[u8],
    ) -> Result<LogPosition, SharedLogError> {
        if records.len() > APPEND_MAX {
            return Err(SharedLogError::Oversized { len: records.len() });
        }
        let known_end = self.state.lock().end;
        // What this process appended last is known without a listing, which a service charges for.
        if records.is_empty() || known_end != Some((epoch, at)) {
            self.check_end(epoch, at)?;
        }
        if records.is_empty() {
            return Ok(at);
        }
        let incarnation = match self.binding.expected() {
            Some(incarnation) => incarnation,
            None => self.read_head()?.head.incarnation,
        };
        let record = LogRecord { incarnation, place: RecordPlace { epoch, at }, bytes: records };
        // Also if the name is taken, the head is read first: being fenced is the answer that matters more.
        let is_stored = self.put_record(&record)?;
        // Read after the append was stored: whoever claims the log from here on finds it.
        let head = self.read_head()?.head;
        check_epoch(&head, epoch)?;
        if !is_stored || at < head.start {
            let end = self.find_log_end()?;
            self.state.lock().end = Some((epoch, end));
            return Err(SharedLogError::Moved { at, end });
        }
        let end = LogPosition(at.0 + records.len() as u64);
        self.state.lock().end = Some((epoch, end));
        Ok(end)
    }

    fn wait_until_durable(&self, _: LogPosition) -> Result<(), SharedLogError> {
        // What a store acknowledges is durable.
        Ok(())
    }

    fn read(&self, from: LogPosition, max: usize) -> Result<Vec<u8>, SharedLogError> {
        self.read_appends(from, max)
    }

    fn discard_before(&self, epoch: LogEpoch, before: LogPosition) -> Result<(), SharedLogError> {
        self.check_epoch_now(epoch)?;
        let boundary = self.find_boundary(before)?;
        // The head first: what it does not name any more, nobody reads.
        let head = self.update_as_server(epoch, |head| {
            head.start = head.start.max(boundary);
            let start = head.start;
            head.sealed.retain(|sealed| start < sealed.end);
            Ok(())
        })?;
        // A process that stops before this leaves objects that the next discard removes.
        self.sweep_appends(&head)
    }

    fn current_server(
        &self,
        known: Option<LogEpoch>,
        wait: Duration,
    ) -> Result<Option<ServerSighting>, SharedLogError> {
        let begun = Instant::now();
        let poll = if self.objects.is_remote() { POLL_REMOTE } else { POLL_LOCAL };
        loop {
            let head = match self.read_head() {
                Ok(stored) => Some(stored.head),
                Err(SharedLogError::NoLog { .. }) => None,
                Err(error) => return Err(error),
            };
            if let Some(head) = &head {
                self.state.lock().watch.observe_head(head);
            }
            let epoch = head.as_ref().and_then(LogHead::current_epoch);
            let is_released = head.as_ref().is_some_and(|head| head.is_released);
            let left = wait.saturating_sub(begun.elapsed());
            if epoch != known || is_released || left.is_zero() {
                return head.map_or(Ok(None), |head| self.describe_server(head));
            }
            std::thread::sleep(poll.min(left));
        }
    }

    fn remove(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        for _ in 0..SWAP_TRIES {
            let StoredHead { head, bytes } = self.read_head()?;
            check_epoch(&head, epoch)?;
            if self.swap_head(Some(&bytes), None)? {
                // Without the head nobody reads them. What stays after a crash has an incarnation that no
                // later log has.
                return self.remove_appends();
            }
        }
        let reason = format!("{} is changed by others all the time", self.head_key);
        Err(SharedLogError::Unreachable { engine: self.objects.describe_location(), reason })
    }
}

//! Which appends the log consists of: found by listing, read, discarded.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use vellum_store::{ObjectInfo, ObjectKey, map_requests};

use super::age::CLOCK_FOLDER;
use super::head::{LogHead, SealedEpoch};
use super::record::{HEADER_LEN, LogRecord, RECORD_MAX, RecordPlace, epoch_folder, parse_record_key};
use super::{ObjectLog, check_epoch};
use crate::error::SharedLogError;
use crate::log::{LogEpoch, LogIncarnation, LogPosition};

/// Tries to read what is discarded meanwhile, a count.
const READ_TRIES: u32 = 20;
/// Age of an object that was written to learn the time, and that its process left: none takes so long to read it.
const CLOCK_AGE: Duration = Duration::from_hours(1);

/// An append, as the listing shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedAppend {
    place: RecordPlace,
    end: LogPosition,
}

/// The log, from a position on.
pub(super) struct ListedLog {
    /// The head at that moment.
    pub head: LogHead,
    /// Its appends, in order.
    appends: Vec<ListedAppend>,
    /// Where it ends.
    pub end: LogPosition,
}

impl ObjectLog {
    /// The ends of the appends of one epoch, by where they begin.
    fn list_epoch(
        &self,
        incarnation: LogIncarnation,
        epoch: LogEpoch,
    ) -> Result<BTreeMap<LogPosition, LogPosition>, SharedLogError> {
        let folder = epoch_folder(&self.folder, incarnation, epoch);
        let listed = self.objects.list_objects(&folder).map_err(|error| self.wrap_error(&error))?;
        listed.iter().filter_map(|info| self.measure_append(info).transpose()).collect()
    }

    /// Where an append begins and ends. None if the object is something else.
    fn measure_append(
        &self,
        info: &ObjectInfo,
    ) -> Result<Option<(LogPosition, LogPosition)>, SharedLogError> {
        let Some((_, place)) = parse_record_key(&self.folder, &info.key) else { return Ok(None) };
        let end = info.size.checked_sub(HEADER_LEN).and_then(|len| place.at.0.checked_add(len));
        let end = end.filter(|end| place.at.0 < *end);
        let end = end.ok_or_else(|| self.damaged_error(format!("{} has {} bytes", info.key, info.size)))?;
        Ok(Some((place.at, LogPosition(end))))
    }

    /// The appends from the one that contains `from` on, and where the log ends.
    fn list_appends(
        &self,
        head: &LogHead,
        from: LogPosition,
    ) -> Result<(Vec<ListedAppend>, LogPosition), SharedLogError> {
        let mut appends = Vec::new();
        let ended = head.sealed.iter().filter(|sealed| from < sealed.end);
        for SealedEpoch { epoch, start, end } in ended.copied() {
            let first = RecordPlace { epoch, at: start.max(head.start) };
            let reached = self.collect_epoch(head.incarnation, first, Some(end), &mut appends)?;
            if reached != end {
                // The end of a sealed epoch was decided when all of it was there, so something was removed since.
                return Err(self.missing_error(epoch, reached, end));
            }
        }
        let mut end = head.open_start.max(head.start);
        if let Some(epoch) = head.current_epoch() {
            let first = RecordPlace { epoch, at: end };
            end = self.collect_epoch(head.incarnation, first, None, &mut appends)?;
        }
        appends.retain(|append| from < append.end);
        Ok((appends, end))
    }

    /// Where the appends of an epoch end that follow each other from a place on.
    pub(super) fn find_epoch_end(
        &self,
        incarnation: LogIncarnation,
        first: RecordPlace,
    ) -> Result<LogPosition, SharedLogError> {
        self.collect_epoch(incarnation, first, None, &mut Vec::new())
    }

    /// Adds the appends of an epoch that follow each other from a place on. Returns where they end.
    fn collect_epoch(
        &self,
        incarnation: LogIncarnation,
        first: RecordPlace,
        until: Option<LogPosition>,
        appends: &mut Vec<ListedAppend>,
    ) -> Result<LogPosition, SharedLogError> {
        let mut at = first.at;
        let mut gap = None;
        loop {
            let listed = self.list_epoch(incarnation, first.epoch)?;
            while until.is_none_or(|until| at < until) {
                let Some(end) = listed.get(&at).copied() else { break };
                appends.push(ListedAppend { place: RecordPlace { epoch: first.epoch, at }, end });
                at = end;
            }
            // Behind the end of a sealed epoch may stand what came too late. Behind that of the open one stands nothing.
            let beyond = if until.is_none() { listed.range(at..).next() } else { None };
            let Some((beyond, _)) = beyond else { return Ok(at) };
            // A listing is not made at one moment: while appends arrive, it may show one and not the one before it. A
            // listing that begins later shows both. If it has the same gap, an append is missing.
            if gap.replace(at) == Some(at) {
                return Err(self.missing_error(first.epoch, at, *beyond));
            }
        }
    }

    /// The appends that the log has from a position on. Whatever others do meanwhile, it had them at one moment.
    pub(super) fn list_log(&self, from: LogPosition) -> Result<ListedLog, SharedLogError> {
        // Each failure is a claim or a discard by another process, which are seconds apart.
        for _ in 0..READ_TRIES {
            let head = self.settle_head()?;
            if from < head.start {
                return Err(SharedLogError::Discarded { from, start: head.start });
            }
            let listed = self.list_appends(&head, from);
            // Read after the listing: if the epoch is still open, nothing that was listed came too late. If the log
            // begins elsewhere, objects may have been removed that were to be listed.
            let later = self.read_head()?.head;
            if later.open == head.open && later.start == head.start {
                let (appends, end) = listed?;
                return Ok(ListedLog { head, appends, end });
            }
        }
        let reason = "the log is claimed or discarded all the time".to_owned();
        Err(SharedLogError::Unreachable { engine: self.objects.describe_location(), reason })
    }

    /// See [`crate::SharedLog::read`].
    pub(super) fn read_appends(&self, from: LogPosition, max: usize) -> Result<Vec<u8>, SharedLogError> {
        let ListedLog { head, appends, end } = self.list_log(from)?;
        if end < from {
            return Err(SharedLogError::Moved { at: from, end });
        }
        let fetched = self.fetch_appends(&head, &appends, from, max);
        if fetched.is_err() {
            // What was discarded meanwhile is missing, and not damaged.
            let start = self.read_head()?.head.start;
            if from < start {
                return Err(SharedLogError::Discarded { from, start });
            }
        }
        fetched
    }

    /// Reads as many of the appends as fit, one at least.
    fn fetch_appends(
        &self,
        head: &LogHead,
        appends: &[ListedAppend],
        from: LogPosition,
        max: usize,
    ) -> Result<Vec<u8>, SharedLogError> {
        // The lengths are known from the listing, so no object is fetched that would not fit.
        // Appends that end at or before `from` were left out, so that this does not underflow.
        let fits = |append: &&ListedAppend| append.end.0 - from.0 <= max as u64;
        let count = appends.iter().take_while(fits).count().max(1).min(appends.len());
        let fetched = map_requests(&*self.objects, &appends[..count], |append| {
            self.fetch_append(head.incarnation, append)
        });
        let mut bytes = Vec::new();
        for (append, fetched) in appends.iter().zip(fetched) {
            // The first one may begin before what is asked for.
            let before = from.0.saturating_sub(append.place.at.0);
            let fetched = fetched?;
            bytes.extend_from_slice(
                fetched.get(usize::try_from(before).unwrap_or(usize::MAX)..).unwrap_or_default(),
            );
        }
        Ok(bytes)
    }

    fn fetch_append(
        &self,
        incarnation: LogIncarnation,
        append: &ListedAppend,
    ) -> Result<Vec<u8>, SharedLogError> {
        let key = self.record_key(incarnation, append.place)?;
        let object = self.objects.get_object(&key, RECORD_MAX).map_err(|error| self.wrap_error(&error))?;
        let record =
            LogRecord::decode(&object).map_err(|error| self.damaged_error(format!("{key}: {error}")))?;
        // The name is not protected by the record's checksum: an object that was copied to another name would pass.
        let is_expected = record.incarnation == incarnation && record.place == append.place;
        if !is_expected || record.bytes.len() as u64 != append.end.0 - append.place.at.0 {
            return Err(self.damaged_error(format!("{key} holds another append than its name says")));
        }
        Ok(record.bytes.to_vec())
    }

    pub(super) fn check_epoch_now(&self, epoch: LogEpoch) -> Result<(), SharedLogError> {
        check_epoch(&self.read_head()?.head, epoch)
    }

    /// The last beginning of an append at or before a position, or that position if it is the end.
    pub(super) fn find_boundary(&self, before: LogPosition) -> Result<LogPosition, SharedLogError> {
        let start = self.read_head()?.head.start;
        let ListedLog { head, appends, end } = match self.list_log(start) {
            // Another thread of this server has discarded more.
            Err(SharedLogError::Discarded { start, .. }) => return Ok(start.min(before)),
            listed => listed?,
        };
        if end < before {
            return Err(SharedLogError::Moved { at: before, end });
        }
        let starts = appends.iter().map(|append| append.place.at).chain([end]);
        Ok(starts.take_while(|start| *start <= before).last().unwrap_or(head.start))
    }

    /// Removes the objects that are no part of the log: what was discarded, what came too late, what is of older logs.
    pub(super) fn sweep_appends(&self, head: &LogHead) -> Result<(), SharedLogError> {
        let listed = self.objects.list_objects(&self.folder).map_err(|error| self.wrap_error(&error))?;
        // The newest object tells the store's time, from which this machine's clock may differ.
        let present = listed.iter().filter_map(|info| info.modified).max();
        let litter: Vec<ObjectKey> = listed
            .into_iter()
            .filter(|info| match parse_record_key(&self.folder, &info.key) {
                Some((incarnation, place)) => is_litter(head, incarnation, place),
                None => self.is_old_clock(info, present),
            })
            .map(|info| info.key)
            .collect();
        self.remove_objects(&litter)
    }

    /// Removes all appends.
    pub(super) fn remove_appends(&self) -> Result<(), SharedLogError> {
        let mut keys = self.objects.list_keys(&self.folder).map_err(|error| self.wrap_error(&error))?;
        // A directory lists folders in folders, too.
        keys.retain(|key| parse_record_key(&self.folder, key).is_some() || self.is_clock(key));
        self.remove_objects(&keys)
    }

    fn remove_objects(&self, keys: &[ObjectKey]) -> Result<(), SharedLogError> {
        let removed = map_requests(&*self.objects, keys, |key| self.objects.delete_object(key));
        removed.into_iter().try_for_each(|removed| removed.map_err(|error| self.wrap_error(&error)))
    }

    /// Whether an object was written to learn the store's time.
    fn is_clock(&self, key: &ObjectKey) -> bool {
        key.folder() == format!("{}/{CLOCK_FOLDER}", self.folder)
    }

    fn is_old_clock(&self, info: &ObjectInfo, present: Option<SystemTime>) -> bool {
        let age =
            present.zip(info.modified).and_then(|(present, written)| present.duration_since(written).ok());
        self.is_clock(&info.key) && age.is_some_and(|age| age > CLOCK_AGE)
    }

    fn missing_error(&self, epoch: LogEpoch, at: LogPosition, next: LogPosition) -> SharedLogError {
        self.damaged_error(format!("of epoch {} nothing is left from {} to {}", epoch.0, at.0, next.0))
    }
}

/// Whether an append is no part of the log that the head describes. What is of newer epochs than the head's is not
/// judged.
fn is_litter(head: &LogHead, incarnation: LogIncarnation, place: RecordPlace) -> bool {
    if incarnation != head.incarnation {
        return true;
    }
    if place.at < head.start {
        return head.current_epoch().is_some_and(|current| place.epoch <= current);
    }
    match head.open.first() {
        Some(first_open) if place.epoch < *first_open => {
            let sealed = head.sealed.iter().find(|sealed| sealed.epoch == place.epoch);
            sealed.is_none_or(|sealed| sealed.end <= place.at)
        }
        _ => false,
    }
}

//! How much the write log may take, and the waiting of writers when it takes more, or when the disk is nearly full.
//!
//! Invariant: who waits for the log's limit waits as long as the store is merely away; who lacks space on a disk, here or
//! in the store, is told so once an attempt to free some, begun after it began to wait, has ended.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::error::Result;

/// How long a writer waits before it asks once more that something be freed.
const REMINDER: Duration = Duration::from_millis(500);
/// The part of a disk that is left to the journal and to publishing, with which room is made again, and bounds of that:
/// what a removal and the publishing of a little take, and what the largest disk needs.
const RESERVED_PART: u64 = 16;
const RESERVED: (u64, u64) = (8 << 20, 64 << 20);
/// Most bytes that are taken before the disk is looked at again: others fill it, too.
const UNSEEN_MAX: u64 = 16 << 20;

/// What those may take who append at the same time and have not reserved room yet, bytes: some dozens, each a write of 1 MiB
/// at most. In a small log it is a quarter of the limit.
const UNRESERVED_MAX: u64 = 64 << 20;
const UNRESERVED_PART: u64 = 4;

/// Per cent of the limit at which users are warned.
pub const NEARLY_FULL: u64 = 80;
/// Per cent of the limit below which they are warned anew.
const RELAXED: u64 = 50;

type FillHook = Box<dyn Fn(LogUsage) + Send + Sync>;
type RoomHook = Box<dyn Fn() + Send + Sync>;
type DiskProbe = Box<dyn Fn() -> Option<LogDisk> + Send + Sync>;

/// How full the write log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogUsage {
    /// Bytes that its segments take.
    pub used: u64,
    /// Bytes at which writers wait.
    pub limit: u64,
    /// Writers that wait now.
    pub waiting: u64,
    /// How often a writer had to wait.
    pub waits: u64,
}

/// The disk beneath the log, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDisk {
    /// Bytes of it in all.
    pub size: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes of live metadata, which a checkpoint of the journal puts onto it before it frees as much.
    pub metadata: u64,
    /// Whether publishing puts what is in the log and in the metadata onto it, too.
    pub has_store: bool,
}

impl LogUsage {
    /// Returns how full it is, in per cent of the limit.
    #[must_use]
    pub fn percent(&self) -> u64 {
        // Divided first, because the limit may be the largest number there is.
        self.used / (self.limit / 100).max(1)
    }
}

/// An attempt to free room by publishing.
#[derive(Debug, Clone, Copy)]
pub struct PublishAttempt(u64);

/// The room in the log.
pub struct LogRoom {
    state: Mutex<LogRoomState>,
    freed: Condvar,
    hook: OnceLock<RoomHook>,
    probe: OnceLock<DiskProbe>,
    fill_hook: OnceLock<FillHook>,
}

struct LogRoomState {
    usage: LogUsage,
    /// The fill hook was called, and the log has been as full since.
    is_fill_told: bool,
    /// Bytes that may be taken before the disk is looked at again.
    unseen: u64,
    /// Attempts that have begun.
    begun: u64,
    /// The last attempt that has ended.
    ended: u64,
    /// The last one that failed since the store has no room.
    vain: u64,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoomShortage {
    Limit,
    Disk,
}

impl LogRoom {
    pub fn new(used: u64, limit: u64) -> Self {
        let usage = LogUsage { used, limit, waiting: 0, waits: 0 };
        let state =
            Mutex::new(LogRoomState { usage, is_fill_told: false, unseen: 0, begun: 0, ended: 0, vain: 0 });
        Self {
            state,
            freed: Condvar::new(),
            hook: OnceLock::new(),
            probe: OnceLock::new(),
            fill_hook: OnceLock::new(),
        }
    }

    pub fn set_pressure_hook(&self, hook: RoomHook) {
        // The first one stays: there is one publisher for a log.
        let _ = self.hook.set(hook);
    }

    pub fn set_disk_probe(&self, probe: DiskProbe) {
        let _ = self.probe.set(probe);
    }

    pub fn set_fill_hook(&self, hook: FillHook) {
        let _ = self.fill_hook.set(hook);
    }

    /// Waits until there is room in the log for so many bytes. One writer may exceed the limit when there is nothing else.
    pub fn wait_for_log_space(&self, bytes: u64) -> Result<()> {
        self.wait_for_space(bytes, |state| {
            let usage = &state.usage;
            // An empty log takes anything, since waiting could free nothing more.
            let full = usage.used > 0 && usage.used.saturating_add(bytes) > usage.limit;
            if full { Some(RoomShortage::Limit) } else { self.find_disk_shortage(state, bytes) }
        })
    }

    /// Waits until there is room on the disk for so many bytes beside the log.
    pub fn wait_for_disk_space(&self, bytes: u64) -> Result<()> {
        self.wait_for_space(bytes, |state| self.find_disk_shortage(state, bytes))
    }

    fn wait_for_space(
        &self,
        bytes: u64,
        lack: impl Fn(&mut LogRoomState) -> Option<RoomShortage>,
    ) -> Result<()> {
        // Nobody frees anything without it: to wait would be to wait for good.
        let Some(hook) = self.hook.get() else { return Ok(()) };
        let mut state = self.state.lock();
        if lack(&mut state).is_none() {
            state.unseen = state.unseen.saturating_sub(bytes);
            return Ok(());
        }
        state.usage.waits += 1;
        state.usage.waiting += 1;
        // Only attempts that begin from now on count: one under way may have looked at what there was to publish
        // before this writer came.
        let before = state.begun;
        let outcome = loop {
            drop(state);
            // Without the lock: the hook wakes the publisher, which takes the lock to say that it begins.
            hook();
            let verdict = |state: &mut LogRoomState| match lack(state) {
                None => Some(Ok(())),
                // The store is full as well: waiting for the limit would not end either.
                Some(_) if state.vain > before => Some(Err(Errno::NOSPC.into())),
                Some(RoomShortage::Disk) if state.ended > before => Some(Err(Errno::NOSPC.into())),
                Some(_) => None,
            };
            let waits = |state: &mut LogRoomState| verdict(state).is_none();
            state = self.state.lock();
            self.freed.wait_while_for(&mut state, waits, REMINDER);
            if let Some(outcome) = verdict(&mut state) {
                break outcome;
            }
        };
        state.usage.waiting -= 1;
        outcome
    }

    /// Whether so many bytes more would leave too little on the disk.
    fn find_disk_shortage(&self, state: &mut LogRoomState, bytes: u64) -> Option<RoomShortage> {
        // The disk is asked only now and then: `statvfs` for each write would cost more than most writes.
        if bytes <= state.unseen {
            return None;
        }
        // A disk that cannot be asked stops nobody: writing will find out.
        let disk = self.probe.get().and_then(|probe| probe())?;
        let reserved = (disk.size / RESERVED_PART).clamp(RESERVED.0, RESERVED.1);
        // What is in the log will be on the disk twice before it is there once.
        let published = if disk.has_store { disk.metadata + state.usage.used + bytes } else { 0 };
        let needed = [bytes, reserved, disk.metadata, published].into_iter().fold(0, u64::saturating_add);
        let Some(spare) = disk.free.checked_sub(needed) else { return Some(RoomShortage::Disk) };
        // Only a quarter of what is spare, since other programs take room from the same disk.
        state.unseen = bytes + (spare / 4).min(UNSEEN_MAX);
        None
    }

    /// Somebody begins to publish, to free room.
    pub fn begin_publish_attempt(&self) -> PublishAttempt {
        let mut state = self.state.lock();
        state.begun += 1;
        PublishAttempt(state.begun)
    }

    /// An attempt has ended: with a store that has no room, or not.
    pub fn end_publish_attempt(&self, PublishAttempt(number): PublishAttempt, is_full: bool) {
        let mut state = self.state.lock();
        state.ended = number;
        // Publishing has moved things: what was known of the disk is not true any more.
        state.unseen = 0;
        if is_full {
            state.vain = number;
        }
        drop(state);
        self.freed.notify_all();
    }

    pub fn reserve_bytes(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.usage.used = state.usage.used.saturating_add(bytes);
        let usage = state.usage;
        if usage.percent() < NEARLY_FULL || std::mem::replace(&mut state.is_fill_told, true) {
            return;
        }
        // Without the lock, because the hook may ask how full the log is.
        drop(state);
        if let Some(hook) = self.fill_hook.get() {
            hook(usage);
        }
    }

    pub fn return_bytes(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.usage.used = state.usage.used.saturating_sub(bytes);
        state.is_fill_told &= state.usage.percent() >= RELAXED;
        // All of them: who has waited longest may need more than there is now, and another one less.
        self.freed.notify_all();
    }

    pub fn set_limit(&self, limit: u64) {
        self.state.lock().usage.limit = limit;
        // The new limit may be higher.
        self.freed.notify_all();
    }

    pub fn limit(&self) -> u64 {
        self.state.lock().usage.limit
    }

    pub fn usage(&self) -> LogUsage {
        self.state.lock().usage
    }

    /// Whether somebody waits, or somebody who needs so many bytes may have to.
    pub fn is_nearly_full(&self, bytes: u64) -> bool {
        let usage = self.usage();
        let margin = UNRESERVED_MAX.min(usage.limit / UNRESERVED_PART);
        usage.waiting > 0 || usage.used.saturating_add(bytes).saturating_add(margin) > usage.limit
    }
}

#[cfg(test)]
mod tests;

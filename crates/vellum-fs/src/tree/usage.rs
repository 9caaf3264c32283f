//! The usage of a worktree, updated with each change, and its quota.
//!
//! Invariant: the usage is that of all committed transactions: each adds its changes before it is committed, and
//! subtracts them if it fails.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::io::Errno;
use vellum_types::{DecodeError, FieldReader, FieldWriter, FileKind, Ino, InodeAttr, MapKeyRef};
use vellum_volume::SnapshotStatistics;
use vellum_volume::refs::WorktreeQuota;

use super::{LiveMap, wrap_decode_error};
use crate::error::Result;
use crate::tree::head::LayeredState;

/// An amount of content and inodes, or a difference of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageAmount {
    /// Bytes of content of files, holes included.
    pub bytes: i64,
    /// Inodes of all kinds.
    pub inodes: i64,
}

impl UsageAmount {
    /// What an inode counts for: nothing if it has no name, since no snapshot has it and it goes with its last close.
    #[must_use]
    pub fn from_attr(attr: &InodeAttr) -> Self {
        if attr.nlink == 0 {
            return Self::default();
        }
        let size = if attr.kind == FileKind::File { attr.size } else { 0 };
        Self { bytes: to_signed(size), inodes: 1 }
    }

    /// What a tree holds.
    #[must_use]
    pub fn from_statistics(counted: &SnapshotStatistics) -> Self {
        let inodes = counted.files.saturating_add(counted.dirs).saturating_add(counted.others);
        Self { bytes: to_signed(counted.bytes), inodes: to_signed(inodes) }
    }

    /// Adds another amount.
    #[must_use]
    pub fn add_amount(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    /// Takes another amount away.
    #[must_use]
    pub fn subtract_amount(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }

    /// Adds the stored form.
    pub fn encode(self, writer: &mut FieldWriter) {
        writer.write_signed_varint(self.bytes).write_signed_varint(self.inodes);
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { bytes: reader.read_signed_varint()?, inodes: reader.read_signed_varint()? })
    }
}

fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What a worktree holds and may hold.
#[derive(Debug)]
pub struct WorktreeUsage {
    bytes: UsageCounter,
    inodes: UsageCounter,
}

/// One number and its limit.
#[derive(Debug)]
struct UsageCounter {
    used: AtomicI64,
    /// `u64::MAX`: none.
    limit: AtomicU64,
}

impl WorktreeUsage {
    pub(super) fn new() -> Self {
        let counter = || UsageCounter { used: AtomicI64::new(0), limit: AtomicU64::new(u64::MAX) };
        Self { bytes: counter(), inodes: counter() }
    }

    /// What there is.
    pub fn used_amount(&self) -> UsageAmount {
        UsageAmount {
            bytes: self.bytes.used.load(Ordering::Acquire),
            inodes: self.inodes.used.load(Ordering::Acquire),
        }
    }

    /// Sets what there is: the worktree stands on another state.
    pub fn set_used_amount(&self, used: UsageAmount) {
        self.bytes.used.store(used.bytes, Ordering::Release);
        self.inodes.used.store(used.inodes, Ordering::Release);
    }

    /// The most that there may be.
    pub fn quota(&self) -> WorktreeQuota {
        WorktreeQuota { bytes: self.bytes.counter_limit(), inodes: self.inodes.counter_limit() }
    }

    /// Sets the most that there may be. What is there stays.
    pub fn set_quota(&self, quota: WorktreeQuota) {
        self.bytes.limit.store(quota.bytes.unwrap_or(u64::MAX), Ordering::Release);
        self.inodes.limit.store(quota.inodes.unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Counts what a transaction changes; nothing is counted if it would be too much.
    pub fn reserve_growth(&self, grown: UsageAmount) -> Result<()> {
        self.bytes.reserve_growth(grown.bytes)?;
        self.inodes.reserve_growth(grown.inodes).inspect_err(|_| self.bytes.release_growth(grown.bytes))
    }

    /// Takes back what was counted: it was not committed.
    pub fn release_growth(&self, grown: UsageAmount) {
        self.bytes.release_growth(grown.bytes);
        self.inodes.release_growth(grown.inodes);
    }
}

impl LiveMap {
    /// Computes the usage of the worktree.
    pub fn measure_usage(&self) -> Result<UsageAmount> {
        let state = self.lock_head().state.clone();
        self.measure_state_usage(&state)
    }

    /// Computes what a state holds from the statistics of its base and the changes of its layers. Takes time in
    /// proportion to the changes.
    pub(crate) fn measure_state_usage(&self, state: &LayeredState) -> Result<UsageAmount> {
        let mut sum = UsageAmount::from_statistics(&state.counted);
        self.visit_changes(state, &mut |key, value| {
            let MapKeyRef::Attr(ino) =
                MapKeyRef::parse(&key).map_err(wrap_decode_error("a key of a layer"))?
            else {
                return Ok(());
            };
            // The filesystem's own record is no file, and counts for nothing.
            if ino == Ino::SUPER {
                return Ok(());
            }
            let weight = |value: &[u8]| {
                InodeAttr::decode(value)
                    .map(|attr| UsageAmount::from_attr(&attr))
                    .map_err(wrap_decode_error("an inode"))
            };
            // The statistics of the base contain what the inode counted for there.
            if let Some(before) = vellum_map::get_value(&**self.node_provider(), &state.base, &key)? {
                sum = sum.subtract_amount(weight(&before)?);
            }
            if let Some(after) = value {
                sum = sum.add_amount(weight(&after)?);
            }
            Ok(())
        })?;
        Ok(sum)
    }
}

impl UsageCounter {
    fn counter_limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Acquire)).filter(|limit| *limit != u64::MAX)
    }

    fn reserve_growth(&self, grown: i64) -> Result<()> {
        let used = self.used.fetch_add(grown, Ordering::AcqRel).saturating_add(grown);
        // Added first and looked at then: two that come at once see each other. What does not grow is allowed above
        // the limit, too: removing must work there.
        if grown > 0 && self.counter_limit().is_some_and(|limit| u64::try_from(used).unwrap_or(0) > limit) {
            self.release_growth(grown);
            return Err(Errno::DQUOT.into());
        }
        Ok(())
    }

    fn release_growth(&self, grown: i64) {
        self.used.fetch_sub(grown, Ordering::AcqRel);
    }
}

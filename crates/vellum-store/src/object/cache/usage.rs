//! How much a cache holds and may hold, by its parts: one small file, shared by all processes.
//!
//! Layout: magic (8) ‖ bytes of content in use (u64, little endian) ‖ limit of content (u64; all ones: the default) ‖ the same
//! two of nodes. Files of 24 bytes were written when there were no nodes apart.
//! Invariant: one process at a time holds the lock. The numbers in use are never too low: room is added before it is used,
//! and counted anew when packs are removed. A damaged file counts as a full cache, so that it is counted anew.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock, statvfs};
use vellum_types::LookupResult;

use super::parts::{CachePart, PerPart};
use super::process_limit::find_smallest_limit;

const USAGE_FILE: &str = "usage";
const MAGIC: &[u8; 8] = b"VLMUSE\0\x01";
/// Magic, and the numbers of content.
const CONTENT_LEN: usize = 24;
/// The numbers of nodes as well.
const LEN: usize = 40;
/// The default limits, bytes, and the part of the disk that each may be, a divisor. Nodes take about 290 bytes for each
/// entry of a directory: 2 GiB are those of some 7 million.
const DEFAULT_LIMITS: PerPart<u64> = PerPart { content: 10 << 30, nodes: 2 << 30 };
const DEFAULT_PART: u64 = 10;
/// What stays free on the disk for other programs: bytes, and a part of the disk.
const FREE_BYTES: u64 = 1 << 30;
const FREE_PART: u64 = 20;
/// Stands for as many bytes as there may ever be, so that they are counted. Sums with it do not overflow.
const UNKNOWN: u64 = u64::MAX / 2;
/// Stands for the default limit.
const NO_LIMIT_SET: u64 = u64::MAX;

/// The numbers of one part.
#[derive(Debug, Clone, Copy)]
struct PartUsage {
    used: u64,
    limit: u64,
}

/// Of which nothing is known yet.
const UNCOUNTED: PartUsage = PartUsage { used: UNKNOWN, limit: NO_LIMIT_SET };

/// The file, locked.
pub(super) struct CacheUsage {
    file: File,
    parts: PerPart<PartUsage>,
}

impl CacheUsage {
    /// Waits for the lock: other processes hold it for microseconds, or while they remove packs.
    pub fn lock(folder: &Path) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join(USAGE_FILE))?;
        // The system releases the lock when the process ends, so a killed process does not leave the cache locked.
        flock(&file, FlockOperation::LockExclusive)?;
        let parts = read_usage(&file)?;
        Ok(Self { file, parts })
    }

    /// The effective limits, without waiting for the lock.
    pub fn read_limits(folder: &Path) -> io::Result<PerPart<u64>> {
        let parts = match File::open(folder.join(USAGE_FILE)).none_if_missing()? {
            Some(file) => read_usage(&file)?,
            None => PerPart::both(UNCOUNTED),
        };
        parts.try_map(|part, usage| resolve_limit(folder, part, usage.limit))
    }

    /// Bytes in use or reserved, without waiting for the lock; none if that is not known before packs are counted.
    pub fn read_used(folder: &Path) -> io::Result<PerPart<Option<u64>>> {
        let file = File::open(folder.join(USAGE_FILE)).none_if_missing()?;
        let Some(file) = file else { return Ok(PerPart::both(Some(0))) };
        Ok(read_usage(&file)?.map(|_, usage| Some(usage.used).filter(|used| *used < UNKNOWN)))
    }

    /// Bytes in use or reserved.
    pub fn used(&self, part: CachePart) -> u64 {
        self.parts.get(part).used
    }

    pub fn set_used(&mut self, part: CachePart, used: u64) -> io::Result<()> {
        self.parts.get_mut(part).used = used;
        self.write()
    }

    pub fn set_limit(&mut self, part: CachePart, limit: u64) -> io::Result<()> {
        self.parts.get_mut(part).limit = limit;
        self.write()
    }

    /// Bytes that a part of the cache may have now: its limit, or less if the disk is nearly full.
    pub fn allowed_bytes(&self, folder: &Path, part: CachePart) -> io::Result<u64> {
        let disk = statvfs(folder)?;
        let total = disk.f_blocks.saturating_mul(disk.f_frsize);
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let spare = free.saturating_sub(FREE_BYTES.max(total / FREE_PART));
        let usage = self.parts.get(part);
        // What the part holds now is not in `free`, so it is added.
        Ok(resolve_limit(folder, part, usage.limit)?.min(usage.used.saturating_add(spare)))
    }

    fn write(&self) -> io::Result<()> {
        let PerPart { content, nodes } = self.parts;
        let mut bytes = [0; LEN];
        let numbers = [content.used, content.limit, nodes.used, nodes.limit].map(u64::to_le_bytes);
        let fields = MAGIC.iter().chain(numbers.iter().flatten());
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = *from);
        // In one write, because `read_limits` reads without the lock.
        self.file.write_all_at(&bytes, 0)
    }
}

/// Bytes in use, and the limits that were set. If the file is damaged, all bytes count as in use.
fn read_usage(file: &File) -> io::Result<PerPart<PartUsage>> {
    let mut bytes = [0; LEN];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    // A new file, perhaps beside packs that are there, is empty: they are counted.
    Ok(decode_usage(bytes.get(..filled).unwrap_or_default()).unwrap_or(PerPart::both(UNCOUNTED)))
}

fn decode_usage(bytes: &[u8]) -> Option<PerPart<PartUsage>> {
    let mut reader = vellum_types::FieldReader::new(bytes);
    if reader.read_array::<8>().ok()? != *MAGIC {
        return None;
    }
    let mut read_part = || -> Option<PartUsage> {
        // A damaged number may be any: above this one, adding to it would overflow.
        let used = u64::from_le_bytes(reader.read_array().ok()?).min(UNKNOWN);
        let limit = u64::from_le_bytes(reader.read_array().ok()?);
        Some(PartUsage { used, limit })
    };
    let content = read_part()?;
    // The older form says nothing of nodes.
    let nodes = if bytes.len() == CONTENT_LEN { UNCOUNTED } else { read_part()? };
    Some(PerPart { content, nodes })
}

/// The decoder on any bytes; see [`crate::fuzzing`].
pub(super) fn fuzz_usage(bytes: &[u8]) {
    if let Some(PerPart { content, nodes }) = decode_usage(bytes) {
        assert!(content.used <= UNKNOWN && nodes.used <= UNKNOWN, "sums with them do not overflow");
    }
}

fn resolve_limit(folder: &Path, part: CachePart, limit: u64) -> io::Result<u64> {
    let kept = resolve_kept_limit(folder, part, limit)?;
    Ok(match part {
        CachePart::Content => find_smallest_limit(folder).map_or(kept, |limit| limit.min(kept)),
        CachePart::Nodes => kept,
    })
}

/// The limit that the cache keeps.
fn resolve_kept_limit(folder: &Path, part: CachePart, limit: u64) -> io::Result<u64> {
    if limit != NO_LIMIT_SET {
        return Ok(limit);
    }
    let default = *DEFAULT_LIMITS.get(part);
    match statvfs(folder) {
        Ok(disk) => Ok(default.min(disk.f_blocks.saturating_mul(disk.f_frsize) / DEFAULT_PART)),
        // The cache does not exist yet, so there is no disk to measure.
        Err(rustix::io::Errno::NOENT) => Ok(default),
        Err(error) => Err(error.into()),
    }
}

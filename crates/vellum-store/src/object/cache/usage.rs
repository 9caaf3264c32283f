//! How much a cache holds and may hold: one small file, shared by all processes.
//!
//! Layout: magic (8) ‖ bytes in use (u64, little endian) ‖ limit (u64; all ones: the default).
//! Invariant: one process at a time holds the lock. The number in use is never too low: room is added before it is used,
//! and counted anew when packs are removed. A damaged file counts as a full cache, so that it is counted anew.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock, statvfs};

const USAGE_FILE: &str = "usage";
const MAGIC: &[u8; 8] = b"VLMUSE\0\x01";
const LEN: usize = 24;
/// The default limit, bytes, and the part of the disk that it may be.
const DEFAULT_LIMIT: u64 = 10 << 30;
const DEFAULT_PART: u64 = 10;
/// What stays free on the disk for other programs: bytes, and a part of the disk.
const FREE_BYTES: u64 = 1 << 30;
const FREE_PART: u64 = 20;
/// Stands for as many bytes as there may ever be, so that they are counted. Sums with it do not overflow.
const UNKNOWN: u64 = u64::MAX / 2;
/// Stands for the default limit.
const NO_LIMIT_SET: u64 = u64::MAX;

/// The file, locked.
pub(super) struct CacheUsage {
    file: File,
    used: u64,
    limit: u64,
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
        let (used, limit) = read_usage(&file)?;
        Ok(Self { file, used, limit })
    }

    /// The effective limit, without waiting for the lock.
    pub fn read_limit(folder: &Path) -> io::Result<u64> {
        let limit = match File::open(folder.join(USAGE_FILE)) {
            Ok(file) => read_usage(&file)?.1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => NO_LIMIT_SET,
            Err(error) => return Err(error),
        };
        resolve_limit(folder, limit)
    }

    /// Bytes in use or reserved, without waiting for the lock; none if that is not known before packs are counted.
    pub fn read_used(folder: &Path) -> io::Result<Option<u64>> {
        match File::open(folder.join(USAGE_FILE)) {
            Ok(file) => Ok(Some(read_usage(&file)?.0).filter(|used| *used < UNKNOWN)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Bytes in use or reserved.
    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn set_used(&mut self, used: u64) -> io::Result<()> {
        self.used = used;
        self.write()
    }

    pub fn set_limit(&mut self, limit: u64) -> io::Result<()> {
        self.limit = limit;
        self.write()
    }

    /// Bytes that the cache may have now: the limit, or less if the disk is nearly full.
    pub fn allowed_bytes(&self, folder: &Path) -> io::Result<u64> {
        let disk = statvfs(folder)?;
        let total = disk.f_blocks.saturating_mul(disk.f_frsize);
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let spare = free.saturating_sub(FREE_BYTES.max(total / FREE_PART));
        // What the cache holds now is not in `free`, so it is added.
        Ok(resolve_limit(folder, self.limit)?.min(self.used.saturating_add(spare)))
    }

    fn write(&self) -> io::Result<()> {
        let mut bytes = [0; LEN];
        let fields = [*MAGIC, self.used.to_le_bytes(), self.limit.to_le_bytes()];
        bytes.iter_mut().zip(fields.iter().flatten()).for_each(|(to, from)| *to = *from);
        // In one write, because `read_limit` reads without the lock.
        self.file.write_all_at(&bytes, 0)
    }
}

/// Bytes in use, and the limit that was set. If the file is damaged, all bytes count as in use.
fn read_usage(file: &File) -> io::Result<(u64, u64)> {
    let mut bytes = [0; LEN];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        // A new file, perhaps beside packs that are there: they are counted.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok((UNKNOWN, NO_LIMIT_SET)),
        Err(error) => return Err(error),
    }
    Ok(decode_usage(&bytes).unwrap_or((UNKNOWN, NO_LIMIT_SET)))
}

fn decode_usage(bytes: &[u8; LEN]) -> Option<(u64, u64)> {
    let mut reader = vellum_types::FieldReader::new(bytes);
    if reader.read_array::<8>().ok()? != *MAGIC {
        return None;
    }
    let used = u64::from_le_bytes(reader.read_array().ok()?);
    let limit = u64::from_le_bytes(reader.read_array().ok()?);
    Some((used.min(UNKNOWN), limit))
}

/// The decoder on any bytes; see [`crate::fuzzing`].
pub(super) fn fuzz_usage(bytes: &[u8]) {
    if let Some((used, _)) = bytes.first_chunk().and_then(decode_usage) {
        assert!(used <= UNKNOWN, "sums with it do not overflow");
    }
}

fn resolve_limit(folder: &Path, limit: u64) -> io::Result<u64> {
    if limit != NO_LIMIT_SET {
        return Ok(limit);
    }
    match statvfs(folder) {
        Ok(disk) => Ok(DEFAULT_LIMIT.min(disk.f_blocks.saturating_mul(disk.f_frsize) / DEFAULT_PART)),
        // The cache does not exist yet, so there is no disk to measure.
        Err(rustix::io::Errno::NOENT) => Ok(DEFAULT_LIMIT),
        Err(error) => Err(error.into()),
    }
}

//! How many bytes a second go to a store and come from it, at most.
//!
//! The limits are a file in the cache of the store, so that they count for all processes of a user, and can be changed
//! while these run. Invariant: each process keeps to them by itself, over any second and a burst of a tenth of one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vellum_host::private_dir::create_private_dir;

use parking_lot::Mutex;

use super::cache::CacheDisk;

/// The file with the limits.
const LIMITS_FILE: &str = "bandwidth";
/// Longest file, bytes.
const FILE_MAX: u64 = 128;
/// How often the file is read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// For how long an unused rate is saved up.
const BURST: Duration = Duration::from_millis(100);
/// Bytes that are sent at once, at most: progress is noticed that often.
const STEP_MAX: u64 = 128 << 10;
/// Steps a second, at least: what waits for longer is taken for a dead connection.
const STEPS_A_SECOND: u64 = 4;

/// Most bytes a second in each direction; none where there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BandwidthLimits {
    /// To the store.
    pub upload: Option<u64>,
    /// From the store.
    pub download: Option<u64>,
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferredBytes {
    Sent,
    Received,
}

/// Keeps one process to the limits.
pub(super) struct BandwidthMeter {
    /// The disk with the file; none if there is no place for it.
    disk: Option<Arc<CacheDisk>>,
    state: Mutex<MeterState>,
}

#[derive(Default)]
struct MeterState {
    limits: BandwidthLimits,
    read: Option<Instant>,
    sent_until: Option<Instant>,
    received_until: Option<Instant>,
}

impl BandwidthLimits {
    /// Decodes a file of limits; none if it is damaged.
    fn parse(text: &str) -> Option<Self> {
        let mut limits = Self::default();
        for line in text.lines() {
            let (name, rate) = line.split_once(' ')?;
            let rate = rate.parse().ok().filter(|rate| *rate > 0)?;
            match name {
                "upload" => limits.upload = Some(rate),
                "download" => limits.download = Some(rate),
                _ => return None,
            }
        }
        Some(limits)
    }

    /// The limits in the cache of a store. A file that cannot be read limits nothing.
    pub(super) fn read_from(cache: &Path) -> Self {
        let mut text = String::new();
        let read = File::open(cache.join(LIMITS_FILE))
            .and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
        read.ok().and_then(|_| Self::parse(&text)).unwrap_or_default()
    }

    /// Writes the limits into the cache of a store.
    pub(super) fn write_to(self, cache: &Path) -> io::Result<()> {
        create_private_dir(cache)?;
        // Renamed into place, because other processes read the file once a second. It is not synced: limits that a
        // power cut loses can be set again. The temporary name is random, since threads and machines may share
        // the folder.
        let name = getrandom::u64().map_err(io::Error::other)?;
        let temporary = cache.join(format!("{LIMITS_FILE}.{name:016x}.tmp"));
        let lines = [("upload", self.upload), ("download", self.download)];
        let lines = lines.into_iter().filter_map(|(name, rate)| Some(format!("{name} {}\n", rate?)));
        let text: String = lines.collect();
        let write = || -> io::Result<()> {
            File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?
                .write_all(text.as_bytes())?;
            fs::rename(&temporary, cache.join(LIMITS_FILE))
        };
        // Nobody would look for what has a random name.
        write().inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }
}

impl BandwidthMeter {
    /// Keeps to the limits in the cache of a store.
    pub fn new(cache: Option<&Path>) -> Self {
        Self { disk: cache.map(CacheDisk::for_folder), state: Mutex::default() }
    }

    /// How many bytes are to be sent at once.
    pub fn choose_step(&self) -> usize {
        let rate = self.state.lock().current_limits(self.disk.as_ref()).upload;
        // With a low limit, a full step would take longer than a connection may be silent, and the request would
        // fail.
        let step = rate.map_or(STEP_MAX, |rate| (rate / STEPS_A_SECOND).clamp(1, STEP_MAX));
        usize::try_from(step).unwrap_or(usize::MAX)
    }

    /// Counts bytes, and returns how long to wait before more follow.
    pub fn count_bytes(&self, direction: TransferredBytes, bytes: usize) -> Duration {
        let mut state = self.state.lock();
        let limits = state.current_limits(self.disk.as_ref());
        let (rate, until) = match direction {
            TransferredBytes::Sent => (limits.upload, &mut state.sent_until),
            TransferredBytes::Received => (limits.download, &mut state.received_until),
        };
        let Some(rate) = rate else {
            // Without a limit, the past does not count: a limit that is set later begins with a full burst.
            *until = None;
            return Duration::ZERO;
        };
        let now = Instant::now();
        // `until` is the time at which all bytes counted so far would have arrived at this rate. Unused time counts
        // back for one burst only, so a pause allows no flood after it.
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let start = until.unwrap_or(earliest).max(earliest);
        let end = start + Duration::from_secs_f64(bytes as f64 / rate as f64);
        *until = Some(end);
        end.saturating_duration_since(now)
    }
}

impl MeterState {
    fn current_limits(&mut self, disk: Option<&Arc<CacheDisk>>) -> BandwidthLimits {
        // Once a second at most: this is called for each 128 KiB.
        if let Some(disk) = disk
            && self.read.is_none_or(|read| read.elapsed() >= READ_EVERY)
        {
            // While the disk does not answer, the last limits count.
            if let Ok(limits) = disk.run(|cache| Ok(BandwidthLimits::read_from(cache))) {
                self.limits = limits;
            }
            // Also if the disk did not answer, so that it is not asked for each piece.
            self.read = Some(Instant::now());
        }
        self.limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_were_written_and_anything_else_limits_nothing() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let cache = dir.path().join("cache");
        assert_eq!(BandwidthLimits::read_from(&cache), BandwidthLimits::default());
        for (upload, download) in
            [(Some(1 << 20), None), (None, Some(7)), (Some(1), Some(u64::MAX)), (None, None)]
        {
            let limits = BandwidthLimits { upload, download };
            limits.write_to(&cache)?;
            assert_eq!(BandwidthLimits::read_from(&cache), limits);
        }
        for text in ["upload", "upload x\n", "upload 0\n", "sideways 5\n", "upload -1\n"] {
            fs::write(cache.join(LIMITS_FILE), text)?;
            assert_eq!(BandwidthLimits::read_from(&cache), BandwidthLimits::default(), "{text:?}");
        }
        Ok(())
    }

    #[test]
    fn bytes_wait_for_as_long_as_their_rate_says() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        BandwidthLimits { upload: Some(1000), download: None }.write_to(dir.path())?;
        let meter = BandwidthMeter::new(Some(dir.path()));
        assert_eq!(meter.choose_step(), 250);
        let waits: Duration =
            (0..10).map(|_| meter.count_bytes(TransferredBytes::Sent, 1000)).max().unwrap_or_default();
        assert!((9.0..=10.0).contains(&waits.as_secs_f64()), "{waits:?}");
        assert_eq!(meter.count_bytes(TransferredBytes::Received, 1 << 30), Duration::ZERO);
        let unlimited = BandwidthMeter::new(None);
        assert_eq!(unlimited.count_bytes(TransferredBytes::Sent, 1 << 30), Duration::ZERO);
        assert_eq!(unlimited.choose_step(), 128 << 10);
        Ok(())
    }
}

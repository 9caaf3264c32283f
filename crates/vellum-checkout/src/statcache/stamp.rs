//! The clock of the filesystem, and which attributes are too young to be trusted.
//!
//! A file's content is read after the stamp was taken. Whatever changes the file after that gets a change time not
//! before the stamp (the filesystem's clock only ticks forward, in steps). So attributes with a change time before
//! the stamp identify the content that was read; with a later one they may stand for two contents, written within
//! one tick, and are *racy*. A clock that is set back makes entries racy, never wrong.

use vellum_types::UnixTime;

use vellum_host::beneath::{BeneathError, HeldDir, StagingMethod, stat_file};
use vellum_host::metadata::FileStat;

/// Tolerance on the stamp's own filesystem, nanoseconds: the coarsest tick of the kernel's clock (100 Hz).
const TICK: u64 = 10_000_000;
/// Tolerance on other filesystems, nanoseconds: the coarsest steps in use, 2 s of FAT.
const FOREIGN_TICK: u64 = 2_000_000_000;

/// A moment by a filesystem's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesystemTime {
    /// The moment.
    pub time: UnixTime,
    /// The filesystem whose clock it is.
    pub dev: u64,
}

impl FilesystemTime {
    /// Asks the clock of the filesystem that holds `dir`, by making a file there that nobody sees.
    pub fn read_filesystem_time(dir: &HeldDir) -> Result<Self, BeneathError> {
        // The clock of this process is no substitute: kernels stamp files with a coarser clock, and network
        // filesystems with the server's.
        let witness = dir.stage_file_by(StagingMethod::Anonymous)?;
        let stat = stat_file(witness.file()?)?;
        Ok(Self { time: stat.ctime, dev: stat.dev })
    }

    /// Whether a change that came after this stamp could have left these attributes as they are.
    #[must_use]
    pub fn can_hide_change(&self, stat: &FileStat) -> bool {
        let tolerance = if stat.dev == self.dev { TICK } else { FOREIGN_TICK };
        stat.ctime >= subtract_nanos(self.time, tolerance)
    }
}

fn subtract_nanos(time: UnixTime, nanos: u64) -> UnixTime {
    let total = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos) - i128::from(nanos);
    let secs = i64::try_from(total.div_euclid(1_000_000_000)).unwrap_or(i64::MIN);
    let nanos = u32::try_from(total.rem_euclid(1_000_000_000)).unwrap_or(0);
    UnixTime { secs, nanos }
}

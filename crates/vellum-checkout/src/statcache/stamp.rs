//! The clock of a filesystem, and the attributes that are too young to be trusted.
//!
//! A file's content is read after the stamp was taken. Any later change of the file sets a change time that is not
//! before the stamp (the filesystem's clock advances in ticks). So attributes with a change time before the stamp
//! identify the content that was read; with a later one they may belong to two contents, written within one tick, and
//! are *racy*. If the clock is set back, more entries are racy, and none is wrong.

use vellum_types::UnixTime;

use vellum_host::beneath::{BeneathError, HeldDir, StagingMethod, stat_file};
use vellum_host::metadata::FileStat;

/// Tolerance on the stamp's own filesystem, nanoseconds: the longest tick of the kernel's clock (100 Hz).
const TICK: u64 = 10_000_000;
/// Tolerance on other filesystems, nanoseconds: the coarsest resolution in use, 2 s of FAT.
const FOREIGN_TICK: u64 = 2_000_000_000;

/// A time of a filesystem's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesystemTime {
    /// The time.
    pub time: UnixTime,
    /// The filesystem.
    pub dev: u64,
}

impl FilesystemTime {
    /// Reads the clock of the filesystem that contains `dir`, from the change time of a new file without a name.
    pub fn read_filesystem_time(dir: &HeldDir) -> Result<Self, BeneathError> {
        // The clock of this process is no substitute: kernels stamp files with a coarser clock, and network
        // filesystems with the server's.
        let witness = dir.stage_file_by(StagingMethod::Anonymous)?;
        let stat = stat_file(witness.file()?)?;
        Ok(Self { time: stat.ctime, dev: stat.dev })
    }

    /// Whether a change after this stamp could have left these attributes as they are.
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

//! Whether the disk of a cache, or the process of a mount, answers: asked by a process of its own.
//!
//! The system may hold a process that uses a disk which hangs, or a mount whose process is stopped: it cannot end before there
//! is an answer, and whoever waits for its end waits, too. For this process nobody waits.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, Timestamps, UTIME_NOW, UTIME_OMIT, futimens, statfs};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};

/// The name of the hidden command.
const COMMAND: &str = "probe";
/// For how long a mount may not answer: one that works does it in milliseconds.
pub const MOUNT_ANSWER_MAX: Duration = Duration::from_secs(2);
/// Bytes of a read that does not go through the memory of the system: a block of any disk, at an address that is a multiple
/// of its length.
const BLOCK: usize = 4096;

#[repr(align(4096))]
struct AlignedBlock([u8; BLOCK]);

/// Use a disk or a mount, whether it answers or not
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// What the folder is
    target: ProbeTarget,
    /// A folder of a disk, or a mountpoint
    folder: PathBuf,
}

/// What is asked.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ProbeTarget {
    Disk,
    Mount,
}

/// From now on this process uses no disk of a cache that does not answer.
pub fn probe_cache_disks() {
    vellum_store::set_cache_disk_probe(|folder, time| ask(ProbeTarget::Disk, folder, time));
}

/// Whether a mount answers in time. One whose process is gone does: the kernel answers in its place.
pub fn is_mount_answering(mountpoint: &Path) -> bool {
    ask(ProbeTarget::Mount, mountpoint, MOUNT_ANSWER_MAX)
}

/// Whether a folder answers within some time.
fn ask(target: ProbeTarget, folder: &Path, time: Duration) -> bool {
    let target = match target {
        ProbeTarget::Disk => "disk",
        ProbeTarget::Mount => "mount",
    };
    // Not by its path, where another program may be by now.
    let mut command = Command::new("/proc/self/exe");
    let words = [OsStr::new(COMMAND), OsStr::new(target), folder.as_os_str()];
    // Not in the caller's working directory, which may be on the mount that does not answer.
    command.arg0("vellum").args(words).current_dir("/");
    // A process that hangs must not keep the pipes of the caller open, for whose end others may wait.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Without a process it cannot be asked, and is used.
    let Ok(mut child) = command.spawn() else { return true };
    let has_ended = wait_for_end(&child, time).unwrap_or(true);
    // One that does not end now ends when the disk answers.
    let _ = if has_ended { child.wait().map(drop) } else { child.kill() };
    has_ended
}

fn wait_for_end(child: &Child, time: Duration) -> io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    // A wait for the child itself has no time limit; a pidfd can be polled with one.
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let end = Instant::now() + time;
    let ended = retry_on_intr(|| {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        poll(&mut [PollFd::new(&process, PollFlags::IN)], left.as_ref())
    });
    Ok(ended? > 0)
}

/// Uses the disk or the mount.
pub fn run(args: &Args, _context: &CommandContext) -> Result<CommandOutcome> {
    // A folder that is not there, or that this user may not use, answers.
    let _ = match args.target {
        ProbeTarget::Disk => use_disk(&args.folder),
        // The kernel asks the process of a mount each time.
        ProbeTarget::Mount => statfs(&args.folder).map(drop).map_err(io::Error::from),
    };
    Ok(CommandOutcome::Done)
}

fn use_disk(folder: &Path) -> io::Result<()> {
    // A server answers this. A disk of this machine may not notice it: its directories are in memory.
    statfs(folder)?;
    for entry in folder.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            return use_file(&entry.path());
        }
    }
    Ok(())
}

fn use_file(path: &Path) -> io::Result<()> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let file = File::options().read(true).write(true).custom_flags(direct).open(path)?;
    // Direct reads need a buffer that is aligned to blocks of the device.
    let mut block = Box::new(AlignedBlock([0; BLOCK]));
    // From the disk.
    rustix::io::pread(&file, &mut block.0[..], 0)?;
    // A disk may be read and not be written, while its filesystem is frozen.
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let last_modification = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Ok(futimens(&file, &Timestamps { last_access, last_modification })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_folder_of_this_machine_can_be_used() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        assert!(use_disk(&dir.path().join("nowhere")).is_err());
        use_disk(dir.path())?;
        std::fs::write(dir.path().join("file"), "x")?;
        match use_disk(dir.path()) {
            // A filesystem in memory may know no direct reads.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

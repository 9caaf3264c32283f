//! Looks after the kernel's table of mounts for the process that serves a mount.
//!
//! A mount that is bound over its own state directory, or over the store beneath it, waits for itself: what the
//! process asks of its files comes back to it as a request. Such a mount is taken away as soon as it is seen.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};

use super::log::MountLog;
use super::table::{self, FilesystemDevice, MountTableEntry};

/// Watches the table from now on, for a filesystem that needs these directories.
pub fn start_mount_watch(
    device: FilesystemDevice,
    needed: Vec<PathBuf>,
    log: Arc<MountLog>,
) -> std::io::Result<()> {
    // Opened before the first look: the kernel signals every change since the file was opened.
    let changes = File::open("/proc/self/mountinfo")?;
    let watch = move || {
        loop {
            // Before the first wait, too: a bind may have been made before the table was opened.
            detach_filesystem(device, &needed, &log);
            // The table is always readable; a change is signalled as an exception.
            match poll(&mut [PollFd::new(&changes, PollFlags::PRI)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return log.write_warning(&format!("the table of mounts cannot be watched: {error}"));
                }
            }
        }
    };
    // The thread is never ended: it holds nothing that must be released, and ends with the process.
    std::thread::Builder::new().name("vellum-mounts".into()).spawn(watch)?;
    Ok(())
}

fn detach_filesystem(device: FilesystemDevice, needed: &[PathBuf], log: &MountLog) {
    // If the table cannot be read now, the next change is another chance.
    let mounts = table::read_mounts().unwrap_or_default();
    let hides = |mount: &&MountTableEntry| {
        // By device, because a bind mount has the number of the filesystem that it shows, wherever it is.
        mount.device == device && needed.iter().any(|path| path.starts_with(&mount.mountpoint))
    };
    for mount in mounts.iter().filter(hides) {
        let place = mount.mountpoint.display();
        let done = match vellum_fuse::detach_mount(&mount.mountpoint) {
            Ok(()) => "it was taken away there".into(),
            Err(error) => error.to_string(),
        };
        log.write_warning(&format!("the mount was bound over {place}, which it needs itself: {done}"));
    }
}

//! Attaches a mount to a directory and detaches it: directly if permitted, otherwise through the helper.
//!
//! Invariant: the device that [`attach_mount`] returns is the only end of the mount; the mount ends when all its
//! duplicates are closed.

mod helper;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::device::FuseDevice;
use crate::error::{MountError, Result};

/// The subtype of the mounts, which `/proc/self/mountinfo` shows as `fuse.vellum`.
pub const SUBTYPE: &str = "vellum";

/// The parameters of a mount that the kernel gets.
#[derive(Debug, Clone)]
pub struct MountParameters {
    /// The name in `/proc/self/mountinfo` and `df`.
    pub name: String,
    /// Whether changes through the mount are refused.
    pub read_only: bool,
    /// Whether other users than the one who mounts may use it.
    pub allow_other: bool,
    /// Whether no program may be executed from it.
    pub no_exec: bool,
}

impl MountParameters {
    /// The options that the kernel and the helper have in common. With these, the kernel checks permissions by itself.
    fn format_mount_options(&self) -> String {
        let other = if self.allow_other { ",allow_other" } else { "" };
        format!("default_permissions,subtype={SUBTYPE}{other}")
    }
}

/// Mounts on `mountpoint`: with `device` if this process may mount, and otherwise through the helper. Returns the
/// device of the mount.
pub fn attach_mount(
    device: FuseDevice,
    mountpoint: &Path,
    attachment: &MountParameters,
) -> Result<FuseDevice> {
    let refused = |source| MountError::Refused { mountpoint: mountpoint.into(), source };
    // The mount table is to show the directory itself, whichever symlinks lead to it.
    let mountpoint = std::fs::canonicalize(mountpoint).map_err(refused)?;
    match attach_directly(&device, &mountpoint, attachment) {
        Ok(()) => Ok(device),
        // `EPERM`: mounting needs `CAP_SYS_ADMIN`, which the helper has.
        Err(Errno::PERM) => helper::attach_with_helper(&mountpoint, attachment),
        Err(error) => Err(refused(error.into())),
    }
}

fn attach_directly(
    device: &FuseDevice,
    mountpoint: &Path,
    attachment: &MountParameters,
) -> rustix::io::Result<()> {
    let mode = rustix::fs::stat(mountpoint)?.st_mode;
    // Without `allow_other`, the kernel lets only this user in.
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let fd = device.as_fd().as_raw_fd();
    let options = attachment.format_mount_options();
    let options = format!("fd={fd},rootmode={mode:o},user_id={uid},group_id={gid},{options}");
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    // As `fusermount3` does for users: device files and set-id programs of a worktree have no effect.
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    flags.set(MountFlags::RDONLY, attachment.read_only);
    flags.set(MountFlags::NOEXEC, attachment.no_exec);
    rustix::mount::mount(attachment.name.as_str(), mountpoint, "fuse", flags, options.as_c_str())
}

/// Ends the mount on `mountpoint`. Fails with [`MountError::Busy`] if it is in use.
pub fn unmount_filesystem(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::empty(), &["-u"])
}

/// Detaches the mount on `mountpoint`. It ends when no process uses it any more.
pub fn detach_mount(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::DETACH, &["-u", "-z"])
}

/// Ends the mount on `mountpoint` although nobody answers its requests: those who wait get an error.
pub fn abort_mount(mountpoint: &Path) -> Result<()> {
    // The helper cannot abort: for users other than root, the end of the process does.
    unmount_with(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH, &["-u", "-z"])
}

fn unmount_with(mountpoint: &Path, flags: UnmountFlags, arguments: &[&str]) -> Result<()> {
    let failed = |source| MountError::Unmount { mountpoint: mountpoint.into(), source };
    // A symlink that was put in the place of the mountpoint must not lead to another mount.
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.into())),
        Err(Errno::PERM) => helper::unmount_with_helper(mountpoint, arguments),
        Err(error) => Err(failed(error.into())),
    }
}

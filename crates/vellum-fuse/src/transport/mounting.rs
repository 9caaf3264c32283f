//! Attaches a mount to a directory and detaches it: directly if permitted, otherwise through the helper.
//!
//! Invariant: what [`attach_mount`] gave is the only end of the mount; when all copies of it are closed, the mount is dead.

mod helper;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::device::FuseDevice;
use crate::error::{MountError, Result};

/// How the mounts are called in `/proc/self/mountinfo`: `fuse.vellum`.
pub const SUBTYPE: &str = "vellum";

/// What the kernel is told of a mount.
#[derive(Debug, Clone)]
pub struct MountParameters {
    /// What is mounted, for `/proc/self/mountinfo` and `df`.
    pub name: String,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Other users than the one who mounts may use it.
    pub allow_other: bool,
}

impl MountParameters {
    /// Options that the kernel and the helper understand alike. The kernel checks permissions by itself.
    fn format_mount_options(&self) -> String {
        let other = if self.allow_other { ",allow_other" } else { "" };
        format!("default_permissions,subtype={SUBTYPE}{other}")
    }
}

/// Mounts on `mountpoint`, if we may with this device, else with the helper's.
pub fn attach_mount(
    device: FuseDevice,
    mountpoint: &Path,
    attachment: &MountParameters,
) -> Result<FuseDevice> {
    let refused = |source| MountError::Refused { mountpoint: mountpoint.into(), source };
    let mountpoint = std::fs::canonicalize(mountpoint).map_err(refused)?;
    match attach_directly(&device, &mountpoint, attachment) {
        Ok(()) => Ok(device),
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
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let fd = device.as_fd().as_raw_fd();
    let options = attachment.format_mount_options();
    let options = format!("fd={fd},rootmode={mode:o},user_id={uid},group_id={gid},{options}");
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    flags.set(MountFlags::RDONLY, attachment.read_only);
    rustix::mount::mount(attachment.name.as_str(), mountpoint, "fuse", flags, options.as_c_str())
}

/// Ends the mount on `mountpoint`; an error if it is in use.
pub fn unmount_filesystem(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::empty(), &["-u"])
}

/// Takes the mount on `mountpoint` out of sight; it ends when nobody uses it any more.
pub fn detach_mount(mountpoint: &Path) -> Result<()> {
    unmount_with(mountpoint, UnmountFlags::DETACH, &["-u", "-z"])
}

fn unmount_with(mountpoint: &Path, flags: UnmountFlags, arguments: &[&str]) -> Result<()> {
    let failed = |source| MountError::Unmount { mountpoint: mountpoint.into(), source };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.into())),
        Err(Errno::PERM) => helper::unmount_with_helper(mountpoint, arguments),
        Err(error) => Err(failed(error.into())),
    }
}

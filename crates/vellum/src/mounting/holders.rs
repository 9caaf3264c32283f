//! Which processes keep a mounted filesystem: those that use it, and those whose mount namespace shows it.
//!
//! Nothing is asked of the filesystem itself: its process may not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use vellum_host::escape::format_path;

use super::table::{self, FilesystemDevice};

/// A process that keeps a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldingProcess {
    /// The process.
    pub pid: u32,
    /// What it calls itself.
    pub name: String,
    /// Something of the filesystem that it has open; None: its mount namespace shows the filesystem, that is all.
    pub used: Option<PathBuf>,
    /// Whether it is in another mount namespace than this process.
    pub is_elsewhere: bool,
    /// Where its mount namespace shows the filesystem.
    pub mountpoint: Option<PathBuf>,
}

impl fmt::Display for HoldingProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, format_path(&self.name))
    }
}

/// Several of them, for a message.
pub fn format_process_list(processes: &[HoldingProcess]) -> String {
    /// More make a message no clearer.
    const SHOWN: usize = 5;
    let shown: Vec<_> = processes.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = processes.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

/// The processes that use a filesystem, and one for each other mount namespace that shows it, but for `except`. Those
/// that this user may not look into are not found.
pub fn find_holding_processes(device: FilesystemDevice, except: &[u32]) -> Vec<HoldingProcess> {
    let here = mount_namespace("self");
    let mut shown: BTreeMap<OsString, Option<PathBuf>> = BTreeMap::new();
    let mut reported = BTreeSet::new();
    let mut users = Vec::new();
    let mut viewers = Vec::new();
    for pid in list_process_ids().into_iter().filter(|pid| !except.contains(pid)) {
        // The process has ended, or belongs to another user.
        let Some(namespace) = mount_namespace(&pid.to_string()) else { continue };
        let is_elsewhere = here.as_ref() != Some(&namespace);
        let mountpoint =
            // Processes of one mount namespace see the same mounts: the table is read once for each namespace.
            shown.entry(namespace.clone()).or_insert_with(|| find_process_mountpoint(pid, device)).clone();
        let used = find_used_path(pid, device);
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned();
        let process = HoldingProcess { pid, name, used, is_elsewhere, mountpoint };
        if process.used.is_some() {
            users.push(process);
        // One process stands for its namespace: all processes of a container see the mount, and most of them have
        // nothing to do with it.
        } else if is_elsewhere && process.mountpoint.is_some() && reported.insert(namespace) {
            viewers.push(process);
        }
    }
    users.extend(viewers);
    users
}

/// The numbers of the inodes of a filesystem that processes have open or mapped. Those of processes that this user may not
/// look into are not found.
pub fn list_open_nodes(device: FilesystemDevice) -> BTreeSet<u64> {
    let mut nodes = BTreeSet::new();
    for pid in list_process_ids() {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            // A link of `/proc/PID/fd` leads to the open file itself, without a lookup by name, and the kernel
            // answers from its cache: the process of the filesystem gets no request.
            let found = statx(CWD, entry.path(), AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
            let found = found
                .ok()
                .filter(|found| (found.stx_dev_major, found.stx_dev_minor) == (device.major, device.minor));
            nodes.extend(found.map(|found| found.stx_ino));
        }
        for line in read_mapped_lines(pid, device) {
            let inode = line.split(|byte| *byte == b' ').nth(4).and_then(|text| str::from_utf8(text).ok());
            nodes.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
        }
    }
    nodes
}

/// The numbers of the inodes of the filesystem of a directory that processes have open or mapped, or work in.
pub fn list_used_nodes(directory: &Path) -> BTreeSet<u64> {
    let Ok(found) = statx(CWD, directory, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) else {
        return BTreeSet::new();
    };
    let device = FilesystemDevice { major: found.stx_dev_major, minor: found.stx_dev_minor };
    let mut nodes = list_open_nodes(device);
    let works_in =
        |pid| statx(CWD, format!("/proc/{pid}/cwd"), AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok();
    let dirs = list_process_ids().into_iter().filter_map(works_in);
    nodes.extend(
        dirs.filter(|dir| (dir.stx_dev_major, dir.stx_dev_minor) == (device.major, device.minor))
            .map(|dir| dir.stx_ino),
    );
    nodes
}

/// Hands what the kernel keeps of a filesystem to its process, by way of whoever still has something of it open.
pub fn flush_held_pages(processes: &[HoldingProcess]) {
    let through = |process: &HoldingProcess| match (&process.used, &process.mountpoint) {
        (Some(used), _) => Some(used.clone()),
        (None, Some(mountpoint)) => {
            // The path is one of the other mount namespace, which is entered through the process's root.
            let relative = mountpoint.strip_prefix("/").unwrap_or(mountpoint);
            Some(Path::new(&format!("/proc/{}/root", process.pid)).join(relative))
        }
        (None, None) => None,
    };
    // One way in does for all of it; without any, there is nobody who could have written.
    if let Some(file) = processes.iter().filter_map(through).find_map(|path| File::open(path).ok()) {
        // The mount ends in any case, and a program whose write failed learns of it when it next uses its file.
        let _ = rustix::io::retry_on_intr(|| rustix::fs::syncfs(&file));
    }
}

fn list_process_ids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn mount_namespace(process: &str) -> Option<OsString> {
    Some(fs::read_link(format!("/proc/{process}/ns/mnt")).ok()?.into_os_string())
}

fn find_process_mountpoint(pid: u32, device: FilesystemDevice) -> Option<PathBuf> {
    let mounts = table::read_process_mounts(pid).ok()?;
    mounts.into_iter().find(|mount| mount.device == device).map(|mount| mount.mountpoint)
}

/// Something of the filesystem that a process has: where it stands, what it has open or mapped, its program.
fn find_used_path(pid: u32, device: FilesystemDevice) -> Option<PathBuf> {
    let own = ["cwd", "root", "exe"].map(|name| PathBuf::from(format!("/proc/{pid}/{name}")));
    let open =
        fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    // The process's own links come first: most processes that keep a mount busy only stand in it.
    own.into_iter()
        .chain(open)
        .find(|path| is_on_device(path, device))
        // A file stays mapped after its descriptor was closed.
        .or_else(|| find_mapped_path(pid, device))
}

/// Whether what a link of `/proc` leads to is on a device, by what the kernel knows without asking.
fn is_on_device(path: &Path, device: FilesystemDevice) -> bool {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
    found.is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == (device.major, device.minor))
}

/// The lines of `/proc/PID/maps` about files of a device: addresses, permissions, offset, device in hexadecimal, inode,
/// path.
fn read_mapped_lines(pid: u32, device: FilesystemDevice) -> Vec<Vec<u8>> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    // As proc_pid_maps(5) has it: both numbers in hexadecimal, of two digits at least.
    let wanted = format!("{:02x}:{:02x}", device.major, device.minor);
    let is_wanted = |line: &&[u8]| line.split(|byte| *byte == b' ').nth(3) == Some(wanted.as_bytes());
    maps.split(|byte| *byte == b'\n').filter(is_wanted).map(<[u8]>::to_vec).collect()
}

fn find_mapped_path(pid: u32, device: FilesystemDevice) -> Option<PathBuf> {
    let lines = read_mapped_lines(pid, device);
    let line = lines.first()?;
    let path = line.iter().position(|byte| *byte == b'/').and_then(|start| line.get(start..));
    Some(OsString::from_vec(path.unwrap_or_default().to_vec()).into())
}

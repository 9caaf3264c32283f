//! What this machine has: mounts, and what the kernel and the filesystem can do.

use std::path::Path;

use serde::Serialize;
use vellum_volume::doctor::{DoctorFinding, DoctorFindings, FindingSeverity};

use crate::error::Result;
use crate::mounting::table::{self, MountTableEntry};
use crate::probe::is_mount_answering;

/// Something that the kernel or the filesystem can do, or cannot.
#[derive(Serialize)]
pub struct MachineFeature {
    pub id: &'static str,
    pub available: bool,
    pub meaning: &'static str,
}

/// What a mount is found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountCondition {
    Alive,
    Dead,
    Silent,
}

/// Examines the mounts of this machine; those whose process is gone can be repaired.
pub fn examine_mounts(findings: &mut DoctorFindings) -> Result<()> {
    let mut mounts = table::read_mounts()?;
    mounts.retain(table::is_vellum_mount);
    for (mount, condition) in mounts.iter().zip(ask_mounts(&mounts)) {
        let object = mount.mountpoint.display().to_string();
        match condition {
            MountCondition::Alive => {}
            MountCondition::Dead => {
                let finding = DoctorFinding::new(
                    FindingSeverity::Warning,
                    "dead-mount",
                    object,
                    "the process that served this mount is gone",
                    "detaches it; 'vellum mount' then goes on where it ended",
                );
                findings.add_repairable(finding, || detach_dead_mount(mount));
            }
            // It may go on: nothing is done to it.
            MountCondition::Silent => findings.add(DoctorFinding::new(
                FindingSeverity::Warning,
                "silent-mount",
                object,
                "the mount does not answer: its process is stopped, or waits for something",
                "'kill -CONT' lets a stopped process go on; 'vellum umount --force' ends it",
            )),
        }
    }
    Ok(())
}

/// Asks all mounts at once: of those that do not answer, each takes some seconds.
fn ask_mounts(mounts: &[MountTableEntry]) -> Vec<MountCondition> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = mounts.iter().map(|mount| scope.spawn(|| ask_mount(mount))).collect();
        asked.into_iter().map(|answer| answer.join().unwrap_or(MountCondition::Silent)).collect()
    })
}

fn ask_mount(mount: &MountTableEntry) -> MountCondition {
    // By a process of its own, since a mount whose process is stopped may hold whoever asks it.
    if !is_mount_answering(&mount.mountpoint) {
        MountCondition::Silent
    } else if mount.is_dead() {
        MountCondition::Dead
    } else {
        MountCondition::Alive
    }
}

/// Detaches a mount, unless something else is mounted there by now.
fn detach_dead_mount(mount: &MountTableEntry) -> Result<(), String> {
    let there = table::find_mount_at(&mount.mountpoint).map_err(|error| error.to_string())?;
    match there {
        Some(there) if there.device == mount.device && ask_mount(mount) == MountCondition::Dead => {
            vellum_fuse::detach_mount(&mount.mountpoint).map_err(|error| error.to_string())
        }
        // Somebody else detached it.
        None => Ok(()),
        Some(_) => Err("something else is mounted over it".into()),
    }
}

/// What the kernel, and the filesystem of `directory`, can do.
pub fn list_machine_features(directory: &Path) -> Vec<MachineFeature> {
    let is_set =
        |path: &str, wanted: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == wanted);
    let has_fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let has_namespaces = !is_set("/proc/sys/user/max_user_namespaces", "0")
        && !is_set("/proc/sys/kernel/unprivileged_userns_clone", "0")
        && !is_set("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1");
    let has_rings = has_fuse
        && is_set("/sys/module/fuse/parameters/enable_uring", "Y")
        && !is_set("/proc/sys/kernel/io_uring_disabled", "2");
    vec![
        MachineFeature {
            id: "fuse",
            available: has_fuse,
            meaning: "access to /dev/fuse, which 'vellum mount' requires",
        },
        MachineFeature {
            id: "fuse-io-uring",
            available: has_rings,
            meaning: "mounts that answer through rings, which is faster; enabled by the option 'enable_uring' of the module fuse",
        },
        MachineFeature {
            id: "user-namespaces",
            available: has_namespaces,
            meaning: "namespaces of users other than root, which 'vellum try' requires",
        },
        MachineFeature {
            id: "reflink",
            available: vellum_host::clone::can_share_blocks(directory),
            meaning: "copies that share blocks in this filesystem, so that 'vellum fork' copies no content",
        },
    ]
}

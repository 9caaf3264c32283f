//! Why a volume cannot be mounted or unmounted, with what to do about it.

use std::path::PathBuf;

use vellum_cluster::ClusterError;
use vellum_fs::FsError;
use vellum_fuse::MountError;
use vellum_library::OpenError;
use vellum_library::live::{HolderStage, StateHolder};
use vellum_shared_log::SharedLogError;
use vellum_types::ErrorKind;

use crate::error::volume_hint;

/// A failure of mounting or unmounting.
#[derive(Debug, thiserror::Error)]
pub enum MountingError {
    /// The mountpoint does not exist.
    #[error("the mountpoint {0} does not exist")]
    Missing(PathBuf),
    /// The mountpoint is something else.
    #[error("the mountpoint {0} is not a directory")]
    NotDirectory(PathBuf),
    /// The mountpoint holds something.
    #[error("the mountpoint {0} is not empty")]
    NotEmpty(PathBuf),
    /// Something is mounted there.
    #[error("{what} is already mounted on {mountpoint}")]
    Mounted {
        /// What.
        what: String,
        /// Where.
        mountpoint: PathBuf,
    },
    /// The directory is no mount of ours.
    #[error("no Vellum volume is mounted on {0}")]
    NotMounted(PathBuf),
    /// The mount's process does not answer.
    #[error("the process of the mount on {0} does not answer: it is stopped, or waits for a disk")]
    Silent(PathBuf),
    /// Another program has the address.
    #[error("cannot listen on {0}: another program listens there")]
    AddressInUse(std::net::SocketAddr),
    /// The mount is a client's, and has no connection to a server.
    #[error("no process serves the worktree '{0}' at the moment, so nobody knows its clients")]
    ServerAway(String),
    /// The worktree cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The command is for a worktree, and a snapshot is mounted here.
    #[error("what is mounted on {0} is a snapshot, not a worktree")]
    OnlySnapshot(PathBuf),
    /// The command is for a worktree that this machine can change, and one is mounted here that another machine publishes.
    #[error("what is mounted on {0} follows a worktree of another machine, and is read-only")]
    OnlyFollowed(PathBuf),
    /// The process that serves the mount cannot be asked.
    #[error("the process that serves this mount cannot be reached at {}: {source}", .socket.display())]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The process that serves the mount said nothing that can be understood.
    #[error("the process that serves this mount closed its socket {0} without an answer")]
    NoAnswer(PathBuf),
    /// Programs in other mount namespaces use the mount.
    #[error("{mountpoint} is in use in another mount namespace, by {by}")]
    UsedElsewhere {
        /// Where.
        mountpoint: PathBuf,
        /// Processes.
        by: String,
    },
    /// The filesystem failed.
    #[error(transparent)]
    Fs(#[from] vellum_fs::FsError),
    /// The server of a shared worktree, or the way to it.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// There is no process in the background.
    #[error("the process of the mount cannot be started: {0}")]
    NotStarted(std::io::Error),
    /// The process in the background was not ready when it should have been.
    #[error("the mount was not ready within {}", crate::ui::format::format_duration(*.0))]
    NotInTime(std::time::Duration),
    /// The process in the background could not mount, and reported this.
    #[error("{message}")]
    Daemon {
        /// What kind of failure.
        kind: ErrorKind,
        /// What is the matter.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

impl MountingError {
    /// The coarse kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing(_) => ErrorKind::NotFound,
            Self::OnlySnapshot(_) | Self::OnlyFollowed(_) => ErrorKind::Usage,
            Self::Unreachable { source, .. } => ErrorKind::from_io_error(source),
            Self::NotStarted(source) => ErrorKind::from_io_error(source),
            Self::NoAnswer(_)
            | Self::NotInTime(_)
            | Self::Silent(_)
            | Self::ServerAway(_)
            | Self::AddressInUse(_) => ErrorKind::Io,
            Self::NotDirectory(_) | Self::NotMounted(_) => ErrorKind::Usage,
            Self::NotEmpty(_) | Self::Mounted { .. } | Self::UsedElsewhere { .. } => ErrorKind::Conflict,
            Self::Open(error) => error.kind(),
            Self::Mount(MountError::Busy(_)) => ErrorKind::Conflict,
            Self::Mount(MountError::NoHelper) => ErrorKind::Unsupported,
            Self::Mount(
                MountError::NoDevice(error)
                | MountError::Refused { source: error, .. }
                | MountError::Unmount { source: error, .. }
                | MountError::Session(error),
            ) => ErrorKind::from_io_error(error),
            Self::Fs(error) => error.kind(),
            Self::Cluster(error) => error.kind(),
            Self::Daemon { kind, .. } => *kind,
        }
    }

    /// What to do next, where there is better advice than that for its kind.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Missing(path) => return Some(format!("make it first: mkdir {}", path.display())),
            Self::NotDirectory(_) | Self::NotEmpty(_) => "name an empty directory",
            Self::Mounted { mountpoint, .. } => {
                return Some(format!("'vellum umount {}' ends that mount", mountpoint.display()));
            }
            Self::NotMounted(_) => "'vellum mounts' shows what is mounted",
            Self::AddressInUse(_) => "end that program, or listen on another port",
            Self::ServerAway(_) => {
                return Some("start the server again, or serve it here with 'vellum mount --shared NAME DIR --listen ADDRESS:PORT'".into());
            }
            Self::Silent(path) => {
                return Some(format!(
                    "'vellum umount --lazy {}' detaches it; what it has not published goes into the store when it goes on, or \
                     with the next mount of the worktree",
                    path.display()
                ));
            }
            Self::Open(error) => return open_error_hint(error),
            Self::Mount(MountError::Busy(path)) => {
                return Some(format!(
                    "close what uses it: 'fuser -vm {0}' lists the processes; a shell that stands in it is one; 'vellum \
                     umount --lazy {0}' lets the mount end when they have",
                    path.display()
                ));
            }
            Self::UsedElsewhere { mountpoint, .. } => {
                return Some(format!(
                    "end these programs first, or let the mount end when they have: 'vellum umount --lazy {}'",
                    mountpoint.display()
                ));
            }
            Self::OnlySnapshot(_) | Self::OnlyFollowed(_) => "name the volume's directory, or stand in it",
            Self::Unreachable { .. } | Self::NoAnswer(_) => {
                "if that process is gone, 'vellum mount' on the same mountpoint repairs it"
            }
            Self::Mount(MountError::NoHelper) => "install it: 'apt install fuse3'",
            Self::Mount(MountError::NoDevice(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                "load the kernel's module with 'modprobe fuse'; in a container, pass the device in with \
                 '--device /dev/fuse'"
            }
            Self::Mount(MountError::NoDevice(_)) => {
                "only root may use it here: check the permissions of /dev/fuse"
            }
            // fusermount3 gives its reasons as text only, without a code.
            Self::Mount(MountError::Refused { source, .. })
                if source.to_string().contains("user_allow_other") =>
            {
                "add the line 'user_allow_other' to /etc/fuse.conf, or leave out --allow-other"
            }
            Self::Mount(MountError::Refused { .. } | MountError::Unmount { .. }) => {
                "mounting needs root, or fusermount3 and a mountpoint of your own"
            }
            Self::NotInTime(_) => "see whether the store can be reached, or give it more time: -o timeout=5m",
            Self::Daemon { hint, .. } => return hint.clone(),
            Self::Fs(error) => return filesystem_error_hint(error),
            Self::Cluster(error) => return cluster_error_hint(error),
            // The caller shows the hint for the kind of the error.
            Self::NotStarted(_) | Self::Mount(MountError::Session(_)) => return None,
        };
        Some(hint.into())
    }
}

fn cluster_error_hint(error: &ClusterError) -> Option<String> {
    let hint = match error {
        ClusterError::NoAddress { .. } | ClusterError::Unreachable { .. } | ClusterError::Io(_) => {
            "see whether the process that serves the worktree runs, and whether a firewall is in between"
        }
        ClusterError::NotFound { .. } => {
            "mount the worktree on one machine with --shared and --listen ADDRESS:PORT, which serves it to the others"
        }
        ClusterError::OtherProtocol => "something else listens at that port: check the address",
        ClusterError::OtherVersion { .. } => "use the same version of vellum on both machines",
        ClusterError::WrongKey => {
            "check the name of the worktree, and that both machines use the same volume"
        }
        ClusterError::OlderKey { .. } => "open the volume once with its new key: 'vellum key show'",
        ClusterError::ServerOlderKey { .. } => "open the volume once with its new key where it is served",
        ClusterError::Full => "end mounts that are not used: 'vellum status --clients' lists them",
        ClusterError::Malformed(_) | ClusterError::Violation(_) => return None,
    };
    Some(hint.into())
}

fn filesystem_error_hint(error: &FsError) -> Option<String> {
    let hint = match error {
        FsError::Volume(error) => return volume_hint(error),
        FsError::PathNowhere { .. } => "paths are relative to the directory you stand in",
        FsError::InTheWay(_) => {
            "move them away, or record them: 'vellum snapshot' without the option; '--discard' of 'vellum restore' lets them go"
        }
        FsError::NameTaken(_) => "move what is there away, or give another path with --to",
        FsError::NotInTrash(_) => "'vellum trash list' lists what can be restored",
        _ => return None,
    };
    Some(hint.into())
}

fn shared_log_hint(error: &SharedLogError) -> Option<String> {
    let hint = match error {
        SharedLogError::Unreachable { .. } => {
            "see whether the engine of the log runs and can be reached from here; '--without-log' gives up what is only in \
             the log"
        }
        SharedLogError::Full { .. } => {
            "give the engine more room: the log takes up to three times what is not published, and 64 MiB"
        }
        SharedLogError::Fenced { .. } => {
            "another machine was faster: 'vellum mount' waits for it, or says where it is"
        }
        SharedLogError::Lost { .. } | SharedLogError::NoLog { .. } => {
            "the engine was emptied, or is another one; '--without-log' gives up what was only in the log"
        }
        SharedLogError::Damaged { .. } => "'--without-log' gives up what is only in the log",
        // These say what is to be done.
        SharedLogError::Unfit { .. } => return None,
        // Bugs, or another process at the same log: nothing that a user could set right.
        SharedLogError::Moved { .. }
        | SharedLogError::Discarded { .. }
        | SharedLogError::Oversized { .. } => return None,
    };
    Some(hint.into())
}

fn open_error_hint(error: &OpenError) -> Option<String> {
    let hint = match error {
        OpenError::CheckedOut { .. } => {
            "mount another worktree, or one of its snapshots read-only with --snapshot"
        }
        OpenError::LeftBehind { name, .. } => {
            return Some(format!("'vellum worktree keep {name} NEW' makes a worktree of its own of them"));
        }
        OpenError::LogInUse { name, .. } => {
            return Some(format!(
                "work there, or end that mount with 'vellum umount'; if it serves other machines, 'vellum mount --shared \
                 {name}' without --listen is its client; 'vellum mount --worktree {name} --take-over' takes the worktree \
                 with all that was synced there, and ends what that mount may do"
            ));
        }
        OpenError::LogLost { name, .. } | OpenError::LogCut { name, .. } => {
            return Some(format!(
                "mount it on the machine that had it last: that one has everything, and makes a new log; or bring the \
                 engine's data back; or give up what is in no store: 'vellum mount --worktree {name} --without-log'"
            ));
        }
        OpenError::Log(error) => return shared_log_hint(error),
        // It says what would do.
        OpenError::LogAddress(_) => return None,
        OpenError::LogWrite { .. } => {
            "the engine of the log has to answer, and to have room; then mount again"
        }
        OpenError::NothingLeft { .. } => "'vellum worktree list' shows all worktrees",
        OpenError::Held {
            holder: StateHolder { stage: HolderStage::Detached, pid: Some(pid), .. }, ..
        } => {
            return Some(format!(
                "end these programs; or end process {pid} ('kill {pid}'): it keeps what they wrote"
            ));
        }
        OpenError::Held { holder: StateHolder { stage: HolderStage::Ending, .. }, .. } => {
            "run the command again in a while"
        }
        OpenError::Held { holder: StateHolder { mountpoint: Some(mountpoint), .. }, .. } => {
            return Some(format!(
                "work there, or end that mount with 'vellum umount {mountpoint}'; '--snapshot' mounts a state of it \
                 beside it"
            ));
        }
        OpenError::Held { .. } => "end that process first; '--snapshot' mounts a state of it beside it",
        OpenError::Volume(error) => return volume_hint(error),
        OpenError::Fs(error) => return filesystem_error_hint(error),
        OpenError::Io { .. } => return None,
    };
    Some(hint.into())
}

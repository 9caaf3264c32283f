//! Hosts with mounts of one filesystem.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use vellum_testkit::cluster::{ClusterHost, TestCluster, run_command};
use vellum_testkit::histories::HistoryMounts;

/// The worktree that they share, and the port at which it is served.
const WORKTREE: &str = "work";
const PORT: u16 = 7788;

/// What the hosts mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountedKind {
    /// A directory of the machine, which Linux keeps coherent: what it fails is wrong with the tests.
    Directory,
    /// A worktree, mounted as usual, on one host.
    Worktree,
    /// A shared worktree, which the first host serves.
    Shared,
}

/// Hosts, each with a mount at the same path.
pub struct MountedHosts {
    pub cluster: TestCluster,
    kind: MountedKind,
    dir: TempDir,
}

impl MountedHosts {
    /// Starts hosts with these names, and mounts on each.
    pub fn start(kind: MountedKind, names: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = TestCluster::start(&dir.path().join("cluster"), names);
        let hosts = Self { cluster, kind, dir };
        for place in ["mnt", "logs", "directory", "tree"] {
            std::fs::create_dir(hosts.at(place)).unwrap();
        }
        hosts.make_volume();
        hosts.cluster.hosts().iter().for_each(|host| hosts.mount_shared(host));
        hosts
    }

    /// Makes the volume, and gives each host that needs one a directory of it.
    fn make_volume(&self) {
        let first = &self.cluster.hosts()[0];
        match self.kind {
            MountedKind::Directory => {}
            MountedKind::Worktree => {
                run_command(&mut self.vellum(first, &["init", "--plain"]));
            }
            MountedKind::Shared => {
                // Each host attaches a directory of its own to the store that all reach.
                std::fs::write(self.at("passphrase"), "correct horse battery staple\n").unwrap();
                for host in self.cluster.hosts() {
                    std::fs::create_dir_all(self.tree(host)).unwrap();
                    let passphrase = ["init", "--store", "../store", "--passphrase-file", "../passphrase"];
                    run_command(&mut self.vellum(host, &passphrase));
                }
            }
        }
    }

    /// Mounts the filesystem on a host: at first, or again after its processes were killed.
    pub fn mount_shared(&self, host: &ClusterHost) {
        let mountpoint = self.mountpoint();
        match self.kind {
            MountedKind::Directory => {
                let mut command = host.command("mount");
                run_command(command.arg("--bind").arg(self.at("directory")).arg(mountpoint));
            }
            MountedKind::Worktree | MountedKind::Shared => {
                // What a killed process leaves is mounted, and refuses everything.
                let clear =
                    "while mountpoint -q \"$1\" || [ ! -e \"$1\" ]; do umount -l \"$1\" || exit 1; done";
                run_command(host.command("bash").args(["-c", clear, "bash"]).arg(&mountpoint));
                let place = mountpoint.to_str().unwrap();
                let first = &self.cluster.hosts()[0];
                let address = format!("{}:{PORT}", first.address());
                let arguments = match self.kind {
                    MountedKind::Directory | MountedKind::Worktree => vec!["mount", "--no-io-uring", place],
                    MountedKind::Shared if host.name() == first.name() => {
                        vec!["mount", "--no-io-uring", "--shared", WORKTREE, "--listen", &address, place]
                    }
                    MountedKind::Shared => vec!["mount", "--shared", WORKTREE, "--server", &address, place],
                };
                run_command(&mut self.vellum(host, &arguments));
            }
        }
    }

    /// Where the filesystem is, on each host.
    pub fn mountpoint(&self) -> PathBuf {
        self.at("mnt")
    }

    /// An empty directory, outside the filesystem.
    pub fn logs(&self) -> TempDir {
        tempfile::tempdir_in(self.at("logs")).unwrap()
    }

    /// The host's directory of the volume.
    fn tree(&self, host: &ClusterHost) -> PathBuf {
        self.at(if host.name() == self.cluster.hosts()[0].name() { "tree" } else { host.name() })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command of Vellum on a host, in the directory of the volume.
    fn vellum(&self, host: &ClusterHost, arguments: &[&str]) -> Command {
        let mut command = host.command("sh");
        let script = "cd \"$1\" && shift && exec \"$@\"";
        command
            .args(["-c", script, "sh"])
            .arg(self.tree(host))
            .arg(env!("CARGO_BIN_EXE_vellum"))
            .args(arguments);
        command.env("HOME", self.at(&format!("home-{}", host.name()))).env("VELLUM_LOG", "info");
        command
    }
}

impl HistoryMounts for MountedHosts {
    // Hosts are namespaces of one kernel. But each mount of a shared worktree has caches and locks of its own there.
    fn has_several_kernels(&self) -> bool {
        self.kind == MountedKind::Shared
    }

    fn count(&self) -> usize {
        self.cluster.hosts().len()
    }

    fn path(&self, _mount: usize) -> PathBuf {
        self.mountpoint()
    }

    fn command(&self, mount: usize, program: &Path) -> Command {
        self.cluster.hosts()[mount].command_with_machine_clock(program)
    }
}

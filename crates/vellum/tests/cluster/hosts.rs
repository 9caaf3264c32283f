//! Hosts with mounts of one filesystem.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::Signal;
use tempfile::TempDir;
use vellum_testkit::cluster::{ClusterHost, HostProcess, TestCluster, run_command};
use vellum_testkit::histories::{HistoryMounts, SNAPSHOT_PROGRAM, TakeOver, history_time};
use vellum_testkit::{RedisServer, SeaweedServer};

use crate::services::{ClusterServices, ENGINE_HOST, LogEngine, OBJECTS_HOST, ObjectPlace};

/// The worktree that they share, and the port at which it is served.
const WORKTREE: &str = "work";
const PORT: u16 = 7788;
/// The host that serves next when the first one is lost. No program works there.
pub const SPARE_HOST: &str = "spare";
/// Time after which a process that stands by should serve.
const STANDBY_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// What gives programs a wrong clock.
const FAKE_CLOCK: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// What the hosts mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountedKind {
    /// A directory of the machine, which Linux keeps coherent: what it fails is wrong with the tests.
    Directory,
    /// A worktree, mounted as usual, on one host.
    Worktree,
    /// A shared worktree, which the first host serves.
    Shared,
    /// The same with a log, in which the others find who serves.
    Logged(LoggedSetup),
}

/// What a shared worktree with a log rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedSetup {
    pub engine: LogEngine,
    pub objects: ObjectPlace,
    /// Whether hosts have wrong clocks, each the one that [`MountedHosts::set_clock`] gives it.
    pub has_wrong_clocks: bool,
}

/// Hosts, each with a mount at the same path.
pub struct MountedHosts {
    pub cluster: TestCluster,
    kind: MountedKind,
    services: Option<ClusterServices>,
    /// How many of the cluster's hosts have mounts: the first ones.
    mounted: usize,
    /// What serves instead of the first host.
    next_server: Mutex<Option<NextServer>>,
    /// A copy of the log's engine that gets nothing any more.
    pub stale_replica: Mutex<Option<RedisServer>>,
    /// Whether programs work on all of these hosts but the first.
    works_on_others: AtomicBool,
    dir: TempDir,
}

/// What the spare host's process has said of the times in which it serves.
#[derive(Debug, Clone, Copy)]
struct StandbyLook {
    /// Before its log was read; nanoseconds by the clock of histories.
    time: u64,
    /// How often it has continued from the log of a lost server: it says so before it serves anybody.
    continued: usize,
    /// How often it has begun to serve after it stood by: it says so afterwards.
    served: usize,
}

/// A process on the spare host that serves.
struct NextServer {
    process: HostProcess,
    output: BufReader<ChildStdout>,
}

impl NextServer {
    /// Waits for its end, and not only for that of what entered its host for it: then nobody has its output.
    fn wait(mut self) {
        self.output.read_to_end(&mut Vec::new()).unwrap();
        self.process.wait();
    }
}

impl MountedHosts {
    /// Starts hosts with these names, and mounts on each.
    pub fn start(kind: MountedKind, names: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let others: &[&str] = match kind {
            MountedKind::Directory | MountedKind::Worktree | MountedKind::Shared => &[],
            MountedKind::Logged(_) => &[SPARE_HOST, ENGINE_HOST, OBJECTS_HOST],
        };
        let cluster = TestCluster::start(&dir.path().join("cluster"), &[names, others].concat());
        let services = match kind {
            MountedKind::Directory | MountedKind::Worktree | MountedKind::Shared => None,
            MountedKind::Logged(LoggedSetup { engine, objects, .. }) => {
                Some(ClusterServices::start(&cluster, dir.path(), engine, objects))
            }
        };
        let next_server = Mutex::default();
        let works_on_others = AtomicBool::new(false);
        let mounted = names.len();
        let stale_replica = Mutex::default();
        let hosts =
            Self { cluster, kind, services, mounted, next_server, stale_replica, works_on_others, dir };
        for place in ["mnt", "logs", "directory", "tree"] {
            std::fs::create_dir(hosts.at(place)).unwrap();
        }
        hosts.make_volume();
        hosts.mount_hosts().iter().for_each(|host| hosts.mount_shared(host));
        hosts
    }

    /// From now on, programs of histories work on all hosts but the first.
    pub fn work_on_others(&self) {
        self.works_on_others.store(true, Ordering::Relaxed);
    }

    /// The hosts with mounts on which programs work.
    fn working_hosts(&self) -> &[ClusterHost] {
        let skipped = usize::from(self.works_on_others.load(Ordering::Relaxed));
        &self.mount_hosts()[skipped..]
    }

    /// The hosts with mounts.
    pub fn mount_hosts(&self) -> &[ClusterHost] {
        &self.cluster.hosts()[..self.mounted]
    }

    /// What the worktree's log rests on.
    pub fn services(&self) -> &ClusterServices {
        self.services.as_ref().expect("a worktree with a log")
    }

    /// The host that serves at first.
    pub fn first(&self) -> &ClusterHost {
        &self.cluster.hosts()[0]
    }

    /// Makes the volume, and gives each host that needs one a directory of it.
    fn make_volume(&self) {
        match self.kind {
            MountedKind::Directory => {}
            MountedKind::Worktree => {
                run_command(&mut self.vellum(self.first(), &["init", "--plain"]));
            }
            MountedKind::Shared | MountedKind::Logged(_) => {
                // Each host attaches a directory of its own to the store that all reach.
                std::fs::write(self.at("passphrase"), "correct horse battery staple\n").unwrap();
                let store = self.services.as_ref().and_then(ClusterServices::store_url);
                let mut words = vec!["init", "--passphrase-file", "../passphrase", "--store"];
                match &store {
                    Some(url) => words.extend([url, "--credentials", "test"]),
                    None => words.push("../store"),
                }
                for host in self.cluster.hosts() {
                    std::fs::create_dir_all(self.tree(host)).unwrap();
                    self.write_credentials(host);
                    self.set_clock(host, "+0");
                    run_command(&mut self.vellum(host, &words));
                }
            }
        }
    }

    fn write_credentials(&self, host: &ClusterHost) {
        let dir = self.home(host).join(".config/vellum/credentials");
        std::fs::create_dir_all(&dir).unwrap();
        let log = self.services.as_ref().and_then(ClusterServices::log_credentials);
        let files = [("test", Some(SeaweedServer::credentials_file())), ("log", log)];
        for (name, content) in files.into_iter().filter_map(|(name, content)| Some((name, content?))) {
            std::fs::write(dir.join(name), content).unwrap();
            std::fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o600)).unwrap();
        }
    }

    /// Steps the clock of a host's mount, as by `date`: by so much from the right time, such as `+1h`.
    pub fn set_clock(&self, host: &ClusterHost, offset: &str) {
        std::fs::write(self.at(&format!("clock-{}", host.name())), offset).unwrap();
    }

    /// Mounts the filesystem on a host: at first, or again after its processes were killed. The first host serves.
    pub fn mount_shared(&self, host: &ClusterHost) {
        let is_first = host.name() == self.first().name();
        self.mount_again(host, is_first);
    }

    /// The same; what a killed process left is taken away.
    fn mount_again(&self, host: &ClusterHost, serves: bool) {
        let mountpoint = self.mountpoint();
        if self.kind == MountedKind::Directory {
            let mut command = host.command("mount");
            run_command(command.arg("--bind").arg(self.at("directory")).arg(mountpoint));
            return;
        }
        self.take_mount_away(host);
        let output = self.start_mount(host, serves);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {}\n{errors}", host.name(), output.status);
    }

    /// What a killed process leaves is mounted, and refuses everything.
    pub fn take_mount_away(&self, host: &ClusterHost) {
        let clear = "while mountpoint -q \"$1\" || [ ! -e \"$1\" ]; do umount -l \"$1\" || exit 1; done";
        run_command(host.command("bash").args(["-c", clear, "bash"]).arg(self.mountpoint()));
    }

    /// Mounts on a host that has no mount; `serves`: this host is the one whose clients the others are.
    fn start_mount(&self, host: &ClusterHost, serves: bool) -> Output {
        let mountpoint = self.mountpoint();
        let place = mountpoint.to_str().unwrap();
        let address = format!("{}:{PORT}", host.address());
        let at_first = format!("{}:{PORT}", self.first().address());
        let log_url = self.services.as_ref().map(|services| services.log_url(&self.cluster));
        let mut words = vec!["mount", "--no-io-uring"];
        match (self.kind, &log_url) {
            (MountedKind::Directory | MountedKind::Worktree, _) => {}
            (MountedKind::Shared | MountedKind::Logged(_), _) if serves => {
                words.extend(["--shared", WORKTREE, "--listen", &address]);
                if let Some(url) = &log_url {
                    words.extend(["--meta", url]);
                }
                if self.services.as_ref().is_some_and(|services| services.log_credentials().is_some()) {
                    words.extend(["--meta-credentials", "log"]);
                }
            }
            (MountedKind::Logged(_), _) => words.extend(["--shared", WORKTREE]),
            (MountedKind::Shared, _) => words.extend(["--shared", WORKTREE, "--server", &at_first]),
        }
        words.push(place);
        let mut command = self.vellum(host, &words);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Lets the spare host serve the worktree, as soon as the server before cannot be serving any more. Returns when it began.
    pub fn serve_next(&self) -> TakeOver {
        let host = self.cluster.host(SPARE_HOST);
        let before = self.look_at_standby();
        let mut process = host.spawn(self.serve_command().stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut line = String::new();
        let mut output = BufReader::new(process.child().stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let server = NextServer { process, output };
        let take_over = if line.contains("Stands by") {
            self.wait_for_standby(before)
        } else {
            assert!(line.contains("Serves the worktree"), "{SPARE_HOST} does not serve: {line}");
            TakeOver { start: before.time, end: history_time() }
        };
        *self.next_server.lock() = Some(server);
        take_over
    }

    fn look_at_standby(&self) -> StandbyLook {
        let time = history_time();
        let spare = self.tree(self.cluster.host(SPARE_HOST));
        let log = std::fs::read_to_string(spare.join(".vellum/live").join(WORKTREE).join("daemon.log"));
        let log = log.unwrap_or_default();
        let count = |words| log.lines().filter(|line| line.contains(words)).count();
        let [continued, served] = ["continued from the shared log", "serves clients at"].map(count);
        StandbyLook { time, continued, served }
    }

    /// Waits until the spare host, which stood by, serves. Returns when that began. The less time is named, the less may be
    /// lost: until the claim of a server is over that is only cut off from the engine, it answers for seconds.
    fn wait_for_standby(&self, before: StandbyLook) -> TakeOver {
        let start = Instant::now();
        let mut last_idle = before;
        loop {
            let look = self.look_at_standby();
            if look.served > before.served {
                // What was handed over is continued without a word.
                let is_known = look.continued > before.continued;
                let idle = if is_known { last_idle } else { before };
                return TakeOver { start: idle.time, end: history_time() };
            }
            if look.continued == before.continued {
                last_idle = look;
            }
            assert!(start.elapsed() < STANDBY_PATIENCE, "{SPARE_HOST} goes on standing by");
            std::thread::sleep(POLL);
        }
    }

    /// Sees that the spare host cannot serve the worktree, and returns what it says.
    pub fn expect_no_next_server(&self) -> String {
        let output = self.serve_command().stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{SPARE_HOST} serves");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn serve_command(&self) -> Command {
        let host = self.cluster.host(SPARE_HOST);
        self.vellum(host, &["serve", WORKTREE, "--listen", &format!("{}:{PORT}", host.address())])
    }

    /// Lets the server hand the worktree over to the spare host while all work; the first host stays mounted, and stands by.
    pub fn hand_over_to_spare(&self) {
        let host = self.cluster.host(SPARE_HOST);
        let before = self.look_at_standby();
        let mut process = host.spawn(self.serve_command().stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut line = String::new();
        let mut output = BufReader::new(process.child().stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(line.contains("Stands by"), "{SPARE_HOST} does not stand by: {line}");
        *self.next_server.lock() = Some(NextServer { process, output });
        run_command(&mut self.vellum(self.first(), &["worktree", "hand-over", WORKTREE, SPARE_HOST]));
        self.wait_for_standby(before);
    }

    /// Lets the spare host give the worktree back to the first one, and ends its process.
    pub fn hand_back(&self) {
        let server = self.next_server.lock().take().expect("a server on the spare host");
        let host = self.cluster.host(SPARE_HOST);
        run_command(&mut self.vellum(host, &["worktree", "hand-over", WORKTREE, self.first().name()]));
        server.process.signal(Signal::TERM);
        server.wait();
    }

    /// Makes a client of the first host, after the spare one has taken the worktree over from it. What it still
    /// acknowledges counts.
    pub fn depose_first(&self) {
        let first = self.first();
        let program = std::env::current_exe().unwrap();
        // Before it goes on: what its programs read from a server that was replaced is not looked at.
        first.kill_program(&program);
        first.thaw();
        self.cluster.mend_host(first.name());
        let late = self.mountpoint().join("late");
        let write = "echo late > \"$1\" && sync \"$1\"";
        let mut command = first.command("timeout");
        let output = command.args(["120", "sh", "-c", write, "sh"]).arg(&late).output().unwrap();
        if output.status.success() {
            let second = &self.mount_hosts()[1];
            assert_eq!(run_command(second.command("cat").arg(&late)), "late\n");
        }
        self.take_mount_away(first);
        self.mount_again(first, false);
    }

    /// Lets the first host serve again, if the spare one does: after an orderly end, nobody has to wait.
    pub fn restore_first(&self) {
        let Some(server) = self.next_server.lock().take() else { return };
        self.take_mount_away(self.first());
        server.process.signal(Signal::TERM);
        server.wait();
        self.serve_again();
    }

    /// Kills the process that serves, with all of the first host if that is where it is; the other of the two hosts serves,
    /// as soon as the claim of the killed one is over.
    pub fn replace_killed_server(&self) {
        let first = self.first();
        let next_server = self.next_server.lock().take();
        match next_server {
            None => {
                first.kill_all();
                self.remove_left(self.cluster.host(SPARE_HOST));
                self.serve_next();
                self.take_mount_away(first);
            }
            Some(server) => {
                self.cluster.host(SPARE_HOST).kill_all();
                server.wait();
                self.serve_again();
            }
        }
    }

    /// Lets the first host, which has no mount, mount and serve.
    fn serve_again(&self) {
        self.remove_left(self.first());
        self.mount_again(self.first(), true);
    }

    /// What a lost server had and others did not get is kept aside, and left to the user.
    fn remove_left(&self, host: &ClusterHost) {
        let left = self.tree(host).join(".vellum/live").join(WORKTREE).join("left");
        if left.exists() {
            std::fs::remove_dir_all(left).unwrap();
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

    /// Copies what the mounts' processes said to a directory for somebody to read.
    fn keep_logs(&self, to: &Path) {
        let mut command = Command::new("sh");
        let script = "mkdir -p \"$1\" && cd \"$2\" && cp --parents */.vellum/live/*/daemon.log \"$1\"";
        run_command(command.args(["-c", script, "sh"]).arg(to).arg(self.dir.path()));
    }

    /// Copies a history's records to a directory for somebody to read.
    pub fn keep_records(logs: &TempDir, to: &Path) {
        let mut command = Command::new("sh");
        let script = "mkdir -p \"$1\" && cp -r \"$2\" \"$1\"";
        command.args(["-c", script, "sh"]).arg(to).arg(logs.path());
        run_command(&mut command);
    }

    /// The host's directory of the volume.
    fn tree(&self, host: &ClusterHost) -> PathBuf {
        self.at(if host.name() == self.first().name() { "tree" } else { host.name() })
    }

    fn home(&self, host: &ClusterHost) -> PathBuf {
        self.at(&format!("home-{}", host.name()))
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
        command.env("HOME", self.home(host)).env("VELLUM_LOG", "info");
        if matches!(self.kind, MountedKind::Logged(LoggedSetup { has_wrong_clocks: true, .. })) {
            command
                .env("LD_PRELOAD", FAKE_CLOCK)
                .env("FAKETIME_TIMESTAMP_FILE", self.at(&format!("clock-{}", host.name())))
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command
    }
}

impl Drop for MountedHosts {
    fn drop(&mut self) {
        if let Some(dir) = std::env::var_os("CLUSTER_RECORDS")
            && std::thread::panicking()
        {
            self.keep_logs(Path::new(&dir));
        }
    }
}

impl HistoryMounts for MountedHosts {
    // Hosts are namespaces of one kernel. But each mount of a shared worktree has caches and locks of its own there.
    fn has_several_kernels(&self) -> bool {
        matches!(self.kind, MountedKind::Shared | MountedKind::Logged(_))
    }

    fn count(&self) -> usize {
        self.working_hosts().len()
    }

    fn path(&self, _mount: usize) -> PathBuf {
        self.mountpoint()
    }

    fn command(&self, mount: usize, program: &Path) -> Command {
        let host = &self.working_hosts()[mount];
        let mut command = host.command_with_machine_clock(program);
        if self.kind != MountedKind::Directory {
            command.env(SNAPSHOT_PROGRAM, env!("CARGO_BIN_EXE_vellum")).env("HOME", self.home(host));
        }
        command
    }
}

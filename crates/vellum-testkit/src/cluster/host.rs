//! A host of a cluster.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::{HostProcess, run_command};

/// Timeout of a service's start: the machine may be busy.
const START_MAX: Duration = Duration::from_secs(120);

/// Prepares a host, says so, and waits until its input ends. Its end is the end of the host.
const FIRST_PROCESS: &str = r#"set -e
hostname "$1"
ip link set lo up
mount --bind "$2" /etc/hosts
echo ready
# Orphans of the host are nobody's: without this they would stay as zombies.
exec env --ignore-signal=CHLD cat"#;

/// How far the clocks of a host that count since its start (CLOCK_MONOTONIC and CLOCK_BOOTTIME) are ahead of the machine's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostClock {
    /// Seconds.
    pub ahead: u32,
}

/// A host. It ends when it is dropped.
pub struct ClusterHost {
    name: String,
    address: Ipv4Addr,
    clock: HostClock,
    /// Names of all hosts.
    table: PathBuf,
    holder: HostHolder,
}

/// The process that holds the namespaces of a host.
struct HostHolder {
    unshare: Child,
    /// Its child, the first process of the host, by the numbers of the machine.
    first: u32,
}

impl HostHolder {
    fn start(name: &str, clock: HostClock, table: &Path) -> Self {
        let mut command = Command::new("unshare");
        // By `--fork` the shell is the first process of the new process namespace, whose end is the end of all others.
        command.args(["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]);
        if clock != HostClock::default() {
            let ahead = clock.ahead.to_string();
            command.args(["--time", "--boottime", &ahead, "--monotonic", &ahead]);
        }
        command.args(["sh", "-c", FIRST_PROCESS, "sh", name]).arg(table);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut unshare = command.spawn().expect("unshare of util-linux");
        let mut line = String::new();
        let output = unshare.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line of the host");
        assert_eq!(line, "ready\n", "the host {name} did not start: root's rights are required");
        // `unshare` itself stays outside of the process namespace; its one child is the first process in it.
        let process = unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        let first = children.expect("its children").trim().parse().expect("one child");
        Self { unshare, first }
    }
}

impl Drop for HostHolder {
    fn drop(&mut self) {
        // The first process ends when its input does, and the kernel kills the others before it is gone.
        drop(self.unshare.stdin.take());
        let _ = self.unshare.wait();
    }
}

impl ClusterHost {
    pub(super) fn start(name: &str, address: Ipv4Addr, clock: HostClock, table: &Path) -> Self {
        let holder = HostHolder::start(name, clock, table);
        Self { name: name.to_owned(), address, clock, table: table.to_owned(), holder }
    }

    pub(super) fn restart(&mut self) {
        // Assignment would drop the old one last, while its address is in use.
        drop(self.holder.unshare.stdin.take());
        self.holder.unshare.wait().expect("the end of the host");
        self.holder = HostHolder::start(&self.name, self.clock, &self.table);
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address on the network of the cluster.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its first process, by the numbers of the machine.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.holder.first
    }

    /// A command that runs on the host, in its root directory.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.enter();
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid"]);
        if self.clock != HostClock::default() {
            command.arg("--time");
        }
        command.arg("--").arg(program.as_ref());
        command
    }

    /// A command in the host's network and with its mounts, whose clock is that of the machine: what it measures can be
    /// compared with what is measured on other hosts.
    #[must_use]
    pub fn command_with_machine_clock(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.enter();
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--"]).arg(program.as_ref());
        command
    }

    /// A command of the machine in the host's network.
    pub(super) fn command_in_network(&self, program: &str) -> Command {
        let mut command = self.enter();
        command.args(["--net", "--", program]);
        command
    }

    /// Starts a process on the host; see [`HostProcess`].
    ///
    /// # Panics
    /// Panics if it cannot be started.
    #[must_use]
    pub fn spawn(&self, command: &mut Command) -> HostProcess {
        HostProcess::start(command)
    }

    /// Runs a shell script on the host and returns what it prints.
    ///
    /// # Panics
    /// Panics if it fails.
    #[must_use]
    pub fn sh(&self, script: &str) -> String {
        run_command(self.command("sh").args(["-c", script]))
    }

    /// Stops all processes of the host, as a machine that is suspended.
    pub fn freeze(&self) {
        self.signal_processes(Signal::STOP, None);
    }

    /// Continues after [`ClusterHost::freeze`].
    pub fn thaw(&self) {
        self.signal_processes(Signal::CONT, None);
    }

    /// Kills all processes of the host; its mounts and its network stay.
    pub fn kill_all(&self) {
        self.signal_processes(Signal::KILL, None);
    }

    /// Kills the host's processes that run this program; its other processes go on, or stay suspended.
    pub fn kill_program(&self, program: &Path) {
        self.signal_processes(Signal::KILL, Some(program));
    }

    /// Sends a signal to all processes but the first, and to those that entered the host and wait for what runs there; or to
    /// those alone that run a program.
    fn signal_processes(&self, signal: Signal, program: Option<&Path>) {
        let namespace =
            // By the namespace of their children: what entered the host is outside of it itself, and waits
            // for what runs there.
            |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid_for_children")).ok();
        let first = self.process_id().to_string();
        let wanted = namespace(&first).expect("the host's processes");
        let numbers = std::fs::read_dir("/proc").expect("the list of processes").flatten();
        let mut numbers: Vec<i32> =
            numbers.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect();
        // What waits for a process usually has a lower number, and stops when it finds that one stopped: it comes last.
        numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
        for number in numbers {
            let name = number.to_string();
            // What starts the host is in the namespace, too, and ends with it.
            let is_holder = name == first || name == self.holder.unshare.id().to_string();
            let is_meant = program.is_none_or(|program| {
                std::fs::read_link(format!("/proc/{name}/exe")).is_ok_and(|found| found == program)
            });
            if !is_holder
                && is_meant
                && namespace(&name).is_some_and(|found| found == wanted)
                && let Some(process) = Pid::from_raw(number)
            {
                // It may have ended meanwhile.
                let _ = kill_process(process, signal);
            }
        }
    }

    /// Runs a function in the host's network: sockets that it makes, and threads that it starts, stay there.
    ///
    /// # Panics
    /// Panics if the function does.
    pub fn run_in_network<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        let path = format!("/proc/{}/ns/net", self.process_id());
        let network = File::open(path).expect("the network of the host");
        std::thread::scope(|scope| {
            // A thread of its own changes its network, since the change lasts as long as the thread. Those
            // that it starts inherit it.
            let entered = scope.spawn(|| {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root's rights");
                function()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Waits until something listens on a port of the host.
    ///
    /// # Panics
    /// Panics if nothing does in time.
    pub fn wait_for_port(&self, port: u16) {
        let address = SocketAddr::new(IpAddr::V4(self.address), port);
        let start = Instant::now();
        // Servers announce nothing that could be awaited.
        // Tried from within, since the machine has no way into the network of the hosts.
        while !self.run_in_network(|| TcpStream::connect(address).is_ok()) {
            assert!(start.elapsed() < START_MAX, "nothing listens on {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.process_id().to_string()]);
        command
    }
}

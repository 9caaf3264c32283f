//! Several machines on this one: hosts with mounts, processes, a name and a clock of their own, on one network.
//!
//! A host is a set of namespaces that a process holds, its first one, which ends when this process does, however that
//! happens; the kernel then kills whatever runs on the host. So nothing needs to be cleaned up that a killed test left, and
//! no name of a namespace or device is seen by others: all networks use the same addresses.
//!
//! Invariant: a host sees files of the machine and its own mounts, not those of other hosts; it reaches other hosts of its
//! cluster only.
//!
//! Deliberately absent: users other than root, slow networks (see [`DelayingRelay`]).

mod delay;
mod host;
mod process;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

pub use self::delay::{DelayingRelay, RelayMode};
pub use self::host::{ClusterHost, HostClock};
pub use self::process::{HostProcess, run_command};

/// The switch between the hosts.
const BRIDGE: &str = "br0";
/// A hardware address that no host has: what is sent there is lost.
const NOBODY: &str = "02:00:00:00:00:01";

/// A host that is to be started.
#[derive(Debug, Clone, Copy)]
pub struct HostSetup<'a> {
    /// Its name: at most 14 letters, since its port at the switch is named after it.
    pub name: &'a str,
    /// Its clock.
    pub clock: HostClock,
}

/// Hosts on one network.
pub struct TestCluster {
    /// Holds the network between the hosts.
    network: ClusterHost,
    hosts: Vec<ClusterHost>,
}

impl TestCluster {
    /// Starts hosts with these names, which resolve on all of them. `dir` is for files of the cluster.
    ///
    /// # Panics
    /// Panics without root's rights, or if there is no `ip`, `unshare` or `nsenter`.
    #[must_use]
    pub fn start(dir: &Path, names: &[&str]) -> Self {
        let hosts: Vec<_> =
            names.iter().map(|name| HostSetup { name, clock: HostClock::default() }).collect();
        Self::start_with_clocks(dir, &hosts)
    }

    /// The same with clocks that count from another moment.
    ///
    /// # Panics
    /// See [`TestCluster::start`].
    #[must_use]
    pub fn start_with_clocks(dir: &Path, hosts: &[HostSetup<'_>]) -> Self {
        std::fs::create_dir_all(dir).expect("a directory for the cluster");
        let table = dir.join("hosts");
        let mut lines = "127.0.0.1 localhost\n".to_owned();
        for (position, host) in hosts.iter().enumerate() {
            lines.push_str(&format!("{} {}\n", address_of(position), host.name));
        }
        std::fs::write(&table, lines).expect("a table of hosts");
        // Without an address: nothing runs there, and nobody reaches it.
        let network = ClusterHost::start("net", Ipv4Addr::UNSPECIFIED, HostClock::default(), &table);
        run_command(network.command_in_network("ip").args(["link", "add", BRIDGE, "type", "bridge"]));
        run_command(network.command_in_network("ip").args(["link", "set", BRIDGE, "up"]));
        let start = |(position, host): (usize, &HostSetup<'_>)| {
            ClusterHost::start(host.name, address_of(position), host.clock, &table)
        };
        let hosts = hosts.iter().enumerate().map(start).collect();
        let cluster = Self { network, hosts };
        cluster.hosts.iter().for_each(|host| cluster.connect_host(host));
        cluster
    }

    /// A host by its name.
    ///
    /// # Panics
    /// Panics if there is none of this name.
    #[must_use]
    pub fn host(&self, name: &str) -> &ClusterHost {
        self.hosts.iter().find(|host| host.name() == name).unwrap_or_else(|| panic!("a host {name}"))
    }

    /// All hosts, in the order in which they were named.
    #[must_use]
    pub fn hosts(&self) -> &[ClusterHost] {
        &self.hosts
    }

    /// Cuts a host off from all others. Its network card notices nothing: as when a switch fails.
    pub fn cut_host(&self, name: &str) {
        // The port leaves the switch and stays up, so that the network card of the host still has its link.
        self.set_link(&["nomaster"], name);
    }

    /// Takes back [`TestCluster::cut_host`].
    pub fn mend_host(&self, name: &str) {
        self.set_link(&["master", BRIDGE], name);
    }

    /// Loses all that `from` sends to `to`, silently. What `to` sends arrives. A connection needs both directions.
    pub fn cut_direction(&self, from: &str, to: &str) {
        let address = self.host(to).address().to_string();
        let mut command = self.host(from).command_in_network("ip");
        // Permanent, so that the kernel of the host asks nobody for the right hardware address.
        command.args(["neigh", "replace", &address, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0"]);
        run_command(&mut command);
    }

    /// Takes back [`TestCluster::cut_direction`].
    pub fn mend_direction(&self, from: &str, to: &str) {
        let address = self.host(to).address().to_string();
        run_command(self.host(from).command_in_network("ip").args(["neigh", "del", &address, "dev", "eth0"]));
    }

    /// Kills all processes of a host at once and takes its mounts away, then starts it again: as after a loss of power,
    /// except that what is in files of the machine stays.
    ///
    /// # Panics
    /// See [`TestCluster::start`].
    pub fn restart_host(&mut self, name: &str) {
        let position = self.hosts.iter().position(|host| host.name() == name).expect("a host of this name");
        // By itself it would go away some time after the host.
        run_command(self.network.command_in_network("ip").args(["link", "del", &port_of(name)]));
        self.hosts[position].restart();
        self.connect_host(&self.hosts[position]);
    }

    fn connect_host(&self, host: &ClusterHost) {
        let ip = |arguments: &[&str]| run_command(self.network.command_in_network("ip").args(arguments));
        let port = port_of(host.name());
        let process = host.process_id().to_string();
        // The other end is made inside of the host's network, where the name `eth0` is free.
        ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &process]);
        ip(&["link", "set", &port, "master", BRIDGE]);
        ip(&["link", "set", &port, "up"]);
        let ip = |arguments: &[&str]| run_command(host.command_in_network("ip").args(arguments));
        ip(&["addr", "add", &format!("{}/24", host.address()), "dev", "eth0"]);
        ip(&["link", "set", "eth0", "up"]);
    }

    fn set_link(&self, what: &[&str], name: &str) {
        let port = port_of(self.host(name).name());
        let mut command: Command = self.network.command_in_network("ip");
        run_command(command.args(["link", "set", &port]).args(what));
    }
}

/// The host's end of the network, at the switch.
fn port_of(name: &str) -> String {
    format!("v{name}")
}

fn address_of(position: usize) -> Ipv4Addr {
    let last = u8::try_from(position + 1).expect("fewer than 255 hosts");
    Ipv4Addr::new(10, 77, 0, last)
}

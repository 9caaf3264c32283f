//! What fails while programs work.

use std::time::Duration;

use crate::hosts::MountedHosts;

/// The host that fails, where one does. The first one serves the others, if one has to.
pub const FAILING: &str = "h3";

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterFault {
    /// Nothing fails.
    None,
    /// All processes of a host are killed: its programs, and what serves its mount. It mounts again.
    KillHost,
    /// A host is suspended, and continues.
    FreezeHost,
    /// A host is cut off from all others, and connected again.
    CutHost,
    /// What a host sends to the first one is lost; what that sends arrives.
    CutDirection,
}

impl ClusterFault {
    /// All faults.
    pub const ALL: [Self; 5] =
        [Self::None, Self::KillHost, Self::FreezeHost, Self::CutHost, Self::CutDirection];

    /// Causes the fault after a third of the time, and mends it after another third.
    pub fn cause(self, hosts: &MountedHosts, time: Duration) {
        if self == Self::None {
            return;
        }
        std::thread::sleep(time / 3);
        self.begin(hosts);
        std::thread::sleep(time / 3);
        self.end(hosts);
    }

    fn begin(self, hosts: &MountedHosts) {
        let host = hosts.cluster.host(FAILING);
        match self {
            Self::None => {}
            Self::KillHost => host.kill_all(),
            Self::FreezeHost => host.freeze(),
            Self::CutHost => hosts.cluster.cut_host(FAILING),
            Self::CutDirection => hosts.cluster.cut_direction(FAILING, hosts.cluster.hosts()[0].name()),
        }
    }

    fn end(self, hosts: &MountedHosts) {
        let host = hosts.cluster.host(FAILING);
        match self {
            Self::None => {}
            Self::KillHost => hosts.mount_shared(host),
            Self::FreezeHost => host.thaw(),
            Self::CutHost => hosts.cluster.mend_host(FAILING),
            Self::CutDirection => hosts.cluster.mend_direction(FAILING, hosts.cluster.hosts()[0].name()),
        }
    }
}

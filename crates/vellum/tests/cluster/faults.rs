//! What fails while programs work.

use std::time::Duration;

use vellum_testkit::cluster::RelayMode;
use vellum_testkit::histories::TakeOver;

use crate::hosts::MountedHosts;
use crate::services::{ENGINE_HOST, LogEngine, OBJECTS_HOST, ObjectPlace};

/// The host that fails, where it is not the one that serves. The first one serves the others, if one has to.
pub const FAILING: &str = "h3";
/// How long each request to a slow store takes.
const SLOW: Duration = Duration::from_secs(5);

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
    /// A client does not reach the log's engine.
    CutFromEngine,
    /// A client does not reach the server, and reaches all others.
    CutFromServer,
    /// The server and its host's programs are killed, and another machine serves.
    KillServer,
    /// The server is suspended, another machine serves, and it continues.
    FreezeServer,
    /// The server is cut off from all others, and another machine serves.
    CutServer,
    /// The server does not reach the log's engine, and another machine serves.
    CutServerFromEngine,
    /// The server does not reach the log's engine, and nobody else serves.
    CutServerFromEngineAlone,
    /// The store cannot be reached.
    CutObjects,
    /// The store takes seconds for each request.
    SlowObjects,
    /// The store answers that it is too busy.
    RefuseObjects,
    /// The store carries out what it is asked, and some of its answers are lost.
    LoseObjectAnswers,
    /// The server gives the worktree to another machine.
    HandOver,
    /// The engine crashes and is started again.
    RestartEngine,
    /// The engine loses everything.
    EmptyEngine,
    /// The engine loses everything when it is restarted: it kept nothing on disk.
    RestartEngineWithNothing,
    /// The engine loses everything, and the server dies.
    EmptyEngineAndKillServer,
    /// A copy of the engine that lacks the last appends takes its place.
    FailOverEngine,
    /// The engine has no room.
    FillEngine,
    /// The clocks of the server and of a client step, by an hour, in opposite directions.
    StepClocks,
}

impl ClusterFault {
    /// Faults of hosts that share anything.
    pub const OF_HOSTS: [Self; 5] =
        [Self::None, Self::KillHost, Self::FreezeHost, Self::CutHost, Self::CutDirection];

    /// Faults of hosts that share a worktree with a log.
    pub const ALL: [Self; 24] = [
        Self::None,
        Self::KillHost,
        Self::FreezeHost,
        Self::CutHost,
        Self::CutDirection,
        Self::CutFromEngine,
        Self::CutFromServer,
        Self::KillServer,
        Self::FreezeServer,
        Self::CutServer,
        Self::CutServerFromEngine,
        Self::CutServerFromEngineAlone,
        Self::CutObjects,
        Self::SlowObjects,
        Self::RefuseObjects,
        Self::LoseObjectAnswers,
        Self::HandOver,
        Self::RestartEngine,
        Self::EmptyEngine,
        Self::RestartEngineWithNothing,
        Self::EmptyEngineAndKillServer,
        Self::FailOverEngine,
        Self::FillEngine,
        Self::StepClocks,
    ];

    /// Whether it can be caused where the log and the objects are in these.
    pub fn is_possible(self, engine: LogEngine, objects: ObjectPlace) -> bool {
        match self {
            Self::CutFromEngine
            | Self::CutServerFromEngine
            | Self::CutServerFromEngineAlone
            | Self::RestartEngine
            | Self::EmptyEngine
            | Self::EmptyEngineAndKillServer => engine != LogEngine::Store,
            Self::RestartEngineWithNothing | Self::FailOverEngine | Self::FillEngine => {
                engine == LogEngine::Redis
            }
            Self::CutObjects | Self::SlowObjects | Self::RefuseObjects | Self::LoseObjectAnswers => {
                objects == ObjectPlace::Service
            }
            Self::None
            | Self::KillHost
            | Self::FreezeHost
            | Self::CutHost
            | Self::CutDirection
            | Self::CutFromServer
            | Self::KillServer
            | Self::FreezeServer
            | Self::CutServer
            | Self::HandOver
            | Self::StepClocks => true,
        }
    }

    /// Whether what becomes of it depends on the log's engine. The others are tried with one engine that has a server.
    pub fn rests_on_engine(self) -> bool {
        match self {
            Self::CutFromEngine
            | Self::KillServer
            | Self::FreezeServer
            | Self::CutServer
            | Self::CutServerFromEngine
            | Self::CutServerFromEngineAlone
            | Self::RestartEngine
            | Self::EmptyEngine
            | Self::RestartEngineWithNothing
            | Self::EmptyEngineAndKillServer
            | Self::FailOverEngine
            | Self::FillEngine => true,
            Self::None
            | Self::KillHost
            | Self::FreezeHost
            | Self::CutHost
            | Self::CutDirection
            | Self::CutFromServer
            | Self::CutObjects
            | Self::SlowObjects
            | Self::RefuseObjects
            | Self::LoseObjectAnswers
            | Self::HandOver
            | Self::StepClocks => false,
        }
    }

    /// Whether hosts must have clocks of their own.
    pub fn is_of_clocks(self) -> bool {
        self == Self::StepClocks
    }

    /// Causes the fault after a third of the time, and mends it after another third. Returns when another machine continued
    /// from the log, if one did.
    pub fn cause(self, hosts: &MountedHosts, time: Duration) -> Option<TakeOver> {
        if self == Self::None {
            return None;
        }
        std::thread::sleep(time / 3);
        let take_over = self.begin(hosts);
        std::thread::sleep(time / 3);
        self.end(hosts);
        take_over
    }

    /// Returns when another machine continued from the log, without what was not synced, if one did.
    fn begin(self, hosts: &MountedHosts) -> Option<TakeOver> {
        let cluster = &hosts.cluster;
        let first = hosts.first();
        match self {
            Self::None => {}
            Self::KillHost => cluster.host(FAILING).kill_all(),
            Self::FreezeHost => cluster.host(FAILING).freeze(),
            Self::CutHost => cluster.cut_host(FAILING),
            Self::CutDirection | Self::CutFromServer => cluster.cut_direction(FAILING, first.name()),
            Self::CutFromEngine => cluster.cut_direction(FAILING, ENGINE_HOST),
            Self::KillServer => {
                first.kill_all();
                return Some(hosts.serve_next());
            }
            Self::FreezeServer => {
                first.freeze();
                return Some(hosts.serve_next());
            }
            Self::CutServer => {
                cluster.cut_host(first.name());
                return Some(hosts.serve_next());
            }
            Self::CutServerFromEngine => {
                cluster.cut_direction(first.name(), ENGINE_HOST);
                return Some(hosts.serve_next());
            }
            Self::CutServerFromEngineAlone => cluster.cut_direction(first.name(), ENGINE_HOST),
            Self::CutObjects => cluster.cut_host(OBJECTS_HOST),
            Self::SlowObjects => hosts.services().delay_objects(SLOW),
            Self::RefuseObjects => hosts.services().set_objects_mode(RelayMode::Refuse),
            Self::LoseObjectAnswers => hosts.services().set_objects_mode(RelayMode::LoseAnswers),
            Self::HandOver => hosts.hand_over_to_spare(),
            Self::RestartEngine => hosts.services().restart_engine(cluster),
            Self::EmptyEngine => hosts.services().empty_engine(cluster),
            Self::RestartEngineWithNothing => {
                hosts.services().with_redis(cluster, |redis| redis.lose_everything_and_restart());
            }
            Self::EmptyEngineAndKillServer => {
                first.kill_all();
                hosts.services().empty_engine(cluster);
                let refusal = hosts.expect_no_next_server();
                assert!(refusal.contains("--without-log"), "{refusal}");
            }
            Self::FailOverEngine => {
                *hosts.stale_replica.lock() = Some(hosts.services().start_stale_replica(cluster));
            }
            Self::FillEngine => configure_engine(hosts, "maxmemory 1"),
            Self::StepClocks => {
                hosts.set_clock(first, "+1h");
                hosts.set_clock(cluster.host(FAILING), "-1h");
            }
        }
        None
    }

    fn end(self, hosts: &MountedHosts) {
        let cluster = &hosts.cluster;
        let first = hosts.first();
        match self {
            Self::None | Self::RestartEngine | Self::EmptyEngine | Self::RestartEngineWithNothing => {}
            Self::HandOver => hosts.hand_back(),
            Self::KillHost => hosts.mount_shared(cluster.host(FAILING)),
            Self::FreezeHost => cluster.host(FAILING).thaw(),
            Self::CutHost => cluster.mend_host(FAILING),
            Self::CutDirection | Self::CutFromServer => cluster.mend_direction(FAILING, first.name()),
            Self::CutFromEngine => cluster.mend_direction(FAILING, ENGINE_HOST),
            Self::KillServer | Self::FreezeServer | Self::CutServer => hosts.depose_first(),
            Self::CutServerFromEngine => {
                cluster.mend_direction(first.name(), ENGINE_HOST);
                hosts.depose_first();
            }
            Self::CutServerFromEngineAlone => cluster.mend_direction(first.name(), ENGINE_HOST),
            Self::CutObjects => cluster.mend_host(OBJECTS_HOST),
            Self::SlowObjects => hosts.services().delay_objects(Duration::ZERO),
            Self::RefuseObjects | Self::LoseObjectAnswers => {
                hosts.services().set_objects_mode(RelayMode::Pass);
            }
            Self::FailOverEngine => {
                let replica = hosts.stale_replica.lock().take().expect("a copy of the engine");
                hosts.services().with_redis(cluster, |redis| redis.fail_over_to(replica));
            }
            // It has everything.
            Self::EmptyEngineAndKillServer => hosts.mount_shared(first),
            Self::FillEngine => configure_engine(hosts, "maxmemory 0"),
            Self::StepClocks => {
                hosts.set_clock(first, "+0");
                hosts.set_clock(cluster.host(FAILING), "+0");
            }
        }
    }
}

fn configure_engine(hosts: &MountedHosts, setting: &str) {
    let command = format!("CONFIG SET {setting}");
    let answer = hosts.services().with_redis(&hosts.cluster, |redis| redis.run(&command));
    assert!(answer.starts_with("+OK"), "{answer}");
}

//! What the hosts use besides each other: the engine of the log, and the store of objects.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use vellum_testkit::cluster::{ClusterHost, DelayingRelay, RelayMode, TestCluster};
use vellum_testkit::{EtcdServer, PostgresServer, RedisServer, SeaweedServer};

/// The host of the engine.
pub const ENGINE_HOST: &str = "meta";
/// The host of the objects.
pub const OBJECTS_HOST: &str = "obj";
/// The port at which objects are reached, through a relay.
const OBJECTS_PORT: u16 = 8333;
/// The port at which engines are reached that listen on the address of their own machine only.
const ENGINE_PORT: u16 = 8334;

/// The engine of a worktree's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEngine {
    /// Redis, on a host of its own.
    Redis,
    /// PostgreSQL, on a host of its own.
    Postgres,
    /// etcd, on a host of its own.
    Etcd,
    /// The store of the volume.
    Store,
}

/// Where the volume's objects are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectPlace {
    /// In a directory that all hosts see.
    Directory,
    /// In a service, on a host of its own.
    Service,
}

/// The services of a cluster. They end when this is dropped.
pub struct ClusterServices {
    engine: EngineServer,
    objects: Option<ObjectService>,
    /// A directory for servers that are started later.
    dir: PathBuf,
}

/// The server of the log.
enum EngineServer {
    Redis(Mutex<RedisServer>),
    Postgres {
        server: Mutex<PostgresServer>,
        relay: DelayingRelay,
    },
    Etcd {
        server: Mutex<EtcdServer>,
        relay: DelayingRelay,
    },
    /// There is none: the log is in the store.
    Store,
}

/// A store in a service, and the way to it.
struct ObjectService {
    server: SeaweedServer,
    relay: DelayingRelay,
}

impl EngineServer {
    fn start(cluster: &TestCluster, dir: &Path, engine: LogEngine) -> Self {
        let host = || cluster.host(ENGINE_HOST);
        let relay_to = |port| {
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            DelayingRelay::start(host(), ENGINE_PORT, target, Duration::ZERO)
        };
        match engine {
            LogEngine::Redis => {
                // The host's address is the only one by which others reach it.
                let options = ["--bind", "0.0.0.0", "--protected-mode", "no"];
                let start = || RedisServer::start(&dir.join("redis"), &options);
                Self::Redis(Mutex::new(host().run_in_network(start)))
            }
            LogEngine::Postgres => {
                let server = host().run_in_network(|| PostgresServer::start(&[]));
                Self::Postgres { relay: relay_to(server.port()), server: Mutex::new(server) }
            }
            LogEngine::Etcd => {
                let server = host().run_in_network(|| EtcdServer::start(&dir.join("etcd"), &[]));
                Self::Etcd { relay: relay_to(server.port()), server: Mutex::new(server) }
            }
            LogEngine::Store => Self::Store,
        }
    }
}

impl ClusterServices {
    /// Starts what is needed.
    pub fn start(cluster: &TestCluster, dir: &Path, engine: LogEngine, place: ObjectPlace) -> Self {
        let engine = EngineServer::start(cluster, dir, engine);
        let objects = (place == ObjectPlace::Service).then(|| {
            let host = cluster.host(OBJECTS_HOST);
            let server = host.run_in_network(|| SeaweedServer::start(&dir.join("seaweed")));
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
            ObjectService { relay: DelayingRelay::start(host, OBJECTS_PORT, target, Duration::ZERO), server }
        });
        Self { engine, objects, dir: dir.to_owned() }
    }

    /// The address of the log's engine, without a password.
    pub fn log_url(&self, cluster: &TestCluster) -> String {
        match &self.engine {
            EngineServer::Redis(redis) => {
                format!("redis://{}:{}", cluster.host(ENGINE_HOST).address(), redis.lock().port())
            }
            EngineServer::Postgres { server, relay } => {
                let url = server.lock().url();
                let (user, place) = url.rsplit_once('@').expect("an address with a user");
                let (user, _) = user.rsplit_once(':').expect("an address with a password");
                let (_, database) = place.split_once('/').expect("an address with a database");
                format!("{user}@{}/{database}", relay.address())
            }
            EngineServer::Etcd { relay, .. } => format!("etcd://{}", relay.address()),
            EngineServer::Store => "store:".into(),
        }
    }

    /// A file of credentials with the password of the engine, if it wants one.
    pub fn log_credentials(&self) -> Option<String> {
        match &self.engine {
            EngineServer::Postgres { server, .. } => {
                let url = server.lock().url();
                let (user, _) = url.rsplit_once('@').expect("an address with a user");
                let (_, password) = user.rsplit_once(':').expect("an address with a password");
                Some(format!("password = {password}\n"))
            }
            EngineServer::Redis(_) | EngineServer::Etcd { .. } | EngineServer::Store => None,
        }
    }

    /// The address of the store in a service; None: it is in a directory.
    pub fn store_url(&self) -> Option<String> {
        let ObjectService { server, relay } = self.objects.as_ref()?;
        let direct = format!("127.0.0.1:{}", server.port());
        let url = server.store_url("volume").replace(&direct, &relay.address().to_string());
        Some(format!("{url}&allow-http"))
    }

    /// Kills the engine and starts it again.
    pub fn restart_engine(&self, cluster: &TestCluster) {
        let host: &ClusterHost = cluster.host(ENGINE_HOST);
        host.run_in_network(|| match &self.engine {
            EngineServer::Redis(server) => server.lock().crash_and_restart(),
            EngineServer::Postgres { server, .. } => server.lock().crash_and_restart(),
            EngineServer::Etcd { server, .. } => server.lock().crash_and_restart(),
            EngineServer::Store => panic!("a fault of an engine is for logs in engines"),
        });
    }

    /// Removes all that the engine has.
    pub fn empty_engine(&self, cluster: &TestCluster) {
        let host: &ClusterHost = cluster.host(ENGINE_HOST);
        host.run_in_network(|| match &self.engine {
            EngineServer::Redis(server) => {
                let answer = server.lock().run("FLUSHALL");
                assert!(answer.starts_with("+OK"), "{answer}");
            }
            EngineServer::Postgres { server, .. } => {
                server.lock().run("DROP TABLE vellum_logs, vellum_log_appends");
            }
            EngineServer::Etcd { server, .. } => {
                // From the key of one zero byte on: all keys.
                let all = r#"{"key":"AA==","range_end":"AA=="}"#;
                let answer = server.lock().request("/v3/kv/deleterange", all);
                assert!(answer.contains("deleted"), "{answer}");
            }
            EngineServer::Store => panic!("a fault of an engine is for logs in engines"),
        });
    }

    /// Changes or asks the engine.
    pub fn with_redis<T: Send>(
        &self,
        cluster: &TestCluster,
        act: impl FnOnce(&mut RedisServer) -> T + Send,
    ) -> T {
        let host: &ClusterHost = cluster.host(ENGINE_HOST);
        let EngineServer::Redis(redis) = &self.engine else {
            panic!("a fault of Redis is for logs in Redis");
        };
        host.run_in_network(|| act(&mut redis.lock()))
    }

    /// Makes a copy of Redis that gets nothing more from now on.
    pub fn start_stale_replica(&self, cluster: &TestCluster) -> RedisServer {
        let dir = tempfile::tempdir_in(&self.dir).expect("a directory for the copy").keep();
        self.with_redis(cluster, |redis| {
            let replica = redis.start_replica(&dir);
            let answer = replica.run("REPLICAOF NO ONE");
            assert!(answer.starts_with("+OK"), "{answer}");
            replica
        })
    }

    /// From now on each request to the store takes so long.
    pub fn delay_objects(&self, delay: Duration) {
        self.objects_relay().set_delay(delay / 2);
    }

    /// From now on the store does this with requests.
    pub fn set_objects_mode(&self, mode: RelayMode) {
        self.objects_relay().set_mode(mode);
    }

    fn objects_relay(&self) -> &DelayingRelay {
        &self.objects.as_ref().expect("a fault of the store is for stores in services").relay
    }
}

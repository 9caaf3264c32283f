//! What the hosts use besides each other: the engine of the log, and the store of objects.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use vellum_testkit::cluster::{ClusterHost, DelayingRelay, TestCluster};
use vellum_testkit::{RedisServer, SeaweedServer};

/// The host of the engine.
pub const ENGINE_HOST: &str = "meta";
/// The host of the objects.
pub const OBJECTS_HOST: &str = "obj";
/// The port at which objects are reached, through a relay.
const OBJECTS_PORT: u16 = 8333;

/// The engine of a worktree's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEngine {
    /// Redis, on a host of its own.
    Redis,
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
    redis: Option<Mutex<RedisServer>>,
    objects: Option<ObjectService>,
}

/// A store in a service, and the way to it.
struct ObjectService {
    server: SeaweedServer,
    relay: DelayingRelay,
}

impl ClusterServices {
    /// Starts what is needed.
    pub fn start(cluster: &TestCluster, dir: &Path, engine: LogEngine, place: ObjectPlace) -> Self {
        let redis = (engine == LogEngine::Redis).then(|| {
            // The host's address is the only one by which others reach it.
            let options = ["--bind", "0.0.0.0", "--protected-mode", "no"];
            let start = || RedisServer::start(&dir.join("redis"), &options);
            Mutex::new(cluster.host(ENGINE_HOST).run_in_network(start))
        });
        let objects = (place == ObjectPlace::Service).then(|| {
            let host = cluster.host(OBJECTS_HOST);
            let server = host.run_in_network(|| SeaweedServer::start(&dir.join("seaweed")));
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
            ObjectService { relay: DelayingRelay::start(host, OBJECTS_PORT, target, Duration::ZERO), server }
        });
        Self { redis, objects }
    }

    /// The address of the log's engine.
    pub fn log_url(&self, cluster: &TestCluster) -> String {
        match &self.redis {
            Some(redis) => {
                format!("redis://{}:{}", cluster.host(ENGINE_HOST).address(), redis.lock().port())
            }
            None => "store:".into(),
        }
    }

    /// The address of the store in a service; None: it is in a directory.
    pub fn store_url(&self) -> Option<String> {
        let ObjectService { server, relay } = self.objects.as_ref()?;
        let direct = format!("127.0.0.1:{}", server.port());
        let url = server.store_url("volume").replace(&direct, &relay.address().to_string());
        Some(format!("{url}&allow-http"))
    }

    /// Changes or asks the engine.
    pub fn with_redis<T: Send>(
        &self,
        cluster: &TestCluster,
        act: impl FnOnce(&mut RedisServer) -> T + Send,
    ) -> T {
        let host: &ClusterHost = cluster.host(ENGINE_HOST);
        let redis = self.redis.as_ref().expect("a fault of Redis is for logs in Redis");
        host.run_in_network(|| act(&mut redis.lock()))
    }

    /// From now on each request to the store takes so long.
    pub fn delay_objects(&self, delay: Duration) {
        let objects = self.objects.as_ref().expect("a fault of the store is for stores in services");
        objects.relay.set_delay(delay / 2);
    }
}

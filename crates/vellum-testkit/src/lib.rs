//! Shared parts of tests: a faulty object store, a model of a filesystem, random numbers, suites for object stores and for
//! stores of live metadata, several machines on this one, and histories of what concurrent programs saw of a filesystem.
//!
//! Invariant: everything is deterministic; a fault happens exactly at the operation that the test's script names.

pub mod cluster;
pub mod conformance;
pub mod emulator;
pub mod etcd_server;
pub mod faulty;
pub mod histories;
pub mod live_conformance;
pub mod model;
mod ports;
pub mod postgres_server;
pub mod random;
mod rclone;
pub mod redis_server;
pub mod relay;
pub mod s3;
pub mod seaweed;
mod server_process;
pub mod shared_log_conformance;
pub mod sshd;
pub mod tls;
pub mod web;
pub mod webdav;

pub use cluster::TestCluster;
pub use emulator::CloudEmulator;
pub use etcd_server::EtcdServer;
pub use faulty::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};
pub use postgres_server::PostgresServer;
pub use redis_server::RedisServer;
pub use relay::TcpRelay;
pub use s3::{GeneratedObjects, LyingS3, S3Failure, S3Lie, S3Match, S3Request};
pub use seaweed::SeaweedServer;
pub use sshd::SshServer;
pub use tls::{ServerCertificate, TlsServer};
pub use web::WebServer;
pub use webdav::WebdavServer;

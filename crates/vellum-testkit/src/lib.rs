//! Shared parts of tests: a faulty object store, a model of a filesystem, random numbers, and suites for object stores
//! and for stores of live metadata.
//!
//! Invariant: everything is deterministic; a fault happens exactly at the operation that the test's script names.

pub mod conformance;
pub mod emulator;
pub mod faulty;
pub mod live_conformance;
pub mod model;
mod ports;
pub mod random;
mod rclone;
pub mod relay;
pub mod s3;
pub mod seaweed;
pub mod sshd;
pub mod tls;
pub mod web;
pub mod webdav;

pub use emulator::CloudEmulator;
pub use faulty::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};
pub use relay::TcpRelay;
pub use s3::{GeneratedObjects, LyingS3, S3Failure, S3Lie, S3Match, S3Request};
pub use seaweed::SeaweedServer;
pub use sshd::SshServer;
pub use tls::{ServerCertificate, TlsServer};
pub use web::WebServer;
pub use webdav::WebdavServer;

//! What tests share: a faulty object store, a model of a filesystem, random numbers, and the suites that every object
//! store and every store of live metadata must pass.
//!
//! Invariant: everything is deterministic; what a test injects happens exactly where its script says.

pub mod conformance;
pub mod faulty;
pub mod live_conformance;
pub mod model;
pub mod random;
pub mod s3;
pub mod seaweed;
pub mod sshd;
pub mod webdav;

pub use faulty::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};
pub use s3::{LyingS3, S3Failure, S3Lie, S3Match, S3Request};
pub use seaweed::SeaweedServer;
pub use sshd::SshServer;
pub use webdav::WebdavServer;

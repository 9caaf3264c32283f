//! What tests share: a faulty object store, a model of a filesystem, random numbers, and the suites that every object
//! store and every store of live metadata must pass.
//!
//! Invariant: everything is deterministic; what a test injects happens exactly where its script says.

pub mod conformance;
pub mod faulty;
pub mod live_conformance;
pub mod model;
pub mod random;

pub use faulty::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};

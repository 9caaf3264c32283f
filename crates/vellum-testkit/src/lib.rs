//! What tests share: a faulty object store, and the suite that every object store must pass.
//!
//! Invariant: everything is deterministic; what a test injects happens exactly where its script says.

pub mod conformance;
pub mod faulty;

pub use faulty::{Fault, Faulty, Op, When};

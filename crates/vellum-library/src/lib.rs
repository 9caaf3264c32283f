//! Floor 6: volumes for programs, without FUSE.
//!
//! Invariant: nothing here knows of a kernel or prints.

pub mod live;

pub use live::{Claim, OpenError};

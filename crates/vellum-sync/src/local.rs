//! Synchronisation on directories of this host: listing them, and carrying out plans in them.
//!
//! Invariant: paths are passed to the kernel by `vellum_host::beneath` alone.

pub mod moving;
pub mod receive;
pub mod scan;
pub(crate) mod transfer;

//! Work on directories of this host: listing them, and writing entries as a plan says.
//!
//! Invariant: paths go to the system through `vellum_host::beneath` alone.

pub mod moving;
pub mod receive;
pub mod scan;
pub(crate) mod transfer;

//! Work on directories of this host: listing them, and writing entries as a plan says.

pub mod moving;
pub mod receive;
pub mod scan;
pub(crate) mod transfer;

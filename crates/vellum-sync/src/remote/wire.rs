//! The bytes between two hosts: greeting, frames, listings, plans.
//!
//! docs/sync-protocol.md draws them.
//!
//! Invariant: whatever arrives is decoded or refused; memory is taken only for what has arrived, and never for more
//! than a named limit. Deliberately absent: who says what when (see `session`).

mod error;
mod frame;
mod greeting;
mod listing;
mod plan;

pub use error::WireError;
pub use frame::{FRAME_MAX, FrameKind, WireFrame, WireReader, WireWriter};
pub use greeting::{Greeting, VERSION, WireCodec};
pub use listing::{ListingDecoder, encode_listing};
pub use plan::{PlanDecoder, encode_plan};

#[cfg(test)]
mod tests;

//! The bytes between two hosts: greeting, frames, listings, plans.
//!
//! docs/sync-protocol.md specifies them.
//!
//! Invariant: received bytes are decoded or refused; memory is allocated only for bytes that were received, and never
//! for more than a named limit. Deliberately absent: the order of messages (see `session`).

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

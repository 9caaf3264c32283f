//! Content against a plain vector of bytes, on a base whose content is in chunks of a real volume.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cold;
mod edges;
mod model;
mod orphans;
mod sequence;
mod together;
mod world;

//! Tests of the map through its public interface, against models.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod golden;
mod hostile;
mod locality;
mod model;
mod order;
mod reading;
mod support;

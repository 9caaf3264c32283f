//! Tests of vellum-library through its public face.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod live;

//! The low part of the checkout on real trees: every kind of file, hostile names, races, the stat cache.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cache;
mod metadata;
mod races;
mod scanning;
mod selecting;
mod unprivileged;
mod workspace;

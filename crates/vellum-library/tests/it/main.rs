//! Tests of vellum-library through its public face.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod addresses;
mod boltfs;
mod checkout;
mod inodes;
mod leases;
mod live;
mod model;
mod plans;
mod stand;
mod vfs;
mod views;
mod windows;

//! Tests of vellum-fs through its public face.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod attributes;
mod names;
mod renames;
mod stand;
mod xattrs;

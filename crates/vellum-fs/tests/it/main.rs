//! Tests of vellum-fs through its public face.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod attributes;
mod check;
mod copies;
mod costs;
mod exclusions;
mod forks;
mod inline;
mod machine;
mod model;
mod names;
mod operation_marks;
mod orphans;
mod quota;
mod reading;
mod renames;
mod selected;
mod stand;
mod stored_chunks;
mod together;
mod trash;
mod views;
mod whole;
mod workloads;
mod xattrs;

//! A gateway for S3 by the crate `s3s`: one bucket, whose keys are the paths of the tree.
//!
//! Invariant: `s3s` answers no request without a signature, and none that changes anything unless its user may. A listing has
//! each key once, in the order of bytes, and its end only if all of it was listed. An object is there whole, with its attributes,
//! or not at all. Deliberately absent: versions, lists of access rights, and other delimiters than `/`.

mod access;
mod attributes;
mod body;
mod bucket;
pub mod checksums;
pub mod conditions;
mod copying;
mod errors;
pub mod guard;
pub mod keys;
pub mod listing;
mod multipart;
mod objects;
mod operations;
mod server;
mod upload;

pub use server::{S3Server, S3Settings, check_bucket_name};

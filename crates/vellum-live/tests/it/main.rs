//! Engines from outside.

mod reopening;
mod suites;

//! Runs on real directories: random ones, each pitfall by name, rsync beside us.

#![allow(clippy::disallowed_methods, reason = "tests make and read the trees that the code works on")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod basis;
mod blocks;
mod disk;
mod durable;
mod hostile;
mod oracle;
mod pitfalls;
mod property;
mod ranges;
mod run;
mod trees;
mod unseen;

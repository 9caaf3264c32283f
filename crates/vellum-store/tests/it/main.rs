//! The store as its users see it: blobs written, read, collected and verified over several kinds of stores.
#![expect(clippy::unwrap_used, reason = "tests")]

mod blobs;
mod clouds;
mod credentials;
mod damage;
mod differences;
mod faults;
mod gc;
mod golden;
mod index;
mod lazy_writer;
mod local_dir;
mod processes;
mod published;
mod services;
mod sftp;
mod silence;
mod single_writer;
mod suites;
mod tls;
mod traffic;
mod world;

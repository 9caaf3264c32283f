//! Several machines and one worktree: what concurrent programs on them see, also while machines and networks fail.
//!
//! `CLUSTER_SECONDS` is the time of each history (`make test-cluster`); without it they are short.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bench;
mod faults;
mod histories;
mod hosts;
mod matrix;
mod services;
mod take_overs;

/// The process of a worker; without a task it sees that there is none.
#[test]
fn history_worker() {
    let is_worker = std::env::var_os("VELLUM_HISTORY_WORKER").is_some();
    assert_eq!(vellum_testkit::histories::run_worker_if_asked(), is_worker);
}

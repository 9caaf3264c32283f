//! Tries: commands that run in a fork of a worktree, which is mounted over the worktree's own path in a mount namespace of
//! their own.
//!
//! Three processes take part, beside the one that serves the fork's mount: `vellum try` itself stays outside, where the
//! worktree is visible ([`program`]); a child enters the namespaces and covers the path ([`namespace`]); and a process that is
//! forked from that is the first of the PID namespace, which starts the command and collects what it leaves ([`init`]).
//!
//! Where nothing can be mounted, and the user wants it, the fork is a copy of the worktree in another directory ([`copy`]): then no
//! namespace is entered, and the child itself starts the command.
//!
//! Invariant: the process that serves the fork is never in the mount namespace where the path is covered. Its state directory
//! may lie below that path: its own requests would come back to itself, and it would wait for them for ever.

mod copy;
pub mod fork;
pub mod init;
mod kept_mount;
pub mod namespace;
pub mod note;
pub mod program;
mod signals;

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

/// Tells those who run inside a try its name.
pub const TRY_VARIABLE: &str = "VELLUM_TRY";

/// Tells them where they find the state directory of the volume, if the fork covers it.
pub const TRY_STATE_VARIABLE: &str = "VELLUM_TRY_STATE";

/// What the processes of a try tell the one that stays outside: a line of JSON in a pipe.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartReport {
    /// The command runs.
    Running,
    /// The command cannot be executed; the exit status says why.
    NotExecuted(String),
    /// The command was not started.
    Failed {
        /// Why.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

/// The pipe for the report, by the number that it was given by its parent.
///
/// To be called once: the number belongs to the result from then on.
pub fn take_report_pipe(number: RawFd) -> OwnedFd {
    #[expect(unsafe_code, reason = "the number of an inherited descriptor comes with the arguments")]
    // SAFETY: the parent left it open for this process, and nothing else in it knows the number.
    unsafe {
        OwnedFd::from_raw_fd(number)
    }
}

/// Lets no descriptor but the standard ones reach the programs that this process starts: one that was opened in the worktree
/// would lead past the try.
pub fn close_descriptors_at_exec() {
    #[expect(unsafe_code, reason = "no safe call marks all descriptors")]
    // SAFETY: it only marks descriptors; none is closed in this process.
    // An old kernel refuses the flag: then only descriptors that the caller left open on purpose are inherited.
    // The kernel's own call, for which not every C library has a function.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

//! The `vellum` binary: parses, dispatches, prints. What it does is in the crates below; each command is a file in
//! `commands`, and only `ui` writes to the terminal.

mod archive;
mod cli;
mod commands;
mod compare;
mod completers;
mod conformance;
mod context;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod documented_commands;
mod error;
mod experiment;
mod foreign_words;
mod heap;
mod hooks;
mod interrupt;
mod mount_helper;
mod mounting;
mod probe;
mod program_settings;
mod secret;
mod serve_program;
mod settings;
mod store_args;
mod ui;
mod user_program;

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn main() -> ExitCode {
    forbid_core_dumps();
    ExitCode::from(cli::run_command_line())
}

/// A dump of the memory would hold keys and credentials, in a file that others may read or send away.
fn forbid_core_dumps() {
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    // A limit can always be lowered; and a process that could not do it is of use all the same.
    let _ = setrlimit(Resource::Core, limit);
}

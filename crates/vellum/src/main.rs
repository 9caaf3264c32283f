//! The `vellum` binary: parses, dispatches, prints. What it does is in the crates below; each command is a file in
//! `commands`, and only `ui` writes to the terminal.

mod archive;
mod cli;
mod commands;
mod compare;
mod context;
mod error;
mod heap;
mod interrupt;
mod mounting;
mod secret;
mod store_args;
mod ui;

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(cli::run_command_line())
}

//! `vellum web`: the volume in a browser.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};

/// The program that has all of HTTP.
const SERVE_PROGRAM: &str = "vellum-serve";

/// Show the volume in a browser
///
/// Prints the address of a page with the history, the files of each snapshot and what differs between them. Only this
/// machine can connect, and only with the token in the address; the page changes nothing. Ctrl-C ends it. From another
/// machine: 'ssh -L PORT:127.0.0.1:PORT HOST'.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Listen at ADDRESS: 127.0.0.1:PORT or [::1]:PORT; port 0 stands for a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Open the page in the browser of this desktop
    #[arg(long)]
    open: bool,
    /// Use the token in FILE, which only you may read; made if it is missing. The address stays the same then
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Becomes the program that serves the page.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // What a mount has not published yet is published, and a directory without a volume is refused here.
    let root = context.open_volume()?.state.root().to_path_buf();
    let program = find_serve_program()?;
    check_version(&program)?;
    let mut command = Command::new(&program);
    command.arg("web").arg(root).arg("--listen").arg(args.listen.to_string());
    if args.open {
        command.arg("--open");
    }
    if let Some(file) = &args.token_file {
        command.arg("--token-file").arg(context.cwd.join(file));
    }
    if context.ui.is_json() {
        command.arg("--json");
    }
    // It takes the place of this process, so that signals and exit codes are its own.
    Err(CliError::io_error("execute", program.display().to_string())(command.exec()))
}

/// The program beside this one. One that PATH has could be anybody's.
fn find_serve_program() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(CliError::io_error("find", "the running program"))?;
    let program = own.with_file_name(SERVE_PROGRAM);
    if program.is_file() {
        return Ok(program);
    }
    Err(missing_error(&program))
}

fn missing_error(program: &Path) -> CliError {
    let source = std::io::ErrorKind::NotFound.into();
    CliError::io_error("find", format!("{}, which comes with Vellum", program.display()))(source)
}

/// Fails unless the program is of this version: both read the same volume, and speak to each other.
fn check_version(program: &Path) -> Result<()> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(CliError::io_error("execute", program.display().to_string()))?;
    let found = String::from_utf8_lossy(&output.stdout);
    let wanted = format!("{SERVE_PROGRAM} {}", env!("CARGO_PKG_VERSION"));
    if found.trim() == wanted {
        return Ok(());
    }
    Err(CliError::usage_error(
        format!(
            "{} is not of this version: it is '{}', not '{wanted}'",
            program.display(),
            found.trim().escape_debug()
        ),
        "install both programs of one version",
    ))
}

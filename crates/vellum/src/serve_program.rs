//! `vellum-serve`, the program beside this one that has the servers: finding it, and becoming it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{CliError, Result};

const SERVE_PROGRAM: &str = "vellum-serve";

/// A command of the program beside this one, which is of the same version.
pub fn build_serve_command() -> Result<Command> {
    let program = find_serve_program()?;
    check_version(&program)?;
    Ok(Command::new(program))
}

/// Becomes the program, so that signals and exit codes are its own. Returns why that failed.
pub fn become_program(mut command: Command) -> CliError {
    let program = Path::new(command.get_program()).display().to_string();
    CliError::io_error("execute", program)(command.exec())
}

/// The running program.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(CliError::io_error("find", "the running program"))
}

/// The program beside this one. One that PATH has could be anybody's.
fn find_serve_program() -> Result<PathBuf> {
    let program = own_program()?.with_file_name(SERVE_PROGRAM);
    if program.is_file() {
        return Ok(program);
    }
    let source = std::io::ErrorKind::NotFound.into();
    Err(CliError::io_error("find", format!("{}, which comes with Vellum", program.display()))(source))
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

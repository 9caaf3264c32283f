//! Secrets from where they may come: a prompt without echo, or a file; never the command line.
//!
//! Invariant: what was read is wiped when dropped, and the terminal echoes again whatever happens to the read.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::error::{CliError, Result};
use crate::ui::Ui;

/// Longest secret, bytes: more than any passphrase or key file has.
const SECRET_MAX: u64 = 1 << 20;

/// How often a new passphrase may be mistyped.
const TRIES: usize = 3;

/// A secret's bytes.
pub type SecretBytes = Zeroizing<Vec<u8>>;

/// Options of every command that may need a passphrase.
#[derive(Debug, Clone, clap::Args)]
pub struct PassphraseArgs {
    /// Ask for a passphrase on the terminal
    #[arg(long)]
    pub passphrase: bool,
    /// Read the passphrase from FILE ('-': standard input); one newline at its end does not count
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase")]
    pub passphrase_file: Option<std::path::PathBuf>,
}

impl PassphraseArgs {
    /// Whether a passphrase was asked for.
    pub fn wanted(&self) -> bool {
        self.passphrase || self.passphrase_file.is_some()
    }

    /// An error at once if a passphrase is wanted and cannot be had.
    pub fn check(&self) -> Result<()> {
        if self.passphrase { must_be_terminal() } else { Ok(()) }
    }

    /// A passphrase to be set: typed twice, or from the file.
    pub fn new_passphrase(&self, ui: &Ui) -> Result<SecretBytes> {
        match &self.passphrase_file {
            Some(file) => from_file(file),
            None => prompt_twice(ui),
        }
    }

    /// The passphrase or recovery code of an existing volume.
    pub fn existing(&self, ui: &Ui, question: &str) -> Result<SecretBytes> {
        match &self.passphrase_file {
            Some(file) => from_file(file),
            None => prompt(ui, question),
        }
    }
}

/// The content of a file without one newline at its end; `-` is standard input.
pub fn from_file(path: &Path) -> Result<SecretBytes> {
    let mut secret = raw_file(path)?;
    if secret.last() == Some(&b'\n') {
        secret.pop();
        if secret.last() == Some(&b'\r') {
            secret.pop();
        }
    }
    if secret.is_empty() {
        return Err(CliError::usage(
            format!("there is no passphrase in {}: it is empty", path.display()),
            "",
        ));
    }
    Ok(secret)
}

/// The whole content of a key file.
pub fn raw_file(path: &Path) -> Result<SecretBytes> {
    // Reserved whole: growing would leave copies of the secret in freed memory.
    let mut secret = Zeroizing::new(Vec::with_capacity(64 << 10));
    let read = |source: &mut dyn Read, secret: &mut Vec<u8>| source.take(SECRET_MAX + 1).read_to_end(secret);
    let result = if path == Path::new("-") {
        read(&mut io::stdin().lock(), &mut secret)
    } else {
        std::fs::File::open(path).and_then(|mut file| read(&mut file, &mut secret))
    };
    let len = result.map_err(CliError::io("read", path.display().to_string()))?;
    if len as u64 > SECRET_MAX {
        return Err(CliError::usage(
            format!("{} is too long: a secret has 1 MiB at most", path.display()),
            "",
        ));
    }
    Ok(secret)
}

fn must_be_terminal() -> Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(CliError::usage("no passphrase at hand: standard input is not a terminal", "use --passphrase-file"))
}

fn prompt_twice(ui: &Ui) -> Result<SecretBytes> {
    for _ in 0..TRIES {
        let first = prompt(ui, "New passphrase: ")?;
        if first.is_empty() {
            ui.warn("an empty passphrase protects nothing: type one")?;
            continue;
        }
        if prompt(ui, "The same again: ")? == first {
            return Ok(first);
        }
        ui.warn("the two differ")?;
    }
    Err(CliError::usage("no passphrase was set", "'vellum key add --passphrase' sets one later"))
}

/// One line from the terminal, without echo.
fn prompt(ui: &Ui, question: &str) -> Result<SecretBytes> {
    must_be_terminal()?;
    let failed = |error: io::Error| CliError::io("read", "the passphrase from the terminal")(error);
    let stdin = io::stdin();
    let echo = EchoOff::new().map_err(failed)?;
    ui.prompt(question)?;
    let mut secret = Zeroizing::new(Vec::with_capacity(1 << 10));
    let result = read_line(&mut stdin.lock(), &mut secret);
    drop(echo);
    ui.prompt("\n")?;
    result.map_err(failed)?;
    Ok(secret)
}

fn read_line(source: &mut impl Read, line: &mut Vec<u8>) -> io::Result<()> {
    let mut byte = [0];
    while source.read(&mut byte)? == 1 {
        match byte[0] {
            b'\n' => return Ok(()),
            _ if line.len() as u64 >= SECRET_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
            other => line.push(other),
        }
    }
    if line.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// The terminal without echo, until dropped.
struct EchoOff {
    before: Termios,
}

impl EchoOff {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self { before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

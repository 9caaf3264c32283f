//! Secrets from where they may come: a prompt without echo, or a file; never the command line.
//!
//! Invariant: what was read is wiped when dropped, and the terminal echoes again whatever happens to the read, Ctrl-C
//! included.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use vellum_crypto::SlotSecret;
use vellum_volume::keyring;
use zeroize::Zeroizing;

use crate::error::{CliError, Result};
use crate::interrupt;
use crate::ui::UserInterface;

/// Longest secret, bytes: more than any passphrase or key file has.
const SECRET_MAX: u64 = 1 << 20;

/// How often a new passphrase may be mistyped.
const TRIES: usize = 3;

/// How long a wait for the terminal lasts before it checks whether the user pressed Ctrl-C.
const LOOK_UP: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A secret's bytes, with the newline at the end of a file, which does not count ([`keyring::strip_newline`]).
pub type SecretBytes = Zeroizing<Vec<u8>>;

/// Options of every command that may need a passphrase or a key file.
#[derive(Debug, Clone, clap::Args)]
pub struct SecretArgs {
    /// Ask for a passphrase on the terminal
    #[arg(long)]
    passphrase: bool,
    /// Read the passphrase from FILE ('-': standard input); one newline at its end does not count
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase")]
    passphrase_file: Option<PathBuf>,
    /// Take the content of FILE as the key; one newline at its end does not count
    #[arg(long, value_name = "FILE", conflicts_with_all = ["passphrase", "passphrase_file"])]
    key_file: Option<PathBuf>,
}

/// A secret that is to open a volume from now on.
pub struct NewSecret {
    bytes: SecretBytes,
    is_key_file: bool,
}

impl NewSecret {
    /// What a slot is made with.
    pub fn as_slot_secret(&self) -> SlotSecret<'_> {
        let bytes = keyring::strip_newline(&self.bytes);
        if self.is_key_file { SlotSecret::KeyFile(bytes) } else { SlotSecret::Passphrase(bytes) }
    }

    /// What the list of slots calls it, unless the user does.
    pub fn default_label(&self) -> &'static str {
        if self.is_key_file { "key file" } else { "passphrase" }
    }
}

impl SecretArgs {
    /// Whether one was asked for.
    pub fn is_requested(&self) -> bool {
        self.passphrase || self.secret_file().is_some()
    }

    fn secret_file(&self) -> Option<&Path> {
        self.passphrase_file.as_deref().or(self.key_file.as_deref())
    }

    /// Fails at once if a passphrase is wanted and cannot be typed.
    pub fn check_availability(&self) -> Result<()> {
        if self.passphrase { require_terminal() } else { Ok(()) }
    }

    /// A secret to be set: a passphrase typed twice, or what is in the file.
    pub fn read_new_secret(&self, ui: &UserInterface) -> Result<NewSecret> {
        let bytes = match self.secret_file() {
            Some(file) => read_secret_file(file)?,
            None => prompt_new_passphrase(ui)?,
        };
        Ok(NewSecret { bytes, is_key_file: self.key_file.is_some() })
    }

    /// What opens an existing volume.
    pub fn read_existing_secret(&self, ui: &UserInterface, question: &str) -> Result<SecretBytes> {
        match self.secret_file() {
            Some(file) => read_secret_file(file),
            None => prompt_passphrase(ui, question),
        }
    }
}

/// The content of a file that must not be empty; `-` is standard input.
pub fn read_secret_file(path: &Path) -> Result<SecretBytes> {
    let secret = read_raw_file(path)?;
    // An empty file mostly means that the program that should have written the secret failed. Taken as a secret, it
    // would let everybody in.
    if keyring::strip_newline(&secret).is_empty() {
        return Err(CliError::usage_error(
            format!("{} is empty: it must hold a passphrase or a key", path.display()),
            "write one into it, and run the command again",
        ));
    }
    Ok(secret)
}

fn read_raw_file(path: &Path) -> Result<SecretBytes> {
    // Reserved whole: growing would leave copies of the secret in freed memory.
    let mut secret = Zeroizing::new(Vec::with_capacity(64 << 10));
    // One byte more than is allowed distinguishes a file that is too long from one of just the allowed length.
    let read = |source: &mut dyn Read, secret: &mut Vec<u8>| source.take(SECRET_MAX + 1).read_to_end(secret);
    let result = if path == Path::new("-") {
        read(&mut io::stdin().lock(), &mut secret)
    } else {
        std::fs::File::open(path).and_then(|mut file| read(&mut file, &mut secret))
    };
    let len = result.map_err(CliError::io_error("read", path.display().to_string()))?;
    if len as u64 > SECRET_MAX {
        return Err(CliError::usage_error(
            format!("{} is too long: a secret is at most 1 MiB", path.display()),
            "",
        ));
    }
    Ok(secret)
}

fn require_terminal() -> Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(CliError::usage_error(
        "cannot ask for the passphrase: standard input is not a terminal",
        "use --passphrase-file",
    ))
}

fn prompt_new_passphrase(ui: &UserInterface) -> Result<SecretBytes> {
    for _ in 0..TRIES {
        let first = prompt_passphrase(ui, "New passphrase: ")?;
        if first.is_empty() {
            ui.print_warning("the passphrase is empty: type one")?;
            continue;
        }
        // Typed twice, because nobody sees what is typed.
        if prompt_passphrase(ui, "Repeat the passphrase: ")? == first {
            return Ok(first);
        }
        ui.print_warning("the passphrases differ: type both again")?;
    }
    Err(CliError::usage_error("no passphrase was set", "'vellum key add --passphrase' sets one later"))
}

/// One line from the terminal, without echo.
fn prompt_passphrase(ui: &UserInterface, question: &str) -> Result<SecretBytes> {
    require_terminal()?;
    let failed = |error: io::Error| CliError::io_error("read", "the passphrase from the terminal")(error);
    // A process that dies here leaves a terminal without echo: the signal has to come back to this function.
    let stop_flag = interrupt::install_signal_handlers();
    let echo = TerminalEchoGuard::new().map_err(failed)?;
    ui.print_prompt(question)?;
    // Reserved for the same reason as in `read_raw_file`.
    let mut secret = Zeroizing::new(Vec::with_capacity(64 << 10));
    let result = read_terminal_line(&mut secret, || interrupt::is_stop_requested(&stop_flag));
    // The echo is restored before anything else can fail.
    drop(echo);
    // The Enter of the user was not echoed.
    ui.print_prompt("\n")?;
    if result.map_err(failed)? {
        Ok(secret)
    } else {
        Err(CliError::Stopped { resume: "nothing was made or changed".into() })
    }
}

/// Reads a line of the terminal, past the buffer of standard input, which is not wiped. False if it is to stop.
fn read_terminal_line(line: &mut Vec<u8>, stops: impl Fn() -> bool) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut byte = [0];
    loop {
        // A read would go on waiting after Ctrl-C: the handlers are installed with `SA_RESTART`, which `poll` alone
        // does not heed. A signal just before `poll` is noticed after the timeout.
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut ready, Some(&LOOK_UP)) {
            Ok(_) | Err(Errno::INTR) if stops() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => continue,
            polled => polled?,
        };
        match rustix::io::read(&stdin, &mut byte)? {
            // Ctrl-D on an empty line; behind text it ends the line, as Enter does.
            0 if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => return Ok(true),
            _ => {}
        }
        match byte[0] {
            b'\n' => return Ok(true),
            _ if line.len() as u64 >= SECRET_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
            other => line.push(other),
        }
    }
}

/// The terminal without echo, until dropped.
struct TerminalEchoGuard {
    before: Termios,
}

impl TerminalEchoGuard {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        // ECHONL would echo the newline even without ECHO. The line discipline stays: Backspace corrects the line
        // before it is read.
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        // `Flush` drops what was typed before the question: it was echoed, and was not meant for it.
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self { before })
    }
}

impl Drop for TerminalEchoGuard {
    fn drop(&mut self) {
        // A terminal that has hung up has no echo to restore.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

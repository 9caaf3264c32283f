//! The journal of systemd: whether standard error is a stream of it, and the levels of lines there.
//!
//! In such a stream, a line that begins with `<N>` has level N (sd-daemon(3)). The journal removes the prefix.

use std::io::{Write, stderr};
use std::sync::OnceLock;

/// How much a line of a log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Something was lost, or the process ends because of it.
    Error,
    /// Something went wrong, and is tried again or left out.
    Warning,
    /// Something was done.
    Info,
    /// For those who look for a fault.
    Debug,
}

impl LogLevel {
    /// As log files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Warning => "WARN",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
        }
    }

    /// The beginning of a line in the journal.
    pub fn journal_prefix(self) -> &'static str {
        match self {
            Self::Error => "<3>",
            Self::Warning => "<4>",
            Self::Info => "<6>",
            Self::Debug => "<7>",
        }
    }

    /// The beginning of a line on standard error: its level if that is the journal, else nothing.
    pub fn stderr_prefix(self) -> &'static str {
        if is_stderr_journal() { self.journal_prefix() } else { "" }
    }
}

impl From<tracing::Level> for LogLevel {
    fn from(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::Error,
            tracing::Level::WARN => Self::Warning,
            tracing::Level::INFO => Self::Info,
            // Levels are constants, not variants: these are DEBUG and TRACE.
            _ => Self::Debug,
        }
    }
}

/// Whether standard error was a stream of the journal when this was first asked.
pub fn is_stderr_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
        // The variable is inherited by processes whose standard error is another file.
        rustix::fs::fstat(stderr()).is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
    })
}

/// Writes a line into the journal, if standard error is a stream of it.
pub fn write_to_journal(level: LogLevel, text: &str) {
    if is_stderr_journal() {
        // There is no place to report that this fails.
        let _ = stderr().lock().write_all(format!("{}{text}\n", level.journal_prefix()).as_bytes());
    }
}

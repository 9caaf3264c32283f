//! The diagnostic log: `VELLUM_LOG` chooses what it contains, as `RUST_LOG` does elsewhere.
//!
//! It goes to the standard error output, which is the mount's log in a process that serves a mount in the background, and the
//! journal in a unit of systemd. Without the variable nothing is written and nothing costs time. What is written is for
//! people: no program may rely on it.

use std::io::{IsTerminal, Write, stderr};

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::journal::{LogLevel, is_stderr_journal};
use crate::error::{CliError, Result};

/// The variable.
const VARIABLE: &str = "VELLUM_LOG";

/// Writes what another process of this program logged before it had a log of its own, if a log is requested.
pub fn forward_log(text: &str) {
    if std::env::var_os(VARIABLE).is_some_and(|directives| !directives.is_empty()) {
        // If it cannot be written, nothing is lost that another part relies on.
        let _ = stderr().write_all(text.as_bytes());
    }
}

/// Starts the log if the environment requests one.
pub fn start_log() -> Result<()> {
    // An empty variable counts as unset, so that a script can turn the log off for one command.
    let Some(directives) = std::env::var_os(VARIABLE).filter(|directives| !directives.is_empty()) else {
        return Ok(());
    };
    let refused = |reason: String| {
        let hint = format!("{VARIABLE}=debug, or {VARIABLE}=vellum_store=trace,info");
        CliError::usage_error(format!("{VARIABLE} cannot be used: {reason}"), hint)
    };
    let directives = directives.to_str().ok_or_else(|| refused("it is not UTF-8".into()))?;
    let filter: Targets = directives.parse().map_err(|error| refused(format!("{error}")))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(filter);
    if is_stderr_journal() {
        registry.with(lines.event_format(JournalFormat(format().without_time().with_level(false)))).init();
    } else {
        registry.with(lines).init();
    }
    Ok(())
}

/// Events as the journal takes them: with the level in front, and without the time, which it has by itself.
struct JournalFormat(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        writer.write_str(LogLevel::from(*event.metadata().level()).journal_prefix())?;
        self.0.format_event(context, writer, event)
    }
}

//! Lines in the user's own format, as rsync's `--out-format` and `--log-file-format` have it.
//!
//! Invariant: a format is refused before anything is changed if it has an escape that is not known. Deliberately absent:
//! bytes sent for one file (`%b`, `%c`), which are counted for a run, and what only daemons know (`%h`, `%a`, `%u`, `%m`,
//! `%P`).

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use vellum_host::escape::format_path;
use vellum_sync::model::listing::ListingEntry;
use vellum_sync::plan::StepAction;
use vellum_types::UnixTime;

use super::itemize::ItemizedStep;
use crate::error::{CliError, Result};
use crate::ui::format;

/// What is logged of a step unless a format is given.
const DEFAULT: &str = "%i %n%L";

/// A format that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFormat(Vec<FormatPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum FormatPart {
    Text(String),
    Field { field: LineField, width: FieldWidth },
}

/// How a field is padded with spaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FieldWidth {
    columns: usize,
    is_left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineField {
    Letters,
    Name,
    Link,
    Length,
    Path,
    Operation,
    Now,
    Modified,
    User,
    Group,
    Permissions,
    Process,
}

/// Which way content goes, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncDirection {
    /// To this host's other directory, or to another host.
    Send,
    /// From another host.
    Receive,
}

impl Default for LineFormat {
    fn default() -> Self {
        // The constant is a valid format, so that the other value is never taken.
        Self::parse_format("--log-file-format", DEFAULT).unwrap_or(Self(Vec::new()))
    }
}

impl LineFormat {
    /// Understands the format that was given to `option`.
    pub fn parse_format(option: &str, typed: &str) -> Result<Self> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = typed.chars().peekable();
        while let Some(char) = rest.next() {
            if char != '%' {
                text.push(char);
                continue;
            }
            // As in rsync's formats, a hyphen puts the spaces behind the value.
            let mut width = FieldWidth { is_left: rest.next_if_eq(&'-').is_some(), columns: 0 };
            while let Some(digit) = rest.peek().and_then(|char| char.to_digit(10)) {
                rest.next();
                // Bounded, because each field of each line is padded in memory.
                width.columns = (width.columns * 10 + digit as usize).min(COLUMNS_MAX);
            }
            let letter = rest.next();
            if letter == Some('%') && width == FieldWidth::default() {
                text.push('%');
                continue;
            }
            let field = letter
                .and_then(LineField::from_letter)
                .ok_or_else(|| unknown_letter_error(option, letter))?;
            if !text.is_empty() {
                parts.push(FormatPart::Text(std::mem::take(&mut text)));
            }
            parts.push(FormatPart::Field { field, width });
        }
        if !text.is_empty() {
            parts.push(FormatPart::Text(text));
        }
        Ok(Self(parts))
    }

    /// Whether nothing is to be printed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The line of a step.
    pub fn format_line(&self, step: &ItemizedStep<'_>, direction: SyncDirection) -> String {
        let mut line = String::new();
        for part in &self.0 {
            match part {
                FormatPart::Text(text) => line.push_str(text),
                FormatPart::Field { field, width } => {
                    let value = field.format_value(step, direction);
                    let missing = width.columns.saturating_sub(value.chars().count());
                    let spaces = " ".repeat(missing);
                    line.extend(if width.is_left { [value, spaces] } else { [spaces, value] });
                }
            }
        }
        line
    }
}

/// Most columns that a field is padded to.
const COLUMNS_MAX: usize = 1000;

fn unknown_letter_error(option: &str, letter: Option<char>) -> CliError {
    let message = match letter {
        Some(letter @ ('b' | 'c')) => {
            format!("{option} has %{letter}: bytes are counted for the whole run, not for one file")
        }
        Some(letter @ ('a' | 'h' | 'm' | 'P' | 'u')) => {
            format!("{option} has %{letter}, which only rsync daemons know")
        }
        Some(letter) => {
            format!("{option} has %{}, which means nothing", format_path(letter.to_string()))
        }
        None => format!("{option} ends with a '%'"),
    };
    CliError::usage_error(message, "it takes %i %n %L %l %f %o %t %M %U %G %B %p, and %% for a percent sign")
}

impl LineField {
    fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'i' => Self::Letters,
            'n' => Self::Name,
            'L' => Self::Link,
            'l' => Self::Length,
            'f' => Self::Path,
            'o' => Self::Operation,
            't' => Self::Now,
            'M' => Self::Modified,
            'U' => Self::User,
            'G' => Self::Group,
            'B' => Self::Permissions,
            'p' => Self::Process,
            _ => return None,
        })
    }

    fn format_value(self, step: &ItemizedStep<'_>, direction: SyncDirection) -> String {
        let of = |value: &dyn Fn(ListingEntry<'_>) -> String| step.entry().map(value).unwrap_or_default();
        match self {
            Self::Letters => step.change_letters(),
            Self::Name => step.name(),
            Self::Link => step.link(),
            Self::Length => of(&|entry| entry.size().to_string()),
            Self::Path => format_path(step.path()),
            // These are rsync's words, which scripts look for.
            Self::Operation => match (step.step.action, direction) {
                (StepAction::Delete, _) => "del.".into(),
                (_, SyncDirection::Send) => "send".into(),
                (_, SyncDirection::Receive) => "recv".into(),
            },
            Self::Now => format_log_time(),
            Self::Modified => of(&|entry| format_modified_time(entry.mtime())),
            Self::User => of(&|entry| entry.uid().to_string()),
            Self::Group => of(&|entry| entry.gid().to_string()),
            Self::Permissions => {
                // In rsync's %B, the letter of the kind is missing.
                of(&|entry| format::format_mode(entry.kind(), entry.mode()).chars().skip(1).collect())
            }
            Self::Process => std::process::id().to_string(),
        }
    }
}

/// The present time, as lines of logs begin.
pub fn format_log_time() -> String {
    Zoned::now().strftime("%Y/%m/%d %H:%M:%S").to_string()
}

/// When something was modified, as rsync writes it.
fn format_modified_time(time: UnixTime) -> String {
    local_time(time, "%Y/%m/%d-%H:%M:%S")
}

/// A time in this place, in a format of `strftime`.
pub fn local_time(time: UnixTime, format: &str) -> String {
    let nanos = i32::try_from(time.nanos).unwrap_or(0);
    // Files may have times that no calendar expresses.
    let Ok(time) = Timestamp::new(time.secs, nanos) else { return time.secs.to_string() };
    time.to_zoned(TimeZone::system()).strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn formats_are_read_with_widths_and_percent_signs() {
        let format = LineFormat::parse_format("--out-format", "a%%b %-10n|%5l").unwrap();
        let field =
            |field, columns, is_left| FormatPart::Field { field, width: FieldWidth { columns, is_left } };
        let text = |text: &str| FormatPart::Text(text.into());
        assert_eq!(
            format.0,
            [text("a%b "), field(LineField::Name, 10, true), text("|"), field(LineField::Length, 5, false)]
        );
        assert!(LineFormat::parse_format("--out-format", "").unwrap().is_empty());
        assert_eq!(LineFormat::default().0.len(), 4);
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        for (typed, said) in [("%z", "%z"), ("%b", "whole run"), ("%h", "daemons"), ("100%", "ends with")] {
            let error = LineFormat::parse_format("--out-format", typed).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}

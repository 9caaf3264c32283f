//! The terminal: results to stdout, everything else to stderr. Nothing outside this module writes to either.
//!
//! Invariant: names that come from a volume or a directory are escaped before they get here (`tree::format_path`), so that
//! none of them can drive the terminal.

pub mod answer;
pub mod changes;
pub mod figures;
pub mod format;
pub mod graph;
pub mod journal;
pub mod json;
pub mod line_diff;
pub mod log;
pub mod owners;
pub mod pager;
pub mod patch;
pub mod preferences;
pub mod progress;
pub mod style;
pub mod table;

use std::cell::{RefCell, RefMut};
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};

use clap::error::{ContextKind, ErrorKind};
use serde::Serialize;
use vellum_types::ErrorKind as FailureKind;
use vellum_volume::settings::Settings;

use crate::compare::ComparedSnapshots;
use crate::error::{CliError, EXIT_FAILED, Result};
use changes::list::{ChangeDetail, ChangeList, CollapsedDirs};
use journal::LogLevel;
use json::{FailureJson, JsonForm, error_code};
use pager::ResultStream;
use preferences::{ColorChoice, OutputPreferences};
use style::TextStyle;

/// Columns of a terminal that does not report how many it has.
const COLUMNS: usize = 80;
/// Columns of a terminal that has no room for everything.
const NARROW: usize = 80;

/// How the user wants to be spoken to.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputOptions {
    /// JSON instead of text.
    pub json: Option<JsonForm>,
    /// Results and errors only.
    pub quiet: bool,
    /// More than usual.
    pub verbose: bool,
    /// When to colour.
    pub color: ColorChoice,
}

/// The terminal.
pub struct UserInterface {
    /// How the user wants to be spoken to.
    pub voice: OutputOptions,
    /// Colours of standard output.
    pub style: TextStyle,
    out: RefCell<BufWriter<ResultStream>>,
}

impl UserInterface {
    /// The terminal of this process.
    pub fn new(voice: OutputOptions) -> Self {
        Self::with_pager(voice, None)
    }

    /// The terminal of this process, on which this pager shows what does not fit.
    pub fn with_pager(voice: OutputOptions, pager: Option<String>) -> Self {
        let style = TextStyle::for_terminal(io::stdout().is_terminal(), voice.color);
        // Only a person can leave a pager, on a terminal that has a screen.
        let is_screen =
            io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let stream = ResultStream::new(pager.filter(|_| is_screen && voice.json.is_none()));
        // Results have many short lines, each of which would be a system call.
        Self { voice, style, out: RefCell::new(BufWriter::with_capacity(64 << 10, stream)) }
    }

    /// Whether results are to be JSON.
    pub fn is_json(&self) -> bool {
        self.voice.json.is_some()
    }

    /// Whether standard output is a terminal.
    pub fn is_output_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Columns of the terminal that standard output is; None if it is something else.
    pub fn output_columns(&self) -> Option<usize> {
        if !self.is_output_terminal() {
            return None;
        }
        let columns = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
        // Serial lines do not know.
        Some(if columns > 0 { columns } else { COLUMNS })
    }

    /// Whether standard output is a terminal that has no room for everything.
    pub fn is_narrow(&self) -> bool {
        self.output_columns().is_some_and(|columns| columns < NARROW)
    }

    /// Prints differences, a line each. `show` turns a path into what the user would type.
    pub fn print_change_list(
        &self,
        compared: &ComparedSnapshots<'_>,
        collapsed: CollapsedDirs,
        detail: ChangeDetail,
        show: impl Fn(&[u8]) -> String,
    ) -> Result<()> {
        let list = ChangeList {
            changes: &compared.changes,
            collapsed,
            detail,
            style: self.style,
            terminal: self.output_columns(),
        };
        list.print_lines(show, |deleted| compared.is_ignored_now(deleted), |line| self.print_line(line))
    }

    /// Whether a person can be asked, and can answer.
    pub fn can_prompt(&self) -> bool {
        // The question goes to standard error: standard output may be a file.
        !self.is_json() && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// A line of the result.
    pub fn print_line(&self, line: impl Display) -> Result<()> {
        writeln!(self.out.borrow_mut(), "{line}").map_err(CliError::Output)
    }

    /// Lines of the result.
    pub fn print_lines(&self, lines: impl IntoIterator<Item = impl Display>) -> Result<()> {
        lines.into_iter().try_for_each(|line| self.print_line(line))
    }

    /// What a command did: an object for programs, a line for people, and nothing with `--quiet`.
    pub fn print_outcome<L: Display>(&self, value: &impl Serialize, line: impl FnOnce() -> L) -> Result<()> {
        match self.voice {
            OutputOptions { json: Some(_), .. } => self.print_json(value),
            OutputOptions { quiet: true, .. } => Ok(()),
            _ => self.print_line(line()),
        }
    }

    /// Bytes of the result, as they are.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        self.out.borrow_mut().write_all(bytes).map_err(CliError::Output)
    }

    /// Where a result of many bytes goes.
    pub fn output_writer(&self) -> RefMut<'_, BufWriter<ResultStream>> {
        self.out.borrow_mut()
    }

    /// The whole result as a JSON object; a `version` is added in front.
    pub fn print_json(&self, value: &impl Serialize) -> Result<()> {
        json::write_object(&mut *self.out.borrow_mut(), self.voice.json.unwrap_or_default(), value)
            .map_err(CliError::Output)
    }

    /// A remark beside the result; not when quiet.
    pub fn print_note(&self, text: impl Display) -> Result<()> {
        if self.voice.quiet { Ok(()) } else { self.write_to_stderr(&format!("{text}\n")) }
    }

    /// A problem that does not stop the command.
    pub fn print_warning(&self, text: impl Display) -> Result<()> {
        let style = self.stderr_style();
        let level = LogLevel::Warning.stderr_prefix();
        self.write_to_stderr(&format!("{level}{} {text}\n", style.paint_yellow("warning:")))
    }

    /// The problems of a command that did the rest of its work.
    pub fn print_problems(&self, problems: &[json::ProblemJson]) -> Result<()> {
        problems.iter().try_for_each(|problem| self.print_warning(problem))
    }

    /// How many files got the user who runs this as their owner, and not the one that the snapshot records.
    pub fn report_owners_not_set(&self, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let entries = format::format_count(count, "entry");
        self.print_note(format!(
            "{entries} could not be given to the owner or group that the snapshot records: only root can do that"
        ))
    }

    /// A line that a program of the user has printed, beside the result.
    pub fn print_program_line(&self, line: &str) -> Result<()> {
        self.write_to_stderr(&format!("{line}\n"))
    }

    /// A question, or the end of its line.
    pub fn print_prompt(&self, text: &str) -> Result<()> {
        self.write_to_stderr(text)
    }

    fn write_to_stderr(&self, text: &str) -> Result<()> {
        // What was said before on stdout stands before it on a terminal that shows both.
        self.flush_output()?;
        // A pager has the terminal, on which nothing else may write.
        if self.out.borrow().get_ref().has_pager() && io::stderr().is_terminal() {
            return self.write_bytes(text.as_bytes());
        }
        // A closed stderr is no reason to stop working.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        Ok(())
    }

    /// Standard error may be a terminal where standard output is a file, and the other way round.
    fn stderr_style(&self) -> TextStyle {
        TextStyle::for_terminal(io::stderr().is_terminal(), self.voice.color)
    }

    /// Waits until the user has left the pager, if there is one: the last thing that a command does.
    pub fn end_pager(&self) {
        // The error of a stream that cannot be written was reported.
        let _ = self.flush_output();
        self.out.borrow_mut().get_mut().wait_for_pager();
    }

    /// Prints why the command failed, and what to do next.
    pub fn print_error(&self, error: &CliError) {
        // The error is printed even if the output cannot be written, which often is the error.
        let _ = self.flush_output();
        // The user has to leave the pager to see what comes after it.
        self.out.borrow_mut().get_mut().wait_for_pager();
        let style = self.stderr_style();
        let level = LogLevel::Error.stderr_prefix();
        let mut text = format!("{level}{} {}\n", style.paint_red("error:"), error.format_chain());
        let hint = error.hint();
        if let Some(hint) = &hint {
            text += &format!("{level}{} {hint}\n", style.paint_cyan("hint:"));
        }
        // No place is left to report that this fails.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        // Programs that read standard output find the error there, too, as an object like any other result.
        if self.is_json() {
            let failure = FailureJson::new(error_code(error.kind()), error.format_chain(), hint);
            // If standard output fails as well, the text on standard error and the exit code remain.
            let _ = self.print_json(&failure).and_then(|()| self.flush_output());
        }
    }

    /// Hands everything on to the system.
    pub fn flush_output(&self) -> Result<()> {
        self.out.borrow_mut().flush().map_err(CliError::Output)
    }
}

/// Prints, in one line, how Vellum does what another tool has this word for. Returns the exit code.
pub fn report_foreign_word(word: &str, way: &str, form: Option<JsonForm>) -> u8 {
    let color = OutputPreferences::read(None, true, &Settings::default()).color;
    let style = TextStyle::for_terminal(io::stderr().is_terminal(), color);
    let message = format!("Vellum has no '{word}': {way}");
    // A closed stderr leaves the exit code.
    let _ = io::stderr().lock().write_all(format!("{} {message}\n", style.paint_red("error:")).as_bytes());
    print_failure(form, FailureJson::new(error_code(FailureKind::Unsupported), message, None));
    EXIT_FAILED
}

/// Prints the message of the parser: help and version are results, all else is bad usage.
pub fn report_usage_error(mut error: clap::Error, bad: u8, form: Option<JsonForm>) -> u8 {
    // An option that does not exist is a typing error, not the name of a file that begins with a hyphen.
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    // In 'vellum --help | head' the reader may close the pipe early, which is no error.
    let _ = error.print();
    // Help and version go to standard output, and are what the user asked for.
    if !error.use_stderr() {
        return 0;
    }
    print_failure(form, json::describe_usage_error(&error.render().to_string()));
    bad
}

/// The failure of a command that was not begun, for a program that wants JSON.
fn print_failure(form: Option<JsonForm>, failure: FailureJson) {
    if let Some(form) = form {
        // The text on standard error and the exit code remain.
        let _ = json::write_object(&mut io::stdout().lock(), form, &failure);
    }
}

//! `--log-file`: what a run did, appended to a file.
//!
//! Invariant: the file is open before anything is changed. Each line has the time and the process, as rsync's have.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use vellum_host::beneath::{BeneathError, append_to_trusted_file};
use vellum_host::escape::format_path;

use super::args::DisplayArgs;
use super::itemize::itemize_steps;
use super::line_format::{self, LineFormat};
use super::report::SyncRun;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::UserInterface;

/// The file of `--log-file`.
pub struct SyncLog {
    file: File,
    shown: String,
    format: LineFormat,
}

impl SyncLog {
    /// Opens the file, if one was named.
    pub fn open_log(args: &DisplayArgs, context: &CommandContext) -> Result<Option<Self>> {
        let Some(typed) = &args.log_file else {
            let hint = "name the file with --log-file";
            return match args.log_file_format {
                Some(_) => Err(CliError::usage_error("--log-file-format needs --log-file", hint)),
                None => Ok(None),
            };
        };
        // Parsed before the file is created: a wrong format must not leave one behind.
        let format = match &args.log_file_format {
            Some(typed) => LineFormat::parse_format("--log-file-format", typed)?,
            None => LineFormat::default(),
        };
        let path = context.resolve_local_path(Path::new(typed));
        let shown = path.display().to_string();
        // In a directory like /tmp, a symlink of another user must not choose the file to which this user appends.
        let opened = append_to_trusted_file(&path).map_err(BeneathError::into_io_error);
        Ok(Some(Self { file: opened.map_err(CliError::io_error("open", &shown))?, shown, format }))
    }

    /// Appends what a run does, or would do.
    pub fn log_start(&self, words: &str, is_dry: bool) -> Result<()> {
        self.append_lines(&[if is_dry { format!("dry run: {words}") } else { words.to_owned() }])
    }

    /// Appends what a run did. Returns whether that could be written; if not, it is reported.
    pub fn log_result(&self, run: &SyncRun<'_>, is_dry: bool, ui: &UserInterface) -> Result<CommandOutcome> {
        let steps = itemize_steps(run.plan, run.from, run.to)
            .map(|step| self.format.format_line(&step, run.direction));
        let problems = run.collect_problems();
        let problems = problems.iter().map(|problem| format!("error: {problem}"));
        let refusal = run.plan.refusal.iter().map(|refusal| format!("would be refused: {refusal}"));
        let end = std::iter::once(run.format_summary(is_dry));
        let lines: Vec<String> = steps.chain(problems).chain(refusal).chain(end).collect();
        Self::report_unwritten(self.append_lines(&lines), ui)
    }

    /// Appends why a run ended, if it failed. What the run was stays what it was if that cannot be written, which is
    /// reported.
    pub fn log_failure(&self, outcome: &Result<CommandOutcome>, ui: &UserInterface) -> Result<()> {
        let Err(error) = outcome else { return Ok(()) };
        let line = format!("error: {}", format_path(error.to_string()));
        Self::report_unwritten(self.append_lines(&[line]), ui).map(drop)
    }

    /// Prints why lines are missing in the file. The run has been carried out, so this is no failure of it.
    fn report_unwritten(written: Result<()>, ui: &UserInterface) -> Result<CommandOutcome> {
        let Err(error) = written else { return Ok(CommandOutcome::Done) };
        // A warning, and no error: the run itself has been done, and its result must be reported.
        ui.print_warning(format!("the log is not complete: {}", error.format_chain()))?;
        Ok(CommandOutcome::Findings)
    }

    /// In one call, so that lines of runs at the same time do not mix.
    fn append_lines(&self, lines: &[String]) -> Result<()> {
        let now = line_format::format_log_time();
        let pid = std::process::id();
        let text: String = lines.iter().map(|line| format!("{now} [{pid}] {line}\n")).collect();
        // In one write, so that the lines of two runs with one log do not mix.
        (&self.file).write_all(text.as_bytes()).map_err(CliError::io_error("write", &self.shown))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::ui::OutputOptions;

    #[test]
    fn a_log_that_cannot_be_written_does_not_hide_how_a_run_ended() {
        let file = File::options().append(true).open("/dev/full").unwrap();
        let log = SyncLog { file, shown: "log".to_owned(), format: LineFormat::default() };
        let ui = UserInterface::new(OutputOptions::default());
        let failed: Result<CommandOutcome> = Err(CliError::usage_error("the failure", ""));
        assert!(log.log_failure(&failed, &ui).is_ok());
        assert!(log.log_start("words", false).is_err(), "nothing has been done yet");
        let outcome = SyncLog::report_unwritten(log.append_lines(&["line".to_owned()]), &ui).unwrap();
        assert_eq!(outcome, CommandOutcome::Findings);
    }
}

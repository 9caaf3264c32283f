//! `vellum resolve --tool`: a program of the user merges what the merge could not.
//!
//! The merge itself runs no program, so that it has the same result on all machines. The tool works on what is left, in the
//! files of the worktree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use vellum_host::escape::format_path;
use vellum_volume::Volume;
use vellum_volume::merge::{ConflictKind, ConflictResolution, MergeConflict, MergeProgress};

use super::tool_files::{ToolFile, ToolFiles, WorktreeFile};
use super::versions::{ConflictVersions, VersionReader};
use crate::commands::merge::has_markers;
use crate::context::CommandContext;
use crate::context::merge_place::MergePlace;
use crate::error::{CliError, Result, ResumeHint};
use crate::interrupt;
use crate::program_settings::ProgramSettings;
use crate::ui::answer::read_answer_line;
use crate::ui::format;
use crate::user_program::{ProgramEnd, UserProgram, describe_status, run_on_terminal};

/// How long a tool may run that nobody can answer, unless the settings say something else.
const LIMIT: Duration = Duration::from_secs(600);
/// What was decided is written down this often. A command that is killed loses the decisions since, and no files.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Set for tools: the path of the file in the worktree.
const PATH_VARIABLE: &str = "VELLUM_PATH";
/// Exit codes with which a shell says that it cannot run a command.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// A merge tool, and how it is run.
pub struct MergeTool<'a> {
    context: &'a CommandContext,
    place: &'a MergePlace,
    line: String,
    limit: Duration,
    stop_flag: Arc<AtomicBool>,
}

/// What a tool did with conflicts.
#[derive(Default)]
pub struct ToolReport {
    /// Those that it has resolved.
    pub resolved: Vec<MergeConflict>,
    /// Those that it has not.
    pub failures: Vec<ToolFailure>,
    /// How many there are that no tool can resolve.
    unfit: usize,
    /// Whether some were resolved since the merge was last written down.
    is_unwritten: bool,
}

/// A conflict that a tool has not resolved.
pub struct ToolFailure {
    /// Where the file is.
    pub path: Vec<u8>,
    /// Why.
    pub reason: String,
    /// Whether the others would fail in the same way.
    ends_run: bool,
}

impl<'a> MergeTool<'a> {
    /// The tool that was typed, or that the user or the worktree has set.
    pub fn find(typed: &str, context: &'a CommandContext, place: &'a MergePlace) -> Result<Self> {
        let loaded = ProgramSettings::load(&place.volume().state)?;
        let settings = loaded.settings();
        let typed = Some(typed.to_owned()).filter(|typed| !typed.trim().is_empty());
        if typed.is_none() {
            loaded.warn_if_ignored("merge.tool", context)?;
        }
        let Some(line) = typed.or_else(|| settings.get_text("merge.tool")) else {
            // One that is set and is not run was named by the warning.
            let is_ignored = loaded.is_ignored("merge.tool");
            return Err(CliError::usage_error(
                if is_ignored { "no other merge tool is set" } else { "no merge tool is set" },
                "'vellum config set --user merge.tool COMMAND' sets one, or type --tool=COMMAND",
            ));
        };
        let limit = settings.get_duration("merge.tool-timeout").unwrap_or(LIMIT);
        Ok(Self { context, place, line, limit, stop_flag: interrupt::install_signal_handlers() })
    }

    /// Runs it for each of these conflicts, and writes down what it has resolved.
    pub fn resolve(&self, progress: &mut MergeProgress, chosen: &[MergeConflict]) -> Result<ToolReport> {
        let mut report = ToolReport::default();
        let ran = self.resolve_each(progress, chosen, &mut report);
        // Whatever ended it: what was resolved is.
        if report.is_unwritten {
            self.place.volume().write_merge_progress(progress)?;
        }
        ran?;
        let hint = "'vellum resolve' with --ours, --theirs or --both decides on it";
        if report.unfit > 0 && report.unfit == chosen.len() {
            let message = "a merge tool merges two contents of a file, and this conflict is another one";
            return Err(CliError::usage_error(message, hint));
        }
        if report.unfit > 0 {
            let conflicts = format::format_count(report.unfit as u64, "conflict");
            self.context.ui.print_note(format!("{conflicts} without two contents of a file: {hint}"))?;
        }
        Ok(report)
    }

    fn resolve_each(
        &self,
        progress: &mut MergeProgress,
        chosen: &[MergeConflict],
        report: &mut ToolReport,
    ) -> Result<()> {
        let reader = VersionReader::open(self.place, progress)?;
        let mut written = Instant::now();
        let mut asks = self.context.ui.can_prompt();
        for (index, conflict) in chosen.iter().enumerate() {
            let Some(versions) = reader.find_versions(conflict)? else {
                report.unfit += 1;
                continue;
            };
            let Err(failure) = self.resolve_conflict(&reader, conflict, &versions)? else {
                mark_resolved(progress, conflict);
                report.resolved.push(conflict.clone());
                report.is_unwritten = true;
                if written.elapsed() >= WRITE_EVERY {
                    self.place.volume().write_merge_progress(progress)?;
                    report.is_unwritten = false;
                    written = Instant::now();
                }
                continue;
            };
            let shown = self.place.paths(self.context).format_path(&conflict.path);
            self.context.ui.print_warning(format!("'{shown}' stays a conflict: {}", failure.reason))?;
            let ends_run = failure.ends_run;
            report.failures.push(failure);
            let left = chosen.len() - index - 1;
            if ends_run || left > 0 && asks && !self.ask_to_go_on(left, &mut asks)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the user wants the other conflicts to be tried, too; `asks` becomes false for all of them.
    fn ask_to_go_on(&self, left: usize, asks: &mut bool) -> Result<bool> {
        let conflicts = format::format_count(left as u64, "other conflict");
        loop {
            self.context.ui.print_prompt(&format!("go on with {conflicts}? [y]es, [n]o, [a]ll of them: "))?;
            let line = read_answer_line(&self.stop_flag).with_resume_hint(RESUME)?;
            match line.as_deref().map(str::trim) {
                Some("y" | "yes" | "") => return Ok(true),
                Some("a" | "all") => {
                    *asks = false;
                    return Ok(true);
                }
                Some("n" | "no") | None => return Ok(false),
                Some(_) => {}
            }
        }
    }

    /// Runs it for one conflict.
    fn resolve_conflict(
        &self,
        reader: &VersionReader<'_>,
        conflict: &MergeConflict,
        versions: &ConflictVersions,
    ) -> Result<std::result::Result<(), ToolFailure>> {
        let root = self.place.root();
        let failed = |reason: String| Ok(Err(ToolFailure::new(conflict, reason)));
        let mut current = match WorktreeFile::open(root, &conflict.path) {
            Ok(current) => current,
            Err(error) => return failed(format!("it cannot be read in the worktree: {error}")),
        };
        let copy = find_copy(root, reader.volume(), conflict, versions)?;
        let mut files = ToolFiles::create(&conflict.path)?;
        files.write_versions(reader.volume(), versions, &mut current)?;
        if let Err(failure) = self.run(&files, conflict)? {
            return Ok(Err(failure));
        }
        let mut output = match files.open_output() {
            Ok(output) => output,
            Err(reason) => return failed(format!("the merge tool succeeded, but {reason}")),
        };
        if !current.is_unchanged() {
            let kept = files.keep_output();
            return failed(format!("it was changed while the merge tool ran, whose result is in {kept}"));
        }
        if let Err(error) = current.replace_content(&mut output) {
            let kept = files.keep_output();
            return failed(format!(
                "the result of the merge tool cannot be written: {error}; it is in {kept}"
            ));
        }
        // A text that was edited halfway is no result, and yet must not be lost.
        if conflict.kind == ConflictKind::Content && has_markers(self.place, &conflict.path) {
            return failed("it still has conflict markers".into());
        }
        self.remove_copy(conflict, copy)?;
        Ok(Ok(()))
    }

    /// Removes what the merge has put beside a file, unless somebody has worked on it.
    fn remove_copy(&self, conflict: &MergeConflict, copy: CopyState) -> Result<()> {
        let Some(path) = &conflict.other else { return Ok(()) };
        let shown = self.place.paths(self.context).format_path(path);
        match copy {
            CopyState::Absent => Ok(()),
            CopyState::AsMerged(file) if file.is_unchanged() => match file.remove() {
                Ok(()) => Ok(()),
                Err(error) => self.context.ui.print_warning(format!("'{shown}' cannot be removed: {error}")),
            },
            CopyState::AsMerged(_) | CopyState::Changed => {
                self.context.ui.print_warning(format!("'{shown}' stays: it was changed since the merge"))
            }
        }
    }

    /// Runs the command of the tool to its end.
    fn run(
        &self,
        files: &ToolFiles,
        conflict: &MergeConflict,
    ) -> Result<std::result::Result<(), ToolFailure>> {
        // Between two tools nothing else would notice a request to stop.
        if interrupt::should_stop(&self.stop_flag) {
            return Err(CliError::Stopped { resume: RESUME.into() });
        }
        // A setting is a line as one would type it in a shell, and may have options and quotes.
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(&self.line)
            .current_dir(self.place.root())
            .envs(ToolFile::ALL.map(|file| (file.variable(), files.path_of(file))))
            .env(PATH_VARIABLE, OsStr::from_bytes(&conflict.path));
        let ui = &self.context.ui;
        // What this command says comes before what the tool says.
        ui.flush_output()?;
        let end = if self.has_terminal() {
            run_on_terminal(&mut command, &self.stop_flag)
        } else {
            let mut program = UserProgram::new(command, self.limit);
            let print = &mut |line: &str| ui.print_program_line(&format!("merge tool: {line}"));
            program.run(print, &|| interrupt::should_stop(&self.stop_flag))?
        };
        let failed = |reason: String, ends_run| {
            Ok(Err(ToolFailure { ends_run, ..ToolFailure::new(conflict, reason) }))
        };
        match end {
            ProgramEnd::Exited(status) if status.success() => Ok(Ok(())),
            ProgramEnd::Exited(status) => {
                let reason = format!("the merge tool failed: {}", self.describe_failure(status));
                failed(reason, ends_run(status))
            }
            ProgramEnd::TimedOut => {
                let seconds = self.limit.as_secs();
                let reason = format!(
                    "the merge tool took longer than {seconds} s (merge.tool-timeout), and was killed"
                );
                failed(reason, true)
            }
            ProgramEnd::Stopped => Err(CliError::Stopped { resume: RESUME.into() }),
            ProgramEnd::Failed(error) => failed(format!("the merge tool cannot be run: {error}"), true),
        }
    }

    fn describe_failure(&self, status: ExitStatus) -> String {
        let described = describe_status(status);
        match status.code() {
            Some(NOT_FOUND) => {
                format!("{described}: its command '{}' was not found", format_path(&self.line))
            }
            Some(NOT_EXECUTABLE) => {
                format!("{described}: its command '{}' cannot be run", format_path(&self.line))
            }
            Some(_) | None => described,
        }
    }

    /// Whether a tool can show something to somebody, and be answered.
    fn has_terminal(&self) -> bool {
        use std::io::IsTerminal;
        std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }
}

/// What a command that was stopped says.
const RESUME: &str = "what was resolved is; the same command goes on with the rest";

/// Whether the next run would end in the same way, or the user wants none.
fn ends_run(status: ExitStatus) -> bool {
    match status.code() {
        Some(NOT_FOUND | NOT_EXECUTABLE) => true,
        // The shell reports with such a code that the tool was ended by a signal, as by Ctrl-C.
        Some(code) => code > BY_SIGNAL,
        None => status.signal().is_some(),
    }
}

impl ToolFailure {
    fn new(conflict: &MergeConflict, reason: String) -> Self {
        Self { path: conflict.path.clone(), reason, ends_run: false }
    }
}

/// What became of the version that the merge has put beside a file.
enum CopyState {
    /// There is none, or it was removed.
    Absent,
    /// It is as the merge has left it.
    AsMerged(WorktreeFile),
    /// Somebody has worked on it.
    Changed,
}

fn find_copy(
    root: &Path,
    volume: &Volume,
    conflict: &MergeConflict,
    versions: &ConflictVersions,
) -> Result<CopyState> {
    let (Some(path), Some(version)) = (&conflict.other, &versions.copy) else { return Ok(CopyState::Absent) };
    match WorktreeFile::open(root, path) {
        Ok(file) if file.has_content_of(volume, version)? => Ok(CopyState::AsMerged(file)),
        Ok(_) => Ok(CopyState::Changed),
        Err(error) if error.is_not_found() => Ok(CopyState::Absent),
        // Something else than a file has its name.
        Err(_) => Ok(CopyState::Changed),
    }
}

/// Only this conflict: of the file's mode, or of its name, the tool has decided nothing.
fn mark_resolved(progress: &mut MergeProgress, conflict: &MergeConflict) {
    for tracked in progress.conflicts.iter_mut().filter(|tracked| tracked.conflict == *conflict) {
        // The files have the result already, so that nothing is left to be chosen.
        tracked.resolution = Some(ConflictResolution::AsIs);
    }
}

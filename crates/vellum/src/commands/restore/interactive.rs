//! `vellum restore --interactive`: what is restored is chosen file by file, and in texts change by change.

use vellum_checkout::{CheckoutWorktree, FileEdit, RestoreReport, RestoreRequest};
use vellum_types::FileKind;
use vellum_volume::diff::{ChangeKind, FileChange, is_path_within};

use super::{execute_restore, plan_restore, report_restore, run_restore_hook};
use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::context::paths::UserPaths;
use crate::error::{CliError, CommandOutcome, Result};
use crate::interrupt;
use crate::ui::answer::read_answer_line;
use crate::ui::line_diff::LineDiff;
use crate::ui::patch::paint_patch;
use crate::ui::progress::ProgressTask;

/// What may be answered.
const HELP: &str = "\
y - restore this
n - leave this as it is
a - restore this and all later changes of the file
d - leave this and all later changes of the file as they are
q - leave this and everything that follows as it is, and restore what was chosen
? - print this
";

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestoreAnswer {
    Yes,
    No,
    AllOfFile,
    NoneOfFile,
    Quit,
}

/// What was chosen.
#[derive(Debug, Default)]
pub struct RestoreChoice {
    /// Paths that are restored as the snapshot has them.
    pub paths: Vec<Vec<u8>>,
    /// Files of which a part is.
    pub edits: Vec<FileEdit>,
    /// Whether nothing more is asked.
    is_ended: bool,
}

impl RestoreChoice {
    /// Whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.edits.is_empty()
    }
}

/// Asks, and restores what was chosen.
pub fn restore_interactively(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    request: &RestoreRequest,
) -> Result<CommandOutcome> {
    check_terminal(context)?;
    let task = ProgressTask { first: "Scanning", verb: "Comparing", item: "file" };
    let compared = context.run_with_progress(task, |meter| {
        ComparedSnapshots::compare_dir(worktree, Some(&request.target), &request.paths, meter)
    })?;
    let choice = ask_choice(context, &compared, context.paths_at_root(worktree.root_path()))?;
    if choice.is_empty() {
        return note_nothing_chosen(context);
    }
    // Only now, when it is known that something is to be restored.
    run_restore_hook(context, &worktree.volume, worktree.root_path(), request.target.id)?;
    // Not locked while the user was asked, which may have taken any time: `edit_files` compares each file with what was
    // shown.
    let lock = worktree.lock_worktree(context.lock_wait_notice())?;
    let done = carry_out(context, worktree, request, choice)?;
    drop(lock);
    report_restore(context, worktree, &request.target, &done)
}

fn carry_out(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    request: &RestoreRequest,
    choice: RestoreChoice,
) -> Result<RestoreReport> {
    let task = ProgressTask { first: "Preparing", verb: "Restoring", item: "file" };
    let edited = context
        .run_with_progress(task, |meter| worktree.edit_files(request, &choice.edits, meter))
        .map_err(|error| CliError::from(error).with_resume_hint("run the command again"))?;
    let count = choice.edits.len() as u64;
    let mut done = RestoreReport {
        safety: edited.safety,
        written: count,
        deleted: 0,
        bytes: edited.bytes,
        owners_not_set: 0,
        problems: edited.problems,
    };
    if !choice.paths.is_empty() {
        let request = RestoreRequest { paths: choice.paths, ..request.clone() };
        let plan = plan_restore(context, worktree, &request)?;
        let rest = execute_restore(context, worktree, plan)?;
        // What the first safety snapshot holds is not saved again: one of them has everything.
        done.safety = done.safety.or(rest.safety);
        done.written += rest.written;
        done.deleted += rest.deleted;
        done.bytes += rest.bytes;
        done.owners_not_set += rest.owners_not_set;
        done.problems.extend(rest.problems);
    }
    Ok(done)
}

/// Fails if nobody can be asked.
pub fn check_terminal(context: &CommandContext) -> Result<()> {
    if context.ui.can_prompt() {
        return Ok(());
    }
    Err(CliError::usage_error(
        "--interactive asks on a terminal, and there is none",
        "'vellum restore SNAP PATH...' restores the paths that are named",
    ))
}

/// The end without any choice.
pub fn note_nothing_chosen(context: &CommandContext) -> Result<CommandOutcome> {
    context.ui.print_note("nothing was chosen, and nothing was changed")?;
    Ok(CommandOutcome::Done)
}

/// Asks about all that differs between the snapshot and the worktree.
pub fn ask_choice(
    context: &CommandContext,
    compared: &ComparedSnapshots<'_>,
    paths: UserPaths,
) -> Result<RestoreChoice> {
    let asking = Questions { context, compared, paths };
    let mut choice = RestoreChoice::default();
    for change in &compared.changes {
        if choice.is_ended {
            break;
        }
        let is_decided = |path: &[u8]| choice.paths.iter().any(|chosen| is_path_within(path, chosen));
        // A directory that only has other permissions cannot be restored without all that is in it.
        if is_changed_dir(change) || is_decided(change.path()) {
            continue;
        }
        asking.ask_file(change, &mut choice)?;
    }
    if compared.changes.is_empty() {
        context.ui.print_note("nothing to do: the directory already matches the snapshot")?;
    }
    Ok(choice)
}

fn is_changed_dir(change: &FileChange) -> bool {
    let sides = change.old.as_ref().zip(change.new.as_ref());
    change.kind == ChangeKind::Modified
        && sides.is_some_and(|(old, new)| old.kind == FileKind::Dir && new.kind == FileKind::Dir)
}

struct Questions<'a> {
    context: &'a CommandContext,
    compared: &'a ComparedSnapshots<'a>,
    paths: UserPaths,
}

impl Questions<'_> {
    /// Asks about one file: change by change if it is a text on both sides, else as a whole.
    fn ask_file(&self, change: &FileChange, choice: &mut RestoreChoice) -> Result<()> {
        if change.kind == ChangeKind::Modified && change.aspects.content && !change.aspects.kind {
            let contents = self.compared.read_change_contents(change)?;
            if let (Some(target), Some(now)) = (contents.0.as_text(), contents.1.as_text())
                && !self.compared.has_several_names(change)?
            {
                return self.ask_hunks(change.path(), target, now, choice);
            }
        }
        let shown = |path: &[u8]| self.paths.format_path(path);
        let question = match (change.kind, &change.old, &change.new) {
            (ChangeKind::Renamed, Some(old), Some(new)) => {
                format!("Move '{}' back to '{}'", shown(&new.path), shown(&old.path))
            }
            (_, None, Some(new)) if new.kind == FileKind::Dir => {
                format!("Delete the directory '{}' with all that is in it", shown(&new.path))
            }
            (_, None, _) => format!("Delete '{}'", shown(change.path())),
            (_, Some(old), None) if old.kind == FileKind::Dir => {
                format!("Bring back the directory '{}' with all that is in it", shown(&old.path))
            }
            (_, Some(_), None) => format!("Bring back '{}'", shown(change.path())),
            (_, Some(_), Some(_)) => format!("Restore '{}'", shown(change.path())),
        };
        match self.ask(&question)? {
            RestoreAnswer::Yes | RestoreAnswer::AllOfFile => {
                choice
                    .paths
                    .extend([&change.old, &change.new].into_iter().flatten().map(|side| side.path.clone()));
                // Both sides of a change have one path unless it is a rename.
                choice.paths.dedup();
            }
            RestoreAnswer::No | RestoreAnswer::NoneOfFile => {}
            RestoreAnswer::Quit => choice.is_ended = true,
        }
        Ok(())
    }

    fn ask_hunks(&self, path: &[u8], target: &[u8], now: &[u8], choice: &mut RestoreChoice) -> Result<()> {
        let ui = &self.context.ui;
        let diff = LineDiff::compare_texts(now, target);
        let hunks = diff.list_hunks();
        let mut is_chosen = vec![false; hunks.len()];
        ui.print_line(ui.style.paint_bold(&self.paths.format_path(path)))?;
        for (number, hunk) in hunks.iter().enumerate() {
            let mut text = Vec::new();
            // Into memory, which takes everything.
            diff.write_hunk(&mut text, hunk).map_err(CliError::Output)?;
            ui.write_bytes(&if ui.style.is_coloured() { paint_patch(&text) } else { text })?;
            let question = format!("({}/{}) Restore this change", number + 1, hunks.len());
            match self.ask(&question)? {
                RestoreAnswer::Yes => is_chosen[number] = true,
                RestoreAnswer::No => {}
                RestoreAnswer::AllOfFile => {
                    is_chosen[number..].fill(true);
                    break;
                }
                RestoreAnswer::NoneOfFile => break,
                RestoreAnswer::Quit => {
                    choice.is_ended = true;
                    break;
                }
            }
        }
        if is_chosen.iter().all(|chosen| *chosen) {
            // With its permissions and times.
            choice.paths.push(path.to_vec());
        } else if is_chosen.contains(&true) {
            let after = diff.apply_hunks(&hunks, &is_chosen);
            choice.edits.push(FileEdit { path: path.to_vec(), before: now.to_vec(), after });
        }
        Ok(())
    }

    fn ask(&self, question: &str) -> Result<RestoreAnswer> {
        let flag = interrupt::install_signal_handlers();
        let ui = &self.context.ui;
        loop {
            ui.print_prompt(&format!("{question} [y,n,a,d,q,?]? "))?;
            let Some(line) = read_answer_line(&flag)? else {
                ui.print_prompt("\n")?;
                return Err(CliError::Stopped { resume: "nothing was done: run the command again".into() });
            };
            match line.trim() {
                "y" => return Ok(RestoreAnswer::Yes),
                "n" => return Ok(RestoreAnswer::No),
                "a" => return Ok(RestoreAnswer::AllOfFile),
                "d" => return Ok(RestoreAnswer::NoneOfFile),
                "q" => return Ok(RestoreAnswer::Quit),
                _ => ui.print_prompt(HELP)?,
            }
        }
    }
}

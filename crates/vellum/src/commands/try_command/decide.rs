//! What becomes of a try whose command has ended.

use super::super::merge::{self, MergeReports};
use crate::context::CommandContext;
use crate::error::Result;
use crate::experiment::fork::TryFork;
use crate::experiment::note::TryNote;
use crate::interrupt;
use crate::ui::answer::read_answer_line;

/// What becomes of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TryDecision {
    /// Its changes are merged into the worktree, and it is removed.
    Apply,
    /// It is removed.
    Discard,
    /// It stays a try.
    Keep,
    /// Its fork becomes a worktree of this name.
    KeepAs(String),
}

impl TryDecision {
    /// Its name in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Discard => "discard",
            Self::Keep | Self::KeepAs(_) => "keep",
        }
    }

    /// The worktree that stays, of the try `name`.
    pub fn worktree<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        match self {
            Self::Apply | Self::Discard => None,
            Self::Keep => Some(name),
            Self::KeepAs(name) => Some(name),
        }
    }
}

/// Asks the user.
pub fn ask_decision(context: &CommandContext) -> Result<TryDecision> {
    let flag = interrupt::install_signal_handlers();
    loop {
        context.ui.print_prompt("[a]pply these changes, [k]eep the try, or [d]iscard it? ")?;
        let Some(line) = read_answer_line(&flag)? else {
            // At the end of the input nobody has decided: to keep the try loses nothing.
            context.ui.print_prompt("\n")?;
            return Ok(TryDecision::Keep);
        };
        match line.trim() {
            "a" | "apply" => return Ok(TryDecision::Apply),
            "k" | "keep" => return Ok(TryDecision::Keep),
            "d" | "discard" => return Ok(TryDecision::Discard),
            _ => {}
        }
    }
}

/// Does what was decided. Returns the merge that applied the changes.
pub fn carry_out(
    fork: &mut TryFork<'_>,
    decision: &TryDecision,
    context: &CommandContext,
) -> Result<Option<MergeReports>> {
    match decision {
        TryDecision::Apply => return apply(fork, context).map(Some),
        TryDecision::Discard => fork.discard()?,
        TryDecision::Keep => {
            fork.unmount()?;
            context.ui.print_note(format_choices(&fork.note))?;
        }
        TryDecision::KeepAs(name) => {
            // A kept try must have a result: it becomes an ordinary worktree, whose last snapshot that is.
            fork.seal()?;
            fork.keep_as(name)?;
            context.ui.print_note(match &fork.note.copy {
                None => format!("'vellum mount --worktree {name} DIR' shows the worktree {name}"),
                Some(place) => format!("the worktree {name} is in {}", place.format_path()),
            })?;
        }
    }
    Ok(None)
}

/// Merges the changes into the worktree. With conflicts, the try stays: the merge may be taken back.
fn apply(fork: &mut TryFork<'_>, context: &CommandContext) -> Result<MergeReports> {
    fork.seal()?;
    // Unmounted before the merge, which reads from the store what the process of the fork still has to put there.
    fork.unmount()?;
    let merged = merge::merge_snapshot(&fork.note.name, &fork.snapshot_note(), context)?;
    match merged.has_findings() {
        // Not discarded yet: its snapshot is a parent of the merge, which may still be aborted and begun anew.
        true => context.ui.print_note(format!(
            "the try is still there: when the merge is finished, 'vellum try --discard {}' removes it",
            fork.note.name
        ))?,
        false => fork.discard()?,
    }
    Ok(merged)
}

/// The commands that go on with a try.
pub fn format_choices(note: &TryNote) -> String {
    let place = note.copy.as_ref().map(|place| format!(" in {}", place.format_path())).unwrap_or_default();
    let name = &note.name;
    format!(
        "the try is kept{place}: 'vellum try --apply {name}' applies its changes, 'vellum try --discard {name}' discards them, \
         'vellum try --keep {name}' makes it a worktree"
    )
}

//! `vellum status`: where the worktree stands, and what changed since.

use std::ffi::OsString;

use serde::Serialize;
use vellum_checkout::Worktree;

use super::snapshot::warn_of_interrupted;
use crate::compare::Compared;
use crate::context::Context;
use crate::context::names::Names;
use crate::error::{Outcome, Result};
use crate::ui::changes::{self, Counts, Detail, Shown, collapse, list};
use crate::ui::json::{self, Problem};
use crate::ui::progress::Task;

/// Show what changed since the last snapshot
///
/// A added, M modified, R renamed, D deleted; then what differs beside the content. A new directory stands for all
/// that is in it, unless --all is given. Exits with 1 if anything changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these paths
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// List what is in new and deleted directories too
    #[arg(short, long)]
    all: bool,
}

#[derive(Serialize)]
struct Report {
    worktree: String,
    directory: String,
    head: Option<json::Snapshot>,
    clean: bool,
    counts: Counts,
    changes: Vec<changes::Item>,
    problems: Vec<Problem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_restore: Option<Interrupted>,
}

#[derive(Serialize)]
struct Interrupted {
    target: String,
    safety: Option<String>,
}

/// Shows it.
pub fn run(args: &Args, context: &Context) -> Result<Outcome> {
    let worktree = context.worktree()?;
    let paths = context.paths(worktree.root()).parse_all(&args.paths)?;
    let compared = context
        .watch(Task { first: "Scanning", verb: "Comparing", item: "file" }, |meter| {
            Compared::with_directory(&worktree, None, &paths, meter)
        })
        .map_err(|error| error.or_resume("nothing was changed"))?;
    let outcome = Outcome::findings(!compared.changes.is_empty() || !compared.problems.is_empty());
    if context.ui.json() {
        report(context, &worktree, compared)?;
    } else {
        print(args, context, &worktree, &compared)?;
    }
    Ok(outcome)
}

fn report(context: &Context, worktree: &Worktree, compared: Compared<'_>) -> Result<()> {
    let names = Names::load(&worktree.volume)?;
    let interrupted = worktree.interrupted_restore()?.map(|found| Interrupted {
        target: found.target.to_string(),
        safety: found.safety.map(|id| id.to_string()),
    });
    context.ui.object(&Report {
        worktree: worktree.volume.worktree.worktree.clone(),
        directory: worktree.root().display().to_string(),
        head: worktree.head()?.map(|entry| names.json(&entry)),
        clean: compared.changes.is_empty(),
        counts: Counts::of(&compared.changes),
        changes: compared.changes.iter().map(changes::Item::from).collect(),
        problems: compared.problems,
        interrupted_restore: interrupted,
    })
}

fn print(args: &Args, context: &Context, worktree: &Worktree, compared: &Compared<'_>) -> Result<()> {
    let ui = &context.ui;
    let names = Names::load(&worktree.volume)?;
    let name = ui.style.cyan(&worktree.volume.worktree.worktree);
    let head = worktree.head()?;
    let stands = match &head {
        Some(entry) => format!("at {}", names.describe(entry)),
        None => "without a snapshot".into(),
    };
    ui.note(format!("Worktree {name} {stands}"))?;
    warn_of_interrupted(context, worktree)?;
    ui.warn_of(&compared.problems)?;
    let shown = if args.all {
        compared.changes.iter().map(|change| Shown { change, below: 0 }).collect()
    } else {
        collapse(&compared.changes)
    };
    let paths = context.paths(worktree.root());
    for line in list(ui.style, &shown, Detail::Aspects, |path| paths.show(path)) {
        ui.line(line)?;
    }
    match (compared.changes.is_empty(), &head) {
        (true, _) if !compared.problems.is_empty() => Ok(()),
        (true, Some(_)) => ui.note("nothing changed since"),
        (true, None) => ui.note("and nothing to record"),
        (false, _) => ui.note(Counts::of(&compared.changes)),
    }
}

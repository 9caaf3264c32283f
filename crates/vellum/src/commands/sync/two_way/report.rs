//! Reports of a two-way run, for people and as JSON.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_sync::model::listing::TreeListing;
use vellum_sync::two_way::{ConflictEnding, EntryConflict, TwoWaySide};

use super::super::args::Args;
use super::super::itemize::itemize_steps;
use super::super::line_format::SyncDirection;
use super::super::report::{SyncRun, SyncRunJson};
use super::{TwoWayEndpoints, TwoWayRun};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::json::{NameJson, ProblemJson};

#[derive(Serialize)]
struct TwoWayJson {
    dry_run: bool,
    first_run: bool,
    renamed: Vec<RenamedJson>,
    conflicts: Vec<TwoWayConflictJson>,
    to_second: SyncRunJson,
    to_first: SyncRunJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    problems: Vec<ProblemJson>,
}

#[derive(Serialize)]
struct RenamedJson {
    side: &'static str,
    #[serde(flatten)]
    name: NameJson,
    new: NameJson,
}

#[derive(Serialize)]
struct TwoWayConflictJson {
    #[serde(flatten)]
    name: NameJson,
    ending: &'static str,
}

/// Reports a run. Returns how it ended.
pub fn report_two_way_run(
    ran: &TwoWayRun,
    sides: &TwoWayEndpoints,
    args: &Args,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    // Renamed versions have their new names in the plan, so that the listings must have them, too.
    let listings = ran.plan.renamed_listings(ran.sight.both_listings());
    let listing = |which: TwoWaySide| -> &TreeListing {
        match which {
            TwoWaySide::First => listings[0],
            TwoWaySide::Second => listings[1],
        }
    };
    let runs = TwoWaySide::BOTH.map(|from| SyncRun {
        words: format!(
            "from '{}' to '{}'",
            from.select_from(&sides.typed),
            from.opposite().select_from(&sides.typed)
        ),
        from: listing(from),
        to: listing(from.opposite()),
        plan: from.select_from(&ran.plan.plans),
        done: ran.done.as_ref().map(|done| from.select_from(&done.reports)),
        direction: SyncDirection::Send,
        notes: Vec::new(),
        hides_idle: ran.hides_idle,
    });
    let problems = collect_run_problems(ran, &runs);
    let stopped = ran.done.as_ref().is_some_and(|done| done.is_stopped());
    let stopped = stopped
        .then(|| CliError::Stopped { resume: "run the command again: it goes on where it stopped".into() });
    if context.ui.is_json() {
        // A failure is an object of its own.
        if let Some(error) = stopped {
            return Err(error);
        }
        context.ui.print_json(&to_two_way_json(ran, &runs, args, problems.clone()))?;
    } else {
        print_two_way_lines(ran, &runs, sides, args, context)?;
        context.ui.print_problems(&problems)?;
    }
    if let Some(error) = stopped {
        return Err(error);
    }
    // Conflicts are what a dry run is to show, and no finding there.
    let open = !args.show.dry_run && ran.plan.open_conflicts().next().is_some();
    let outcomes = runs.iter().map(SyncRun::command_outcome);
    Ok(outcomes.fold(CommandOutcome::from_findings(open || !problems.is_empty()), CommandOutcome::max))
}

fn collect_run_problems(ran: &TwoWayRun, runs: &[SyncRun<'_>; 2]) -> Vec<ProblemJson> {
    let mut problems = Vec::new();
    for which in TwoWaySide::BOTH {
        let done = ran.done.iter().flat_map(|done| &which.select_from(&done.renamed).problems);
        problems.extend(done.map(|problem| ProblemJson::new(&problem.path, problem.message.clone())));
    }
    // Both directions have the same listings: what could not be listed is reported once.
    for problem in runs.iter().flat_map(SyncRun::collect_problems) {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems
}

fn print_two_way_lines(
    ran: &TwoWayRun,
    runs: &[SyncRun<'_>; 2],
    sides: &TwoWayEndpoints,
    args: &Args,
    context: &CommandContext,
) -> Result<()> {
    let ui = &context.ui;
    if let Some(Some(why)) = &ran.first {
        let hint = "nothing is deleted, and what differs is a conflict, as in a first run";
        ui.print_warning(format!("the archive of this pair is ignored, since {why}: {hint}"))?;
    }
    if ui.voice.quiet {
        return Ok(());
    }
    if args.show.dry_run && ran.first.is_some() {
        ui.print_note(
            "The two directories have not been synchronized before: nothing is deleted on either side",
        )?;
    }
    for conflict in &ran.plan.conflicts {
        ui.print_note(format!(
            "conflict: '{}' {}",
            format_path(&conflict.path),
            describe_conflict(conflict)
        ))?;
    }
    for which in TwoWaySide::BOTH {
        for one in which.select_from(&ran.plan.renamings).iter() {
            ui.print_line(format!(
                "  rename  {} -> {} (in '{}')",
                format_path(&one.path),
                format_path(&one.name),
                which.select_from(&sides.typed)
            ))?;
        }
    }
    for run in runs {
        if itemize_steps(run.plan, run.from, run.to).next().is_some() || args.show.stats {
            if !args.show.dry_run {
                ui.print_line(format!("{}:", run.words))?;
            }
            run.print_lines(args, context)?;
        }
    }
    if let Some((_, refusal)) = &ran.plan.refusal {
        ui.print_line(format!("This would be refused: {refusal}"))?;
    }
    if ran.plan.is_empty() && !ran.hides_idle {
        let entries = runs.first().map_or(0, |run| run.plan.counts.entries);
        ui.print_line(format!("Nothing to do: {} agree", crate::ui::format::format_count(entries, "entry")))?;
    }
    Ok(())
}

fn describe_conflict(conflict: &EntryConflict) -> &'static str {
    let deleted = conflict.entries.iter().any(Option::is_none);
    match (conflict.ending, deleted) {
        (ConflictEnding::Wins(TwoWaySide::First), false) => "was changed on both sides: the first one stays",
        (ConflictEnding::Wins(TwoWaySide::Second), false) => {
            "was changed on both sides: the second one stays"
        }
        (ConflictEnding::Wins(_), true) => "was deleted on one side and changed on the other",
        (ConflictEnding::Renamed(_), _) => "was changed on both sides: both are kept",
        (ConflictEnding::Open, _) => "was changed on both sides: both are left as they are",
    }
}

fn to_two_way_json(
    ran: &TwoWayRun,
    runs: &[SyncRun<'_>; 2],
    args: &Args,
    problems: Vec<ProblemJson>,
) -> TwoWayJson {
    let side = |which: TwoWaySide| if which == TwoWaySide::First { "first" } else { "second" };
    let renamed = TwoWaySide::BOTH.into_iter().flat_map(|which| {
        let all = which.select_from(&ran.plan.renamings).iter();
        all.map(move |one| RenamedJson {
            side: side(which),
            name: NameJson::new(&one.path),
            new: NameJson::new(&one.name),
        })
    });
    let conflicts = ran.plan.conflicts.iter().map(|conflict| TwoWayConflictJson {
        name: NameJson::new(&conflict.path),
        ending: match conflict.ending {
            ConflictEnding::Wins(TwoWaySide::First) => "first",
            ConflictEnding::Wins(TwoWaySide::Second) => "second",
            ConflictEnding::Renamed(_) => "both",
            ConflictEnding::Open => "open",
        },
    });
    // The list below has the problems of both directions, each once.
    let [forth, back] = runs.each_ref().map(|run| run.to_json(args, Vec::new()));
    TwoWayJson {
        dry_run: args.show.dry_run,
        first_run: ran.first.is_some(),
        renamed: renamed.collect(),
        conflicts: conflicts.collect(),
        to_second: forth,
        to_first: back,
        refused: ran.plan.refusal.as_ref().map(|(_, refusal)| refusal.to_string()),
        problems,
    }
}

//! What a person, or a program, is told of a two-way run.

use serde::Serialize;
use vellum_sync::listing::Listing;
use vellum_sync::two_way::{Conflict, Ending, Which};
use vellum_volume::tree::show;

use super::super::args::Args;
use super::super::itemize::told;
use super::super::report::{Run, Shown};
use super::{Ran, Sides};
use crate::context::Context;
use crate::error::{CliError, Outcome, Result};
use crate::ui::json::{Name, Problem};

#[derive(Serialize)]
struct Both {
    dry_run: bool,
    first_run: bool,
    renamed: Vec<Renamed>,
    conflicts: Vec<Disagreed>,
    to_second: Shown,
    to_first: Shown,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct Renamed {
    side: &'static str,
    #[serde(flatten)]
    name: Name,
    new: Name,
}

#[derive(Serialize)]
struct Disagreed {
    #[serde(flatten)]
    name: Name,
    ending: &'static str,
}

/// Tells of a run; gives how it ended.
pub fn tell(ran: &Ran, sides: &Sides, args: &Args, context: &Context) -> Result<Outcome> {
    let listings = ran.plan.listings(ran.sight.both());
    let listing = |which: Which| -> &Listing {
        match which {
            Which::First => listings[0],
            Which::Second => listings[1],
        }
    };
    let runs = Which::BOTH.map(|from| Run {
        words: format!("from '{}' to '{}'", from.of(&sides.typed), from.other().of(&sides.typed)),
        from: listing(from),
        to: listing(from.other()),
        plan: from.of(&ran.plan.plans),
        done: ran.done.as_ref().map(|done| from.of(&done.reports)),
    });
    let problems = problems(ran, &runs);
    if context.ui.json() {
        context.ui.object(&both(ran, &runs, args, problems.clone()))?;
    } else {
        lines(ran, &runs, args, context)?;
        context.ui.warn_of(&problems)?;
    }
    if ran.done.as_ref().is_some_and(|done| done.stopped()) {
        return Err(CliError::Stopped {
            resume: "run the command again: it goes on where it stopped".into(),
        });
    }
    let open = !args.show.dry_run && ran.plan.open().next().is_some();
    let outcomes = runs.iter().map(Run::outcome);
    Ok(outcomes.fold(Outcome::findings(open || !problems.is_empty()), Outcome::max))
}

fn problems(ran: &Ran, runs: &[Run<'_>; 2]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for which in Which::BOTH {
        let done = ran.done.iter().flat_map(|done| &which.of(&done.renamed).problems);
        problems.extend(done.map(|problem| Problem::new(&problem.path, problem.message.clone())));
    }
    // Both directions have the same listings: what could not be listed is told once.
    for problem in runs.iter().flat_map(Run::problems) {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems
}

fn lines(ran: &Ran, runs: &[Run<'_>; 2], args: &Args, context: &Context) -> Result<()> {
    let ui = &context.ui;
    if let Some(Some(why)) = &ran.first {
        let hint = "nothing is deleted, and what differs is a conflict, as in a first run";
        ui.warn(format!("the archive of this pair counts for nothing, since {why}: {hint}"))?;
    }
    if ui.voice.quiet {
        return Ok(());
    }
    if args.show.dry_run && ran.first.is_some() {
        ui.note("These two have not met before: nothing is deleted on either side")?;
    }
    for conflict in &ran.plan.conflicts {
        ui.note(format!("conflict: '{}' {}", show(&conflict.path), words(conflict)))?;
    }
    for which in Which::BOTH {
        for one in which.of(&ran.plan.renamings).iter() {
            let side = runs.get(which as usize).map(|run| run.words.as_str()).unwrap_or_default();
            let from = side.split(" to ").next().unwrap_or_default().trim_start_matches("from ");
            ui.line(format!("  rename  {} -> {} (in {from})", show(&one.path), show(&one.name)))?;
        }
    }
    for run in runs {
        if told(run.plan, run.from, run.to).next().is_some() || args.show.stats {
            if !args.show.dry_run {
                ui.line(format!("{}:", run.words))?;
            }
            run.lines(args, context)?;
        }
    }
    if let Some((_, refusal)) = &ran.plan.refusal {
        ui.line(format!("This would be refused: {refusal}"))?;
    }
    if ran.plan.is_empty() && !args.show.only_changes.get() {
        let entries = runs.first().map_or(0, |run| run.plan.counts.entries);
        ui.line(format!("Nothing to do: {} agree", crate::ui::format::count(entries, "entry")))?;
    }
    Ok(())
}

fn words(conflict: &Conflict) -> &'static str {
    let deleted = conflict.entries.iter().any(Option::is_none);
    match (conflict.ending, deleted) {
        (Ending::Wins(Which::First), false) => "was changed on both sides: the first one stays",
        (Ending::Wins(Which::Second), false) => "was changed on both sides: the second one stays",
        (Ending::Wins(_), true) => "was deleted on one side and changed on the other",
        (Ending::Renamed(_), _) => "was changed on both sides: both are kept",
        (Ending::Open, _) => "was changed on both sides: both are left as they are",
    }
}

fn both(ran: &Ran, runs: &[Run<'_>; 2], args: &Args, problems: Vec<Problem>) -> Both {
    let side = |which: Which| if which == Which::First { "first" } else { "second" };
    let renamed = Which::BOTH.into_iter().flat_map(|which| {
        let all = which.of(&ran.plan.renamings).iter();
        all.map(move |one| Renamed {
            side: side(which),
            name: Name::new(&one.path),
            new: Name::new(&one.name),
        })
    });
    let conflicts = ran.plan.conflicts.iter().map(|conflict| Disagreed {
        name: Name::new(&conflict.path),
        ending: match conflict.ending {
            Ending::Wins(Which::First) => "first",
            Ending::Wins(Which::Second) => "second",
            Ending::Renamed(_) => "both",
            Ending::Open => "open",
        },
    });
    let [forth, back] = runs.each_ref().map(|run| run.shown(args, Vec::new()));
    Both {
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

//! `vellum operations`: what was done with a worktree or the volume, by whom and when.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;
use vellum_volume::Volume;
use vellum_volume::operations::{
    ChainCheck, ChainListing, CheckedCheckpoint, Checkpoint, KeyChange, ListedOperation, OperationEffect,
    OperationProblem, OperationRecord, RefEffect, RevertDirection, RevertedOperation,
};
use vellum_volume::refs::{RefKind, WorktreeHead};

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};
use crate::ui::{format, json};

/// List what was done, newest first: every command that changed a worktree, a tag, snapshots or keys
///
/// The columns are: number, local time, user and host, the command, and what it changed. Secrets are left out of commands.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show at most N; 0 shows all
    #[arg(short, long, value_name = "N", default_value_t = 20)]
    number: usize,
    /// Of this worktree [default: the one that the directory is in]
    #[arg(long, value_name = "WORKTREE")]
    worktree: Option<String>,
    /// Of all worktrees, also of those that were removed
    #[arg(short, long, conflicts_with = "worktree")]
    all: bool,
    /// Check that no record was edited, removed, moved or lost; exit with 1 if one was
    #[arg(long)]
    verify: bool,
}

#[derive(Serialize)]
struct OperationsJson {
    operations: Vec<OperationJson>,
    more: bool,
}

#[derive(Serialize)]
struct OperationJson {
    number: u64,
    hash: String,
    time: String,
    user: String,
    host: String,
    process: u32,
    worktree: String,
    command: Vec<String>,
    changes: Vec<OperationEffectJson>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum OperationEffectJson {
    Worktree { name: String, counter: u64, before: Option<HeadJson>, after: Option<HeadJson> },
    Tag { name: String, counter: u64, before: Option<String>, after: Option<String> },
    Pin(PresenceJson),
    Settings(PresenceJson),
    Note(PresenceJson),
    Chain(PresenceJson),
    Forgotten { snapshot: String },
    Collected { packs: u64, hash: String },
    Key { change: &'static str, subject: String },
    Made { snapshot: String },
    Recovered { snapshot: String },
    Thinned { number: u64, records: u64, time: String },
    Undo(RevertedOperationJson),
    Redo(RevertedOperationJson),
}

/// The operation that another one takes back, or carries out once more.
#[derive(Serialize)]
struct RevertedOperationJson {
    worktree: Option<String>,
    number: u64,
    hash: String,
}

/// A ref of which operations are listed without its content.
#[derive(Serialize)]
struct PresenceJson {
    name: String,
    counter: u64,
    was_there: bool,
    is_there: bool,
}

#[derive(Serialize)]
struct HeadJson {
    snapshot: Option<String>,
    host: String,
    directory: String,
    quota_bytes: Option<u64>,
    quota_inodes: Option<u64>,
    trash_days: u32,
}

#[derive(Serialize)]
struct CheckJson {
    chains: u64,
    operations: u64,
    problems: Vec<OperationProblemJson>,
    unfinished: Vec<OperationProblemJson>,
    checkpoints: Vec<CheckpointJson>,
}

/// Where a chain ends of which old records were deleted.
#[derive(Serialize)]
struct CheckpointJson {
    worktree: Option<String>,
    number: u64,
    records: u64,
    time: String,
}

#[derive(Serialize)]
struct OperationProblemJson {
    worktree: Option<String>,
    number: Option<u64>,
    reason: String,
}

/// Lists the operations, or checks them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let worktree = args.worktree.clone().unwrap_or_else(|| volume.worktree.worktree.clone());
    if args.verify {
        let check = match args.all {
            true => volume.verify_all_operations()?,
            false => volume.verify_operations(&worktree)?,
        };
        return report_check(context, &check);
    }
    let limit = if args.number == 0 { usize::MAX } else { args.number };
    let listing = match args.all {
        true => volume.list_all_operations(limit)?,
        false => volume.list_operations(&worktree, limit)?,
    };
    report_operations(context, &volume, &listing)?;
    if listing.more && !context.ui.is_json() {
        let more = args.number.saturating_mul(5);
        let all = if args.all { "--all " } else { "" };
        context.ui.print_note(format!("older ones: vellum operations {all}-n {more}"))?;
    }
    Ok(CommandOutcome::Done)
}

fn report_operations(context: &CommandContext, volume: &Volume, listing: &ChainListing) -> Result<()> {
    let ui = &context.ui;
    let ChainListing { operations, more, .. } = listing;
    if ui.is_json() {
        let operations = operations.iter().map(to_operation_json).collect();
        return ui.print_json(&OperationsJson { operations, more: *more });
    }
    let mut table = TextTable::new([0]);
    for ListedOperation { link, record } in operations {
        let effects: Vec<_> = summarize_effects(record, volume);
        table.add_row([
            link.sequence.to_string(),
            format::format_local_time(record.time),
            format_path(format!("{}@{}", record.user, record.host)),
            format_path(record.command.join(" ")),
            effects.join("; "),
        ]);
    }
    // On a narrow terminal, the time is worth less than what was done.
    let optional: &[usize] = if ui.is_narrow() { &[1, 2] } else { &[2] };
    let shortened = [ShortenedColumn::keep_beginning(3), ShortenedColumn::keep_beginning(4)];
    table.fit_columns(ui.output_columns(), &TableFit { optional, shortened: &shortened });
    ui.print_lines(table.format_lines())?;
    if operations.is_empty() {
        ui.print_note("nothing is recorded yet")?;
    }
    Ok(())
}

/// What an operation changed, in words; forgotten snapshots are counted.
fn summarize_effects(record: &OperationRecord, volume: &Volume) -> Vec<String> {
    let mut forgotten = 0;
    let mut recovered = 0;
    let mut summary = Vec::new();
    for effect in &record.effects {
        match effect {
            OperationEffect::Ref(effect) => summary.push(summarize_ref(effect, volume)),
            // A run of `forget` may have thousands, and the table has one line for it.
            OperationEffect::Forgotten(_) | OperationEffect::Discarded(_) => forgotten += 1,
            OperationEffect::Recovered(_) => recovered += 1,
            OperationEffect::Made(id) => {
                // Of any other, it is said that the worktree stands on it.
                let outside = record.outside_snapshot().is_some();
                summary.extend(outside.then(|| format!("made {}", format::shorten_id(&id.to_string()))));
            }
            OperationEffect::Thinned(checkpoint) => summary.push(summarize_checkpoint(checkpoint)),
            OperationEffect::Reverted(reverted) => summary.push(summarize_reverted(reverted, volume)),
            OperationEffect::Collected { packs, .. } => {
                summary.push(format!("deleted {}", format::format_count(*packs, "pack")));
            }
            OperationEffect::Key(change, subject) => {
                summary.push(format!("{} {}", describe_key_change(*change), format_path(subject)));
            }
        }
    }
    if forgotten > 0 {
        summary.push(format!("forgot {}", format::format_count(forgotten, "snapshot")));
    }
    if recovered > 0 {
        summary.push(format!("brought {} back", format::format_count(recovered, "snapshot")));
    }
    summary
}

fn summarize_checkpoint(checkpoint: &Checkpoint) -> String {
    let Checkpoint { last, records, time } = checkpoint;
    let records = format::format_count(*records, "old record");
    format!("deleted {records}, up to {} of {}", last.sequence, format::format_local_time(*time))
}

fn summarize_reverted(reverted: &RevertedOperation, volume: &Volume) -> String {
    let RevertedOperation { direction, worktree, link } = reverted;
    let verb = match direction {
        RevertDirection::Undo => "undoes",
        RevertDirection::Redo => "redoes",
    };
    let of = worktree.as_ref().filter(|worktree| **worktree != volume.worktree.worktree);
    let of = of.map(|worktree| format!(" of {}", format_path(worktree))).unwrap_or_default();
    format!("{verb} {}{of}", link.sequence)
}

fn summarize_ref(effect: &RefEffect, volume: &Volume) -> String {
    let RefEffect { kind, name, before, after, .. } = effect;
    let what = match kind {
        // Most are about the worktree that is looked at.
        RefKind::Worktree if *name == volume.worktree.worktree => String::new(),
        RefKind::Worktree | RefKind::Tag | RefKind::Chain => {
            format!("{} {}: ", kind.display_name(), format_path(name))
        }
        RefKind::Pin | RefKind::Annotation | RefKind::Settings => {
            let subject = match kind {
                RefKind::Settings => String::new(),
                RefKind::Worktree | RefKind::Tag | RefKind::Chain | RefKind::Pin | RefKind::Annotation => {
                    format!(" of {}", format::shorten_id(name))
                }
            };
            let change = match (before.is_empty(), after.is_empty()) {
                (true, false) => "added",
                (_, true) => "removed",
                (false, false) => "changed",
            };
            return format!("{}{subject}: {change}", kind.display_name());
        }
    };
    let target = |value: &[u8]| match kind {
        // What cannot be decoded is shown as no snapshot: a damaged record must not hide all the others.
        RefKind::Worktree => WorktreeHead::decode(value).ok().and_then(|head| head.head),
        RefKind::Tag | RefKind::Chain | RefKind::Pin | RefKind::Annotation | RefKind::Settings => {
            SnapshotId::from_slice(value)
        }
    };
    let short = |id: Option<SnapshotId>| {
        id.map_or_else(|| "no snapshot".into(), |id| format::shorten_id(&id.to_string()).to_owned())
    };
    let change = match (before.is_empty(), after.is_empty()) {
        (true, true) => "removed, damaged".into(),
        (true, false) => format!("added at {}", short(target(after))),
        (false, true) => format!("removed, was {}", short(target(before))),
        (false, false) if target(before) == target(after) => "changed its settings".into(),
        (false, false) => format!("{} -> {}", short(target(before)), short(target(after))),
    };
    format!("{what}{change}")
}

fn describe_key_change(change: KeyChange) -> &'static str {
    match change {
        KeyChange::SlotAdded => "key slot added:",
        KeyChange::SlotRemoved => "key slot removed:",
        KeyChange::Rotated => "key changed:",
    }
}

fn to_operation_json(ListedOperation { link, record }: &ListedOperation) -> OperationJson {
    OperationJson {
        number: link.sequence,
        hash: format_hash(&link.hash),
        time: json::format_json_time(record.time),
        user: record.user.clone(),
        host: record.host.clone(),
        process: record.pid,
        worktree: record.worktree.clone(),
        command: record.command.clone(),
        changes: record.effects.iter().map(to_effect_json).collect(),
    }
}

fn to_effect_json(effect: &OperationEffect) -> OperationEffectJson {
    match effect {
        OperationEffect::Ref(RefEffect { kind, name, counter, before, after }) => {
            let name = name.clone();
            let counter = *counter;
            let presence = |name| PresenceJson {
                name,
                counter,
                was_there: !before.is_empty(),
                is_there: !after.is_empty(),
            };
            match kind {
                RefKind::Worktree => OperationEffectJson::Worktree {
                    name,
                    counter,
                    before: to_head_json(before),
                    after: to_head_json(after),
                },
                RefKind::Pin => OperationEffectJson::Pin(presence(name)),
                RefKind::Settings => OperationEffectJson::Settings(presence(name)),
                RefKind::Annotation => OperationEffectJson::Note(presence(name)),
                RefKind::Chain => OperationEffectJson::Chain(presence(name)),
                RefKind::Tag => {
                    let target = |value: &[u8]| SnapshotId::from_slice(value).map(|id| id.to_string());
                    OperationEffectJson::Tag { name, counter, before: target(before), after: target(after) }
                }
            }
        }
        OperationEffect::Forgotten(id) | OperationEffect::Discarded(id) => {
            OperationEffectJson::Forgotten { snapshot: id.to_string() }
        }
        OperationEffect::Recovered(id) => OperationEffectJson::Recovered { snapshot: id.to_string() },
        OperationEffect::Thinned(Checkpoint { last, records, time }) => OperationEffectJson::Thinned {
            number: last.sequence,
            records: *records,
            time: json::format_json_time(*time),
        },
        OperationEffect::Made(id) => OperationEffectJson::Made { snapshot: id.to_string() },
        OperationEffect::Reverted(RevertedOperation { direction, worktree, link }) => {
            let reverted = RevertedOperationJson {
                worktree: worktree.clone(),
                number: link.sequence,
                hash: format_hash(&link.hash),
            };
            match direction {
                RevertDirection::Undo => OperationEffectJson::Undo(reverted),
                RevertDirection::Redo => OperationEffectJson::Redo(reverted),
            }
        }
        OperationEffect::Collected { packs, hash, .. } => {
            OperationEffectJson::Collected { packs: *packs, hash: format_hash(hash) }
        }
        OperationEffect::Key(change, subject) => OperationEffectJson::Key {
            change: match change {
                KeyChange::SlotAdded => "slot-added",
                KeyChange::SlotRemoved => "slot-removed",
                KeyChange::Rotated => "rotated",
            },
            subject: subject.clone(),
        },
    }
}

/// None if the worktree was not there.
fn to_head_json(value: &[u8]) -> Option<HeadJson> {
    let head = WorktreeHead::decode(value).ok()?;
    Some(HeadJson {
        snapshot: head.head.map(|id| id.to_string()),
        host: head.host,
        directory: head.place,
        quota_bytes: head.quota.bytes,
        quota_inodes: head.quota.inodes,
        trash_days: head.trash.days,
    })
}

fn format_hash(hash: &[u8; 32]) -> String {
    vellum_types::BlobId(*hash).to_string()
}

fn report_check(context: &CommandContext, check: &ChainCheck) -> Result<CommandOutcome> {
    let ui = &context.ui;
    let ChainCheck { chains, operations, problems, unfinished, checkpoints } = check;
    // What is unfinished is no finding: a process that was killed leaves such records, and nothing is wrong with them.
    let outcome = CommandOutcome::from_findings(!problems.is_empty());
    if ui.is_json() {
        let list = |problems: &[OperationProblem]| problems.iter().map(to_problem_json).collect();
        ui.print_json(&CheckJson {
            chains: *chains,
            operations: *operations,
            problems: list(problems),
            unfinished: list(unfinished),
            checkpoints: checkpoints.iter().map(to_checkpoint_json).collect(),
        })?;
        return Ok(outcome);
    }
    for problem in problems {
        ui.print_line(format!("{}: {}", format_path(problem.subject()), format_path(&problem.reason)))?;
    }
    for note in unfinished {
        ui.print_note(format!("{}: {}", format_path(note.subject()), note.reason))?;
    }
    for CheckedCheckpoint { worktree, checkpoint } in checkpoints {
        let chain = match worktree {
            Some(worktree) => format!("worktree '{worktree}'"),
            None => "the volume".into(),
        };
        ui.print_note(format!("{}: {}", format_path(chain), summarize_checkpoint(checkpoint)))?;
    }
    let checked = format::format_count(*operations, "operation");
    match problems.is_empty() {
        true => ui.print_line(format!("{checked}: all as they were recorded"))?,
        false => {
            ui.print_line(format!("{} in {checked}", format::format_count(problems.len() as u64, "problem")))?
        }
    }
    Ok(outcome)
}

fn to_checkpoint_json(found: &CheckedCheckpoint) -> CheckpointJson {
    let Checkpoint { last, records, time } = found.checkpoint;
    CheckpointJson {
        worktree: found.worktree.clone(),
        number: last.sequence,
        records,
        time: json::format_json_time(time),
    }
}

fn to_problem_json(problem: &OperationProblem) -> OperationProblemJson {
    let OperationProblem { worktree, sequence, reason, .. } = problem.clone();
    OperationProblemJson { worktree, number: sequence, reason }
}

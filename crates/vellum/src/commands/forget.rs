//! `vellum forget`: takes snapshots out of the history, by name or by rules.

mod rules;

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;
use vellum_volume::gc::CollectionRequest;
use vellum_volume::history::HistoryEntry;
use vellum_volume::retention::{KeepReason, RetentionDecision, RetentionPlan, RetentionRequest};
use vellum_volume::{Volume, VolumeError};

use self::rules::{RetentionArgs, parse_zone};
use crate::commands::config::load_settings_with_volume;
use crate::commands::gc::{GcRunJson, collect, print_collection};
use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::table;
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};
use crate::ui::{format, json};

/// Remove snapshots from the history
///
/// Either those that you name, or, with the rules, those that no rule keeps. 'vellum gc run' then frees the data that only
/// they hold.
///
/// The rules apply to the snapshots of one worktree, and to each worktree by itself. A snapshot stays if any rule keeps
/// it. Whatever the rules are, these stay: a worktree's current snapshot, its newest one, tagged and pinned snapshots, those
/// that a mount or a view reads, those from which two worktrees descend, and those made by a clock that was ahead. Safety snapshots have rules of their own: the
/// newest 3 stay, and all of the last 14 days, unless 'vellum config' sets others.
///
/// --policy applies the rules that 'vellum config' has set: 'vellum config set --volume retention.keep-daily 7'.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "vellum forget [OPTIONS] SNAP...\n       vellum forget [OPTIONS] --keep-last N | --keep-daily N | ...\n       vellum forget [OPTIONS] --policy"
)]
pub struct Args {
    /// The snapshots
    #[arg(value_name = "SNAP", required_unless_present = "rules", conflicts_with = "rules")]
    snapshots: Vec<String>,
    #[command(flatten)]
    rules: RetentionArgs,
    /// Apply the rules that are set: those of the worktree, the volume, and the user ('vellum config list')
    #[arg(long, group = "rules", conflicts_with_all = POLICY_CONFLICTS)]
    policy: bool,
    /// Apply the rules to this worktree (again for more) [default: this one]
    #[arg(long, value_name = "WORKTREE", requires = "rules")]
    worktree: Vec<String>,
    /// Apply the rules to all worktrees, also to those that were removed
    #[arg(long, requires = "rules", conflicts_with = "worktree")]
    all: bool,
    /// Forget tagged snapshots, too, unless --keep-tag names a tag of theirs; their tags are removed
    #[arg(long, requires = "rules")]
    ignore_tags: bool,
    /// Forget named snapshots that a mount or a view reads; apply rules that keep no snapshot of a worktree but those that
    /// always stay
    #[arg(long)]
    force: bool,
    /// Time zone whose days and hours count
    #[arg(long, value_name = "ZONE", requires = "rules", default_value = "UTC", value_parser = parse_zone)]
    zone: TimeZone,
    /// Then delete the data that no snapshot needs, as 'vellum gc run' does
    #[arg(long, alias = "prune", conflicts_with = "dry_run")]
    gc: bool,
    /// Print what would be forgotten, and forget nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// Rules that are typed, beside which those that are set do not count.
const POLICY_CONFLICTS: &[&str] = &[
    "keep_last",
    "keep_hourly",
    "keep_daily",
    "keep_weekly",
    "keep_monthly",
    "keep_yearly",
    "keep_within",
    "keep_within_hourly",
    "keep_within_daily",
    "keep_within_weekly",
    "keep_within_monthly",
    "keep_within_yearly",
    "keep_tag",
    "zone",
];

#[derive(Serialize)]
struct ForgetJson {
    dry_run: bool,
    forgotten: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    snapshots: Vec<DecisionJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    collected: Option<GcRunJson>,
}

#[derive(Serialize)]
struct DecisionJson {
    id: String,
    worktree: String,
    time: String,
    kept: bool,
    reasons: Vec<String>,
    before_parent: bool,
}

/// Forgets them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    // Loaded first: what was forgotten has no short id any more.
    let names = SnapshotNames::load_all(&volume)?;
    if args.rules.is_empty() && !args.policy {
        forget_named(args, &volume, &names, context)
    } else {
        apply_rules(args, &volume, &names, context)
    }
}

fn forget_named(
    args: &Args,
    volume: &Volume,
    names: &SnapshotNames,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    // All names are resolved before the first snapshot is forgotten: 'HEAD~1 HEAD~2' must not change its meaning
    // meanwhile.
    let mut entries: Vec<HistoryEntry> = Vec::with_capacity(args.snapshots.len());
    for typed in &args.snapshots {
        let entry = volume.resolve_snapshot(typed)?;
        // Two names may mean one snapshot, which is forgotten and told once.
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
    if !args.force {
        check_not_read(volume, &ids)?;
    }
    if args.dry_run {
        // A dry run fails as the run itself would, instead of promising what is refused then.
        volume.check_forgettable(&ids)?;
    } else {
        volume.forget_snapshots(&ids)?;
    }
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&ForgetJson {
            dry_run: args.dry_run,
            forgotten: list_ids(&ids),
            snapshots: Vec::new(),
            // Within the object, because JSON output is one object, and a collection has a result of its own.
            collected: collect_for_json(args, volume, context)?,
        })?;
        return Ok(CommandOutcome::Done);
    }
    if !ui.voice.quiet {
        let verb = if args.dry_run { "Would forget" } else { "Forgot" };
        for entry in &entries {
            ui.print_line(format!("{verb} {}", names.describe_snapshot(entry)))?;
        }
    }
    finish_forgetting(args, volume, context)
}

/// Fails if somebody reads what would be in no history any more: it stays readable, and cannot be viewed again.
fn check_not_read(volume: &Volume, ids: &[SnapshotId]) -> Result<()> {
    let Some((id, reader)) = volume.find_read_snapshot(ids)? else { return Ok(()) };
    // The source of a mount of a snapshot is the snapshot's id.
    let source = format!("vellum:{id}");
    let mounts = if reader.is_here { table::read_mounts()? } else { Vec::new() };
    let place = mounts.into_iter().find(|mount| table::is_vellum_mount(mount) && mount.source == source);
    let reason = match place {
        Some(mount) => format!("it is viewed on {} by {reader}", mount.mountpoint.display()),
        None => format!("{reader} reads it"),
    };
    let what = format!("snapshot {}", volume.short_id(&id)?);
    Err(VolumeError::InUse { what, reason: format!("{reason}; '--force' forgets it all the same") }.into())
}

fn apply_rules(
    args: &Args,
    volume: &Volume,
    names: &SnapshotNames,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let settings = load_settings_with_volume(volume, context)?;
    let policy =
        if args.policy { settings.retention_policy() } else { args.rules.to_policy(args.zone.clone()) };
    if args.policy && policy.is_empty() {
        return Err(CliError::usage_error(
            "no rule is set that says which snapshots to keep",
            "for example 'vellum config set --volume retention.keep-daily 7'",
        ));
    }
    let plan = volume.plan_retention(&RetentionRequest {
        policy,
        safety: settings.safety_policy(),
        worktrees: choose_worktrees(args, volume),
        ignores_tags: args.ignore_tags,
        now: vellum_host::clock::current_time(),
    })?;
    // Mostly a mistyped rule: nothing that a rule says can be meant to leave a worktree without any snapshot. A dry run says what
    // the run itself does, and is refused like it.
    if let Some(name) = plan.emptied.first().filter(|_| !args.force) {
        return Err(CliError::usage_error(
            format!("the rules keep no snapshot of the worktree '{}'", format_path(name)),
            "'--force' applies the rules all the same; with '--dry-run', it shows what they would forget",
        ));
    }
    let unkept: Vec<_> = plan.decisions.iter().filter(|it| !it.is_kept()).map(|it| it.entry.id).collect();
    let forgotten = if args.dry_run { unkept } else { forget_unkept(&unkept, volume, names)? };
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&ForgetJson {
            dry_run: args.dry_run,
            forgotten: list_ids(&forgotten),
            snapshots: plan.decisions.iter().map(DecisionJson::new).collect(),
            collected: collect_for_json(args, volume, context)?,
        })?;
        return Ok(CommandOutcome::Done);
    }
    if !ui.voice.quiet {
        print_plan(&plan, names, context)?;
    }
    let kept = plan.decisions.len() - plan.decisions.iter().filter(|it| !it.is_kept()).count();
    let verb = if args.dry_run { "would forget" } else { "forgot" };
    ui.print_note(format!(
        "kept {}, {verb} {}",
        format::format_count(kept as u64, "snapshot"),
        format::format_number(forgotten.len() as u64)
    ))?;
    if forgotten.is_empty() && !args.gc {
        return Ok(CommandOutcome::Done);
    }
    finish_forgetting(args, volume, context)
}

fn choose_worktrees(args: &Args, volume: &Volume) -> Option<BTreeSet<String>> {
    match (args.all, args.worktree.as_slice()) {
        (true, _) => None,
        (false, []) => Some(BTreeSet::from([volume.worktree.worktree.clone()])),
        (false, named) => Some(named.iter().cloned().collect()),
    }
}

/// Forgets snapshots, with the tags that they have: those which kept them are not among them.
fn forget_unkept(ids: &[SnapshotId], volume: &Volume, names: &SnapshotNames) -> Result<Vec<SnapshotId>> {
    for tag in ids.iter().flat_map(|id| names.tags_of_snapshot(id)) {
        // Before the snapshots: what a tag names is not forgotten.
        volume.remove_tag(tag)?;
    }
    Ok(volume.forget_snapshots(ids)?)
}

fn print_plan(plan: &RetentionPlan, names: &SnapshotNames, context: &CommandContext) -> Result<()> {
    let ui = &context.ui;
    let has_several =
        plan.decisions.windows(2).any(|two| two[0].entry.record.worktree != two[1].entry.record.worktree);
    let mut table = TextTable::default();
    for decision in &plan.decisions {
        let record = &decision.entry.record;
        let mut reasons: Vec<_> = decision.reasons.iter().map(describe_reason).collect();
        if decision.is_before_parent {
            reasons.push("dated before its parent".into());
        }
        let worktree = if has_several { format_path(&record.worktree) } else { String::new() };
        table.add_row([
            if decision.is_kept() { "keep" } else { "forget" }.into(),
            names.short_id(&decision.entry.id),
            format::format_local_minute(record.time),
            worktree,
            reasons.join(", "),
            names.first_line_of_note(&decision.entry),
        ]);
    }
    // On a narrow terminal, the time is worth less than why a snapshot stays.
    let optional: &[usize] = if ui.is_narrow() { &[2] } else { &[] };
    let shortened = [ShortenedColumn::keep_beginning(5), ShortenedColumn::keep_beginning(4)];
    table.fit_columns(ui.output_columns(), &TableFit { optional, shortened: &shortened });
    ui.print_lines(table.format_lines())?;
    Ok(())
}

/// Collects, if that was asked for, or says how.
fn finish_forgetting(args: &Args, volume: &Volume, context: &CommandContext) -> Result<CommandOutcome> {
    if args.gc {
        print_collection(context, &collect(volume, &CollectionRequest::default(), context)?)?;
    } else if !args.dry_run {
        context.ui.print_note("'vellum gc run' frees what only they held")?;
    }
    Ok(CommandOutcome::Done)
}

fn collect_for_json(args: &Args, volume: &Volume, context: &CommandContext) -> Result<Option<GcRunJson>> {
    let collect = || collect(volume, &CollectionRequest::default(), context);
    Ok(args.gc.then(collect).transpose()?.as_ref().map(GcRunJson::from))
}

fn list_ids(ids: &[SnapshotId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

impl DecisionJson {
    fn new(decision: &RetentionDecision) -> Self {
        let record = &decision.entry.record;
        Self {
            id: decision.entry.id.to_string(),
            worktree: record.worktree.clone(),
            time: json::format_json_time(record.time),
            kept: decision.is_kept(),
            reasons: decision.reasons.iter().map(describe_reason).collect(),
            before_parent: decision.is_before_parent,
        }
    }
}

/// Why a snapshot stays, in a word or two.
fn describe_reason(reason: &KeepReason) -> String {
    match reason {
        KeepReason::Head(worktree) => format!("worktree {}", format_path(worktree)),
        KeepReason::Tag(tag) => format!("tag {tag}"),
        KeepReason::Pinned(pin) => format!("pinned by {pin}"),
        KeepReason::InUse(reader) => format!("in use by {reader}"),
        KeepReason::Newest => "newest".into(),
        KeepReason::MergeBase => "merge base".into(),
        KeepReason::Future => "in the future".into(),
        KeepReason::Last => "last".into(),
        KeepReason::Within => "within".into(),
        KeepReason::KeptTag(tag) => format!("kept tag {tag}"),
        KeepReason::Period(period) => period.rule_word().into(),
        KeepReason::PeriodWithin(period) => format!("within {}", period.rule_word()),
        KeepReason::Oldest(period) => format!("oldest {}", period.rule_word()),
    }
}

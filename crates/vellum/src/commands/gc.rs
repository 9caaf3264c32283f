//! `vellum gc`: gives back what no snapshot needs, in two steps.

use std::path::PathBuf;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::RequestPurpose;
use vellum_volume::Volume;
use vellum_volume::gc::{self, CollectionPlan, CollectionReport, CollectionRequest, PackAction};
use vellum_volume::session::WaitingSession;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::progress::ProgressTask;
use crate::ui::table::TextTable;
use crate::ui::{format, json};

const TASK: ProgressTask =
    ProgressTask { first: "Reading the index", verb: "Walking snapshots", item: "node" };

/// Delete data that no snapshot needs
///
/// It is safe while others write, on this machine or elsewhere: nothing that they need is deleted. If the metadata of a
/// snapshot or worktree is spread over more than 64 small packs, as after many publications of a mount, they are joined.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print what 'gc run' would do, and change nothing
    Plan {
        #[command(flatten)]
        lost: LostRecordArgs,
    },
    /// Delete the data that 'gc plan' lists
    Run {
        /// Delete only what is in the plan that 'vellum gc plan --json' wrote to FILE
        #[arg(long, value_name = "FILE")]
        plan: Option<PathBuf>,
        #[command(flatten)]
        lost: LostRecordArgs,
        /// End the session NAME; use it only if its writer is gone for certain
        ///
        /// The session of a writer that was killed on another machine stays for up to 24 hours, in which 'gc run'
        /// deletes nothing. If the writer is still running, its command fails, and creates no snapshot. Can be
        /// repeated.
        #[arg(long, value_name = "NAME")]
        end_session: Vec<String>,
    },
}

/// Snapshots whose records are lost.
#[derive(Debug, clap::Args)]
pub struct LostRecordArgs {
    /// Go on although the record of snapshot ID is missing or damaged, and delete what only it needs
    ///
    /// Without it, a missing or damaged record stops the command, because it is unknown what the snapshot needs. ID
    /// is the id or its beginning. Can be repeated.
    #[arg(long, value_name = "ID")]
    without: Vec<String>,
}

#[derive(Serialize)]
struct GcPlanJson<'a> {
    #[serde(flatten)]
    plan: &'a CollectionPlan,
    freed: u64,
}

/// What a collection did.
#[derive(Serialize)]
pub struct GcRunJson {
    snapshots: u64,
    deleted_packs: u64,
    repacked_packs: u64,
    joined_packs: u64,
    freed: u64,
    deleted_operations: u64,
    writers: u64,
    waiting: Vec<SessionWait>,
}

/// A session that was waited for.
#[derive(Serialize)]
struct SessionWait {
    object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl From<&WaitingSession> for SessionWait {
    fn from(writer: &WaitingSession) -> Self {
        // A session that cannot be read is known by its object alone.
        let session = writer.session.as_ref();
        Self {
            object: writer.object.clone(),
            host: session.ok().map(|session| session.host.clone()),
            process: session.ok().map(|session| session.pid),
            renewed: session.ok().map(|session| json::format_json_time(session.renewed)),
            problem: session.err().cloned(),
        }
    }
}

/// Plans or runs.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    // Its requests are counted apart from those of commands that somebody waits for.
    RequestPurpose::Upkeep.set_for_process();
    match command {
        Command::Plan { lost } => plan_collection(lost, context),
        Command::Run { plan, lost, end_session } => {
            let volume = context.open_volume()?;
            // Read before anything is collected: a file that is no plan must not cost a run without one.
            let approved = plan.as_ref().map(|file| read_plan_file(context, file)).transpose()?;
            let request = CollectionRequest {
                approved: approved.as_ref(),
                without: &lost.without,
                ended_sessions: end_session,
            };
            execute_collection(&volume, &request, context)
        }
    }
}

fn plan_collection(lost: &LostRecordArgs, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let plan = context
        .run_with_progress(TASK, |meter| gc::plan_collection(&volume, &lost.without, meter))
        .with_resume_hint("nothing was changed")?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&GcPlanJson { plan: &plan, freed: plan.freed_bytes() })?;
        return Ok(CommandOutcome::Done);
    }
    let blobs = format::format_count(plan.live_blobs, "blob");
    let snapshots = format::format_count(plan.snapshots, "snapshot");
    ui.print_line(format!("Needed by {snapshots}: {} in {blobs}", format::format_size(plan.live_bytes)))?;
    let dead = match (plan.dead_bytes, plan.freed_bytes()) {
        (0, 0) => "nothing".into(),
        // A pack in which little is dead stays as it is: writing it anew would cost more than it frees.
        (dead, freed) if freed < dead => {
            format!(
                "{}, of which {} are worth freeing",
                format::format_size(dead),
                format::format_size(freed)
            )
        }
        (_, freed) => format::format_size(freed),
    };
    ui.print_line(format!("Needed by none: {dead}"))?;
    let joined = plan.packs.iter().filter(|pack| pack.action == PackAction::Join).count();
    if joined > 0 {
        let small = format::format_count(joined as u64, "small pack");
        ui.print_line(format!("Metadata: {small} to be joined into larger ones"))?;
    }
    if ui.voice.verbose {
        let mut table = TextTable::new([2, 3]);
        for pack in &plan.packs {
            let live = format::format_size(pack.live);
            let dead = format::format_size(pack.dead);
            // Enough to find the object in the store, in a line that fits on a terminal.
            let short = pack.pack.get(..16).unwrap_or(&pack.pack);
            table.add_row([
                format_action(pack.action).into(),
                short.into(),
                format!("{live} kept"),
                format!("{dead} freed"),
            ]);
        }
        ui.print_lines(table.format_lines())?;
    }
    if !plan.packs.is_empty() {
        let packs = format::format_count(plan.packs.len() as u64, "pack");
        ui.print_note(format!("'vellum gc run' does it ({packs}; --verbose lists them)"))?;
    }
    Ok(CommandOutcome::Done)
}

fn format_action(action: PackAction) -> &'static str {
    match action {
        PackAction::Delete => "delete",
        PackAction::Repack => "repack",
        PackAction::Join => "join",
        PackAction::Abandoned => "delete (left by a killed writer)",
    }
}

fn execute_collection(
    volume: &Volume,
    request: &CollectionRequest<'_>,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let done = collect(volume, request, context)?;
    if context.ui.is_json() {
        context.ui.print_json(&GcRunJson::from(&done))?;
    } else {
        print_collection(context, &done)?;
    }
    Ok(CommandOutcome::Done)
}

/// Collects, and shows the progress.
pub fn collect(
    volume: &Volume,
    request: &CollectionRequest<'_>,
    context: &CommandContext,
) -> Result<CollectionReport> {
    context
        .run_with_progress(TASK, |meter| gc::run_collection(volume, request, meter))
        .with_resume_hint("nothing that is needed was deleted; 'vellum gc run' continues")
}

impl From<&CollectionReport> for GcRunJson {
    fn from(done: &CollectionReport) -> Self {
        Self {
            snapshots: done.plan.snapshots,
            deleted_packs: done.deleted,
            repacked_packs: done.repacked,
            joined_packs: done.joined,
            freed: done.freed,
            deleted_operations: done.operations,
            writers: done.writers.len() as u64,
            waiting: done.writers.iter().map(SessionWait::from).collect(),
        }
    }
}

fn read_plan_file(context: &CommandContext, file: &std::path::Path) -> Result<CollectionPlan> {
    let shown = file.display().to_string();
    let text =
        std::fs::read(context.resolve_local_path(file)).map_err(CliError::io_error("read", shown.clone()))?;
    serde_json::from_slice(&text).map_err(|error| {
        CliError::usage_error(
            format!("{shown} is not a plan: {error}"),
            "'vellum gc plan --json > FILE' writes one",
        )
    })
}

/// Says what a collection did.
pub fn print_collection(context: &CommandContext, done: &CollectionReport) -> Result<()> {
    let ui = &context.ui;
    // This is not a finding for the exit code: to wait for writers is how the collector works, and a later run
    // continues.
    if !done.writers.is_empty() {
        let writers = format::format_count(done.writers.len() as u64, "other command");
        ui.print_line(format!("Freed nothing: {writers} at work on this volume"))?;
        for writer in &done.writers {
            ui.print_line(format!("    {}", describe_writer(writer)))?;
        }
        ui.print_note("run 'vellum gc run' again when they are done")?;
        // The command is shown with a name that can be copied.
        let session = done.writers.first().map_or("NAME", WaitingSession::session_name);
        ui.print_note(format!(
            "one that was killed on another machine, or cannot be read, counts until it was not renewed for 24 \
             hours; if you know that it is gone, 'vellum gc run --end-session {session}' ends it"
        ))?;
    } else if done.plan.packs.is_empty() {
        ui.print_line("Nothing to free")?;
    } else {
        let deleted = format::format_count(done.deleted, "pack");
        let repacked = format::format_number(done.repacked);
        let joined = match done.joined {
            0 => String::new(),
            joined => format!(", {} joined into larger ones", format::format_number(joined)),
        };
        ui.print_line(format!(
            "Freed {}: {deleted} deleted, {repacked} of them repacked{joined}",
            format::format_size(done.freed)
        ))?;
    }
    Ok(())
}

/// Describes a writer that a collection waits for, on one line. The name of its host comes from the store, and is
/// escaped.
fn describe_writer(writer: &WaitingSession) -> String {
    match &writer.session {
        Ok(session) if session.unpublished.is_some() => format!(
            "the worktree '{}', whose clients have stored what it has not published ({})",
            format_path(session.unpublished.as_deref().unwrap_or_default()),
            writer.object
        ),
        Ok(session) => format!(
            "process {} on {}, last renewed {} ({})",
            session.pid,
            format_path(&session.host),
            format::format_local_time(session.renewed),
            writer.object
        ),
        Err(problem) => format!("a writer whose session cannot be read: {}", format_path(problem)),
    }
}

//! `vellum conformance`: whether the promises of Vellum are kept on this machine.

use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::{StateDir, VolumeError};

use crate::conformance::{ConformanceRequest, PromiseSubject, TrialVerdict, TriedPromise, run_conformance};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::store_args::CredentialsArgs;
use crate::ui::UserInterface;
use crate::ui::format;
use crate::ui::progress::ProgressTask;
use crate::ui::table::{CellLimit, TextTable};

/// Columns of a promise; longer ones go on out of line.
const PROMISE_COLUMNS: usize = 60;

/// Try whether the promises of Vellum are kept on this machine: on a filesystem and a store
///
/// Makes volumes in a directory of its own, and tries each promise by running this program as a user would: snapshots,
/// restores, mounts, commands that are killed, damage. docs/conformance.md lists the promises. What it made is removed at
/// the end. Exits with 1 if a promise is not kept. Takes less than a minute on a local disk.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Make the directory of the run in DIR, on the filesystem that is to be tried [default: the current directory, or
    /// the one that holds the current worktree]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Put the stores of the run into a folder of this store [default: directories in the directory of the run]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    credentials: CredentialsArgs,
}

#[derive(Serialize)]
struct ConformanceJson<'a> {
    conforms: bool,
    directory: String,
    store: Option<&'a str>,
    promises: &'a [TriedPromise],
}

/// Tries them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let directory = choose_directory(args.dir.as_deref(), context)?;
    let locate = |url: &String| args.credentials.locate_store(url, &context.cwd);
    let store = args.store.as_ref().map(locate).transpose().map_err(VolumeError::from)?;
    let request = ConformanceRequest { directory, store };
    let task = ProgressTask { first: "Making a volume", verb: "Trying", item: "promise" };
    let tried = context
        .run_with_progress(task, |meter| run_conformance(&request, meter))
        .with_resume_hint("what was made is removed; run the command again")?;
    let broken = tried.iter().filter(|promise| promise.verdict == TrialVerdict::Fail).count();
    let outcome = CommandOutcome::from_findings(broken > 0);
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&ConformanceJson {
            conforms: broken == 0,
            directory: request.directory.display().to_string(),
            store: request.store.as_ref().map(|store| store.url.as_str()),
            promises: &tried,
        })?;
        return Ok(outcome);
    }
    print_promises(&tried, ui)?;
    ui.print_line(match broken as u64 {
        0 => ui.style.paint_green("All promises that apply here are kept"),
        broken => ui.style.paint_red(&format!("{} not kept", format::format_count(broken, "promise"))),
    })?;
    Ok(outcome)
}

/// Where to make the directory of the run: outside of any worktree, since what lies in one cannot become another.
fn choose_directory(typed: Option<&Path>, context: &CommandContext) -> Result<PathBuf> {
    let Some(typed) = typed else {
        let worktree = StateDir::find_enclosing(&context.cwd).ok();
        // The directory that holds the worktree is most often on the same filesystem.
        let beside = worktree.as_ref().and_then(|state| state.root().parent());
        return Ok(beside.unwrap_or(&context.cwd).to_path_buf());
    };
    let path = context.resolve_local_path(typed);
    let path = path.canonicalize().map_err(CliError::io_error("work in", path.display().to_string()))?;
    if let Ok(state) = StateDir::find_enclosing(&path) {
        let place = format_path(state.root().as_os_str().as_encoded_bytes());
        let message = format!("'{}' lies in the worktree {place}", typed.display());
        return Err(CliError::usage_error(message, "name a directory that is in no worktree"));
    }
    Ok(path)
}

fn print_promises(tried: &[TriedPromise], ui: &UserInterface) -> Result<()> {
    let mut table = TextTable::with_limit([], CellLimit::OutOfLine(PROMISE_COLUMNS));
    for promise in tried {
        let subject = match promise.subject {
            PromiseSubject::CheckedOut => "checked out",
            PromiseSubject::Mounted => "mounted",
            PromiseSubject::Store => "store",
        };
        let verdict = match promise.verdict {
            TrialVerdict::Pass => ui.style.paint_green("pass"),
            TrialVerdict::Fail => ui.style.paint_red("FAIL"),
            TrialVerdict::NotApplicable => ui.style.paint_yellow("n/a"),
        };
        table.add_row([verdict, subject.into(), promise.promise.into(), promise.tried.into()]);
    }
    for (line, promise) in table.format_lines().iter().zip(tried) {
        ui.print_line(line)?;
        if let Some(reason) = &promise.reason {
            ui.print_line(format!("      {}", format_path(reason)))?;
        }
    }
    Ok(())
}

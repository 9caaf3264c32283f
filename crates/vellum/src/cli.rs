//! The command line: what was typed becomes one command with its arguments, is run, and ends with an exit code.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use vellum_volume::operations::{CommandId, set_process_command};

use crate::commands::{
    approve, bandwidth, bench, cache, cat, clone, completion, config, conflicts, conformance, device, diff,
    doctor, evict, export, find, flush, forget, fork, gc, history, hydrate, info, init, key, ls, manual, mcp,
    mdtest, merge, mount, mounts, note, objbench, offline, operations, pin, pins, profile, publish, pull,
    push, redo, remote, resolve, restore, serve, show, snapshot, stats, status, sync, tag, trash,
    try_command, umount, undo, unpin, usage, verify, view, web, worktree,
};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, EXIT_USAGE, Result};
use crate::experiment::namespace as try_namespace;
use crate::settings::{WrongSettings, apply_settings, load_local_settings};
use crate::ui::json::JsonForm;
use crate::ui::preferences::{ColorChoice, OutputPreferences};
use crate::ui::{OutputOptions, UserInterface, format};
use crate::{completers, foreign_words, mount_helper, probe};

/// A filesystem that remembers: snapshot a directory, compare it, roll it back, prove it intact.
#[derive(Debug, Parser)]
#[command(
    name = "vellum",
    version,
    infer_long_args = true,
    disable_help_subcommand = false,
    max_term_width = 100,
    after_help = SNAPSHOT_HELP
)]
pub struct CommandLine {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

const SNAPSHOT_HELP: &str = "\
SNAP names a snapshot: a tag, a worktree, an id or its first digits (4 at least), HEAD (where this
worktree stands, also @), HEAD~3 (three before it), HEAD^2 (the second parent of a merge), latest
(the newest that this worktree has made, also after going back),
'@{2 hours ago}', '@{yesterday}', '@{2026-05-01 13:30}', or origin/main (a worktree or tag of a
remote, as it was last seen).

Exit codes: 0 done; 1 done, and there are differences, damage or problems to look at; 2 failed;
3 bad usage; 4 done, but files vanished while they were copied (sync); 130 stopped by Ctrl-C,
143 by SIGTERM.";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of every command")]
struct GlobalOptions {
    /// Run as if started in DIR
    #[arg(short = 'C', value_name = "DIR", global = true)]
    directory: Option<PathBuf>,
    /// Print the result as one JSON object; with --json=lines, each object in one line, and progress before the result
    /// (docs/json.md)
    #[arg(
        long,
        value_name = "FORM",
        global = true,
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "object",
        hide_possible_values = true
    )]
    json: Option<JsonForm>,
    /// Print only results and errors: no progress, no notes
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Print more; show progress even if standard error is not a terminal
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Colour the output on a terminal (auto), always or never [default: auto, or as NO_COLOR and CLICOLOR_FORCE say]
    #[arg(long, value_name = "WHEN", global = true, value_enum, hide_possible_values = true)]
    color: Option<ColorChoice>,
    /// Do not show long output in a pager
    #[arg(long, global = true)]
    no_pager: bool,
    /// Repeat failed requests to a service for TIME, such as 30s or 2h [default: 5m]
    #[arg(long, value_name = "TIME", global = true, value_parser = format::parse_duration)]
    retry_for: Option<Duration>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Args),
    Clone(clone::Args),
    Status(status::Args),
    Snapshot(snapshot::Args),
    History(history::Args),
    Operations(operations::Args),
    Undo(undo::Args),
    Redo(redo::Args),
    Find(find::Args),
    Show(show::Args),
    Diff(diff::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Export(export::Args),
    Restore(restore::Args),
    Merge(merge::Args),
    Conflicts(conflicts::Args),
    Resolve(resolve::Args),
    Fork(fork::Args),
    Try(try_command::Args),
    // Boxed, because it has far more options than any other command, and an enum is as large as its largest
    // variant.
    Sync(Box<sync::Args>),
    Mount(Box<mount::Args>),
    View(view::Args),
    Serve(serve::Args),
    Web(web::Args),
    Mcp(mcp::Args),
    Approve(approve::Args),
    Umount(umount::Args),
    Mounts(mounts::Args),
    Flush(flush::Args),
    #[command(subcommand)]
    Trash(trash::Command),
    #[command(subcommand)]
    Worktree(worktree::Command),
    #[command(subcommand)]
    Tag(tag::Command),
    Note(note::Args),
    #[command(subcommand)]
    Remote(remote::Command),
    Push(push::Args),
    Pull(pull::Args),
    Publish(publish::Args),
    Verify(verify::Args),
    Doctor(doctor::Args),
    #[command(subcommand)]
    Gc(gc::Command),
    Forget(forget::Args),
    Info(info::Args),
    #[command(subcommand)]
    Config(config::Command),
    Usage(usage::Args),
    Cache(cache::Args),
    Hydrate(hydrate::Args),
    Evict(evict::Args),
    Pin(pin::Args),
    Unpin(unpin::Args),
    Pins(pins::Args),
    Offline(offline::Args),
    Bandwidth(bandwidth::Args),
    #[command(subcommand)]
    Key(key::Command),
    #[command(subcommand)]
    Device(device::Command),
    Bench(bench::Args),
    Mdtest(mdtest::Args),
    Objbench(objbench::Args),
    Conformance(conformance::Args),
    Stats(stats::Args),
    Profile(profile::Args),
    Completion(completion::Args),
    Manual(manual::Args),
    Probe(probe::Args),
}

/// Runs the command that the process was started with. Returns its exit code.
pub fn run_command_line() -> u8 {
    // First of all, while this process has a single thread: a user namespace can be entered by no other.
    if let Some(result) = try_namespace::run_if_started_for_it() {
        return finish_command(&UserInterface::new(OutputOptions::default()), result);
    }
    // Before any thread exists: with threads, the kernel takes milliseconds for each enlargement of the table.
    vellum_host::beneath::reserve_descriptor_table();
    if std::env::args_os().next().is_some_and(|program| mount_helper::is_helper_name(&program)) {
        return mount_helper::run_mount_helper();
    }
    // Before the command line is parsed, which is incomplete while the user presses Tab.
    if completers::answer_shell() {
        return 0;
    }
    let mut cli = match CommandLine::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Looked for in the words, because clap gives no options of a command line that it refuses.
            let form = JsonForm::find_in_words(std::env::args_os().skip(1));
            return match find_foreign_word(&error) {
                Some((word, way)) => crate::ui::report_foreign_word(word, way, form),
                None => crate::ui::report_usage_error(error, EXIT_USAGE, form),
            };
        }
    };
    // The options of a profile are put into the command line, and all of it is parsed once more: clap then checks the
    // options of the profile and those that were typed together.
    if let Command::Sync(args) = &cli.command {
        match sync::expand_named_profile(args, std::env::args_os()) {
            Ok(None) => {}
            Ok(Some(words)) => match CommandLine::try_parse_from(words) {
                Ok(expanded) => cli = expanded,
                Err(error) => return crate::ui::report_usage_error(error, EXIT_USAGE, cli.global.json),
            },
            Err(error) => {
                let voice = OutputOptions { json: cli.global.json, ..OutputOptions::default() };
                return finish_command(&UserInterface::new(voice), Err(error));
            }
        }
    }
    let context = match begin_command(&cli) {
        Ok(context) => context,
        Err(exit_code) => return exit_code,
    };
    // What serves a mount, or a transfer, hears of signals in its own way.
    if !matches!(cli.command, Command::Mount(_) | Command::Serve(_) | Command::Sync(_)) {
        crate::interrupt::observe_long_waits();
    }
    // For what serves a mount nobody waits.
    if !matches!(cli.command, Command::Mount(_) | Command::Serve(_) | Command::View(_)) {
        probe::probe_cache_disks();
    }
    let result = dispatch_command(cli.command, &context).map_err(|error| context.suggest_name(error));
    finish_command(&context.ui, result)
}

/// Lets the options of every command and the settings hold. Returns the exit code if that fails.
fn begin_command(cli: &CommandLine) -> Result<CommandContext, u8> {
    let GlobalOptions { directory, json, quiet, verbose, color, no_pager, retry_for } = &cli.global;
    // Set for the whole process and before any store is opened: commands open stores in many places, and most of
    // them have no arguments to pass on.
    retry_for.iter().copied().for_each(vellum_store::set_retry_time);
    // What these do is asked for by others, and does not belong together.
    let serves = matches!(
        cli.command,
        Command::Mount(_) | Command::View(_) | Command::Serve(_) | Command::Web(_) | Command::Mcp(_)
    );
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    set_process_command(words, if serves { None } else { CommandId::new_random() });
    let voice = |color| OutputOptions { json: *json, quiet: *quiet, verbose: *verbose, color };
    // How output is to look is not known before the settings are read, which can fail.
    let fail = |error| finish_command(&UserInterface::new(voice(color.unwrap_or_default())), Err(error));
    // The log begins before the command does anything, so that it contains the opening of the volume, too.
    crate::ui::log::start_log().map_err(fail)?;
    let directory = CommandContext::resolve_dir(directory.as_deref()).map_err(fail)?;
    // These mend a file of settings in which something is wrong, or say what that is.
    let is_mending = matches!(cli.command, Command::Config(_) | Command::Doctor(_));
    let wrong = if is_mending { WrongSettings::LeaveOut } else { WrongSettings::Refuse };
    let (settings, warnings) = load_local_settings(&directory, wrong).map_err(fail)?;
    let OutputPreferences { color, pager } = OutputPreferences::read(*color, *no_pager, &settings);
    apply_settings(settings);
    let ui = UserInterface::with_pager(voice(color), pager.filter(|_| is_paged_command(&cli.command)));
    match warnings.iter().try_for_each(|warning| ui.print_warning(warning)) {
        Ok(()) => Ok(CommandContext::new(ui, directory)),
        Err(error) => Err(finish_command(&ui, Err(error))),
    }
}

/// Whether a command lists so much that it is read in a pager.
fn is_paged_command(command: &Command) -> bool {
    matches!(
        command,
        Command::History(_) | Command::Operations(_) | Command::Diff(_) | Command::Show(_) | Command::Find(_)
    )
}

/// The word that was typed in the place of a command and belongs to another tool, and how Vellum does it.
fn find_foreign_word(error: &clap::Error) -> Option<(&str, &'static str)> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    // In 'vellum key list', the word is one of a group of commands, which has words of its own.
    let commands = CommandLine::command();
    let mut typed = std::env::args_os().skip(1);
    let first = typed.find(|typed| typed == word.as_str() || commands.find_subcommand(typed).is_some())?;
    if first != word.as_str() {
        return None;
    }
    Some((word, foreign_words::find_own_way(word)?))
}

fn dispatch_command(command: Command, context: &CommandContext) -> Result<CommandOutcome> {
    match command {
        Command::Init(args) => init::run(&args, context),
        Command::Clone(args) => clone::run(&args, context),
        Command::Status(args) => status::run(&args, context),
        Command::Snapshot(args) => snapshot::run(&args, context),
        Command::History(args) => history::run(&args, context),
        Command::Operations(args) => operations::run(&args, context),
        Command::Undo(args) => undo::run(&args, context),
        Command::Redo(args) => redo::run(&args, context),
        Command::Show(args) => show::run(&args, context),
        Command::Diff(args) => diff::run(&args, context),
        Command::Ls(args) => ls::run(&args, context),
        Command::Cat(args) => cat::run(&args, context),
        Command::Export(args) => export::run(&args, context),
        Command::Restore(args) => restore::run(&args, context),
        Command::Merge(args) => merge::run(&args, context),
        Command::Conflicts(args) => conflicts::run(&args, context),
        Command::Resolve(args) => resolve::run(&args, context),
        Command::Fork(args) => fork::run(&args, context),
        Command::Try(args) => try_command::run(&args, context),
        Command::Sync(args) => sync::run(&args, context),
        Command::Mount(args) => mount::run(&args, context),
        Command::View(args) => view::run(&args, context),
        Command::Serve(args) => serve::run(&args, context),
        Command::Web(args) => web::run(&args, context),
        Command::Mcp(args) => mcp::run(&args, context),
        Command::Approve(args) => approve::run(&args, context),
        Command::Umount(args) => umount::run(&args, context),
        Command::Flush(args) => flush::run(&args, context),
        Command::Mounts(args) => mounts::run(&args, context),
        Command::Trash(command) => trash::run(&command, context),
        Command::Worktree(command) => worktree::run(&command, context),
        Command::Tag(command) => tag::run(&command, context),
        Command::Note(args) => note::run(&args, context),
        Command::Remote(command) => remote::run(&command, context),
        Command::Push(args) => push::run(&args, context),
        Command::Pull(args) => pull::run(&args, context),
        Command::Publish(args) => publish::run(&args, context),
        Command::Verify(args) => verify::run(&args, context),
        Command::Doctor(args) => doctor::run(&args, context),
        Command::Gc(command) => gc::run(&command, context),
        Command::Find(args) => find::run(&args, context),
        Command::Forget(args) => forget::run(&args, context),
        Command::Info(args) => info::run(&args, context),
        Command::Config(command) => config::run(&command, context),
        Command::Usage(args) => usage::run(&args, context),
        Command::Cache(args) => cache::run(&args, context),
        Command::Hydrate(args) => hydrate::run(&args, context),
        Command::Evict(args) => evict::run(&args, context),
        Command::Pin(args) => pin::run(&args, context),
        Command::Unpin(args) => unpin::run(&args, context),
        Command::Pins(args) => pins::run(&args, context),
        Command::Offline(args) => offline::run(&args, context),
        Command::Bandwidth(args) => bandwidth::run(&args, context),
        Command::Key(command) => key::run(&command, context),
        Command::Device(command) => device::run(&command, context),
        Command::Bench(args) => bench::run(&args, context),
        Command::Mdtest(args) => mdtest::run(&args, context),
        Command::Objbench(args) => objbench::run(&args, context),
        Command::Conformance(args) => conformance::run(&args, context),
        Command::Stats(args) => stats::run(&args, context),
        Command::Profile(args) => profile::run(&args, context),
        Command::Completion(args) => completion::run(&args, context),
        Command::Manual(args) => manual::run(&args, context),
        Command::Probe(args) => probe::run(&args, context),
    }
}

fn finish_command(ui: &UserInterface, result: Result<CommandOutcome>) -> u8 {
    // The last of the output may still be in the buffer, and writing it can fail: a full disk must not end with exit
    // code 0.
    let result = result.and_then(|outcome| ui.flush_output().map(|()| outcome));
    ui.end_pager();
    match result {
        Ok(outcome) => outcome.exit_code(),
        // In `vellum history | head` the reader closes the pipe when it has enough.
        Err(error) if error.is_broken_pipe() => 0,
        Err(error) => {
            ui.print_error(&error);
            CliError::exit_code(&error)
        }
    }
}

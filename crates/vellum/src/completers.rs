//! What a shell is offered while a command line is typed: commands, options, and the tags, worktrees, ids and paths that
//! are known on this machine.
//!
//! Invariant: nothing is asked over a network, the shell waits for [`DEADLINE`] at most, and a failure offers nothing and
//! says nothing.

mod paths;
mod snapshots;
mod typed_words;

use std::ffi::OsStr;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::{CompleteEnv, Shell};
use vellum_volume::Volume;

use crate::cli::CommandLine;
use crate::context::CommandContext;
use crate::error::Result;
use crate::ui::{OutputOptions, UserInterface};

/// The variable by which a script of a shell asks for candidates.
const VARIABLE: &str = "VELLUM_COMPLETE";
/// How long a shell waits for candidates. Longer is felt at the keyboard.
const DEADLINE: Duration = Duration::from_millis(200);

/// The names of values that are snapshots, possibly among others, in the help of commands.
const SNAPSHOT_VALUES: [&str; 4] = ["SNAP", "A..B", "SNAP|A..B|PATH", "FROM] [TO] [PATH"];

/// Answers a shell that asks for candidates or for its script. False if this process was started for something else.
pub fn answer_shell() -> bool {
    let env = CompleteEnv::with_factory(command_with_completers).var(VARIABLE).completer("vellum");
    // Whatever is wrong with the question, the user is in the middle of a line, where a message would only disturb.
    let asked = std::env::var_os(VARIABLE).is_some_and(|shell| !shell.is_empty());
    env.try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref()).unwrap_or(asked)
}

/// The script that lets a shell ask; none if this shell cannot.
pub fn format_script(shell: Shell) -> std::io::Result<Vec<u8>> {
    let shells = clap_complete::env::Shells::builtins();
    let mut script = Vec::new();
    if let Some(shell) = shells.completer(&shell.to_string()) {
        shell.write_registration(VARIABLE, "vellum", "vellum", "vellum", &mut script)?;
        if shell.name() == "zsh" {
            // From a folder of functions, zsh reads the file when it completes for the first time, and expects candidates
            // already.
            script.extend_from_slice(b"[[ $funcstack[1] == _vellum ]] && _clap_dynamic_completer_vellum\n");
        }
    }
    Ok(script)
}

/// The commands, each of whose values knows what can stand there.
fn command_with_completers() -> Command {
    add_completers(CommandLine::command(), &[])
}

fn add_completers(command: Command, above: &[String]) -> Command {
    let path = [above, &[command.get_name().to_owned()]].concat();
    let takes_snapshot = command.get_arguments().any(|arg| has_value_name(arg, &SNAPSHOT_VALUES));
    let names: Vec<_> = path.iter().skip(1).map(String::as_str).collect();
    let command = command.mut_args(|arg| add_completer(arg, &names, takes_snapshot));
    command.mut_subcommands(|inner| add_completers(inner, &path))
}

fn has_value_name(arg: &Arg, names: &[&str]) -> bool {
    arg.get_value_names().is_some_and(|found| found.iter().any(|found| names.contains(&found.as_str())))
}

/// Lets the value of an argument be completed. `command` is the command's name, with those above it.
fn add_completer(arg: Arg, command: &[&str], takes_snapshot: bool) -> Arg {
    let id = arg.get_id().to_string();
    match (command, id.as_str()) {
        (["tag", "remove"], "names") | (["history"], "tag") => {
            return arg.add(ArgValueCompleter::new(offer(snapshots::list_tags)));
        }
        (["worktree", "rename" | "keep"], "old")
        | (["worktree", "remove" | "quota"], "name")
        | (["mount" | "forget"], "worktree") => {
            return arg.add(ArgValueCompleter::new(offer(snapshots::list_worktrees)));
        }
        (["push" | "pull" | "publish"], "remote")
        | (["remote", "remove" | "show"], "name")
        | (["remote", "rename"], "old") => {
            return arg.add(ArgValueCompleter::new(offer(snapshots::list_remotes)));
        }
        (["sync"], "ends") => return arg.value_hint(ValueHint::AnyPath),
        _ => {}
    }
    if has_value_name(&arg, &["SNAP"]) {
        arg.add(ArgValueCompleter::new(offer(snapshots::list_snapshots)))
    } else if has_value_name(&arg, &["A..B"]) {
        arg.add(ArgValueCompleter::new(offer(snapshots::list_range_ends)))
    } else if has_value_name(&arg, &["FROM] [TO] [PATH", "SNAP|A..B|PATH"]) {
        arg.add(ArgValueCompleter::new(offer(snapshots::list_snapshots_and_paths)))
    } else if has_value_name(&arg, &["PATH"]) && takes_snapshot {
        arg.add(ArgValueCompleter::new(offer(paths::list_paths)))
    } else if has_value_name(&arg, &["PATH"]) {
        arg.value_hint(ValueHint::AnyPath)
    } else {
        arg
    }
}

/// The directory that the command is to work in, and its volume, of which only what is on this machine is read.
pub struct CompletionPlace {
    context: CommandContext,
    volume: Volume,
}

impl CompletionPlace {
    fn open() -> Result<Self> {
        let directory = CommandContext::resolve_dir(typed_words::find_directory().as_deref())?;
        let ui = UserInterface::new(OutputOptions { quiet: true, ..OutputOptions::default() });
        let context = CommandContext::new(ui, directory);
        let volume = context.open_known_volume()?;
        Ok(Self { context, volume })
    }
}

/// A completer that lists candidates for what was typed of a value, in time or not at all.
fn offer(
    list: fn(&CompletionPlace, &OsStr) -> Result<Vec<CompletionCandidate>>,
) -> impl Fn(&OsStr) -> Vec<CompletionCandidate> {
    move |typed| {
        let typed = typed.to_owned();
        let (tell, listed) = channel();
        // A thread of its own, because a disk or a mount may not answer; it ends with the process, which is about to.
        std::thread::spawn(move || {
            let found = CompletionPlace::open().and_then(|place| list(&place, &typed));
            // Nobody waits any more once the deadline is over.
            let _ = tell.send(found.unwrap_or_default());
        });
        listed.recv_timeout(DEADLINE).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_with_completers_are_sound() {
        command_with_completers().debug_assert();
    }
}

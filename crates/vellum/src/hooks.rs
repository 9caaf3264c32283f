//! Hooks: commands of the user that run before or after what Vellum does.
//!
//! Invariants: a hook comes from the settings of this user or this worktree, never from a volume, a snapshot, another
//! machine or another user. It ends: after its time it is killed, with all processes of its group. What it prints cannot control a
//! terminal.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vellum_volume::StateDir;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::interrupt;
use crate::program_settings::ProgramSettings;
use crate::user_program::{ProgramEnd, UserProgram, describe_status};

/// Set for hooks, to the name of the hook. Commands that a hook runs start no hooks.
const HOOK_VARIABLE: &str = "VELLUM_HOOK";

/// When a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookKind {
    /// Before a snapshot is made; a failure stops it.
    BeforeSnapshot,
    /// When a snapshot was made.
    AfterSnapshot,
    /// Before a restore changes files; a failure stops it.
    BeforeRestore,
    /// When a mount is ready.
    AfterMount,
    /// When 'verify' has found damage.
    OnDamage,
}

impl HookKind {
    fn word(self) -> &'static str {
        match self {
            Self::BeforeSnapshot => "before-snapshot",
            Self::AfterSnapshot => "after-snapshot",
            Self::BeforeRestore => "before-restore",
            Self::AfterMount => "after-mount",
            Self::OnDamage => "on-damage",
        }
    }

    /// Whether a failure stops what comes next.
    fn stands_before(self) -> bool {
        match self {
            Self::BeforeSnapshot | Self::BeforeRestore => true,
            Self::AfterSnapshot | Self::AfterMount | Self::OnDamage => false,
        }
    }
}

/// Something that a hook is told, as a variable of its environment.
pub struct HookFact<'a> {
    /// The name of the variable.
    pub name: &'static str,
    /// Its value.
    pub value: &'a OsStr,
}

impl<'a> HookFact<'a> {
    /// The worktree.
    pub fn worktree(name: &'a str) -> Self {
        Self { name: "VELLUM_WORKTREE", value: name.as_ref() }
    }

    /// A snapshot, by its id.
    pub fn snapshot(id: &'a str) -> Self {
        Self { name: "VELLUM_SNAPSHOT", value: id.as_ref() }
    }
}

/// An occasion for a hook.
pub struct HookCall<'a> {
    /// Which.
    pub kind: HookKind,
    /// Whose settings count, beside the user's.
    pub state: &'a StateDir,
    /// Where it runs.
    pub directory: &'a Path,
    /// What it is told.
    pub facts: &'a [HookFact<'a>],
}

/// A hook that is to run.
pub struct Hook {
    kind: HookKind,
    directory: PathBuf,
    program: UserProgram,
}

/// A hook stopped what it stands before.
#[derive(Debug, thiserror::Error)]
#[error("{failure}")]
pub struct HookError {
    failure: String,
    setting: String,
}

impl HookError {
    /// What to do.
    pub fn hint(&self) -> String {
        format!("nothing was done; 'vellum config get {}' shows the command", self.setting)
    }
}

impl HookCall<'_> {
    /// Runs the hook, if one is set. The failure of one that stands before something is an error; that of another one is
    /// a warning and a finding.
    pub fn run(&self, context: &CommandContext) -> Result<CommandOutcome> {
        let Some(hook) = self.find_hook(context)? else { return Ok(CommandOutcome::Done) };
        let ui = &context.ui;
        // What the command says comes before what its hook says.
        ui.flush_output()?;
        let stop = interrupt::install_signal_handlers();
        let failure = hook
            .run(&mut |line| ui.print_program_line(&format!("{}: {line}", self.kind.word())), &|| {
                interrupt::should_stop(&stop)
            })?;
        let Some(failure) = failure else { return Ok(CommandOutcome::Done) };
        if self.kind.stands_before() {
            let setting = format!("hooks.{}", self.kind.word());
            return Err(CliError::Hook(HookError { failure, setting }));
        }
        ui.print_warning(failure)?;
        Ok(CommandOutcome::Findings)
    }

    /// The hook, if one is set. Warns if the worktree has one that is not run.
    pub fn find_hook(&self, context: &CommandContext) -> Result<Option<Hook>> {
        // A hook that makes a snapshot would otherwise start itself again without end.
        if std::env::var_os(HOOK_VARIABLE).is_some() {
            return Ok(None);
        }
        let loaded = ProgramSettings::load(self.state)?;
        let setting = format!("hooks.{}", self.kind.word());
        loaded.warn_if_ignored(&setting, context)?;
        let settings = loaded.settings();
        let Some(line) = settings.get_text(&setting) else { return Ok(None) };
        let limit = settings.get_duration("hooks.timeout").unwrap_or(Duration::from_secs(60));
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(line)
            .current_dir(self.directory)
            .env(HOOK_VARIABLE, self.kind.word())
            .env("VELLUM_DIRECTORY", self.directory)
            .envs(self.facts.iter().map(|fact| (fact.name, fact.value)));
        let program = UserProgram::new(command, limit);
        Ok(Some(Hook { kind: self.kind, directory: self.directory.into(), program }))
    }
}

impl Hook {
    /// Runs it, and hands each line that it prints to `print`, fit to be shown. Returns what failed; None: it succeeded.
    pub fn run(
        mut self,
        print: &mut dyn FnMut(&str) -> Result<()>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<String>> {
        let word = self.kind.word();
        tracing::info!(hook = word, directory = %self.directory.display(), "hook starts");
        let failure = match self.program.run(print, is_stopped)? {
            ProgramEnd::Exited(status) if status.success() => return Ok(None),
            ProgramEnd::Exited(status) => describe_status(status),
            ProgramEnd::TimedOut => {
                let seconds = self.program.limit.as_secs();
                format!("it took longer than {seconds} s (hooks.timeout), and was killed")
            }
            ProgramEnd::Stopped => {
                return Err(CliError::Stopped { resume: format!("the hook '{word}' was killed") });
            }
            ProgramEnd::Failed(error) => format!("it cannot be run: {error}"),
        };
        Ok(Some(format!("the hook '{word}' failed: {failure}")))
    }
}

/// Runs a hook beside a mount in the foreground, which must not wait for it. It is killed when `is_stopped` says so.
pub fn run_beside_mount(hook: Hook, is_stopped: &dyn Fn() -> bool) {
    // The user interface belongs to the main thread. Nobody may read standard error any more, which is no reason to end.
    let print = |line: &str| {
        let _ = writeln!(io::stderr(), "{line}");
    };
    let ran = hook.run(
        &mut |line| {
            print(&format!("after-mount: {line}"));
            Ok(())
        },
        is_stopped,
    );
    if let Ok(Some(failure)) = ran {
        print(&format!("warning: {failure}"));
    }
}

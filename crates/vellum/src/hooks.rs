//! Hooks: commands of the user that run before or after what Vellum does.
//!
//! Invariants: a hook comes from the settings of this user or this worktree, never from a volume, a snapshot or another
//! machine. It ends: after its time it is killed, with all processes of its group. What it prints cannot control a
//! terminal.

use std::ffi::OsStr;
use std::io::{self, PipeReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use vellum_host::escape::EscapedPath;
use vellum_volume::StateDir;
use vellum_volume::settings::{SettingScope, Settings};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::interrupt;
use crate::settings::SettingsFile;

/// Set for hooks, to the name of the hook. Commands that a hook runs start no hooks.
const HOOK_VARIABLE: &str = "VELLUM_HOOK";
/// The end of a hook, and a request to stop it, are noticed within this time.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// A longer line of its output is shown as several, bytes.
const LINE_MAX: usize = 4096;

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
    limit: Duration,
    directory: PathBuf,
    command: Command,
}

/// How a hook ended.
enum HookEnd {
    /// By itself.
    Exited(ExitStatus),
    /// It took too long, and was killed.
    TimedOut,
    /// It was killed because the command is to stop.
    Stopped,
    /// It cannot be started, or not be waited for.
    Failed(io::Error),
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
        let Some(hook) = self.find_hook()? else { return Ok(CommandOutcome::Done) };
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

    /// The hook, if one is set.
    pub fn find_hook(&self) -> Result<Option<Hook>> {
        if std::env::var_os(HOOK_VARIABLE).is_some() {
            return Ok(None);
        }
        let mut settings = Settings::default();
        if let Some(file) = SettingsFile::of_user() {
            settings.add_place(SettingScope::User, file.read()?.values);
        }
        settings.add_place(SettingScope::Worktree, SettingsFile::of_worktree(self.state).read()?.values);
        let Some(line) = settings.get_text(&format!("hooks.{}", self.kind.word())) else { return Ok(None) };
        let limit = settings.get_duration("hooks.timeout").unwrap_or(Duration::from_secs(60));
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(line)
            .current_dir(self.directory)
            .env(HOOK_VARIABLE, self.kind.word())
            .env("VELLUM_DIRECTORY", self.directory)
            .envs(self.facts.iter().map(|fact| (fact.name, fact.value)))
            .stdin(Stdio::null())
            // A group of its own, which is killed as a whole.
            .process_group(0);
        Ok(Some(Hook { kind: self.kind, limit, directory: self.directory.into(), command }))
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
        let failure = match self.run_command(print, is_stopped)? {
            HookEnd::Exited(status) if status.success() => return Ok(None),
            HookEnd::Exited(status) => describe_status(status),
            HookEnd::TimedOut => {
                format!("it took longer than {} s (hooks.timeout), and was killed", self.limit.as_secs())
            }
            HookEnd::Stopped => {
                return Err(CliError::Stopped { resume: format!("the hook '{word}' was killed") });
            }
            HookEnd::Failed(error) => format!("it cannot be run: {error}"),
        };
        Ok(Some(format!("the hook '{word}' failed: {failure}")))
    }

    fn run_command(
        &mut self,
        print: &mut dyn FnMut(&str) -> Result<()>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<HookEnd> {
        let started = io::pipe().and_then(|(reader, writer)| {
            let output = HookOutput::new(reader)?;
            // Standard output is for the result of the command, which programs read.
            self.command.stdout(writer.try_clone()?).stderr(writer);
            let child = self.command.spawn()?;
            // This process keeps no writer: the end of the last one is the end of the output.
            self.command.stdout(Stdio::null()).stderr(Stdio::null());
            Ok((child, output))
        });
        let (mut child, mut output) = match started {
            Ok(started) => started,
            Err(error) => return Ok(HookEnd::Failed(error)),
        };
        let begun = Instant::now();
        loop {
            // In this order: all that was printed before the end is read after it.
            let ended = child.try_wait();
            if let Err(error) = output.print_lines(print) {
                kill_hook(&mut child);
                return Err(error);
            }
            match ended {
                Ok(None) => {}
                Ok(Some(status)) => {
                    return output.print_rest(print).map(|()| HookEnd::Exited(status));
                }
                Err(error) => return Ok(HookEnd::Failed(error)),
            }
            let is_late = begun.elapsed() >= self.limit;
            if is_late || is_stopped() {
                kill_hook(&mut child);
                output.print_lines(print)?;
                output.print_rest(print)?;
                return Ok(if is_late { HookEnd::TimedOut } else { HookEnd::Stopped });
            }
            output.wait();
        }
    }
}

fn kill_hook(child: &mut Child) {
    // The group may have ended just now.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

fn describe_status(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended in an unknown way".into(),
    }
}

/// What a hook prints. Processes that it leaves behind may hold it open: nobody waits for its end.
struct HookOutput {
    reader: PipeReader,
    /// The line that is not complete.
    line: Vec<u8>,
    is_at_end: bool,
}

impl HookOutput {
    fn new(reader: PipeReader) -> io::Result<Self> {
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        Ok(Self { reader, line: Vec::new(), is_at_end: false })
    }

    /// Waits until there is more, for a short time.
    fn wait(&self) {
        if self.is_at_end {
            std::thread::sleep(Duration::from_nanos(LOOK_EVERY.tv_nsec.unsigned_abs()));
            return;
        }
        // A wait that ends early does no harm.
        let _ = poll(&mut [PollFd::new(&self.reader, PollFlags::IN)], Some(&LOOK_EVERY));
    }

    /// Prints the lines that are there. A process that prints without end does not keep it here.
    fn print_lines(&mut self, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        /// As much as a pipe holds.
        const ROUND: usize = 64 << 10;
        let mut bytes = vec![0; ROUND];
        let Ok(count) = self.reader.read(&mut bytes) else { return Ok(()) };
        self.is_at_end = count == 0;
        for byte in &bytes[..count] {
            if *byte == b'\n' || self.line.len() == LINE_MAX {
                self.print_line(print)?;
            }
            if *byte != b'\n' {
                self.line.push(*byte);
            }
        }
        Ok(())
    }

    /// Prints the end of the last line, if it has no end.
    fn print_rest(&mut self, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        if self.line.is_empty() { Ok(()) } else { self.print_line(print) }
    }

    fn print_line(&mut self, print: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let shown = EscapedPath(&self.line).to_string();
        self.line.clear();
        print(&shown)
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

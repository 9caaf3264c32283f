//! The namespaces of a try: in them, the path of the worktree leads to the fork.
//!
//! Only this process and its children see that. What is mounted outside stays as it is.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use clap::Parser;
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{
    Pid, Signal, WaitOptions, getegid, geteuid, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::init::{FirstProcess, exit_code, send_report};
use super::kept_mount::KeptMount;
use super::signals::{ReceivedSignals, WaitEvent};
use super::{StartReport, take_report_pipe};
use crate::error::{CliError, CommandOutcome, Result};

/// The word with which `vellum try` starts this program again.
pub const ENTER_WORD: &str = "enter-try";

/// Enter the namespaces of a try
#[derive(Debug, Parser)]
pub struct Args {
    /// The pipe for the report
    #[arg(long)]
    pub report: i32,
    /// The process that started this one
    #[arg(long)]
    pub parent: i32,
    /// The try
    #[arg(long)]
    pub name: String,
    /// Where the fork is mounted; without it, the command runs in a copy, and no namespace is entered
    #[arg(long, requires = "cover")]
    pub mount: Option<PathBuf>,
    /// What it covers
    #[arg(long, requires = "mount")]
    pub cover: Option<PathBuf>,
    /// The state directory of the volume, if the fork covers it
    #[arg(long, requires = "state_view")]
    pub state: Option<PathBuf>,
    /// The directory on which it is then shown
    #[arg(long, requires = "state")]
    pub state_view: Option<PathBuf>,
    /// What is mounted in the worktree and is shown read-only in the try
    #[arg(long)]
    pub with_mount: Vec<PathBuf>,
    /// Where the command stands
    #[arg(long)]
    pub directory: PathBuf,
    /// Use a user namespace, whoever runs this
    #[arg(long)]
    pub strict: bool,
    /// Wait for what the command leaves running
    #[arg(long)]
    pub wait: bool,
    /// Pass on open files of the caller
    #[arg(long)]
    pub keep_fds: bool,
    /// The command
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Why the namespaces cannot be had.
struct NamespaceError {
    action: &'static str,
    source: io::Error,
    hint: Option<String>,
}

impl NamespaceError {
    fn new(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self { action, source: error.into(), hint: None }
    }
}

/// Enters a try, if that is what this process was started for. These arguments are parsed by themselves: building the
/// parser of all commands takes longer than the rest of the start.
pub fn run_if_started_for_it() -> Option<Result<CommandOutcome>> {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.peek()? != ENTER_WORD {
        return None;
    }
    Some(run(&Args::parse_from(words)))
}

/// Covers the worktree, and runs the command there.
fn run(args: &Args) -> Result<CommandOutcome> {
    let report = File::from(take_report_pipe(args.report));
    let signals = ReceivedSignals::begin()?;
    let started = match args.mount.as_deref().zip(args.cover.as_deref()) {
        Some((mount, worktree)) => enter_namespaces(args, mount, worktree).and_then(|()| {
            fork_process().map_err(|source| NamespaceError {
                action: "start the first process of the try",
                source,
                hint: None,
            })
        }),
        // This process does what the first of a namespace would do.
        None => enter_copy(args).map(|()| ForkedProcess::New),
    };
    match started {
        Ok(ForkedProcess::New) => {
            let first = FirstProcess {
                name: &args.name,
                copy: args.mount.is_none().then_some(args.directory.as_path()),
                state_view: args.state_view.as_deref(),
                wait: args.wait,
                keeps_descriptors: args.keep_fds,
                command: &args.command,
            };
            first.run(report, signals)
        }
        Ok(ForkedProcess::Original { child }) => {
            drop(report);
            let mut signals = signals;
            wait_for_child(child, &mut signals)
        }
        Err(NamespaceError { action, source, hint }) => {
            let message = format!("cannot {action}: {source}");
            send_report(&report, &StartReport::Failed { message, hint });
            Ok(CommandOutcome::Findings)
        }
    }
}

/// Enters the copy that the command is to run in. What the command leaves running becomes a child of this process.
fn enter_copy(args: &Args) -> Result<(), NamespaceError> {
    end_with_parent(args)?;
    // Without a PID namespace, orphans would go to init, and nobody could wait for them or end them.
    set_child_subreaper(Some(getpid())).map_err(NamespaceError::new("watch over what the command starts"))?;
    rustix::process::chdir(&args.directory).map_err(|error| NamespaceError {
        action: "enter the directory in the copy",
        source: error.into(),
        hint: Some(missing_directory_hint(args)),
    })
}

/// Lets this process die with the one that started it.
fn end_with_parent(args: &Args) -> Result<(), NamespaceError> {
    // It cannot fail: the signal exists.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died before the signal was asked for, which then never comes.
    if getppid().map(Pid::as_raw_pid) == Some(args.parent) {
        return Ok(());
    }
    let source = io::Error::other("'vellum try' has ended");
    Err(NamespaceError { action: "run the command", source, hint: None })
}

fn missing_directory_hint(args: &Args) -> String {
    format!(
        "{} is not in the fork: it may be ignored by .vellumignore; run the command from another directory",
        args.directory.display()
    )
}

fn enter_namespaces(args: &Args, fork: &Path, worktree: &Path) -> Result<(), NamespaceError> {
    // Read before `unshare`: within a user namespace without a map both are the overflow id.
    let user = geteuid();
    let group = getegid();
    // Only a user namespace gives users other than root the right to mount, within it.
    let needs_user_namespace = args.strict || !user.is_root();
    // With the first process of a PID namespace, the kernel ends all others in it: what the command leaves running
    // cannot outlive the try.
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWPID;
    if needs_user_namespace {
        flags |= UnshareFlags::NEWUSER;
    }
    #[expect(unsafe_code, reason = "the call can separate the descriptors of threads")]
    // SAFETY: it does not do that with these flags.
    let unshared = unsafe { unshare_unsafe(flags) };
    unshared.map_err(|error| NamespaceError {
        action: "make namespaces for the try",
        source: error.into(),
        hint: namespace_hint(),
    })?;
    if needs_user_namespace {
        map_ids(user.as_raw(), group.as_raw()).map_err(|source| NamespaceError {
            action: "map the user into the namespace of the try",
            source,
            hint: namespace_hint(),
        })?;
    }
    // After the last change of credentials, which clears it.
    end_with_parent(args)?;
    // What is mounted from here on stays in this namespace.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(NamespaceError::new("separate the mounts of the try"))?;
    cover_worktree(args, fork, worktree)?;
    // By its path: the directory that this process stands in is that of the original.
    rustix::process::chdir(&args.directory).map_err(|error| NamespaceError {
        action: "enter the directory in the try",
        source: error.into(),
        hint: Some(missing_directory_hint(args)),
    })
}

fn cover_worktree(args: &Args, fork: &Path, worktree: &Path) -> Result<(), NamespaceError> {
    let state = args.state.as_deref().zip(args.state_view.as_deref());
    let keep = |state: &Path| {
        KeptMount::clone_mounts(state).map_err(NamespaceError::new("keep the state directory in view"))
    };
    // Cloned before the fork covers the worktree: afterwards no path leads to what lies below it.
    let state = state.map(|(state, view)| keep(state).map(|kept| (view, kept))).transpose()?;
    let mut others = Vec::new();
    for place in &args.with_mount {
        let kept = KeptMount::clone_mounts(place).and_then(|kept| kept.make_read_only().map(|()| kept));
        others.push((
            place,
            kept.map_err(NamespaceError::new("keep in view what is mounted in the worktree"))?,
        ));
    }
    mount_bind(fork, worktree).map_err(NamespaceError::new("mount the fork over the worktree"))?;
    if let Some((view, kept)) = state {
        // Not in the fork: the kernel would take it away when a restore exchanges the fork's names.
        kept.show_at(view).map_err(NamespaceError::new("show the state directory in the try"))?;
    }
    for (place, kept) in others {
        kept.show_at(place).map_err(|error| NamespaceError {
            action: "show in the try what is mounted in the worktree",
            source: error.into(),
            hint: Some(format!(
                "the fork may lack {}: .vellumignore keeps it out of snapshots; run the command without --with-mounts",
                place.display()
            )),
        })?;
    }
    Ok(())
}

/// Lets the user be who they are: a build that sees user 0 behaves otherwise.
fn map_ids(user: u32, group: u32) -> io::Result<()> {
    // The kernel refuses a map of groups before this.
    write_process_file("setgroups", "deny")?;
    write_process_file("uid_map", &format!("{user} {user} 1"))?;
    write_process_file("gid_map", &format!("{group} {group} 1"))
}

fn write_process_file(name: &str, text: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/self/{name}"), text)
}

/// What forbids namespaces here, and what allows them.
fn namespace_hint() -> Option<String> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let settings = [
        ("kernel.unprivileged_userns_clone", read("kernel/unprivileged_userns_clone"), 0, "1"),
        ("user.max_user_namespaces", read("user/max_user_namespaces"), 0, "10000"),
        (
            "kernel.apparmor_restrict_unprivileged_userns",
            read("kernel/apparmor_restrict_unprivileged_userns"),
            1,
            "0",
        ),
    ];
    let forbidding = settings.into_iter().find(|(_, value, forbids, _)| *value == Some(*forbids));
    Some(match forbidding {
        Some((name, Some(value), _, allows)) => format!(
            "this system forbids them ({name} = {value}): 'sudo sysctl -w {name}={allows}' allows them, and root does \
             not need them"
        ),
        _ => "a container may forbid them; root of the machine does not need them".into(),
    })
}

/// Which of the two processes that a fork leaves this one is.
enum ForkedProcess {
    /// The one that forked.
    Original { child: Pid },
    /// The one that was made: the first of the PID namespace.
    New,
}

/// Makes a process of this one: to start the program again takes longer, and needs capabilities that outlast that.
fn fork_process() -> io::Result<ForkedProcess> {
    #[expect(unsafe_code, reason = "no safe call forks")]
    // SAFETY: this process has one thread, so that the new one finds no lock taken and no state half changed by another.
    let forked = unsafe { libc::fork() };
    match forked {
        -1 => Err(io::Error::last_os_error()),
        child => {
            Ok(Pid::from_raw(child).map_or(ForkedProcess::New, |child| ForkedProcess::Original { child }))
        }
    }
}

/// Waits for the end of a child; passes signals on. Returns its exit status.
pub fn wait_for_child(child: Pid, signals: &mut ReceivedSignals) -> Result<CommandOutcome> {
    let failed = || CliError::io_error("wait for", "the command");
    loop {
        // Without blocking, because the wait for signals below also ends with a child's end: both are waited for in one
        // place.
        let ended = retry_on_intr(|| waitpid(Some(child), WaitOptions::NOHANG));
        if let Some((_, status)) = ended.map_err(|error| failed()(error.into()))? {
            return Ok(CommandOutcome::Program(exit_code(ExitStatus::from_raw(status.as_raw()))));
        }
        if let WaitEvent::PassOn(signal) = signals.wait()? {
            // It has ended: the next round finds that.
            let _ = kill_process(child, signal);
        }
    }
}

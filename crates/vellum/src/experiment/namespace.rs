//! The namespaces of a try: in them, the path of the worktree leads to the fork.
//!
//! Only this process and its children see that. What is mounted outside stays as it is.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::fs::CWD;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_bind, mount_change, move_mount, open_tree,
};
use rustix::process::{
    Pid, Signal, getegid, geteuid, getppid, kill_process, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set, set_capabilities,
    unshare_unsafe,
};

use super::init::{exit_code, send_report};
use super::signals::{ReceivedSignals, WaitEvent};
use super::{StartReport, TRY_STATE_VARIABLE, take_report_pipe};
use crate::error::{CliError, CommandOutcome, Result};

/// Enter the namespaces of a try
#[derive(Debug, clap::Args)]
#[command(hide = true)]
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
    /// Where the fork is mounted
    #[arg(long)]
    pub mount: PathBuf,
    /// What it covers
    #[arg(long)]
    pub cover: PathBuf,
    /// The state directory of the volume, if the fork covers it
    #[arg(long, requires = "state_view")]
    pub state: Option<PathBuf>,
    /// The directory on which it is then shown
    #[arg(long, requires = "state")]
    pub state_view: Option<PathBuf>,
    /// Where the command stands
    #[arg(long)]
    pub directory: PathBuf,
    /// Use a user namespace, whoever runs this
    #[arg(long)]
    pub strict: bool,
    /// Wait for what the command leaves running
    #[arg(long)]
    pub wait: bool,
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

/// Covers the worktree, and runs the command there.
pub fn run(args: &Args) -> Result<CommandOutcome> {
    let report = File::from(take_report_pipe(args.report));
    let mut signals = ReceivedSignals::begin()?;
    let started = enter_namespaces(args).and_then(|()| {
        start_init(args, &report).map_err(|source| NamespaceError {
            action: "start the first process of the try",
            source,
            hint: None,
        })
    });
    match started {
        Ok(child) => {
            drop(report);
            wait_for_child(child, &mut signals)
        }
        Err(NamespaceError { action, source, hint }) => {
            let message = format!("cannot {action}: {source}");
            send_report(&report, &StartReport::Failed { message, hint });
            Ok(CommandOutcome::Findings)
        }
    }
}

fn enter_namespaces(args: &Args) -> std::result::Result<(), NamespaceError> {
    let user = geteuid();
    let group = getegid();
    let needs_user_namespace = args.strict || !user.is_root();
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
    if needs_user_namespace {
        // The first process of the try needs it once, to show its own processes in /proc. Only root keeps it without this.
        let _ = pass_capability_on();
    }
    // After the last change of credentials, which clears it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid().map(Pid::as_raw_pid) != Some(args.parent) {
        let action = "run the command";
        return Err(NamespaceError {
            action,
            source: io::Error::other("'vellum try' has ended"),
            hint: None,
        });
    }
    // What is mounted from here on stays in this namespace.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(NamespaceError::new("separate the mounts of the try"))?;
    cover_worktree(args)?;
    // By its path: the directory that this process stands in is that of the original.
    rustix::process::chdir(&args.directory).map_err(|error| NamespaceError {
        action: "enter the directory in the try",
        source: error.into(),
        hint: Some(format!(
            "{} is not in the fork: it may be ignored by .vellumignore; run the command from another directory",
            args.directory.display()
        )),
    })
}

fn cover_worktree(args: &Args) -> std::result::Result<(), NamespaceError> {
    let state = args.state.as_deref().zip(args.state_view.as_deref());
    let state = state.map(|(state, view)| {
        // With what is mounted below it: in a user namespace, the kernel does not show what lies beneath a mount.
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, state, flags);
        tree.map(|tree| (view, tree)).map_err(NamespaceError::new("keep the state directory in view"))
    });
    let state = state.transpose()?;
    mount_bind(&args.mount, &args.cover).map_err(NamespaceError::new("mount the fork over the worktree"))?;
    if let Some((view, tree)) = state {
        // Not in the fork: the kernel would take it away when a restore exchanges the fork's names.
        move_mount(&tree, "", CWD, view, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(NamespaceError::new("show the state directory in the try"))?;
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

/// Lets the next program have the capability to mount, in the user namespace.
fn pass_capability_on() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
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
             not need them; or 'vellum fork NAME --mount DIR' gives a copy in another directory to work in"
        ),
        _ => "a container may forbid them; root of the machine does not need them. 'vellum fork NAME --mount DIR' gives \
              a copy in another directory to work in"
            .into(),
    })
}

/// Starts the process that becomes the first of the PID namespace.
fn start_init(args: &Args, report: &File) -> io::Result<Child> {
    fcntl_setfd(report, FdFlags::empty())?;
    // The program may lie below the path that is covered by now: not by its path.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("vellum").args(["init-try", "--report", &report.as_raw_fd().to_string()]);
    command.args(["--name", &args.name]);
    if let Some(view) = &args.state_view {
        command.env(TRY_STATE_VARIABLE, view);
    }
    if args.wait {
        command.arg("--wait");
    }
    command.arg("--").args(&args.command).spawn()
}

/// Waits for the end of a child; passes signals on. Returns its exit status.
pub fn wait_for_child(mut child: Child, signals: &mut ReceivedSignals) -> Result<CommandOutcome> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    loop {
        let ended = child.try_wait().map_err(CliError::io_error("wait for", "the command"))?;
        if let Some(status) = ended {
            return Ok(CommandOutcome::Program(exit_code(status)));
        }
        if let (WaitEvent::PassOn(signal), Some(pid)) = (signals.wait()?, pid) {
            // It has ended: the next round finds that.
            let _ = kill_process(pid, signal);
        }
    }
}

//! `vellum umount`: the end of a mount.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use vellum_fuse::{MountError, MountFile};
use vellum_host::escape::format_path;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::control::{ControlReply, ControlRequest, PendingReply};
use crate::mounting::holders::{self, HoldingProcess};
use crate::mounting::sharing::client::find_client_at;
use crate::mounting::table::{self, MountTableEntry};
use crate::mounting::{MountingError, control, mountpoint};
use crate::probe::is_mount_answering;
use crate::ui::format;

/// How often a mount that is in use is tried again, and how long after: half a second in all.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// How long the mount's process may take to end before it is looked for what holds it, and before the user is told why it
/// takes so long.
const SOON: Duration = Duration::from_millis(500);

/// End a mount
///
/// Everything that was written is put into the store first. A mount that is in use is not ended, unless --lazy is
/// given. Exits with 1 if something could not be put into the store: it is kept on this machine, and goes into the
/// store when the worktree is mounted again. If a service does not answer, it waits for 60 seconds. The mount of a client
/// of a shared worktree ends without its server, too; exits with 1 if something of it may be lost.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mountpoint
    mountpoint: PathBuf,
    /// Detach the mount at once; it ends when nobody uses it any more
    #[arg(long)]
    lazy: bool,
    /// Do not wait for the store: what is not in it is kept on this machine until the worktree is mounted again
    #[arg(long, conflicts_with = "lazy")]
    force: bool,
}

#[derive(Default, Serialize)]
struct UmountJson {
    mountpoint: String,
    was_dead: bool,
    /// Its process did not answer, and was not told.
    was_silent: bool,
    /// Who uses it still.
    users: Vec<String>,
    /// Where it is mounted, too.
    elsewhere: Vec<String>,
    /// What is not in the store.
    unpublished: Option<UnpublishedJson>,
    /// It is a client's, and its server is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_server: Option<WithoutServerJson>,
}

/// What a client's mount leaves behind whose server is away.
#[derive(Serialize)]
struct WithoutServerJson {
    worktree: String,
    /// Requests for changes that were not carried out, or whose answer is not known.
    unanswered_changes: u64,
    /// Whether something was written and not synced since.
    unsynced: bool,
}

impl WithoutServerJson {
    /// Whether something may be lost.
    fn is_finding(&self) -> bool {
        self.unsynced || self.unanswered_changes > 0
    }
}

/// What could not be put into the store.
#[derive(Serialize)]
struct UnpublishedJson {
    worktree: String,
    reason: String,
    snapshots: u64,
    bytes: u64,
    directory: String,
    /// Another took the worktree over: it never goes there.
    taken_over: bool,
}

/// A mount that is about to end, and its process.
struct EndingMount {
    mount: MountTableEntry,
    file: Option<MountFile>,
    server: Option<OwnedFd>,
}

/// Unmounts.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let mountpoint = mountpoint::resolve_mountpoint(&context.resolve_local_path(&args.mountpoint))?;
    let found = table::find_mount_at(&mountpoint)?.filter(table::is_vellum_mount);
    let mount = found.ok_or_else(|| MountingError::NotMounted(mountpoint.clone()))?;
    let mut report = UmountJson { mountpoint: mountpoint.display().to_string(), ..UmountJson::default() };
    // A bind mount has the device number of the mount that it shows: that is how its other mountpoints are found.
    let others =
        table::read_mounts()?.into_iter().filter(|other| other.device == mount.device && *other != mount);
    report.elsewhere = others.map(|other| other.mountpoint.display().to_string()).collect();
    if !is_mount_answering(&mountpoint) {
        if args.lazy {
            // Its process cannot be told, and whoever asks it waits until it goes on.
            report.was_silent = true;
            vellum_fuse::detach_mount(&mountpoint).map_err(MountingError::from)?;
        } else {
            report.without_server = Some(unmount_waiting_client(&mountpoint)?);
        }
    } else if mount.is_dead() {
        // Its process is gone, and with it whoever could flush: all that is left is to clear the mountpoint.
        report.was_dead = true;
        vellum_fuse::detach_mount(&mountpoint).map_err(MountingError::from)?;
    } else if !report.elsewhere.is_empty() {
        // It is bound somewhere else, too: there it goes on.
        // The process goes on for the other mountpoints, so that there is nothing to prepare, to flush or to wait for.
        unmount_with_retries(&mountpoint)?;
    } else {
        let ending = EndingMount::from_mount(mount);
        // As long as this lives, the mount's process knows what is wanted.
        let _prepared = ending.prepare_end(args.force)?;
        // Before either way of ending it, because a mount that was detached cannot be reached by its path any more.
        flush_mount_writes(context, &mountpoint)?;
        if args.lazy {
            ending.detach_mount(&mut report)?
        } else {
            ending.unmount_and_wait(context, &mut report)?
        };
    }
    report_unmount(context, &report)
}

impl EndingMount {
    fn from_mount(mount: MountTableEntry) -> Self {
        // Read while the mount still answers: after it was detached, nothing of it can be asked.
        let file = table::read_mount_file(&mount).ok();
        let pid = file.as_ref().and_then(|file| Pid::from_raw(i32::try_from(file.pid).ok()?));
        // A pidfd names this process even after it has ended, while its number may be given to another.
        let server = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { mount, file, server }
    }

    fn control_socket(&self) -> Option<&Path> {
        self.file.as_ref()?.control.as_deref().map(Path::new)
    }

    /// Tells the process that the mount is about to end. Mounts of snapshots have nobody to tell, and nothing to publish.
    fn prepare_end(&self, skips_publishing: bool) -> Result<Option<PendingReply>> {
        let Some(control) = self.control_socket() else { return Ok(None) };
        let mut pending =
            PendingReply::send_request(control, &ControlRequest::PrepareEnd { skips_publishing })?;
        // Without the answer, writes could still wait for a full write log, and the flush that follows would wait for
        // them.
        pending.poll_reply(None)?;
        Ok(Some(pending))
    }

    fn find_holders(&self) -> Vec<HoldingProcess> {
        // The process that serves the mount and this one are not what the user has to end.
        let server = self.file.as_ref().map(|file| file.pid);
        let except: Vec<u32> = server.into_iter().chain([std::process::id()]).collect();
        holders::find_holding_processes(self.mount.device, &except)
    }

    /// Takes the mount out of sight. What was written so far goes into the store now, the rest when it ends.
    fn detach_mount(&self, report: &mut UmountJson) -> Result<()> {
        if let Some(control) = self.control_socket() {
            report.unpublished = self.unpublished_json(
                // A failure is only reported: what was acknowledged is kept on this machine, and a lazy unmount must not
                // depend on the store.
                control::request_reply(control, &ControlRequest::Flush).err().map(failed_reply),
            );
            // Recorded before the mount is out of sight: the next command that mounts the worktree learns which
            // processes still hold it.
            control::request_reply(control, &ControlRequest::NoteDetached)?;
        }
        // Looked for while the mount is still in the table of mounts.
        report.users = self.find_holders().iter().map(ToString::to_string).collect();
        Ok(vellum_fuse::detach_mount(&self.mount.mountpoint).map_err(MountingError::from)?)
    }

    /// Unmounts, and waits until the process has put everything into the store.
    fn unmount_and_wait(&self, context: &CommandContext, report: &mut UmountJson) -> Result<()> {
        let mountpoint = self.mount.mountpoint.clone();
        let users: Vec<_> =
            self.find_holders().into_iter().filter(|process| process.used.is_some()).collect();
        // The kernel would unmount it here although programs of another mount namespace use it: they would lose it
        // when its process ends.
        if !users.is_empty() && users.iter().all(|process| process.is_elsewhere) {
            let by = holders::format_process_list(&users);
            return Err(MountingError::UsedElsewhere { mountpoint, by }.into());
        }
        let mut question = self
            .control_socket()
            .map(|control| PendingReply::send_request(control, &ControlRequest::AwaitEnd))
            .transpose()?;
        if let Some(question) = &mut question {
            // From now on it does not end without an answer.
            question.poll_reply(None)?;
        }
        unmount_with_retries(&mountpoint)?;
        let answer = self.wait_for_shutdown(context, question)?;
        report.unpublished = self.unpublished_json(answer);
        Ok(())
    }

    /// Waits until the process has ended, and ends it if other mount namespaces keep it from that. Returns its report.
    fn wait_for_shutdown(
        &self,
        context: &CommandContext,
        mut question: Option<PendingReply>,
    ) -> Result<Option<ControlReply>> {
        let mut is_told = false;
        loop {
            let answer = match &mut question {
                // That it died is no reason to fail: what was acknowledged is kept. Whether it is in the store is not known.
                Some(question) => {
                    question.poll_reply(Some(SOON)).unwrap_or_else(|_| Some(lost_process_reply()))
                }
                None => self.wait_for_process_end(SOON)?.then(ControlReply::default),
            };
            // The worktree can be mounted again as soon as the process is gone: its lock ends with it.
            if answer.is_some() {
                self.wait_for_process_end(SOON)?;
                return Ok(answer);
            }
            // The user is told once, and the process gets one signal: a second one would kill it before it has
            // published.
            if is_told {
                continue;
            }
            is_told = true;
            let holding = self.find_holders();
            match (&self.server, holding.is_empty()) {
                // The kernel keeps the connection as long as any mount namespace shows the mount: without a signal,
                // the process would never end.
                (Some(server), false) => {
                    let by = holders::format_process_list(&holding);
                    context.ui.print_warning(format!(
                        "it stays visible in another mount namespace, that of {by}, and fails there from now on"
                    ))?;
                    // A process that is gone has ended.
                    let _ = pidfd_send_signal(server, Signal::TERM);
                }
                _ => context.ui.print_note("publishing changes to the store")?,
            }
        }
    }

    /// Waits for the end of the process for some time: from then on the worktree can be mounted again.
    fn wait_for_process_end(&self, time: Duration) -> Result<bool> {
        // Without a pidfd, the process had ended before or its number could not be read: there is nothing to wait
        // for.
        let Some(server) = &self.server else { return Ok(true) };
        let failed = |error: Errno| CliError::io_error("wait for", "the mount's process")(error.into());
        let time = time.try_into().map_err(|_| failed(Errno::INVAL))?;
        // A pidfd becomes readable when its process ends.
        let ended = retry_on_intr(|| poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&time)));
        Ok(ended.map_err(failed)? > 0)
    }

    /// What is not in the store, by what the process said.
    fn unpublished_json(&self, answer: Option<ControlReply>) -> Option<UnpublishedJson> {
        let answer = answer?;
        let file = self.file.as_ref()?;
        let control = self.control_socket()?;
        // None unless the process named a failure: without one, all of it is in the store.
        Some(UnpublishedJson {
            worktree: file.worktree.clone()?,
            reason: answer.failure?,
            snapshots: answer.waiting,
            bytes: answer.log_bytes,
            taken_over: answer.fenced,
            directory: control.parent()?.display().to_string(),
        })
    }
}

/// Ends the mount of a client whose server is away: what programs had written is there already or nowhere, so that nobody has
/// to be asked.
fn unmount_waiting_client(mountpoint: &Path) -> Result<WithoutServerJson> {
    let found = find_client_at(mountpoint).filter(|(_, client)| !client.connected);
    let (socket, client) = found.ok_or_else(|| MountingError::Silent(mountpoint.into()))?;
    let mut question = PendingReply::send_request(&socket, &ControlRequest::AwaitEnd)?;
    // From now on it does not end without an answer.
    question.poll_reply(None)?;
    unmount_with_retries(mountpoint)?;
    // That it died is no reason to fail: it keeps nothing.
    let _ = question.poll_reply(None);
    Ok(WithoutServerJson {
        worktree: client.worktree,
        unanswered_changes: client.waiting_changes,
        unsynced: client.unsynced,
    })
}

/// What is said for a process that died without saying it.
fn lost_process_reply() -> ControlReply {
    let failure = Some("the process of the mount died before it had published everything".into());
    ControlReply { failure, ..ControlReply::default() }
}

fn failed_reply(error: CliError) -> ControlReply {
    ControlReply { failure: Some(error.to_string()), ..ControlReply::default() }
}

/// Unmounts. What was closed a moment ago may count as open a moment longer.
fn unmount_with_retries(mountpoint: &Path) -> Result<()> {
    for _ in 0..BUSY_TRIES {
        match vellum_fuse::unmount_filesystem(mountpoint) {
            Err(MountError::Busy(_)) => std::thread::sleep(BUSY_PAUSE),
            done => return Ok(done.map_err(MountingError::from)?),
        }
    }
    // The user sees the error of the last attempt.
    Ok(vellum_fuse::unmount_filesystem(mountpoint).map_err(MountingError::from)?)
}

/// Hands the kernel's pages to the mount's process, and lets that make everything durable: the root directory's
/// `fsync` means all of it. What fails now is told, and must not keep the mount: its process says at the end what it
/// could not keep.
fn flush_mount_writes(context: &CommandContext, mountpoint: &Path) -> Result<()> {
    let done = File::open(mountpoint).and_then(|root| {
        // In this order: the kernel's pages have to reach the process before it can make them durable.
        match retry_on_intr(|| rustix::fs::syncfs(&root)) {
            // This error occurs once: a program wrote to a file that was open when the worktree was restored, and got
            // the error.
            Ok(()) | Err(Errno::STALE) => {}
            Err(error) => return Err(error.into()),
        }
        root.sync_all()
    });
    match done {
        Ok(()) => Ok(()),
        // Another machine took the worktree over: what that means is reported at the end.
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        Err(error) => context.ui.print_warning(format!(
            "the last writes may be incomplete: cannot flush {}: {error}",
            mountpoint.display()
        )),
    }
}

fn report_unmount(context: &CommandContext, report: &UmountJson) -> Result<CommandOutcome> {
    // Exit code 1 means that something is only on this machine. That the mount goes on elsewhere is no finding.
    let without_server = report.without_server.as_ref();
    let is_incomplete = without_server.is_some_and(WithoutServerJson::is_finding);
    let outcome = CommandOutcome::from_findings(report.unpublished.is_some() || is_incomplete);
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(report)?;
        return Ok(outcome);
    }
    let shown = format_path(&report.mountpoint);
    // With --quiet, too, because it explains the exit code.
    if let Some(unpublished) = &report.unpublished {
        warn_about_unpublished(context, &shown, unpublished)?;
    }
    if let Some(without_server) = without_server {
        warn_about_server(context, without_server)?;
    }
    if ui.voice.quiet {
        return Ok(outcome);
    }
    let how = if report.was_dead { "; its process had died" } else { "" };
    ui.print_line(format!("Unmounted {shown}{how}"))?;
    if report.was_silent {
        ui.print_note(
            "its process does not answer; when it goes on, it publishes what is not in the store, and ends",
        )?;
    }
    if !report.users.is_empty() {
        ui.print_note(format!(
            "it ends when these processes have stopped using it: {}",
            report.users.join(", ")
        ))?;
    }
    if !report.elsewhere.is_empty() {
        ui.print_note(format!("it is still mounted on {}", format_path(report.elsewhere.join(", "))))?;
    }
    Ok(outcome)
}

fn warn_about_server(context: &CommandContext, left: &WithoutServerJson) -> Result<()> {
    let WithoutServerJson { worktree, unanswered_changes, unsynced } = left;
    let ui = &context.ui;
    if *unanswered_changes > 0 {
        let changes = format::format_count(*unanswered_changes, "change");
        ui.print_warning(format!(
            "no process serves the worktree {worktree}: {changes} that programs asked for may not have been made"
        ))?;
    }
    if *unsynced {
        ui.print_warning(format!(
            "no process serves the worktree {worktree}: what was written since the last fsync is there only if that process \
             comes back, or had put it into the store or its shared log; look when it is served again"
        ))?;
    }
    if !left.is_finding() && !ui.voice.quiet {
        ui.print_note(format!(
            "no process serves the worktree {worktree}; everything that was written here had been synced"
        ))?;
    }
    Ok(())
}

fn warn_about_unpublished(
    context: &CommandContext,
    mountpoint: &str,
    unpublished: &UnpublishedJson,
) -> Result<()> {
    let UnpublishedJson { worktree, reason, snapshots, bytes, directory, taken_over } = unpublished;
    let mut parts = Vec::new();
    if *snapshots > 0 {
        parts.push(format::format_count(*snapshots, "snapshot"));
    }
    if *bytes > 0 {
        parts.push(format!("{} of file data", format::format_size(*bytes)));
    }
    // Metadata alone can be unpublished, such as a renamed file: neither a snapshot nor file data is missing then.
    if parts.is_empty() {
        parts.push("the last changes".into());
    }
    context.ui.print_warning(format!(
        "the worktree {worktree} is not whole in the store ({} missing there): {reason}",
        parts.join(" and ")
    ))?;
    let directory = format_path(directory);
    context.ui.print_warning(match taken_over {
        true => format!("it is kept in {directory}: 'vellum worktree keep {worktree} NEW' makes a worktree of its own of it"),
        false => format!(
            "it is kept in {directory}, and is published by the next mount: 'vellum mount --worktree {worktree} {mountpoint}'"
        ),
    })
}

//! The hook that runs when a mount is ready.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use vellum_volume::StateDir;

use super::report::MountJson;
use super::{Args, open_state_dir};
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::hooks::{self, Hook, HookCall, HookFact, HookKind};
use crate::mounting::daemon::{self, ServedMount};

/// Runs the hook of a mount in the background.
pub(super) fn run_mount_hook(
    args: &Args,
    context: &CommandContext,
    report: &MountJson,
) -> Result<CommandOutcome> {
    let state = open_state_dir(args, context)?;
    call_hook(&state, report, |call| call.run(context))
}

/// The hook of a mount in the foreground.
pub(super) fn find_mount_hook(
    state: &StateDir,
    context: &CommandContext,
    report: &MountJson,
) -> Result<Option<Hook>> {
    call_hook(state, report, |call| call.find_hook(context))
}

fn call_hook<T>(
    state: &StateDir,
    report: &MountJson,
    call: impl FnOnce(HookCall<'_>) -> Result<T>,
) -> Result<T> {
    let worktree = report.worktree.as_deref().map(HookFact::worktree);
    let snapshot = report.snapshot.as_deref().map(HookFact::snapshot);
    let facts: Vec<_> = worktree.into_iter().chain(snapshot).collect();
    let directory = Path::new(&report.mountpoint);
    call(HookCall { kind: HookKind::AfterMount, state, directory, facts: &facts })
}

/// Serves a mount until it is ended, with its hook in a thread: the mount does not wait for it.
pub(super) fn serve_beside_hook(serving: ServedMount, hook: Hook) -> Result<bool> {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| hooks::run_beside_mount(hook, &|| has_ended.load(Ordering::Acquire)));
        let served = daemon::serve_until_unmount(serving);
        // The scope waits for the hook's thread: without this word, a hook without end would keep the process alive.
        has_ended.store(true, Ordering::Release);
        served
    })
}

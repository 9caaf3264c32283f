//! `vellum hydrate --policy` and `--policies`: when content comes to this machine, by path.

use std::ffi::OsString;

use clap::ValueEnum;
use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::hydration_policy::HydrationPolicy;

use crate::context::CommandContext;
use crate::context::mounted::MountProcess;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::mounting::control::{ContentReply, ControlRequest};
use crate::mounting::policies::PathPolicy;
use crate::ui::format;
use crate::ui::json::NameJson;
use crate::ui::progress::ProgressTask;
use crate::ui::table::TextTable;

/// A policy, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyWord {
    /// At once, and whenever it changes; it is pinned
    Always,
    /// When it is read, as without a policy
    OnDemand,
    /// Not by reading: what is not on this machine fails with 'Permission denied' until 'vellum hydrate PATH' fetches it
    Never,
}

impl From<PolicyWord> for HydrationPolicy {
    fn from(word: PolicyWord) -> Self {
        match word {
            PolicyWord::Always => Self::Always,
            PolicyWord::OnDemand => Self::OnDemand,
            PolicyWord::Never => Self::Never,
        }
    }
}

#[derive(Serialize)]
struct PolicyListJson {
    policies: Vec<PathPolicyJson>,
}

#[derive(Serialize)]
struct PathPolicyJson {
    #[serde(flatten)]
    path: NameJson,
    policy: HydrationPolicy,
    pin: Option<String>,
}

#[derive(Serialize)]
struct SetPoliciesJson {
    policy: HydrationPolicy,
    local: bool,
    paths: Vec<SetPolicyJson>,
}

#[derive(Serialize)]
struct SetPolicyJson {
    #[serde(flatten)]
    path: NameJson,
    files: u64,
    bytes: u64,
    fetched: u64,
}

/// Sets the policy of paths.
pub fn set_policies(
    typed: &[OsString],
    policy: HydrationPolicy,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let process = find_mount(context)?;
    // All are understood before one is set.
    let paths = context.paths_at_root(&process.mountpoint).parse_paths(typed)?;
    let ui = &context.ui;
    let mut set = Vec::new();
    let mut is_local = false;
    for path in paths {
        // One request for each path: what was set before one that fails stays set.
        let done = set_policy(&process, &path, policy, context)?;
        is_local |= done.is_local;
        let ContentReply { files, bytes, moved, .. } = done;
        if !ui.is_json() && !is_local && !ui.voice.quiet {
            let shown = show_path(&path);
            ui.print_line(match policy {
                HydrationPolicy::Always => format!(
                    "The policy of '{shown}' is always: {}, {}, of which {} were fetched",
                    format::format_count(files, "file"),
                    format::format_size(bytes),
                    format::format_size(moved)
                ),
                HydrationPolicy::OnDemand | HydrationPolicy::Never => {
                    format!("The policy of '{shown}' is {policy}")
                }
            })?;
        }
        set.push(SetPolicyJson { path: NameJson::new(&path), files, bytes, fetched: moved });
    }
    if ui.is_json() {
        ui.print_json(&SetPoliciesJson { policy, local: is_local, paths: set })?;
    } else if is_local {
        ui.print_note("the store is a directory of this machine: everything is here, and no policy is set")?;
    }
    Ok(CommandOutcome::Done)
}

fn set_policy(
    process: &MountProcess,
    path: &[u8],
    policy: HydrationPolicy,
    context: &CommandContext,
) -> Result<ContentReply> {
    let task = ProgressTask { first: "Looking", verb: "Fetching", item: "file" };
    let done: Result<_> = context.run_with_progress(task, |meter| {
        // As for a pin: what is written becomes part of the worktree first.
        if policy == HydrationPolicy::Always {
            process.sync_filesystem()?;
        }
        let request = ControlRequest::SetHydrationPolicy { path: path.to_vec(), policy };
        Ok(process.send_long_request(&request, meter)?.content.unwrap_or_default())
    });
    done.with_resume_hint("run it again: what was fetched is here")
}

/// Lists the policies.
pub fn list_policies(context: &CommandContext) -> Result<CommandOutcome> {
    let answer = find_mount(context)?.send_request(&ControlRequest::HydrationPolicies)?;
    let policies = answer.policies.unwrap_or_default();
    let ui = &context.ui;
    if ui.is_json() {
        let json =
            |PathPolicy { path, policy, pin }| PathPolicyJson { path: NameJson::new(&path), policy, pin };
        ui.print_json(&PolicyListJson { policies: policies.into_iter().map(json).collect() })?;
        return Ok(CommandOutcome::Done);
    }
    if policies.is_empty() {
        ui.print_note("no path has a policy: all content is fetched when it is read")?;
    }
    let mut table = TextTable::new([]);
    for PathPolicy { path, policy, .. } in policies {
        table.add_row([policy.to_string(), show_path(&path)]);
    }
    ui.print_lines(table.format_lines())?;
    Ok(CommandOutcome::Done)
}

/// A path from the root, for people.
fn show_path(path: &[u8]) -> String {
    if path.is_empty() { ".".into() } else { format_path(path) }
}

fn find_mount(context: &CommandContext) -> Result<MountProcess> {
    context.find_mount_process()?.ok_or_else(|| {
        let message = "this is not a mounted worktree: all its files are here";
        CliError::usage_error(message, "policies are about mounts whose store is in a service")
    })
}

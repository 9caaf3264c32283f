//! What the command says of a mount.

use serde::{Deserialize, Serialize};
use vellum_host::escape::format_path;
use vellum_library::live::OpenedSharedLog;
use vellum_volume::lease::Lease;

use crate::context::CommandContext;
use crate::error::Result;
use crate::mounting::sharing::term::ServingTerm;
use crate::ui::format;

/// What is mounted, for the user and for the process that started this one.
#[derive(Serialize, Deserialize)]
pub(super) struct MountJson {
    pub mountpoint: String,
    pub worktree: Option<String>,
    pub snapshot: Option<String>,
    pub made: bool,
    /// Whether the worktree goes when it is unmounted.
    pub temporary: bool,
    pub put_out: Option<FencedHolder>,
    /// The log from which another machine can continue the worktree.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shared_log: Option<SharedLogJson>,
    pub read_only: bool,
    pub pid: u32,
    pub log: String,
    /// Where figures are to be had.
    pub metrics: Option<String>,
    /// Where clients connect, if the worktree is shared and served by this mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<String>,
    /// Where the process would serve clients next, if another one serves them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_by: Option<String>,
    /// Where the worktree is served, if this mount is a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_of: Option<String>,
}

/// Who had the worktree before and did not give it up.
#[derive(Serialize, Deserialize)]
pub(super) struct FencedHolder {
    pub host: String,
    pub process: u32,
    /// Where its live state is.
    pub directory: String,
}

/// The log of a mounted worktree.
#[derive(Serialize, Deserialize)]
pub(super) struct SharedLogJson {
    /// The address of its engine.
    pub url: String,
    /// The host that had the worktree before, if this one continues from the log.
    pub continued_from: Option<String>,
}

impl SharedLogJson {
    pub fn new(log: &OpenedSharedLog) -> Self {
        Self {
            url: log.url.clone(),
            continued_from: log.continued_from.as_ref().map(|before| before.host.clone()),
        }
    }
}

impl SharedLogJson {
    /// The log of a worktree that is being served.
    pub fn of_term(term: &ServingTerm) -> Option<Self> {
        Some(Self { url: term.log_url.clone()?, continued_from: term.continued_from.clone() })
    }
}

impl FencedHolder {
    pub fn new(lease: &Lease, place: &str) -> Self {
        Self { host: lease.session.host.clone(), process: lease.session.pid, directory: place.into() }
    }
}

pub(super) fn report_mount(context: &CommandContext, report: &MountJson) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        return ui.print_json(report);
    }
    if ui.voice.quiet {
        return Ok(());
    }
    let what = match (&report.worktree, &report.snapshot) {
        (Some(name), _) => format!("worktree {}", ui.style.paint_cyan(name)),
        (None, id) => {
            let id = id.as_deref().unwrap_or_default();
            format!("snapshot {}", ui.style.paint_yellow(format::shorten_id(id)))
        }
    };
    let what = match (report.made, report.temporary) {
        (true, true) => format!("the temporary {what}"),
        (true, false) => format!("the new {what}"),
        (false, _) => format!("the {what}"),
    };
    let how = if report.read_only { ", read-only" } else { "" };
    ui.print_line(format!("Mounted {what} on {}{how}", format_path(report.mountpoint.as_bytes())))?;
    if let Some(address) = &report.serves {
        ui.print_line(format!("Serves clients at {address}"))?;
    }
    if let Some(address) = &report.stands_by {
        ui.print_line(format!("Stands by to serve clients at {address}"))?;
    }
    if let Some(address) = &report.client_of {
        ui.print_line(format!("Served by {}", format_path(address.as_bytes())))?;
    }
    if let Some(address) = &report.metrics {
        ui.print_line(format!("Figures at http://{address}/metrics"))?;
    }
    if let Some(SharedLogJson { url, continued_from }) = &report.shared_log {
        let url = format_path(url.as_bytes());
        ui.print_line(match continued_from {
            None => format!("What is synced is in the shared log at {url}"),
            Some(host) => {
                format!(
                    "Continued from the shared log at {url}, where {} left it",
                    format_path(host.as_bytes())
                )
            }
        })?;
    }
    let Some(FencedHolder { host, process, directory }) = &report.put_out else { return Ok(()) };
    ui.print_warning(format!(
        "taken over from process {process} on {}: what it had not put into the store is in {} there",
        format_path(host.as_bytes()),
        format_path(directory.as_bytes())
    ))
}

//! `vellum remote`: other stores of the volume, by name.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::remote::{Remote, RemoteContent, RemoteRefs};
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};
use crate::store_args::CredentialsArgs;
use crate::ui::format;
use crate::ui::table::TextTable;

/// Manage remotes: other stores of this volume, to push to and pull from
///
/// A remote holds snapshots of the same volume, encrypted with the same key. 'vellum push' sends snapshots there, and
/// 'vellum pull' fetches them. 'NAME/main' then names the snapshot on which the remote's worktree 'main' stood when it
/// was last seen.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Remember a store under a name; it must be empty or hold this volume
    Add {
        /// The name; 'origin' is the default of push and pull
        name: String,
        /// Where it is: a path or a URL
        #[arg(value_name = "URL")]
        store: String,
        #[command(flatten)]
        credentials: CredentialsArgs,
    },
    /// List all remotes
    List,
    /// Show where a remote is, and what its worktrees and tags named when it was last seen
    Show {
        /// Its name [default: origin, or the only one]
        name: Option<String>,
    },
    /// Give a remote another name
    Rename {
        /// Its name
        old: String,
        /// The new name
        new: String,
    },
    /// Forget a remote; nothing in its store is changed
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Serialize)]
struct RemoteListJson {
    remotes: Vec<RemoteJson>,
}

#[derive(Serialize)]
struct RemoteJson {
    name: String,
    store: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials: Option<String>,
}

#[derive(Serialize)]
struct RemoteAddedJson {
    #[serde(flatten)]
    remote: RemoteJson,
    empty: bool,
}

#[derive(Serialize)]
struct RemoteShowJson {
    #[serde(flatten)]
    remote: RemoteJson,
    /// When it was seen last.
    seen: Option<String>,
    worktrees: Vec<RemoteRefJson>,
    tags: Vec<RemoteRefJson>,
}

#[derive(Serialize)]
struct RemoteRefJson {
    name: String,
    snapshot: String,
}

#[derive(Serialize)]
struct RemoteRenamedJson<'a> {
    old: &'a str,
    new: &'a str,
}

impl RemoteJson {
    fn new(remote: &Remote) -> Self {
        let location = &remote.location;
        Self {
            name: remote.name.clone(),
            store: location.url.clone(),
            credentials: location.credentials.clone(),
        }
    }
}

/// Lists remotes, or changes one.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    match command {
        Command::Add { name, store, credentials } => add_remote(context, &volume, name, store, credentials),
        Command::List => list_remotes(context, &volume),
        Command::Show { name } => show_remote(context, &volume, name.as_deref()),
        Command::Rename { old, new } => {
            // Nothing is asked of the store: a remote can be renamed or removed while it is away.
            volume.rename_remote(old, new)?;
            let line = || format!("The remote {old} is now called {new}");
            context.ui.print_outcome(&RemoteRenamedJson { old, new }, line)?;
            Ok(CommandOutcome::Done)
        }
        Command::Remove { name } => {
            let remote = volume.remove_remote(name)?;
            let line = || format!("Forgot the remote {name}; its store is as it was");
            context.ui.print_outcome(&RemoteJson::new(&remote), line)?;
            Ok(CommandOutcome::Done)
        }
    }
}

fn add_remote(
    context: &CommandContext,
    volume: &Volume,
    name: &str,
    store: &str,
    credentials: &CredentialsArgs,
) -> Result<CommandOutcome> {
    let location = credentials.locate_store(store, &context.cwd).map_err(VolumeError::from)?;
    // This asks the store, so that a wrong address is found out now and not by the next push.
    let content = volume.add_remote(name, &location)?;
    let remote = volume.find_remote(Some(name))?;
    let ui = &context.ui;
    if ui.is_json() {
        let empty = content == RemoteContent::Nothing;
        ui.print_json(&RemoteAddedJson { remote: RemoteJson::new(&remote), empty })?;
        return Ok(CommandOutcome::Done);
    }
    if ui.voice.quiet {
        return Ok(CommandOutcome::Done);
    }
    let shown = format_path(&remote.location.url);
    match content {
        RemoteContent::Nothing => {
            ui.print_line(format!("The remote {name} is {shown}, which is empty"))?;
            ui.print_note(format!("'vellum push {name}' sets it up"))?;
        }
        RemoteContent::Volume => {
            ui.print_line(format!("The remote {name} is {shown}, which holds this volume"))?;
            ui.print_note(format!("'vellum pull {name}' fetches what it has"))?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn list_remotes(context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let remotes = volume.list_remotes()?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&RemoteListJson { remotes: remotes.iter().map(RemoteJson::new).collect() })?;
        return Ok(CommandOutcome::Done);
    }
    let mut table = TextTable::default();
    for remote in &remotes {
        table.add_row([ui.style.paint_cyan(&remote.name), format_path(&remote.location.url)]);
    }
    ui.print_lines(table.format_lines())?;
    if remotes.is_empty() {
        ui.print_note("no remotes yet: 'vellum remote add origin URL' adds one")?;
    }
    Ok(CommandOutcome::Done)
}

fn show_remote(context: &CommandContext, volume: &Volume, name: Option<&str>) -> Result<CommandOutcome> {
    let remote = volume.find_remote(name)?;
    // No request is sent: this was noted by the last push or pull.
    let RemoteRefs { worktrees, tags, seen } = volume.read_remote_refs(&remote.name)?;
    let seen = seen.map(|secs| UnixTime { secs, nanos: 0 });
    let ui = &context.ui;
    if ui.is_json() {
        let list = |refs: std::collections::BTreeMap<String, SnapshotId>| {
            refs.into_iter()
                .map(|(name, id)| RemoteRefJson { name, snapshot: id.to_string() })
                .collect::<Vec<_>>()
        };
        ui.print_json(&RemoteShowJson {
            remote: RemoteJson::new(&remote),
            seen: seen.map(crate::ui::json::format_json_time),
            worktrees: list(worktrees),
            tags: list(tags),
        })?;
        return Ok(CommandOutcome::Done);
    }
    let credentials = match &remote.location.credentials {
        Some(name) => format!(", with the credentials {name}"),
        None => String::new(),
    };
    ui.print_line(format!("{}: {}{credentials}", remote.name, format_path(&remote.location.url)))?;
    match seen {
        Some(time) => ui.print_line(format!("Last seen {}", format::format_age(time)))?,
        None => ui.print_line("Not seen yet: 'vellum push' sends snapshots, 'vellum pull' fetches them")?,
    }
    let names = SnapshotNames::load_all(volume)?;
    let mut table = TextTable::default();
    for (kind, refs) in [("worktree", &worktrees), ("tag", &tags)] {
        for (name, id) in refs {
            table.add_row([
                kind.into(),
                ui.style.paint_cyan(&format!("{}/{name}", remote.name)),
                ui.style.paint_yellow(&names.short_id(id)),
            ]);
        }
    }
    ui.print_lines(table.format_lines())?;
    Ok(CommandOutcome::Done)
}

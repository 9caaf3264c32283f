//! `vellum info`: what this worktree and its volume are.

use serde::Serialize;
use vellum_volume::Volume;
use vellum_volume::tree::show;

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::table::FactList;

/// Describe this worktree and its volume
#[derive(Debug, clap::Args)]
pub struct Args {}

#[derive(Serialize)]
struct InfoJson {
    worktree: String,
    directory: String,
    head: Option<String>,
    volume: String,
    store: String,
    encrypted: bool,
    compression_level: u8,
    snapshots: usize,
    tags: usize,
    worktrees: usize,
    objects: usize,
    stored_bytes: u64,
    packs: usize,
}

/// Describes them.
pub fn run(_args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.volume()?;
    let names = SnapshotNames::load(&volume)?;
    let report = gather(&volume, &names)?;
    let ui = &context.ui;
    if ui.json() {
        ui.object(&report)?;
        return Ok(CommandOutcome::Done);
    }
    let mut facts = FactList::default();
    facts.add("Worktree", show(report.worktree.as_bytes()));
    facts.add("Directory", show(report.directory.as_bytes()));
    let head = match volume.head()? {
        None => "no snapshot yet".into(),
        Some(id) => volume
            .resolve(&id.to_string())
            .map(|entry| names.describe(&entry))
            .unwrap_or_else(|error| format!("{} ({error})", names.short(&id))),
    };
    facts.add("Stands on", head);
    facts.add("Volume", report.volume.clone());
    facts.add("Store", show(report.store.as_bytes()));
    facts.add("Encrypted", if report.encrypted { "yes" } else { "no" });
    let counts = [
        format::count(report.snapshots as u64, "snapshot"),
        format::count(report.tags as u64, "tag"),
        format::count(report.worktrees as u64, "worktree"),
    ];
    facts.add("Holds", counts.join(", "));
    let objects = format::count(report.objects as u64, "object");
    facts.add(
        "Size",
        format!(
            "{} in {objects}, {}",
            format::size(report.stored_bytes),
            format::count(report.packs as u64, "pack")
        ),
    );
    for line in facts.lines() {
        ui.line(line)?;
    }
    Ok(CommandOutcome::Done)
}

fn gather(volume: &Volume, names: &SnapshotNames) -> Result<InfoJson> {
    let objects = volume.objects.list("").map_err(vellum_volume::VolumeError::from)?;
    Ok(InfoJson {
        worktree: volume.worktree.worktree.clone(),
        directory: volume.state.root().display().to_string(),
        head: volume.head()?.map(|id| id.to_string()),
        volume: volume.config.volume.to_string(),
        store: volume.objects.describe(),
        encrypted: volume.config.encrypted,
        compression_level: volume.config.level,
        snapshots: names.len(),
        tags: volume.read_tags()?.0.len(),
        worktrees: volume.read_worktrees()?.0.len(),
        objects: objects.len(),
        stored_bytes: objects.iter().map(|object| object.size).sum(),
        packs: objects.iter().filter(|object| object.key.as_str().starts_with("packs/")).count(),
    })
}

//! `vellum info`: what this worktree and its volume are.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::Volume;
use vellum_volume::config::ChunkSizes;
use vellum_volume::gc::count_node_packs;

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::progress::ProgressTask;
use crate::ui::table::FactList;

/// Describe this worktree and its volume
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also count the packs that are read to list all names of this worktree: the last snapshot, or what a mount has
    /// published since
    #[arg(long)]
    store: bool,
}

#[derive(Serialize)]
struct InfoJson {
    worktree: String,
    directory: String,
    head: Option<String>,
    volume: String,
    store: String,
    /// Where content is read that the store does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    encrypted: bool,
    compression_level: i32,
    chunk_bytes: ChunkBytesJson,
    snapshots: usize,
    tags: usize,
    worktrees: usize,
    objects: usize,
    stored_bytes: u64,
    packs: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<MetadataJson>,
}

/// How long the chunks are into which content is cut.
#[derive(Serialize)]
struct ChunkBytesJson {
    min: usize,
    average: usize,
    max: usize,
}

/// Where the nodes of the worktree's tree are.
#[derive(Serialize)]
struct MetadataJson {
    packs: u64,
    small_packs: u64,
}

impl ChunkBytesJson {
    fn new(sizes: ChunkSizes) -> Self {
        Self { min: sizes.min_len(), average: sizes.target_len(), max: sizes.max_len() }
    }

    fn describe(&self) -> String {
        let size = |len: usize| format::format_size(len as u64);
        format!("{} on average, {} to {}", size(self.average), size(self.min), size(self.max))
    }
}

/// Describes them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let names = SnapshotNames::load_all(&volume)?;
    let mut report = collect_volume_info(&volume, &names)?;
    if args.store {
        report.metadata = Some(count_metadata_packs(&volume, context)?);
    }
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&report)?;
        return Ok(CommandOutcome::Done);
    }
    let mut facts = FactList::default();
    facts.add_fact("Worktree", format_path(&report.worktree));
    facts.add_fact("Directory", format_path(&report.directory));
    let head = match volume.read_head()? {
        None => "no snapshot yet".into(),
        Some(id) => volume
            .resolve_snapshot(&id.to_string())
            .map(|entry| names.describe_snapshot(&entry))
            // A snapshot that cannot be read is shown as such: `info` must work on a damaged volume.
            .unwrap_or_else(|error| format!("{} ({error})", names.short_id(&id))),
    };
    facts.add_fact("Stands on", head);
    facts.add_fact("Volume", report.volume.clone());
    facts.add_fact("Store", format_path(&report.store));
    if let Some(source) = &report.source {
        facts.add_fact("Source", format!("{} (what is not in the store)", format_path(source)));
    }
    facts.add_fact("Encrypted", if report.encrypted { "yes" } else { "no" });
    facts.add_fact("Chunks", report.chunk_bytes.describe());
    let counts = [
        format::format_count(report.snapshots as u64, "snapshot"),
        format::format_count(report.tags as u64, "tag"),
        format::format_count(report.worktrees as u64, "worktree"),
    ];
    facts.add_fact("Holds", counts.join(", "));
    let objects = format::format_count(report.objects as u64, "object");
    facts.add_fact(
        "Size",
        format!(
            "{} in {objects}, {}",
            format::format_size(report.stored_bytes),
            format::format_count(report.packs as u64, "pack")
        ),
    );
    if let Some(MetadataJson { packs, small_packs }) = report.metadata {
        let packs = format::format_count(packs, "pack");
        facts.add_fact(
            "Metadata",
            format!("in {packs}, {} of them below 4 MiB", format::format_number(small_packs)),
        );
    }
    ui.print_lines(facts.format_lines())?;
    Ok(CommandOutcome::Done)
}

fn count_metadata_packs(volume: &Volume, context: &CommandContext) -> Result<MetadataJson> {
    let head = volume.read_worktree_head(&volume.worktree.worktree)?;
    // Of a mounted worktree, the tree that was published last is newer than its last snapshot.
    let published = head.as_ref().and_then(|head| head.live).map(|live| live.root);
    let root = match (published, head.and_then(|head| head.head)) {
        (Some(root), _) => root,
        (None, Some(id)) => volume.catalog.get_record(&id)?.root,
        (None, None) => volume.empty_root(),
    };
    let task = ProgressTask { first: "Reading the index", verb: "Counting", item: "node" };
    let count = context.run_with_progress(task, |meter| count_node_packs(volume, root, meter))?;
    Ok(MetadataJson { packs: count.packs, small_packs: count.small })
}

fn collect_volume_info(volume: &Volume, names: &SnapshotNames) -> Result<InfoJson> {
    // The whole store is listed once: nothing records how many objects it has and how large they are.
    let objects = volume.objects.list_objects("").map_err(vellum_volume::VolumeError::from)?;
    Ok(InfoJson {
        worktree: volume.worktree.worktree.clone(),
        directory: volume.state.root().display().to_string(),
        head: volume.read_head()?.map(|id| id.to_string()),
        volume: volume.config.volume.to_string(),
        store: volume.objects.describe_location(),
        source: volume.find_source()?.map(|source| source.url),
        encrypted: volume.config.encrypted,
        compression_level: volume.compression_level()?,
        chunk_bytes: ChunkBytesJson::new(volume.config.chunker),
        snapshots: names.len(),
        tags: volume.list_readable_tags()?.0.len(),
        worktrees: volume.list_readable_worktrees()?.0.len(),
        objects: objects.len(),
        stored_bytes: objects.iter().map(|object| object.size).sum(),
        packs: objects.iter().filter(|object| object.key.as_str().starts_with("packs/")).count(),
        metadata: None,
    })
}

//! `vellum publish`: a store is made readable through a web server.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::remote::publish_listing;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::ui::format;

/// Make a store readable over https://
///
/// A web server can serve the directory or the bucket of a store as plain files, but does not tell what is in it. This
/// command writes a list of the store's objects into the store. Readers see the volume as it was then: run it again after
/// snapshots and pushes that they are to see.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The remote whose store is listed [default: the store of this worktree]
    remote: Option<String>,
}

#[derive(Serialize)]
struct PublishJson {
    store: String,
    objects: u64,
    packs: u64,
}

/// Writes the list.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let location = match &args.remote {
        Some(name) => volume.find_remote(Some(name))?.location,
        None => volume.locate_own_store()?,
    };
    let published = publish_listing(&location)?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&PublishJson {
            store: location.url,
            objects: published.objects,
            packs: published.packs,
        })?;
    } else if !ui.voice.quiet {
        let objects = format::format_count(published.objects, "object");
        let packs = format::format_count(published.packs, "pack");
        let store = format_path(&location.url);
        ui.print_line(format!("Listed {objects} and {packs} in {store}"))?;
        ui.print_note(
            "A web server that serves it makes it a store to read: 'vellum clone https://HOST/PATH'",
        )?;
    }
    Ok(CommandOutcome::Done)
}

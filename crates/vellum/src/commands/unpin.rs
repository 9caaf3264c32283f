//! `vellum unpin`: content may leave this machine again.

use std::ffi::{OsStr, OsString};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::{PackCache, PinListing};

use crate::context::CommandContext;
use crate::context::content::default_pin_name;
use crate::error::{CliError, CommandOutcome, Result};

/// Remove pins: their content can be evicted when the cache is full
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub struct Args {
    /// Names of pins, or the paths that were pinned
    #[arg(value_name = "NAME", group = "which")]
    names: Vec<OsString>,
    /// All pins, of all worktrees
    #[arg(long, group = "which")]
    all: bool,
}

#[derive(Serialize)]
struct UnpinJson {
    unpinned: Vec<String>,
}

/// Removes them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let (_, cache) = context.find_pack_cache()?;
    let folder = || cache.as_ref().map_or("", |cache| cache.folder().to_str().unwrap_or_default());
    let listing = cache.as_ref().map_or(Ok(PinListing::default()), PackCache::list_pins);
    let pins = listing.map_err(CliError::io_error("read", folder()))?.pins;
    let known: Vec<String> = pins.into_iter().map(|pin| pin.name).collect();
    let names = if args.all { known } else { choose_pins(args, context, &known)? };
    for name in &names {
        let removed = cache.as_ref().map_or(Ok(false), |cache: &PackCache| cache.remove_pin(name));
        removed.map_err(CliError::io_error("remove a pin from", folder()))?;
    }
    if context.ui.is_json() {
        context.ui.print_json(&UnpinJson { unpinned: names })?;
    } else if !context.ui.voice.quiet {
        for name in names {
            context.ui.print_line(format!("Removed the pin '{}'", format_path(&name)))?;
        }
    }
    Ok(CommandOutcome::Done)
}

/// Returns the names of all pins that were typed. Fails if one does not exist, before anything is removed.
fn choose_pins(args: &Args, context: &CommandContext, known: &[String]) -> Result<Vec<String>> {
    let process = context.find_mount_process()?;
    let name_of_path = |typed: &OsStr| {
        let process = process.as_ref()?;
        // The name of a pin need not be a path.
        let path = context.paths_at_root(&process.mountpoint).parse_path(typed).ok()?;
        Some(default_pin_name(&process.worktree, &path))
    };
    let choose = |typed: &OsString| {
        // A typed name counts before a typed path: a pin may have the name of a file.
        let named = typed.to_str().map(String::from).into_iter();
        let found = named.chain(name_of_path(typed)).find(|name| known.contains(name));
        found.ok_or_else(|| {
            let message = format!("there is no pin '{}'", format_path(typed.as_encoded_bytes()));
            CliError::usage_error(message, "'vellum pins' lists the pins")
        })
    };
    args.names.iter().map(choose).collect()
}

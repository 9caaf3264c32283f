//! `vellum bandwidth`: how fast a remote store is read and written, at most.

use serde::Serialize;
use vellum_store::BandwidthLimits;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::format;

/// Least limit, bytes a second: below it, requests would seem to stand still.
const RATE_MIN: u64 = 1024;

/// Show or limit the bandwidth of a remote store
///
/// The limits apply to all worktrees and mounts of this user with the same store, including running ones; each
/// command and each mount applies them separately. They stay until they are changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Limit what is sent to the store, in bytes per second or with K, M, G; 0 removes the limit
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    upload: Option<u64>,
    /// Limit what is received from the store, in bytes per second or with K, M, G; 0 removes the limit
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    download: Option<u64>,
}

#[derive(Serialize)]
struct BandwidthJson {
    /// Bytes a second; null without a limit.
    upload: Option<u64>,
    download: Option<u64>,
}

fn parse_rate(typed: &str) -> Result<u64, String> {
    match format::parse_size(typed)? {
        rate @ (0 | RATE_MIN..) => Ok(rate),
        _ => Err("a limit is 1K or more, and 0 removes it".to_owned()),
    }
}

/// Sets and shows the limits.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let (_, cache) = context.find_pack_cache()?;
    let Some(cache) = cache else {
        return Err(CliError::usage_error(
            "the store is a directory, to which no requests are sent",
            "only stores in services have a bandwidth",
        ));
    };
    // An option that was not given leaves its limit as it is.
    let io_error = |action| CliError::io_error(action, cache.folder().display().to_string());
    let mut limits = cache.read_bandwidth_limits().map_err(io_error("read"))?;
    let typed = [(args.upload, &mut limits.upload), (args.download, &mut limits.download)];
    for (rate, limit) in typed {
        if let Some(rate) = rate {
            *limit = (rate > 0).then_some(rate);
        }
    }
    // To show the limits, no permission to write is needed.
    if args.upload.or(args.download).is_some() {
        cache.set_bandwidth_limits(limits).map_err(io_error("limit the bandwidth in"))?;
    }
    let BandwidthLimits { upload, download } = limits;
    if context.ui.is_json() {
        context.ui.print_json(&BandwidthJson { upload, download })?;
    } else {
        let describe = |rate: Option<u64>| {
            rate.map_or_else(|| "unlimited".to_owned(), |rate| format!("{}/s", format::format_size(rate)))
        };
        context.ui.print_note(format!("upload: {}, download: {}", describe(upload), describe(download)))?;
    }
    Ok(CommandOutcome::Done)
}

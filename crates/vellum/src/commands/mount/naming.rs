//! The worktree that a mount shows, if none is named.

use std::path::Path;

use vellum_host::escape::format_path;
use vellum_library::live;
use vellum_volume::Volume;
use vellum_volume::device::join_line_name;

use super::Args;
use crate::error::{CliError, Result};

/// A device's worktrees are named after it, unless there is one that is not.
pub(super) fn choose_worktree(args: &Args, volume: &Volume, mountpoint: &Path) -> Result<String> {
    let own = worktree_name(args, mountpoint)?;
    let Some(device) = volume
        .worktree
        .device
        .as_deref()
        .filter(|_| args.worktree.is_none() && args.sharing.shared.is_none())
    else {
        return Ok(own);
    };
    let in_line = join_line_name(device, &own);
    if volume.read_worktree_head(&in_line)?.is_some() {
        return Ok(in_line);
    }
    // One that is checked out, on whatever machine, is not what a mount is of.
    let is_live = volume.read_worktree_head(&own)?.is_some_and(|head| live::is_live_worktree(&head));
    Ok(if is_live { own } else { in_line })
}

fn worktree_name(args: &Args, mountpoint: &Path) -> Result<String> {
    if let Some(name) = args.worktree.as_ref().or(args.sharing.shared.as_ref()) {
        return Ok(name.clone());
    }
    // What a name may not have, a space above all, becomes a dash.
    let typed = mountpoint.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let is_plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let plain: String = typed.chars().map(|letter| if is_plain(letter) { letter } else { '-' }).collect();
    let name = plain.trim_matches(['-', '.']);
    if vellum_volume::refs::check_ref_name(&typed).is_ok() {
        return Ok(typed.into_owned());
    }
    if vellum_volume::refs::check_ref_name(name).is_ok() {
        return Ok(name.to_owned());
    }
    let shown = format_path(mountpoint.as_os_str().as_encoded_bytes());
    let message = format!("no worktree can be named after {shown}");
    Err(CliError::usage_error(message, "'vellum fork NAME --mount DIR' makes one with a name of its own"))
}

//! `VOLUME@SNAP:/PATH` and `VOLUME:/PATH` as typed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vellum_host::escape::format_path;
use vellum_sync::ends::SourceEnd;
use vellum_sync::ends::snapshot::{SingleEntry, SnapshotEnd};
use vellum_volume::StateDir;

use super::ends::SourceEndpoint;
use crate::context::{CommandContext, mounted};
use crate::error::{CliError, Result};
use crate::ui::UserInterface;

/// Whether a directory belongs to a volume.
pub fn is_in_volume(directory: &Path) -> bool {
    StateDir::find_enclosing(directory).is_ok()
        || matches!(mounted::find_mountpoint_above(directory), Ok(Some(_)))
}

/// Opens a place in a snapshot as a source.
pub fn open_snapshot_source(
    context: &CommandContext,
    directory: &Path,
    snapshot: &str,
    typed: &OsStr,
) -> Result<SourceEndpoint> {
    // The volume is that of the typed directory, not that of the current one.
    let there = CommandContext::new(
        UserInterface::new(context.ui.voice),
        CommandContext::resolve_dir(Some(directory))?,
    );
    let volume = there.open_volume()?;
    let entry = volume.resolve_snapshot(snapshot)?;
    let bytes = typed.as_bytes();
    let content = bytes.is_empty() || bytes.ends_with(b"/");
    // Any number of slashes separates two names, as it does for the kernel.
    let path: Vec<u8> =
        bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join(&b'/');
    let short = volume.short_id(&entry.id)?;
    let (ino, attr) = volume.open_tree(entry.record.root).find_path(&path, &format!("snapshot {short}"))?;
    let is_dir = attr.kind == vellum_types::FileKind::Dir;
    if content && !is_dir {
        return Err(CliError::usage_error(
            format!("'{}' is not a directory in {snapshot}", format_path(&path)),
            "",
        ));
    }
    let name = path.rsplit(|byte| *byte == b'/').next().filter(|name| !content && !name.is_empty());
    let name = name.map(<[u8]>::to_vec);
    let root = entry.record.root;
    let words = format!("'/{}' of snapshot {short}", format_path(&path));
    let own = name.clone().unwrap_or_default();
    let open = Box::new(move |shown: &[u8]| -> Box<dyn SourceEnd> {
        let single = (!is_dir).then(|| SingleEntry { name: own, shown: shown.to_vec() });
        Box::new(SnapshotEnd::new(volume, root, ino, single))
    });
    Ok(SourceEndpoint { open, words, name, is_dir, path: None, root: None, remote: None })
}

//! Paths in snapshots.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap_complete::engine::CompletionCandidate;
use vellum_types::FileKind;
use vellum_volume::Volume;

use super::{CompletionPlace, typed_words};
use crate::error::Result;

/// What has a name that begins as typed: in the snapshot that the line names, or else in HEAD. Directories end with a
/// slash.
pub fn list_paths(place: &CompletionPlace, typed: &OsStr) -> Result<Vec<CompletionCandidate>> {
    let bytes = typed.as_bytes();
    let name_start = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (above, name) = bytes.split_at(name_start);
    let paths = place.context.paths_for_volume(&place.volume)?;
    let dir = match above {
        b"" => paths.current_path(),
        above => paths.parse_path(OsStr::from_bytes(above))?,
    };
    let Some(root) = find_typed_root(&place.volume)? else { return Ok(Vec::new()) };
    let tree = place.volume.open_tree(root);
    let (ino, _) = tree.find_path(&dir, "")?;
    let entries = tree.list_entries(ino)?.into_iter();
    let matching = entries.filter(|(entry, _)| entry.starts_with(name));
    let offered = matching.map(|(entry, dentry)| {
        let slash: &[u8] = if dentry.kind == FileKind::Dir { b"/" } else { b"" };
        CompletionCandidate::new(OsString::from_vec([above, &entry, slash].concat()))
    });
    Ok(offered.collect())
}

/// The tree of the first word that names a snapshot, or of HEAD.
fn find_typed_root(volume: &Volume) -> Result<Option<vellum_map::MapRoot>> {
    let words = typed_words::list_words();
    let named = words.iter().filter_map(|word| word.to_str()).filter(|word| !word.starts_with('-'));
    // The first word is the command, which may have the name of a tag.
    for word in named.skip(1) {
        if let Ok(entry) = volume.resolve_snapshot(word) {
            return Ok(Some(entry.record.root));
        }
    }
    let Some(head) = volume.read_head().ok().flatten().or_else(|| find_known_head(volume)) else {
        return Ok(None);
    };
    Ok(Some(volume.catalog.get_record(&head)?.root))
}

/// Where this worktree stood when a service was asked last.
fn find_known_head(volume: &Volume) -> Option<vellum_types::SnapshotId> {
    let names = volume.list_known_names().ok()?;
    let own = names.into_iter().find(|known| {
        known.kind == vellum_volume::volume::NameKind::Worktree && known.name == volume.worktree.worktree
    });
    own?.target
}

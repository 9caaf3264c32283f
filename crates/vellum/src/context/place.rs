//! A file in a snapshot, as typed: `SNAP PATH`.

use std::ffi::OsStr;

use vellum_host::escape::format_path;
use vellum_types::{FileKind, Ino, InodeAttr};
use vellum_volume::history::HistoryEntry;
use vellum_volume::tree::file_kind_name;
use vellum_volume::{FsTree, Volume, VolumeError};

use super::CommandContext;
use super::near_names::find_near_path;
use crate::error::{CliError, Result};

/// What `SNAP PATH` names.
pub struct SnapshotPath {
    /// The snapshot.
    pub entry: HistoryEntry,
    /// Its tree.
    pub tree: FsTree,
    /// The path from the root; empty for the root itself.
    pub path: Vec<u8>,
    /// The inode there.
    pub ino: Ino,
    /// Its attributes.
    pub attr: InodeAttr,
}

impl SnapshotPath {
    /// Finds it. Without a path it is where the user stands.
    pub fn find_path(
        context: &CommandContext,
        volume: &Volume,
        snapshot: &str,
        path: Option<&OsStr>,
    ) -> Result<Self> {
        let paths = context.paths_for_volume(volume)?;
        let entry = volume
            .resolve_snapshot(snapshot)
            .map_err(|error| explain_forgotten_snapshot(error, snapshot, path))?;
        let tree = volume.open_tree(entry.record.root);
        let place = format!("snapshot {}", volume.short_id(&entry.id)?);
        let path = match path {
            Some(typed) => paths.parse_path(typed)?,
            None => paths.current_path(),
        };
        let (ino, attr) = tree.find_path(&path, &place).map_err(|error| {
            // A suggestion reads directories: after another failure, such as a damaged tree, it would only fail again.
            let is_missing = matches!(error, VolumeError::NoSuchPath { .. });
            let nearest = if is_missing { find_near_path(&tree, &path) } else { None };
            CliError::from(error).with_suggestion(nearest.map(|nearest| paths.format_path(&nearest)))
        })?;
        Ok(Self { entry, tree, path, ino, attr })
    }

    /// Fails unless the inode is of this kind.
    pub fn expect_kind(&self, kind: FileKind) -> Result<()> {
        if self.attr.kind == kind {
            return Ok(());
        }
        let found = file_kind_name(self.attr.kind);
        let wanted = file_kind_name(kind);
        Err(VolumeError::WrongKind { path: format_path(&self.path), found, wanted }.into())
    }
}

/// Explains a path that was typed where a snapshot is expected, as other tools list the present state without one.
fn explain_forgotten_snapshot(error: VolumeError, typed: &str, path: Option<&OsStr>) -> CliError {
    let is_path = path.is_none() && std::path::Path::new(typed).symlink_metadata().is_ok();
    if !is_path {
        return error.into();
    }
    let hint = format!("name the snapshot first: 'HEAD {typed}' is that path in the last one");
    CliError::usage_error(error.to_string(), hint)
}

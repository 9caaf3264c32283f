//! Copies of old versions on another filesystem, which hard links cannot reach.
//!
//! Invariant: when this returns, the copy is complete and durable under its name, so that the original can be removed.
//! Deliberately absent: what happens with the original (see `keep`).

use vellum_host::beneath::{
    ExtendedAttribute, HeldDir, HeldNode, ReplacePolicy, SpecialFile, StagingMethod, new_temp_name,
};
use vellum_host::clone::clone_or_copy_content;
use vellum_host::metadata::{self, FileStat, MetadataCaller};
use vellum_types::{FileKind, UnixTime};

use crate::error::{Result, SyncError};

/// Copies the entry `name` of `dir` to `kept` in `into`, and replaces an entry of that name.
pub(super) fn copy_entry(dir: &HeldDir, name: &[u8], to: &HeldDir, kept: &[u8]) -> Result<()> {
    // The access time is read before the content, which would change it.
    let look = CopiedMetadata::read_from_entry(dir, name)?;
    let stat = look.stat;
    match stat.kind {
        FileKind::File => {
            let opened = dir.open_file(name)?;
            let new = to.stage_file_by(StagingMethod::Named)?;
            clone_or_copy_content(&opened.file, new.file()?, &opened.stat)?;
            look.apply_to_node(&new.node()?);
            // The content is durable before it has the name, and the name before this returns: the caller
            // then removes or replaces the original.
            new.file()?.sync_all().map_err(SyncError::wrap_io_error("make durable"))?;
            new.commit(kept, ReplacePolicy::Always)?;
        }
        kind => {
            // A symlink or special file cannot be created without a name, so it gets a temporary one until it
            // has its metadata.
            let temp = new_temp_name()?;
            match SpecialFile::from_kind(kind, stat.rdev) {
                Some(special) => to.create_special(&temp, special, 0o600)?,
                None => to.create_symlink(&temp, &dir.read_link(name)?)?,
            }
            let named = to.hold_node(&temp).and_then(|node| {
                look.apply_to_node(&node);
                to.rename(&temp, to, kept)
            });
            if let Err(error) = named {
                // The sweep finds it if this fails, too.
                let _ = to.unlink(&temp);
                return Err(error.into());
            }
        }
    }
    Ok(to.sync_names()?)
}

/// Copies the attributes of an entry.
pub(super) struct CopiedMetadata {
    stat: FileStat,
    atime: UnixTime,
    xattrs: Vec<ExtendedAttribute>,
}

impl CopiedMetadata {
    /// Reads those of the entry `name` of `dir`.
    pub fn read_from_entry(dir: &HeldDir, name: &[u8]) -> Result<Self> {
        Ok(Self {
            stat: dir.stat(name)?,
            atime: dir.read_access_time(name)?,
            xattrs: dir.hold_node(name)?.read_xattrs().unwrap_or_default(),
        })
    }

    /// Applies them as far as the filesystem can: an old version with fewer attributes is better than none.
    pub fn apply_to_node(&self, node: &HeldNode<'_>) {
        let FileStat { mode, uid, gid, mtime, .. } = self.stat;
        let times = Some((self.atime, mtime));
        let wanted = metadata::TargetMetadata { mode, uid, gid, times, xattrs: &self.xattrs };
        let _ = metadata::apply_metadata(node, &wanted, MetadataCaller::current_process());
    }
}

//! Copies of old versions on another filesystem, where no name can lead to the file itself.
//!
//! Invariant: the copy is whole and durable under its name when this returns, so that the original may go. Deliberately
//! absent: what becomes of the original (see `keep`).

use vellum_checkout::beneath::{
    ExtendedAttribute, HeldDir, HeldNode, ReplacePolicy, SpecialFile, StagingMethod, temp_name,
};
use vellum_checkout::clone::copy_content;
use vellum_checkout::meta::{self, FileStat, MetadataCaller};
use vellum_types::{FileKind, UnixTime};

use crate::error::{Result, SyncError};

/// Copies the entry `name` of `dir` into `to`, as `kept`, over what has that name.
pub(super) fn copy(dir: &HeldDir, name: &[u8], to: &HeldDir, kept: &[u8]) -> Result<()> {
    let stat = dir.stat(name)?;
    let look = CopiedMetadata {
        stat,
        atime: dir.access_time(name)?,
        xattrs: dir.node(name)?.xattrs().unwrap_or_default(),
    };
    match stat.kind {
        FileKind::File => {
            let opened = dir.open_file(name)?;
            let new = to.new_file_staged(StagingMethod::Named)?;
            copy_content(&opened.file, new.file()?, &opened.stat)?;
            look.give(&new.node()?);
            new.file()?.sync_all().map_err(SyncError::io("make durable"))?;
            new.commit(kept, ReplacePolicy::Always)?;
        }
        kind => {
            let temp = temp_name()?;
            match SpecialFile::of(kind, stat.rdev) {
                Some(special) => to.make_special(&temp, special, 0o600)?,
                None => to.make_symlink(&temp, &dir.read_link(name)?)?,
            }
            let named = to.node(&temp).and_then(|node| {
                look.give(&node);
                to.rename(&temp, to, kept)
            });
            if let Err(error) = named {
                // The sweep finds it if this fails, too.
                let _ = to.unlink(&temp);
                return Err(error.into());
            }
        }
    }
    Ok(to.sync()?)
}

/// What a copy has beside content.
struct CopiedMetadata {
    stat: FileStat,
    atime: UnixTime,
    xattrs: Vec<ExtendedAttribute>,
}

impl CopiedMetadata {
    /// As far as the other filesystem can: an old version with fewer attributes is better than none.
    fn give(&self, node: &HeldNode<'_>) {
        let FileStat { mode, uid, gid, mtime, .. } = self.stat;
        let times = Some((self.atime, mtime));
        let wanted = meta::TargetMetadata { mode, uid, gid, times, xattrs: &self.xattrs };
        let _ = meta::apply(node, &wanted, MetadataCaller::current());
    }
}

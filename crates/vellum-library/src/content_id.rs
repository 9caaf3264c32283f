//! What equal contents have in common.

use std::fmt;

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_types::{Extent, FileKind};
use vellum_volume::tree::InodeRecord;

/// What two paths have in common if, and only if, they are of one kind and have equal content as it is stored: of a file
/// its bytes, of a symlink its target, of a directory its entries. It is keyed: another volume has another one for the same
/// content, and nothing can be told from it.
///
/// Two files that were cut into chunks otherwise may have different ones, although their bytes are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentId([u8; 32]);

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Computes it of everything that is recorded of an inode.
pub(crate) fn compute_content_id(keys: &VolumeKeys, inode: &InodeRecord) -> ContentId {
    let attr = &inode.attr;
    // Other things are hashed in the same domain, such as approvals: this beginning tells them apart.
    let mut bytes = b"content id\0".to_vec();
    bytes.push(attr.kind as u8);
    bytes.extend_from_slice(&attr.rdev.to_le_bytes());
    // Of a directory it follows from what it contains.
    if attr.kind != FileKind::Dir {
        bytes.extend_from_slice(&attr.size.to_le_bytes());
    }
    // With its length in front of each part, no two inodes become the same bytes.
    let mut add = |part: &[u8]| {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    };
    add(attr.inline.as_deref().unwrap_or_default());
    add(&attr.target);
    for (name, dentry) in &inode.entries {
        add(name);
        add(&dentry.ino.0.to_le_bytes());
    }
    for (offset, extent) in &inode.extents {
        add(&offset.to_le_bytes());
        add(&Extent::encode(extent));
    }
    ContentId(keys.compute_record_id(RecordDomain::Local, &bytes))
}

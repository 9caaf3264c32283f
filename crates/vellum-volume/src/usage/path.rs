//! The content of the files at and below a path of a tree.

use std::collections::HashSet;

use vellum_map::{MapRoot, walk_nodes};
use vellum_types::{BlobId, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKeyRef};

use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// The content of files.
pub(super) struct PathContent {
    /// Bytes of the files; of one with several names once.
    pub logical: u64,
    /// Chunks of the files.
    pub chunks: HashSet<BlobId>,
    /// Chunks of the other files of the tree.
    pub elsewhere: HashSet<BlobId>,
}

/// Returns the content of the file `ino`, or of all files below the directory `ino`, of the tree at `root`.
pub(super) fn read_path_content(volume: &Volume, root: MapRoot, ino: Ino) -> Result<PathContent> {
    let inodes = list_inodes_below(volume, root, ino)?;
    let mut content = PathContent { logical: 0, chunks: HashSet::new(), elsewhere: HashSet::new() };
    let broken = |source| VolumeError::Decode { what: format!("tree {}", root.0), source };
    walk_nodes(
        &*volume.nodes,
        &root,
        |_, _| true,
        |_, node| {
            // Only leaves have entries.
            for (key, value) in node.entries().filter(|_| node.is_leaf()) {
                match MapKeyRef::parse(key).map_err(broken)? {
                    MapKeyRef::Attr(of) if inodes.contains(&of) => {
                        let attr = InodeAttr::decode_published(value).map_err(broken)?;
                        // The attributes of an inode are in the map once, however many names it has.
                        if attr.kind == FileKind::File {
                            content.logical += attr.size;
                        }
                    }
                    MapKeyRef::Extent(of, _) => {
                        if let ExtentSource::Chunk { id, .. } = Extent::decode(value).map_err(broken)?.source
                        {
                            let set = if inodes.contains(&of) {
                                &mut content.chunks
                            } else {
                                &mut content.elsewhere
                            };
                            set.insert(id);
                        }
                    }
                    MapKeyRef::Attr(_) | MapKeyRef::Dentry(..) | MapKeyRef::Xattr(..) => {}
                }
            }
            Ok::<_, VolumeError>(())
        },
    )?;
    Ok(content)
}

/// The inode and, if it is a directory, all that are below it.
fn list_inodes_below(volume: &Volume, root: MapRoot, ino: Ino) -> Result<HashSet<Ino>> {
    let tree = volume.open_tree(root);
    let mut inodes = HashSet::from([ino]);
    let mut waiting = Vec::new();
    if tree.expect_inode_attr(ino)?.kind == FileKind::Dir {
        waiting.push(ino);
    }
    while let Some(dir) = waiting.pop() {
        for (_, dentry) in tree.list_entries(dir)? {
            // A damaged tree may name a directory twice.
            if inodes.insert(dentry.ino) && dentry.kind == FileKind::Dir {
                waiting.push(dentry.ino);
            }
        }
    }
    Ok(inodes)
}

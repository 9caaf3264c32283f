//! The model's tree as a list, for comparison with another tree.

use vellum_types::FileKind;

use super::{ModelFileId, ModelFilesystem, ROOT};

/// A name in the tree, with everything that is compared; trees of all kinds are converted to this form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RenderedEntry {
    /// Path from the root.
    pub path: Vec<u8>,
    /// Kind.
    pub kind: FileKind,
    /// Mode.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Links.
    pub links: u64,
    /// Device number.
    pub rdev: u64,
    /// Target of a symlink, or content.
    pub content: Vec<u8>,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ModelFilesystem {
    /// All names, each directory before its entries, with their files.
    #[must_use]
    pub fn render_entries(&self) -> Vec<(RenderedEntry, ModelFileId)> {
        let mut shown = Vec::new();
        let mut waiting = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = waiting.pop() {
            let Some(file) = self.files.get(&id) else { continue };
            // In reverse, because the stack gives back the last one first.
            for (name, child) in file.entries.iter().rev() {
                waiting.push(([&path[..], b"/", name].concat(), *child));
            }
            let shown_file = RenderedEntry {
                path,
                kind: file.kind,
                mode: file.mode,
                owner: (file.uid, file.gid),
                links: self.count_links(id) as u64,
                rdev: file.rdev,
                // A file has one of the two: only symlinks have targets, and they have no content.
                content: [&file.target[..], &file.content].concat(),
                xattrs: file.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            };
            shown.push((shown_file, id));
        }
        shown
    }
}

//! Where the content of a mounted worktree is: on this machine, in the store, or in the write log only.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_store::EvictedBytes;
use vellum_types::{Dentry, Extent, FileKind, Ino};
use vellum_volume::residence::{
    ContentScope, ContentSelector, ContentState, ContentTree, HydratedContent, NewPin, RefusedContent,
    SelectedContent, find_content_state,
};
use vellum_volume::tree::{DirectoryEntry, StateReader};

use super::extents::visit_extents;
use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::history::partial::allow_not_found;
use crate::history::view::LiveView;
use crate::tree::MapReader;

/// What an eviction of paths did.
#[derive(Debug, Default)]
pub struct EvictedContent {
    /// Files whose content was removed from this machine.
    pub files: u64,
    /// Bytes that were there before, and are left.
    pub bytes: EvictedBytes,
    /// Files that stay, by path from the root, and why.
    pub refused: Vec<(Vec<u8>, RefusedContent)>,
}

impl LiveFilesystem {
    /// Where the content of a file is; None for what has none.
    pub fn content_state(&self, ino: Ino) -> Result<Option<ContentState>> {
        let extents = self.live_map().read_head_state(|view| collect_extents(view, ino))?;
        Ok(extents.map(|extents| find_content_state(&self.volume().blobs, &extents)).transpose()?)
    }

    /// Brings the files at and below some paths to this machine, and pins them if `pin` is given.
    pub fn hydrate_paths(
        self: &Arc<Self>,
        paths: &[Vec<u8>],
        scope: ContentScope,
        pin: Option<&NewPin>,
        meter: &Arc<ProgressMeter>,
    ) -> Result<HydratedContent> {
        self.content().hydrations().add_meter(meter);
        let select = || {
            let view = self.open_view()?;
            let selector = ContentSelector::new(self.volume(), view.layered_state().base, scope);
            self.select_paths(&view, paths, selector, meter)
        };
        let mut hydrated = self.volume().hydrate_content(pin, meter, select)?;
        if pin.is_none() {
            // What is not in the store yet is here.
            hydrated.refused.clear();
        }
        Ok(hydrated)
    }

    /// Brings the files at and below a path to this machine and pins them, but for those at and below the paths `excluded`.
    /// What is not in the store yet is here, and not pinned.
    pub fn pin_path(
        self: &Arc<Self>,
        path: &[u8],
        excluded: &HashSet<Vec<u8>>,
        pin: &NewPin,
        meter: &Arc<ProgressMeter>,
    ) -> Result<HydratedContent> {
        self.content().hydrations().add_meter(meter);
        let paths = [path.to_vec()];
        let select = || {
            let view = self.open_view()?;
            let base = view.layered_state().base;
            let selector = ContentSelector::new(self.volume(), base, ContentScope::Readable);
            self.select_paths(&view, &paths, selector.without_paths(excluded.clone()), meter)
        };
        let mut hydrated = self.volume().hydrate_content(Some(pin), meter, select)?;
        hydrated.refused.clear();
        Ok(hydrated)
    }

    /// Removes the content of the files at and below some paths from this machine, but for what is `open`, pinned or not in
    /// the store. Who serves a mount is not told by the kernel what is open: the caller finds that out.
    pub fn evict_paths(
        self: &Arc<Self>,
        paths: &[Vec<u8>],
        open: HashSet<Ino>,
        meter: &ProgressMeter,
    ) -> Result<EvictedContent> {
        let view = self.open_view()?;
        let base = view.layered_state().base;
        let selector = ContentSelector::new(self.volume(), base, ContentScope::Content);
        let selected = self.select_paths(&view, paths, selector.without_open_files(open), meter)?;
        let SelectedContent { files, pieces, refused } = selected;
        let bytes = self.volume().evict_content(&pieces)?;
        Ok(EvictedContent { files, bytes, refused })
    }

    fn select_paths(
        &self,
        view: &LiveView,
        paths: &[Vec<u8>],
        mut selector: ContentSelector<'_>,
        meter: &ProgressMeter,
    ) -> Result<SelectedContent> {
        let place = format!("worktree '{}'", self.worktree_name());
        for path in paths {
            selector.select_path(view, path, &place, meter)?;
        }
        Ok(selector.finish_selection()?)
    }
}

impl ContentTree for LiveView {
    type Error = FsError;

    fn lookup_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>> {
        allow_not_found(self.find_dentry(dir, name))
    }

    fn list_entries(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Dentry)>> {
        let entries = StateReader::list_entries(self, dir)?.into_iter();
        Ok(entries.map(|DirectoryEntry { name, ino, kind }| (name, Dentry { ino, kind })).collect())
    }

    fn file_extents(&self, ino: Ino) -> Result<Option<Vec<Extent>>> {
        self.read_state(|view| collect_extents(view, ino))
    }
}

/// The extents of a file; None for what is no file.
fn collect_extents(view: &dyn MapReader, ino: Ino) -> Result<Option<Vec<Extent>>> {
    let attr = view.expect_inode_attr(ino)?;
    if attr.kind != FileKind::File {
        return Ok(None);
    }
    let mut extents = Vec::new();
    if attr.inline.is_none() {
        visit_extents(view, ino, 0..attr.size, &mut |(_, extent)| {
            extents.push(extent);
            ControlFlow::Continue(())
        })?;
    }
    Ok(Some(extents))
}

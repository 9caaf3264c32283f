//! Where the content of a mounted worktree is: on this machine, in the store, or in the write log only.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_store::EvictedBytes;
use vellum_types::{Extent, FileKind, Ino, InodeAttr};
use vellum_volume::VolumeError;
use vellum_volume::residence::{
    ContentResidence, ContentScope, ContentSelector, ContentState, HydratedContent, NewPin, RefusedContent,
    SelectedContent, join_path,
};
use vellum_volume::tree::{StateReader, path_components};

use super::extents::visit_extents;
use crate::error::Result;
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
        let extents = self.tree.read_head_state(|view| {
            let attr = view.expect_inode_attr(ino)?;
            if attr.kind == FileKind::File { collect_extents(view, ino, &attr).map(Some) } else { Ok(None) }
        })?;
        let state = |extents: Vec<Extent>| ContentResidence::new(&self.volume.blobs).find_state(&extents);
        Ok(extents.map(state).transpose()?)
    }

    /// Brings the files at and below some paths to this machine, and pins them if `pin` is given.
    pub fn hydrate_paths(
        self: &Arc<Self>,
        paths: &[Vec<u8>],
        scope: ContentScope,
        pin: Option<&NewPin>,
        meter: &ProgressMeter,
    ) -> Result<HydratedContent> {
        let select = || {
            let view = self.open_view()?;
            let selector = ContentSelector::new(&self.volume, view.layered_state().base, scope);
            self.select_paths(&view, paths, selector, meter)
        };
        let mut hydrated = self.volume.hydrate_content(pin, meter, select)?;
        if pin.is_none() {
            // What is not in the store yet is here.
            hydrated.refused.clear();
        }
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
        let selector = ContentSelector::new(&self.volume, base, ContentScope::Content);
        let selected = self.select_paths(&view, paths, selector.without_open_files(open), meter)?;
        let SelectedContent { files, pieces, refused } = selected;
        let bytes = self.volume.evict_content(&pieces)?;
        Ok(EvictedContent { files, bytes, refused })
    }

    fn select_paths(
        &self,
        view: &LiveView,
        paths: &[Vec<u8>],
        mut selector: ContentSelector<'_>,
        meter: &ProgressMeter,
    ) -> Result<SelectedContent> {
        selector.add_names(Ino::ROOT)?;
        for path in paths {
            let mut ino = Ino::ROOT;
            for name in path_components(path) {
                selector.add_names(ino)?;
                let missing = || VolumeError::NoSuchPath {
                    path: format_path(path),
                    place: format!("worktree '{}'", self.worktree_name()),
                };
                ino = allow_not_found(view.find_dentry(ino, name))?.ok_or_else(missing)?.ino;
            }
            select_below(&mut selector, view, path, ino, meter)?;
        }
        Ok(selector.finish_selection()?)
    }
}

fn select_below(
    selector: &mut ContentSelector<'_>,
    view: &LiveView,
    path: &[u8],
    ino: Ino,
    meter: &ProgressMeter,
) -> Result<()> {
    let mut pending = vec![(path.to_vec(), ino, view.inode_attr(ino)?.kind)];
    while let Some((path, ino, kind)) = pending.pop() {
        meter.check_stopped().map_err(VolumeError::from)?;
        selector.add_names(ino)?;
        match kind {
            FileKind::Dir => {
                for entry in view.list_entries(ino)? {
                    pending.push((join_path(&path, &entry.name), entry.ino, entry.kind));
                }
            }
            FileKind::File if selector.is_left_out(ino) => {
                selector.refuse_file(&path, RefusedContent::Open);
            }
            FileKind::File => {
                let extents = view.read_state(|view| {
                    let attr = view.expect_inode_attr(ino)?;
                    collect_extents(view, ino, &attr)
                })?;
                selector.add_file(&path, &extents)?;
            }
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => {}
        }
    }
    Ok(())
}

fn collect_extents<R: MapReader + ?Sized>(view: &R, ino: Ino, attr: &InodeAttr) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    if attr.inline.is_none() {
        visit_extents(view, ino, 0..attr.size, &mut |(_, extent)| {
            extents.push(extent);
            ControlFlow::Continue(())
        })?;
    }
    Ok(extents)
}

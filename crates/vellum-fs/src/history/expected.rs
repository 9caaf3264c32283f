//! Restores that were planned for a state that somebody has looked at: refused if something else is there by now.
//!
//! Invariant: from the check until the restore is done no operation is under way. What was changed and is not published
//! counts as another content, also where it is the same: a caller publishes, looks again, and repeats the restore.

use std::collections::BTreeSet;

use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino, MapKeyRef};
use vellum_volume::FsTree;
use vellum_volume::diff::{ChangeSide, PathScopes, StateComparison};
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::tree::path_components;

use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::tree::head::orphan_key;
use crate::tree::wrap_decode_error;

/// What a caller has looked at.
#[derive(Debug, Clone)]
pub struct ExpectedState {
    /// The published tree of the worktree that it has read.
    pub root: MapRoot,
    /// What must still be as it is there, from the root; empty: everything.
    pub paths: Vec<Vec<u8>>,
}

/// What the layers over a published tree change.
#[derive(Debug, Default)]
struct TouchedKeys {
    inodes: BTreeSet<Ino>,
    names: BTreeSet<(Ino, Vec<u8>)>,
}

impl LiveFilesystem {
    /// Fails unless the worktree still holds what is expected. The caller has locked the epoch.
    pub(crate) fn check_expected_state(&self, expected: &ExpectedState) -> Result<()> {
        let exclusions = self.kept_exclusions()?;
        if !exclusions.is_empty() {
            return self.check_expected_tree(expected, &exclusions);
        }
        let scopes = PathScopes::new(expected.paths.iter().map(Vec::as_slice));
        let is_whole = expected.paths.is_empty() || scopes.contains(b"");
        // Published meanwhile: what is below the layers may differ from what was looked at, too.
        let base = self.live_map().lock_head().state.base;
        let to = self.volume().open_tree(base);
        self.check_same_tree(expected, &to)?;
        let touched = self.collect_touched_keys()?;
        let is_touched = if is_whole {
            !touched.inodes.is_empty()
        } else {
            let mut changed = false;
            for path in &expected.paths {
                changed |= touched.has_path(&to, path)?;
            }
            changed
        };
        if is_touched { Err(FsError::ChangedMeanwhile) } else { Ok(()) }
    }

    /// The same for a caller who has looked at what is not left out: that is stored anew, and compared.
    fn check_expected_tree(&self, expected: &ExpectedState, exclusions: &SnapshotExclusions) -> Result<()> {
        let now = self.store_visible_tree(exclusions)?;
        let checked = self.check_same_tree(expected, &self.volume().open_tree(now.root));
        now.session.end_session()?;
        checked
    }

    fn check_same_tree(&self, expected: &ExpectedState, to: &FsTree) -> Result<()> {
        let scopes = PathScopes::new(expected.paths.iter().map(Vec::as_slice));
        let is_whole = expected.paths.is_empty() || scopes.contains(b"");
        let from = self.volume().open_tree(expected.root);
        for change in (StateComparison { from: &from, to }).find_changes()? {
            let concerns = |side: &ChangeSide| scopes.contains(&side.path) || scopes.reaches_into(&side.path);
            if is_whole || [&change.old, &change.new].into_iter().flatten().any(concerns) {
                return Err(FsError::ChangedMeanwhile);
            }
        }
        Ok(())
    }

    /// What is changed and not published, except files without a name, which no restore concerns.
    fn collect_touched_keys(&self) -> Result<TouchedKeys> {
        // A copy: the map must not be asked while its head is held.
        let state = self.live_map().lock_head().state.clone();
        let mut touched = TouchedKeys::default();
        self.live_map().visit_changes(&state, &mut |key, _| {
            let key = MapKeyRef::parse(&key).map_err(wrap_decode_error("a changed key"))?;
            if key.ino() != Ino::SUPER {
                touched.inodes.insert(key.ino());
            }
            if let MapKeyRef::Dentry(dir, name) = key {
                touched.names.insert((dir, name.to_vec()));
            }
            Ok(())
        })?;
        let live = self.live_map().live_store();
        let mut named = BTreeSet::new();
        for ino in touched.inodes {
            if live.get(&orphan_key(ino))?.is_none() {
                named.insert(ino);
            }
        }
        Ok(TouchedKeys { inodes: named, ..touched })
    }
}

impl TouchedKeys {
    /// Whether anything at a path of the published tree, or below it, is changed. The directories above it may be.
    fn has_path(&self, tree: &FsTree, path: &[u8]) -> Result<bool> {
        let mut at = Ino::ROOT;
        for name in path_components(path) {
            if self.names.contains(&(at, name.to_vec())) {
                return Ok(true);
            }
            match tree.lookup_dentry(at, name)? {
                Some(found) => at = found.ino,
                // It is not there, and nobody has made it.
                None => return Ok(false),
            }
        }
        if self.inodes.is_empty() {
            return Ok(false);
        }
        let mut waiting = vec![at];
        while let Some(ino) = waiting.pop() {
            if self.inodes.contains(&ino) {
                return Ok(true);
            }
            // Entries that came or went change their directory, and are not looked for one by one.
            if tree.expect_inode_attr(ino)?.kind == FileKind::Dir {
                waiting.extend(tree.list_entries(ino)?.into_iter().map(|(_, entry)| entry.ino));
            }
        }
        Ok(false)
    }
}

//! Rules, lists of files and limits together, as a walk asks for them.
//!
//! Invariant: the same [`SyncFilters`] judge alike on both sides of a wire.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_checkout::beneath::HeldDir;
use vellum_types::UnixTime;

use super::{FileLimits, ListedPaths, RuleError, RuleScope, RuleSet, SyncRules};
use crate::error::{Result, SyncError};
use crate::scan::{EntryFilter, EntryVerdict, ReadScanRules};
use crate::source::SyncSide;

/// Everything that decides what takes part; it goes over the wire like this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncFilters {
    /// Filter rules and ignore files.
    pub rules: RuleSet,
    /// `--files-from`.
    pub selection: Option<ListedPaths>,
    /// Sizes and ages.
    pub limits: FileLimits,
}

impl SyncFilters {
    /// What judges a tree on `side`, whose root has the absolute path `root`. The judge stands above the root: who
    /// walks enters the root by an empty name first.
    pub fn judge(
        self: &Arc<Self>,
        side: SyncSide,
        root: &[u8],
    ) -> std::result::Result<Arc<dyn EntryFilter>, RuleError> {
        self.judge_named(side, root, b"")
    }

    /// The same of a tree whose entries' paths begin with `top`, the root's name, if that is not empty.
    pub fn judge_named(
        self: &Arc<Self>,
        side: SyncSide,
        root: &[u8],
        top: &[u8],
    ) -> std::result::Result<Arc<dyn EntryFilter>, RuleError> {
        let rules = SyncRules::named(&self.rules, root, !top.is_empty())?;
        let scope = rules.top_with(&mut |dir, name| {
            let dir = match HeldDir::open_root(Path::new(OsStr::from_bytes(dir))) {
                Ok(dir) => dir,
                // A destination may not be there yet.
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            crate::scan::read_rules(&dir, name).map_err(|error| error.chain())
        })?;
        let tree = Arc::new(TreeRules { filters: Arc::clone(self), rules, side });
        Ok(Arc::new(DirectoryJudge { tree, scope, prefix: Vec::new() }))
    }
}

/// What is the same in a whole tree.
#[derive(Debug)]
struct TreeRules {
    filters: Arc<SyncFilters>,
    rules: SyncRules,
    side: SyncSide,
}

/// What judges the entries of one directory.
#[derive(Debug)]
struct DirectoryJudge {
    tree: Arc<TreeRules>,
    scope: RuleScope,
    /// The directory's path, with a slash behind it; empty for the root.
    prefix: Vec<u8>,
}

impl DirectoryJudge {
    fn dir(&self) -> &[u8] {
        self.prefix.strip_suffix(b"/").unwrap_or(&self.prefix)
    }
}

impl EntryFilter for DirectoryJudge {
    fn judge(&self, name: &[u8], is_dir: bool) -> EntryVerdict {
        let path = [&self.prefix, name].concat();
        let verdict = self.tree.rules.judge(&self.scope, &path, is_dir);
        let mut verdict = EntryVerdict {
            transfer: verdict.transfer,
            protect_from_delete: verdict.protect_from_delete,
            perishable: verdict.protect_from_delete && !verdict.protect_in_removed,
            is_way: false,
            is_between: false,
        };
        if let Some(selection) = &self.tree.filters.selection {
            verdict.is_way = selection.means_directory(&path);
            verdict.is_between = selection.leads_to(&path);
            verdict.transfer = selection.leads_to(&path) || (verdict.transfer && selection.takes(&path));
            let outside = self.tree.side == SyncSide::Destination && !selection.may_remove(self.dir(), &path);
            verdict.protect_from_delete |= outside;
            verdict.perishable &= !outside;
        }
        verdict
    }

    fn enter(&self, name: &[u8], read: ReadScanRules<'_>) -> Result<Option<Arc<dyn EntryFilter>>> {
        let dir = [&self.prefix, name].concat();
        if self.tree.filters.selection.is_none() && self.tree.rules.ask_names_alone() {
            return Ok(None);
        }
        let mut failed = None;
        let outcome = self.tree.rules.enter(&self.scope, &dir, &mut |file| {
            read(file).map_err(|error| {
                let text = error.chain();
                failed = Some(error);
                text
            })
        });
        let scope = match (outcome, failed) {
            (Ok(scope), _) => scope,
            (Err(_), Some(error)) => return Err(error),
            (Err(error), None) => return Err(SyncError::Rules(error)),
        };
        let mut prefix = dir;
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        Ok(Some(Arc::new(Self { tree: Arc::clone(&self.tree), scope, prefix })))
    }

    fn listed_names(&self) -> Vec<Vec<u8>> {
        let selection = self.tree.filters.selection.as_ref();
        selection.map_or_else(Vec::new, |selection| selection.names_in(self.dir()))
    }

    fn admits(&self, size: u64, mtime: UnixTime) -> bool {
        self.tree.side == SyncSide::Destination || self.tree.filters.limits.take(size, mtime.secs)
    }

    fn takes_xattr(&self, name: &[u8]) -> bool {
        self.tree.rules.takes_xattr(&self.scope, name, self.tree.side)
    }

    fn filters(&self) -> Option<Arc<SyncFilters>> {
        Some(Arc::clone(&self.tree.filters))
    }
}

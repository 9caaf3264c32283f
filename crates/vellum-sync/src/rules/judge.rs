//! Rules, lists of files and limits combined for a walk.
//!
//! Invariant: equal [`SyncFilters`] give equal verdicts on both hosts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_host::beneath::HeldDir;
use vellum_types::{LookupResult, UnixTime};

use super::{FileLimits, ListedPaths, RuleError, RuleScope, RuleSet, SyncRules};
use crate::ends::SyncSide;
use crate::error::{Result, SyncError};
use crate::local::scan::{EntryFilter, EntryVerdict, ReadScanRules};

/// Everything that decides which entries take part; it is sent over the wire in this form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncFilters {
    /// Filter rules and ignore files.
    pub rules: RuleSet,
    /// `--files-from`.
    pub selection: Option<ListedPaths>,
    /// Limits of size and age.
    pub limits: FileLimits,
}

impl SyncFilters {
    /// Makes the filter of a tree on `side`, whose root has the absolute path `root`. The filter stands above the root:
    /// a walk enters the root by an empty name first.
    pub fn create_filter(
        self: &Arc<Self>,
        side: SyncSide,
        root: &[u8],
    ) -> Result<Arc<dyn EntryFilter>, RuleError> {
        self.create_named_filter(side, root, b"")
    }

    /// The same for a tree whose paths begin with `top`, the root's name, unless that is empty.
    pub fn create_named_filter(
        self: &Arc<Self>,
        side: SyncSide,
        root: &[u8],
        top: &[u8],
    ) -> Result<Arc<dyn EntryFilter>, RuleError> {
        let rules = SyncRules::new_named(&self.rules, root, !top.is_empty())?;
        // Rule files above the root are read once. Those in the tree are read while it is walked.
        let scope = rules.read_top_scope(&mut |dir, name| {
            // A destination may not be there yet.
            let Some(held) = HeldDir::open_root(Path::new(OsStr::from_bytes(dir)))
                .none_if_missing()
                .map_err(|error| error.to_string())?
            else {
                return Ok(None);
            };
            crate::local::scan::read_rule_file(&held, name)
                .map_err(|error| add_directory(error, dir).format_chain())
        })?;
        let tree = Arc::new(TreeRules { filters: Arc::clone(self), rules, side });
        Ok(Arc::new(DirectoryJudge { tree, scope, prefix: Vec::new() }))
    }
}

/// The part of a filter that is the same in the whole tree.
#[derive(Debug)]
struct TreeRules {
    filters: Arc<SyncFilters>,
    rules: SyncRules,
    side: SyncSide,
}

/// The filter of the entries of one directory.
#[derive(Debug)]
struct DirectoryJudge {
    tree: Arc<TreeRules>,
    scope: RuleScope,
    /// The directory's path with a trailing slash; empty for the root.
    prefix: Vec<u8>,
}

impl DirectoryJudge {
    fn dir_path(&self) -> &[u8] {
        self.prefix.strip_suffix(b"/").unwrap_or(&self.prefix)
    }
}

/// Adds the directory to the error of one of its rule files.
fn add_directory(error: SyncError, dir: &[u8]) -> SyncError {
    match error {
        SyncError::Rules(error) => SyncError::Rules(error.with_directory(dir)),
        other => other,
    }
}

impl EntryFilter for DirectoryJudge {
    fn evaluate_entry(&self, name: &[u8], is_dir: bool) -> EntryVerdict {
        let path = [&self.prefix, name].concat();
        let verdict = self.tree.rules.evaluate_entry(&self.scope, &path, is_dir);
        let mut verdict = EntryVerdict {
            transfer: verdict.transfer,
            protect_from_delete: verdict.protect_from_delete,
            perishable: verdict.protect_from_delete && !verdict.protect_in_removed,
            is_way: false,
            is_between: false,
        };
        if let Some(selection) = &self.tree.filters.selection {
            verdict.is_way = selection.is_dir_only(&path);
            verdict.is_between = selection.contains_below(&path);
            // Directories on the way to a listed path take part even if a rule excludes them: the path was
            // named, and is reached through them.
            verdict.transfer =
                selection.contains_below(&path) || (verdict.transfer && selection.contains_path(&path));
            let outside =
                self.tree.side == SyncSide::Destination && !selection.may_remove(self.dir_path(), &path);
            // An unlisted path is not part of the run, so it is not deleted either.
            verdict.protect_from_delete |= outside;
            verdict.perishable &= !outside;
        }
        verdict
    }

    fn enter_dir(&self, name: &[u8], read: ReadScanRules<'_>) -> Result<Option<Arc<dyn EntryFilter>>> {
        let dir = [&self.prefix, name].concat();
        // The same judge serves all directories if nothing depends on the path. This saves an allocation for
        // each directory.
        if self.tree.filters.selection.is_none() && self.tree.rules.needs_names_only() {
            return Ok(None);
        }
        let mut failed = None;
        let outcome = self.tree.rules.enter_dir(&self.scope, &dir, &mut |file| {
            read(file).map_err(|error| {
                let error = add_directory(error, &dir);
                let text = error.format_chain();
                failed = Some(error);
                text
            })
        });
        let scope = match (outcome, failed) {
            (Ok(scope), _) => scope,
            // The reader's own error is more exact than its text within a rule error.
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
        selection.map_or_else(Vec::new, |selection| selection.find_names_in(self.dir_path()))
    }

    fn should_transfer_file(&self, size: u64, mtime: UnixTime) -> bool {
        self.tree.side == SyncSide::Destination || self.tree.filters.limits.is_within_limits(size, mtime.secs)
    }

    fn should_transfer_xattr(&self, name: &[u8]) -> bool {
        self.tree.rules.should_transfer_xattr(&self.scope, name, self.tree.side)
    }

    fn sync_filters(&self) -> Option<Arc<SyncFilters>> {
        Some(Arc::clone(&self.tree.filters))
    }
}

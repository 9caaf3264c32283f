//! Rules, lists of files and limits together, as a walk asks for them.
//!
//! Invariant: the same [`Filters`] judge alike on both sides of a wire.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_checkout::beneath::Dir;
use vellum_types::Time;

use super::{Limits, RuleError, RuleSet, Rules, Scope, Selection};
use crate::error::{Result, SyncError};
use crate::scan::{Judge, ReadRules, Verdict};
use crate::source::Side;

/// Everything that decides what takes part; it goes over the wire like this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filters {
    /// Filter rules and ignore files.
    pub rules: RuleSet,
    /// `--files-from`.
    pub selection: Option<Selection>,
    /// Sizes and ages.
    pub limits: Limits,
}

impl Filters {
    /// What judges a tree on `side`, whose root has the absolute path `root`. The judge stands above the root: who
    /// walks enters the root by an empty name first.
    pub fn judge(
        self: &Arc<Self>,
        side: Side,
        root: &[u8],
    ) -> std::result::Result<Arc<dyn Judge>, RuleError> {
        self.judge_named(side, root, b"")
    }

    /// The same of a tree whose entries' paths begin with `top`, the root's name, if that is not empty.
    pub fn judge_named(
        self: &Arc<Self>,
        side: Side,
        root: &[u8],
        top: &[u8],
    ) -> std::result::Result<Arc<dyn Judge>, RuleError> {
        let rules = Rules::named(&self.rules, root, !top.is_empty())?;
        let scope = rules.top_with(&mut |dir, name| {
            let dir = match Dir::open_root(Path::new(OsStr::from_bytes(dir))) {
                Ok(dir) => dir,
                // A destination may not be there yet.
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            crate::scan::read_rules(&dir, name).map_err(|error| error.chain())
        })?;
        let tree = Arc::new(Tree { filters: Arc::clone(self), rules, side });
        Ok(Arc::new(Here { tree, scope, prefix: Vec::new() }))
    }
}

/// What is the same in a whole tree.
#[derive(Debug)]
struct Tree {
    filters: Arc<Filters>,
    rules: Rules,
    side: Side,
}

/// What judges the entries of one directory.
#[derive(Debug)]
struct Here {
    tree: Arc<Tree>,
    scope: Scope,
    /// The directory's path, with a slash behind it; empty for the root.
    prefix: Vec<u8>,
}

impl Here {
    fn dir(&self) -> &[u8] {
        self.prefix.strip_suffix(b"/").unwrap_or(&self.prefix)
    }
}

impl Judge for Here {
    fn judge(&self, name: &[u8], is_dir: bool) -> Verdict {
        let path = [&self.prefix, name].concat();
        let verdict = self.tree.rules.judge(&self.scope, &path, is_dir);
        let mut verdict = Verdict {
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
            let outside = self.tree.side == Side::Destination && !selection.takes_content_of(self.dir());
            verdict.protect_from_delete |= outside;
            verdict.perishable &= !outside;
        }
        verdict
    }

    fn enter(&self, name: &[u8], read: ReadRules<'_>) -> Result<Option<Arc<dyn Judge>>> {
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

    fn admits(&self, size: u64, mtime: Time) -> bool {
        self.tree.side == Side::Destination || self.tree.filters.limits.take(size, mtime.secs)
    }

    fn takes_xattr(&self, name: &[u8]) -> bool {
        self.tree.rules.takes_xattr(&self.scope, name, self.tree.side)
    }

    fn filters(&self) -> Option<Arc<Filters>> {
        Some(Arc::clone(&self.tree.filters))
    }
}

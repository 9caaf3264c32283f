//! What takes part in a synchronisation: rsync's filter language, lists of files, ignore files, limits.
//!
//! [`RuleSet::compile_args`] turns what was typed into data that can go over the wire; [`SyncRules::new`] makes a matcher of it.
//! A walk starts in [`SyncRules::top_scope`], calls [`SyncRules::enter_dir`] for each directory that it goes into, and asks
//! [`SyncRules::evaluate_entry`] about each entry. [`SyncFilters`] is all of it together, as a scan asks for it.
//!
//! Invariant: files of rules are read by the caller's function, those of the tree by who walks it. The time that a verdict takes
//! is bounded by the lengths of rules and path. Files above the root, where a rule asks for such, are read when a judge
//! is made. Deliberately absent: what a verdict leads to.

mod compile;
mod error;
mod judge;
mod limits;
mod parse;
mod pattern;
mod rule;
mod scope;
mod selection;
mod wild;

pub use compile::ReadRuleFile;
pub use error::RuleError;
pub use judge::SyncFilters;
pub use limits::{FileLimits, parse_size};
pub use rule::{DirMergeRule, FilterRule, RuleArg, RuleEffect, RuleEntry, RuleModifiers, RuleSet, RuleSides};
pub use scope::{ReadDirectoryFile, RuleScope, RuleVerdict, SyncRules};
pub use selection::{ListedPath, ListedPaths};

/// Whether a name matches a pattern of `*`, `?` and `[`.
pub(crate) fn matches_name(pattern: &str, name: &str) -> bool {
    pattern::RulePattern::new(pattern.as_bytes()).matches_path(name.as_bytes(), false)
}

#[cfg(test)]
mod tests;

//! Which entries take part in a synchronisation: rsync's filter language, lists of files, ignore files, limits.
//!
//! [`RuleSet::compile_args`] parses command line options to data that can be sent to another host; [`SyncRules::new`]
//! compiles that to a matcher. A walk starts in [`SyncRules::top_scope`], calls [`SyncRules::enter_dir`] for each
//! directory that it enters, and [`SyncRules::evaluate_entry`] for each entry. [`SyncFilters`] combines all of it for a
//! scan.
//!
//! Invariant: rule files are read by a function of the caller, those of the tree during its walk. The time of a verdict
//! is bounded by the lengths of rules and path. Rule files above the root, which some rules require, are read when a
//! judge is created. Deliberately absent: the consequences of a verdict.

mod compile;
mod error;
mod judge;
mod limits;
mod name_pattern;
mod parse;
mod pattern;
mod rule;
mod scope;
mod selection;
mod wild;

pub use compile::ReadRuleFile;
pub(crate) use error::RULE_FILE_MAX;
pub use error::RuleError;
pub use judge::SyncFilters;
pub use limits::{FileLimits, parse_size};
pub use name_pattern::NamePattern;
pub use rule::{DirMergeRule, FilterRule, RuleArg, RuleEffect, RuleEntry, RuleModifiers, RuleSet, RuleSides};
pub use scope::{ReadDirectoryFile, RuleScope, RuleVerdict, SyncRules};
pub use selection::{ListedPath, ListedPaths};

/// Whether a name matches a pattern of `*`, `?` and `[`.
pub(crate) fn matches_name(pattern: &str, name: &str) -> bool {
    pattern::RulePattern::new(pattern.as_bytes()).matches_path(name.as_bytes(), false)
}

#[cfg(test)]
mod tests;

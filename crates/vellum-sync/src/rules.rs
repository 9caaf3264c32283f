//! What takes part in a synchronisation: rsync's filter language, lists of files, ignore files, limits.
//!
//! [`RuleSet::compile`] turns what was typed into data that can go over the wire; [`Rules::new`] makes a matcher of it.
//! A walk starts in [`Rules::top`], calls [`Rules::enter`] for each directory that it goes into, and asks
//! [`Rules::judge`] about each entry. [`Filters`] is all of it together, as a scan asks for it.
//!
//! Invariant: nothing here does I/O: files of rules are read by the caller's function. The time that a verdict takes
//! is bounded by the lengths of rules and path. Deliberately absent: the list of what CVS leaves out, and files of
//! rules in the directories above the root.

mod compile;
mod error;
mod ignored;
mod judge;
mod limits;
mod parse;
mod pattern;
mod rule;
mod scope;
mod selection;
mod wild;

pub use compile::ReadFile;
pub use error::RuleError;
pub use judge::Filters;
pub use limits::{Limits, parse_size};
pub use rule::{DirMerge, Effect, Entry, Modifiers, Rule, RuleArg, RuleSet, Sides};
pub use scope::{ReadHere, Rules, Scope, Verdict};
pub use selection::{Listed, Selection};

#[cfg(test)]
mod tests;

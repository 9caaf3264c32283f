//! Rules as data: what was typed, parsed and not yet compiled. They go over the wire like this.
//!
//! Invariant: everything here can be compiled by both sides, or is refused by [`super::SyncRules::new`] on both.

use serde::{Deserialize, Serialize};

/// What happens to what a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleEffect {
    /// It is shown, and at risk.
    Include,
    /// It is hidden, and protected.
    Exclude,
}

/// Which sides a rule speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSides {
    /// What is transferred.
    pub sender: bool,
    /// What `--delete` may remove.
    pub receiver: bool,
}

impl RuleSides {
    /// What is transferred, and what may be removed.
    pub const BOTH: Self = Self { sender: true, receiver: true };
    /// What is transferred.
    pub const SENDER: Self = Self { sender: true, receiver: false };
    /// What may be removed.
    pub const RECEIVER: Self = Self { sender: false, receiver: true };
}

/// An include or an exclude rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// What happens to what it matches.
    pub effect: RuleEffect,
    /// The pattern as it was typed.
    pub pattern: Vec<u8>,
    /// Whom it concerns; both, or the sender alone with `--delete-excluded`, if it does not say.
    pub sides: Option<RuleSides>,
    /// `!`: it matches what the pattern does not.
    pub negated: bool,
    /// `p`: it protects nothing in a directory that is being removed.
    pub perishable: bool,
    /// `/`: the pattern is held against absolute paths.
    pub absolute: bool,
    /// `x`: it is about names of extended attributes.
    pub xattr: bool,
}

/// What rules without a word about it take from the rule that their file was merged by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleModifiers {
    /// `s`, `r`.
    pub sides: Option<RuleSides>,
    /// `p`.
    pub perishable: bool,
    /// `/`.
    pub absolute: bool,
    /// `x`.
    pub xattr: bool,
    /// `-` or `+`: lines are patterns, and this is what they do.
    pub plain: Option<RuleEffect>,
    /// `w`: white space ends rules.
    pub words: bool,
    /// `C`: as CVS would; a lone `!` clears even though lines are patterns.
    pub cvs: bool,
}

/// A rule that reads more rules in each directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirMergeRule {
    /// The file's name: one component.
    pub name: Vec<u8>,
    /// What its rules take from here.
    pub modifiers: RuleModifiers,
    /// `n`: its rules hold in its directory alone.
    pub not_inherited: bool,
    /// The absolute path of the directory from which on such files are read above the root, too, if it has a slash.
    pub from: Option<Vec<u8>>,
}

/// One place in the list of rules; the first that matches decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleEntry {
    /// A rule.
    Rule(FilterRule),
    /// The rules that a directory's own file holds, and those of the directories above.
    DirMerge(DirMergeRule),
}

/// All that decides what takes part, as it was typed, with merged files read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSet {
    /// The rules, in order.
    pub entries: Vec<RuleEntry>,
    /// `--delete-excluded`: rules that name no side do not protect.
    pub delete_excluded: bool,
    /// `--gitignore`: what `.gitignore` files leave out is left out.
    pub gitignore: bool,
    /// `--vellumignore`: the same of `.vellumignore` files.
    pub vellumignore: bool,
}

/// What was typed on a command line, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleArg {
    /// `--filter RULE`.
    Filter(Vec<u8>),
    /// `--include PATTERN`.
    Include(Vec<u8>),
    /// `--exclude PATTERN`.
    Exclude(Vec<u8>),
    /// `--include-from FILE`.
    IncludeFrom(Vec<u8>),
    /// `--exclude-from FILE`.
    ExcludeFrom(Vec<u8>),
    /// More of what CVS leaves out: patterns with white space between them.
    Cvs(Vec<u8>),
}

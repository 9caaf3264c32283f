//! Rules as data: parsed and not yet compiled. They are sent over the wire in this form.
//!
//! Invariant: both sides either compile a rule set, or refuse it by [`super::SyncRules::new`].

use serde::{Deserialize, Serialize};

/// The effect of a rule on matching entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleEffect {
    /// They are shown, and may be deleted.
    Include,
    /// They are hidden, and protected.
    Exclude,
}

/// The sides that a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSides {
    /// It applies to the transfer.
    pub sender: bool,
    /// It applies to `--delete`.
    pub receiver: bool,
}

impl RuleSides {
    /// Both sides.
    pub const BOTH: Self = Self { sender: true, receiver: true };
    /// The transfer only.
    pub const SENDER: Self = Self { sender: true, receiver: false };
    /// Deletions only.
    pub const RECEIVER: Self = Self { sender: false, receiver: true };
}

/// An include or an exclude rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// The effect on matching entries.
    pub effect: RuleEffect,
    /// The pattern as it was typed.
    pub pattern: Vec<u8>,
    /// The sides; by default both, or the sender alone with `--delete-excluded`.
    pub sides: Option<RuleSides>,
    /// `!`: it applies to entries that the pattern does not match.
    pub negated: bool,
    /// `p`: it does not protect entries of a directory that is being removed.
    pub perishable: bool,
    /// `/`: the pattern is matched against absolute paths.
    pub absolute: bool,
    /// `x`: it applies to names of extended attributes.
    pub xattr: bool,
}

/// The modifiers that rules of a merged file inherit from the rule that names the file.
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
    /// `-` or `+`: lines are patterns, and this is their effect.
    pub plain: Option<RuleEffect>,
    /// `w`: rules are separated by white space.
    pub words: bool,
    /// `C`: as in CVS; a lone `!` clears the list although lines are patterns.
    pub cvs: bool,
}

/// A rule that reads further rules from a file of each directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirMergeRule {
    /// The file's name: one component.
    pub name: Vec<u8>,
    /// The modifiers that its rules inherit.
    pub modifiers: RuleModifiers,
    /// `n`: its rules apply in its own directory only.
    pub not_inherited: bool,
    /// If the name was given with a slash: the absolute path of a directory above the root. Files from there down to
    /// the root are read, too.
    pub from: Option<Vec<u8>>,
}

/// One item of a list of rules; the first match decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleEntry {
    /// A single rule.
    Rule(FilterRule),
    /// The rules of a directory's own file, then those of the directories above.
    DirMerge(DirMergeRule),
}

/// All rules of a run, parsed, with merged files read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSet {
    /// The rules, in order.
    pub entries: Vec<RuleEntry>,
    /// `--delete-excluded`: rules that name no side do not protect entries.
    pub delete_excluded: bool,
    /// `--gitignore`: entries that `.gitignore` files exclude are excluded.
    pub gitignore: bool,
    /// `--vellumignore`: the same for `.vellumignore` files.
    pub vellumignore: bool,
}

/// An option of a command line.
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
    /// Further patterns that CVS excludes, separated by white space.
    Cvs(Vec<u8>),
}

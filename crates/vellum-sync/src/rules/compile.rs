//! Parses the options of a command line to a list of rules, and reads merged files.
//!
//! Invariant: files that merge each other in a cycle are refused.

use std::collections::HashSet;

use super::error::RuleError;
use super::parse::{ParsedLine, parse_cvs_patterns, parse_old_pattern, parse_rule, parse_rule_file};
use super::rule::{DirMergeRule, RuleArg, RuleEffect, RuleEntry, RuleModifiers, RuleSet};

/// How deeply files may merge others: more is a cycle.
const DEPTH_MAX: usize = 32;
/// Most rules of a list. Every entry is matched against each.
pub(super) const RULES_MAX: usize = 100_000;

/// Reads a rule file by the name in a rule; fails with a reason.
pub type ReadRuleFile<'r> = &'r mut dyn FnMut(&[u8]) -> Result<Vec<u8>, String>;

impl RuleSet {
    /// Compiles `args` in their order. `read` reads the files that they name; with `nul`, their lines are separated by
    /// NUL.
    pub fn compile_args(args: &[RuleArg], nul: bool, read: ReadRuleFile<'_>) -> Result<Self, RuleError> {
        let mut list = RuleList { entries: Vec::new(), merged: HashSet::new(), nul };
        for arg in args {
            match arg {
                // Arguments are taken in the order of the command line, since the first matching rule
                // decides.
                RuleArg::Filter(text) => {
                    list.add_line(parse_rule(text, &RuleModifiers::default())?, 0, read)?
                }
                RuleArg::Include(text) => {
                    list.add_line(parse_old_pattern(text, RuleEffect::Include)?, 0, read)?
                }
                RuleArg::Exclude(text) => {
                    list.add_line(parse_old_pattern(text, RuleEffect::Exclude)?, 0, read)?
                }
                RuleArg::IncludeFrom(name) => list.add_pattern_file(name, RuleEffect::Include, read)?,
                RuleArg::ExcludeFrom(name) => list.add_pattern_file(name, RuleEffect::Exclude, read)?,
                RuleArg::Cvs(text) => list.add_cvs_patterns(Some(text), read)?,
            }
        }
        Ok(Self { entries: list.entries, ..Self::default() })
    }
}

/// A list of rules that is being built.
pub(super) struct RuleList {
    pub(super) entries: Vec<RuleEntry>,
    /// Per-directory files that the list refers to already: naming one again adds nothing.
    pub(super) merged: HashSet<Vec<u8>>,
    pub(super) nul: bool,
}

impl RuleList {
    fn add_pattern_file(
        &mut self,
        name: &[u8],
        effect: RuleEffect,
        read: ReadRuleFile<'_>,
    ) -> Result<(), RuleError> {
        let text = read(name).map_err(|why| RuleError::file_error(name, why))?;
        let ends = |byte: &u8| if self.nul { *byte == 0 } else { matches!(byte, b'\n' | b'\r') };
        // Lines that begin with `#` or `;` are comments, as in rsync.
        let lines: Vec<&[u8]> =
            text.split(ends).filter(|line| !matches!(line.first(), None | Some(b'#' | b';'))).collect();
        lines.into_iter().try_for_each(|line| self.add_line(parse_old_pattern(line, effect)?, 0, read))
    }

    /// Adds the rule of a line to the list.
    pub(super) fn add_line(
        &mut self,
        said: ParsedLine,
        depth: usize,
        read: ReadRuleFile<'_>,
    ) -> Result<(), RuleError> {
        // Checked before each line, because a file can merge others that add many.
        if self.entries.len() >= RULES_MAX {
            return Err(RuleError::TooMany { what: "filter rules", limit: RULES_MAX });
        }
        match said {
            ParsedLine::Rule(rule) => self.entries.push(RuleEntry::Rule(rule)),
            ParsedLine::Cvs => self.add_cvs_patterns(None, read)?,
            // `!` forgets all rules before it, including those of files that were merged.
            ParsedLine::Clear => {
                self.entries.clear();
                self.merged.clear();
            }
            ParsedLine::DirMerge { merge, hidden } => {
                self.entries.extend(hidden.map(RuleEntry::Rule));
                self.add_dir_merge(merge);
            }
            ParsedLine::Merge { name, modifiers, hidden } => {
                self.entries.extend(hidden.map(RuleEntry::Rule));
                self.merge_file(&name, &modifiers, depth, read)?;
            }
        }
        Ok(())
    }

    fn add_cvs_patterns(&mut self, text: Option<&[u8]>, read: ReadRuleFile<'_>) -> Result<(), RuleError> {
        parse_cvs_patterns(text)?.into_iter().try_for_each(|said| self.add_line(said, 0, read))
    }

    fn add_dir_merge(&mut self, merge: DirMergeRule) {
        if self.merged.insert(merge.name.clone()) {
            self.entries.push(RuleEntry::DirMerge(merge));
        }
    }

    fn merge_file(
        &mut self,
        name: &[u8],
        modifiers: &RuleModifiers,
        depth: usize,
        read: ReadRuleFile<'_>,
    ) -> Result<(), RuleError> {
        // Each level is a recursion of this function.
        if depth >= DEPTH_MAX {
            return Err(RuleError::file_error(name, "it merges itself"));
        }
        let text = read(name).map_err(|why| RuleError::file_error(name, why))?;
        let said = parse_rule_file(&text, modifiers, self.nul)?;
        said.into_iter().try_for_each(|said| self.add_line(said, depth + 1, read))
    }
}

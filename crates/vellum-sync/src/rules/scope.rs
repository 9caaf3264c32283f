//! Compiled rules, and the rules of one directory of a walk.
//!
//! Invariant: a scope never changes; that of a directory shares everything inherited with the one above it.

use std::sync::Arc;

use vellum_host::ignore_files::{IgnoreFileError, IgnorePatterns};

use super::compile::{RULES_MAX, RuleList};
use super::error::RuleError;
use super::parse::{PATTERN_MAX, parse_rule_file};
use super::pattern::RulePattern;
use super::rule::{DirMergeRule, FilterRule, RuleEffect, RuleEntry, RuleSet, RuleSides};
use crate::ends::SyncSide;

/// Most rules that all rule files of one directory may contain.
const OF_DIR_MAX: usize = 10_000;

/// Reads a regular file of the directory that is entered; None if there is none of this name.
pub type ReadDirectoryFile<'r> = &'r mut dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>, String>;

/// Reads a regular file of a directory above the root, by the directory's absolute path and its name.
pub(super) type ReadAncestorFile<'r> = &'r mut dyn FnMut(&[u8], &[u8]) -> Result<Option<Vec<u8>>, String>;

/// The verdict on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleVerdict {
    /// As a source entry: it is transferred; if not, the entries below it are not even read.
    pub transfer: bool,
    /// As a destination entry: `--delete` keeps it, with everything below it.
    pub protect_from_delete: bool,
    /// The same if its directory is being removed, where perishable rules do not apply.
    pub protect_in_removed: bool,
}

/// The rules of a run.
#[derive(Debug)]
pub struct SyncRules {
    entries: Vec<CompiledEntry>,
    merges: Vec<DirMergeRule>,
    default_sides: RuleSides,
    /// The root's absolute path without its leading slash, with a trailing one: absolute patterns are matched against
    /// it.
    base: Vec<u8>,
    /// The root's path, and whether the paths of entries begin with its name.
    root: (Vec<u8>, bool),
    ignore_files: Vec<&'static [u8]>,
}

#[derive(Debug)]
enum CompiledEntry {
    Rule(Box<RuleMatcher>),
    /// The rules of a directory's own file: an index into `locals` of its scope.
    Local(usize),
}

#[derive(Debug)]
struct RuleMatcher {
    pattern: RulePattern,
    effect: RuleEffect,
    sides: RuleSides,
    negated: bool,
    perishable: bool,
    absolute: bool,
    xattr: bool,
    /// The offset in a path at which the part begins that an anchored pattern is matched against.
    offset: usize,
    /// The prefix of paths for an anchored pattern of a directory above the root.
    above: Vec<u8>,
}

/// The rules of one directory in addition to the global ones.
#[derive(Debug, Clone, Default)]
pub struct RuleScope {
    /// The rules of each per-directory file.
    locals: Arc<Vec<Option<Arc<LocalRules>>>>,
    /// Further per-directory files, which rules in such files name.
    more: Arc<Vec<DirMergeRule>>,
    ignored: Option<Arc<IgnorePatterns>>,
}

/// Parses an ignore file; its patterns come before those of `outer`. Fails if a line cannot be parsed.
fn parse_ignore_file(
    name: &[u8],
    text: &[u8],
    offset: usize,
    outer: Option<Arc<IgnorePatterns>>,
) -> Result<Option<Arc<IgnorePatterns>>, RuleError> {
    let parsed = IgnorePatterns::parse_file(text, offset, outer);
    match parsed.problems.first().map(|problem| &problem.cause) {
        None => Ok(parsed.patterns),
        Some(IgnoreFileError::NotUtf8) => Err(RuleError::file_error(name, "a line is not UTF-8")),
        Some(IgnoreFileError::Pattern(error)) => Err(RuleError::file_error(name, error.to_string())),
    }
}

/// The rules of one file in one directory, and those above it.
#[derive(Debug)]
struct LocalRules {
    entries: Vec<CompiledEntry>,
    inherited: Option<Arc<LocalRules>>,
}

impl Drop for LocalRules {
    /// Drops the chain in a loop: a tree with such a file on each of very many levels must not exhaust the stack.
    fn drop(&mut self) {
        let mut next = self.inherited.take();
        while let Some(local) = next {
            next = Arc::into_inner(local).and_then(|mut local| local.inherited.take());
        }
    }
}

impl SyncRules {
    /// Compiles `set` for a tree whose root has the absolute path `root`.
    pub fn new(set: &RuleSet, root: &[u8]) -> Result<Self, RuleError> {
        Self::new_named(set, root, false)
    }

    /// The same; with `is_named` the paths of entries begin with the root's name.
    pub(super) fn new_named(set: &RuleSet, root: &[u8], is_named: bool) -> Result<Self, RuleError> {
        // The set may come from another host, which did not have to obey the limit.
        if set.entries.len() > RULES_MAX {
            return Err(RuleError::TooMany { what: "filter rules", limit: RULES_MAX });
        }
        let default_sides = if set.delete_excluded { RuleSides::SENDER } else { RuleSides::BOTH };
        let mut merges = Vec::new();
        let entries = compile_entries(&set.entries, default_sides, 0, &mut merges, 0)?;
        let above = if is_named { parent_path(root) } else { root };
        // Absolute patterns and paths are compared without their leading slash.
        let mut base = above.strip_prefix(b"/").unwrap_or(above).to_vec();
        if !base.is_empty() && !base.ends_with(b"/") {
            base.push(b'/');
        }
        let ignore_files = [(set.gitignore, b".gitignore".as_slice()), (set.vellumignore, b".vellumignore")];
        let ignore_files =
            ignore_files.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name).collect();
        let root = (root.to_vec(), is_named);
        Ok(Self { entries, merges, default_sides, base, root, ignore_files })
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.ignore_files.is_empty()
    }

    /// Whether verdicts depend only on the last component of a path.
    #[must_use]
    pub fn needs_names_only(&self) -> bool {
        let by_name =
            |entry: &CompiledEntry| matches!(entry, CompiledEntry::Rule(rule) if !rule.pattern.needs_path());
        self.ignore_files.is_empty() && self.entries.iter().all(by_name)
    }

    /// Whether directories may contain further rules, so that verdicts differ between two trees.
    #[must_use]
    pub fn has_dir_rules(&self) -> bool {
        !(self.merges.is_empty() && self.ignore_files.is_empty())
    }

    /// The scope above the root.
    #[must_use]
    pub fn top_scope(&self) -> RuleScope {
        RuleScope { locals: Arc::new(vec![None; self.merges.len()]), ..RuleScope::default() }
    }

    /// The same, with the rules of directories above the root if a rule requires them. `read` reads a file of the
    /// directory at an absolute path.
    pub(super) fn read_top_scope(&self, read: ReadAncestorFile<'_>) -> Result<RuleScope, RuleError> {
        let mut scope = self.top_scope();
        let (root, is_named) = &self.root;
        for (at, merge) in self.merges.iter().enumerate() {
            // Only a merge rule with a path asks for files above the root, and only inherited rules can reach
            // down into it.
            let Some(from) = merge.from.as_ref().filter(|_| !merge.not_inherited) else { continue };
            let mut inherited = None;
            for dir in list_dirs_between(from, root) {
                let text = read(dir, &merge.name).map_err(|why| RuleError::file_error(&merge.name, why))?;
                let Some(text) = text else { continue };
                let mut here = |name: &[u8]| read(dir, name);
                let mut local =
                    self.compile_local_rules(merge, &text, inherited.take(), &mut scope, 0, &mut here)?;
                // Anchored patterns of it are held against paths from there.
                let mut above = root.get(dir.len()..).unwrap_or_default();
                above = above.strip_prefix(b"/").unwrap_or(above);
                let mut above = if *is_named { parent_path(above) } else { above }.to_vec();
                if !above.is_empty() {
                    above.push(b'/');
                }
                for entry in Arc::get_mut(&mut local).into_iter().flat_map(|local| &mut local.entries) {
                    if let CompiledEntry::Rule(rule) = entry {
                        rule.above.clone_from(&above);
                    }
                }
                inherited = Some(local);
            }
            if let Some(slot) = Arc::make_mut(&mut scope.locals).get_mut(at) {
                *slot = inherited;
            }
        }
        Ok(scope)
    }

    /// The scope of the directory at `dir` (empty for the root), given that of the directory above. `read` reads one of
    /// its files; it returns None if there is no regular file of that name.
    pub fn enter_dir(
        &self,
        outer: &RuleScope,
        dir: &[u8],
        read: ReadDirectoryFile<'_>,
    ) -> Result<RuleScope, RuleError> {
        if !self.has_dir_rules() {
            return Ok(outer.clone());
        }
        let offset = if dir.is_empty() { 0 } else { dir.len() + 1 };
        let mut scope = outer.clone();
        self.read_local_rules(&mut scope, offset, read)?;
        for name in &self.ignore_files {
            if let Some(text) = read(name).map_err(|why| RuleError::file_error(name, why))? {
                scope.ignored = parse_ignore_file(name, &text, offset, scope.ignored.take())?;
            }
        }
        Ok(scope)
    }

    fn read_local_rules(
        &self,
        scope: &mut RuleScope,
        offset: usize,
        read: ReadDirectoryFile<'_>,
    ) -> Result<(), RuleError> {
        let mut at = 0;
        // By position: reading a file can add further files to `scope.more`, which are read in the same loop.
        while let Some(merge) = self.merges.iter().chain(scope.more.iter()).nth(at).cloned() {
            let text = read(&merge.name).map_err(|why| RuleError::file_error(&merge.name, why))?;
            let inherited = scope.locals.get(at).cloned().flatten().filter(|_| !merge.not_inherited);
            let local = match text {
                None => inherited,
                Some(text) => Some(self.compile_local_rules(&merge, &text, inherited, scope, offset, read)?),
            };
            let locals = Arc::make_mut(&mut scope.locals);
            if let Some(slot) = locals.get_mut(at) {
                *slot = local;
            }
            at += 1;
        }
        Ok(())
    }

    /// The rules of one file, followed by the inherited ones.
    fn compile_local_rules(
        &self,
        merge: &DirMergeRule,
        text: &[u8],
        inherited: Option<Arc<LocalRules>>,
        scope: &mut RuleScope,
        offset: usize,
        read: ReadDirectoryFile<'_>,
    ) -> Result<Arc<LocalRules>, RuleError> {
        let known = self.merges.iter().chain(scope.more.iter());
        let merged = known.map(|merge| merge.name.clone()).collect();
        let mut list = RuleList { entries: Vec::new(), merged, nul: false };
        let mut inherited = inherited;
        for said in parse_rule_file(text, &merge.modifiers, false)? {
            // In a file of a directory, `!` also forgets what the directory inherits.
            if said == super::parse::ParsedLine::Clear {
                inherited = None;
                list.entries.clear();
                continue;
            }
            list.add_line(said, 0, &mut |name| {
                // A file in the tree may be written by somebody else. It must not make this process read
                // files elsewhere.
                let below = if name.contains(&b'/') { None } else { read(name)? };
                below.ok_or_else(|| "it is not in this directory".to_owned())
            })?;
            if list.entries.len() > OF_DIR_MAX {
                return Err(RuleError::TooMany { what: "filter rules in one directory", limit: OF_DIR_MAX });
            }
        }
        let mut more = Vec::new();
        let first = self.merges.len() + scope.more.len();
        let entries = compile_entries(&list.entries, self.default_sides, offset, &mut more, first)?;
        if !more.is_empty() {
            Arc::make_mut(&mut scope.locals).extend(more.iter().map(|_| None));
            Arc::make_mut(&mut scope.more).extend(more);
        }
        Ok(Arc::new(LocalRules { entries, inherited }))
    }

    /// The verdict on the entry at `path`, whose directory has the scope `scope`.
    #[must_use]
    pub fn evaluate_entry(&self, scope: &RuleScope, path: &[u8], is_dir: bool) -> RuleVerdict {
        let mut query =
            RuleQuery { path, is_dir, base: &self.base, sender: None, receiver: None, removed: None };
        query.evaluate_entries(&self.entries, scope);
        let RuleQuery { sender, receiver, removed, .. } = query;
        let mut effect = RuleEffect::Include;
        // Ignore files decide only what no rule has decided.
        if (sender.is_none() || receiver.is_none() || removed.is_none())
            && scope.ignored.as_ref().is_some_and(|file| file.is_ignored(path, is_dir))
        {
            effect = RuleEffect::Exclude;
        }
        // With `--delete-excluded`, excluded entries are not protected.
        let kept = if self.default_sides.receiver { effect } else { RuleEffect::Include };
        RuleVerdict {
            transfer: sender.unwrap_or(effect) == RuleEffect::Include,
            protect_from_delete: receiver.unwrap_or(kept) == RuleEffect::Exclude,
            protect_in_removed: removed.unwrap_or(kept) == RuleEffect::Exclude,
        }
    }

    /// Whether rules on extended attributes (`x`) include the attribute `name` on one side, in a directory with the
    /// scope `scope`: the source's attribute is copied, the destination's is removed if the source lacks it.
    #[must_use]
    pub fn should_transfer_xattr(&self, scope: &RuleScope, name: &[u8], side: SyncSide) -> bool {
        fn find_first_effect(
            entries: &[CompiledEntry],
            scope: &RuleScope,
            name: &[u8],
            side: SyncSide,
        ) -> Option<RuleEffect> {
            entries.iter().find_map(|entry| match entry {
                CompiledEntry::Rule(rule) => rule.find_xattr_effect(name, side),
                CompiledEntry::Local(number) => {
                    let mut next = scope.locals.get(*number).and_then(Option::as_deref);
                    while let Some(local) = next {
                        if let Some(effect) = find_first_effect(&local.entries, scope, name, side) {
                            return Some(effect);
                        }
                        next = local.inherited.as_deref();
                    }
                    None
                }
            })
        }
        find_first_effect(&self.entries, scope, name, side) != Some(RuleEffect::Exclude)
    }
}

impl RuleMatcher {
    fn find_xattr_effect(&self, name: &[u8], side: SyncSide) -> Option<RuleEffect> {
        let is_of_side = match side {
            SyncSide::Source => self.sides.sender,
            SyncSide::Destination => self.sides.receiver,
        };
        let holds = self.xattr && is_of_side && self.pattern.matches_path(name, false) != self.negated;
        holds.then_some(self.effect)
    }
}

/// The evaluation of one path.
struct RuleQuery<'a> {
    path: &'a [u8],
    is_dir: bool,
    base: &'a [u8],
    sender: Option<RuleEffect>,
    receiver: Option<RuleEffect>,
    removed: Option<RuleEffect>,
}

impl RuleQuery<'_> {
    fn is_answered(&self) -> bool {
        self.sender.is_some() && self.receiver.is_some() && self.removed.is_some()
    }

    fn evaluate_entries(&mut self, entries: &[CompiledEntry], scope: &RuleScope) {
        for entry in entries {
            if self.is_answered() {
                return;
            }
            match entry {
                CompiledEntry::Rule(rule) => self.evaluate_rule(rule),
                CompiledEntry::Local(number) => {
                    let mut next = scope.locals.get(*number).and_then(Option::as_deref);
                    while let Some(local) = next {
                        self.evaluate_entries(&local.entries, scope);
                        next = local.inherited.as_deref();
                    }
                }
            }
        }
    }

    fn evaluate_rule(&mut self, rule: &RuleMatcher) {
        let wants_sender = rule.sides.sender && self.sender.is_none();
        // Three questions are answered in one pass, each by its first matching rule.
        let wants_removed = rule.sides.receiver && !rule.perishable && self.removed.is_none();
        let wants_receiver = rule.sides.receiver && self.receiver.is_none();
        if rule.xattr || !(wants_sender || wants_receiver || wants_removed) || !self.matches_rule(rule) {
            return;
        }
        if wants_sender {
            self.sender = Some(rule.effect);
        }
        if wants_receiver {
            self.receiver = Some(rule.effect);
        }
        if wants_removed {
            self.removed = Some(rule.effect);
        }
    }

    fn matches_rule(&self, rule: &RuleMatcher) -> bool {
        let matches = if rule.absolute && rule.pattern.needs_path() {
            rule.pattern.matches_path(&[self.base, self.path].concat(), self.is_dir)
        } else if rule.pattern.is_anchored() && !rule.above.is_empty() {
            rule.pattern.matches_path(&[&rule.above, self.path].concat(), self.is_dir)
        } else if rule.pattern.is_anchored() {
            rule.pattern.matches_path(self.path.get(rule.offset..).unwrap_or_default(), self.is_dir)
        } else {
            rule.pattern.matches_path(self.path, self.is_dir)
        };
        matches != rule.negated
    }
}

/// Compiles `entries`, whose anchored patterns begin at `offset`; per-directory files are added to `merges`, numbered
/// from `first`.
fn compile_entries(
    entries: &[RuleEntry],
    default_sides: RuleSides,
    offset: usize,
    merges: &mut Vec<DirMergeRule>,
    first: usize,
) -> Result<Vec<CompiledEntry>, RuleError> {
    let mut compiled = Vec::with_capacity(entries.len());
    for entry in entries {
        compiled.push(match entry {
            RuleEntry::Rule(rule) => {
                CompiledEntry::Rule(Box::new(compile_matcher(rule, default_sides, offset)?))
            }
            RuleEntry::DirMerge(merge) if is_path_component(&merge.name) => {
                merges.push(merge.clone());
                CompiledEntry::Local(first + merges.len() - 1)
            }
            // The set may come from another host: a name with slashes would be opened outside of the
            // directory.
            RuleEntry::DirMerge(merge) => {
                return Err(RuleError::file_error(&merge.name, "it is not a name of one component"));
            }
        });
    }
    Ok(compiled)
}

/// The directory of a path; empty for a path of one name.
fn parent_path(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => path.get(..1).unwrap_or_default(),
        Some(slash) => path.get(..slash).unwrap_or_default(),
        None => b"",
    }
}

/// The directories from `from` down to the one above `root`, all with absolute paths.
fn list_dirs_between<'r>(from: &[u8], root: &'r [u8]) -> Vec<&'r [u8]> {
    let mut dirs = Vec::new();
    let mut here = root;
    while here.len() > 1 && here.starts_with(b"/") {
        here = parent_path(here);
        let rest = here.strip_prefix(from);
        if from == b"/" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) {
            dirs.push(here);
        }
    }
    dirs.reverse();
    dirs
}

fn is_path_component(name: &[u8]) -> bool {
    !(name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, b'/' | 0)))
}

fn compile_matcher(
    rule: &FilterRule,
    default_sides: RuleSides,
    offset: usize,
) -> Result<RuleMatcher, RuleError> {
    if rule.pattern.is_empty() || rule.pattern.len() > PATTERN_MAX {
        return Err(RuleError::syntax_error(&rule.pattern, "a pattern has 1 to 4096 bytes"));
    }
    Ok(RuleMatcher {
        pattern: RulePattern::new(&rule.pattern),
        effect: rule.effect,
        sides: rule.sides.unwrap_or(default_sides),
        negated: rule.negated,
        perishable: rule.perishable,
        absolute: rule.absolute,
        xattr: rule.xattr,
        offset,
        above: Vec::new(),
    })
}

//! Rules that leave entries out: `.vellumignore` files, with the patterns of gitignore.
//!
//! The file nearest to an entry decides first. What is below a directory that is left out is not looked at, so that
//! no rule can bring it back.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use vellum_host::beneath::HeldDir;
use vellum_host::escape::EscapedPath;

/// Name of the files that hold rules.
pub const RULES_FILE: &[u8] = b".vellumignore";
/// Longest rule file, bytes: ten thousand rules. Matchers take many times the memory of their text.
const RULES_MAX: u64 = 256 << 10;

/// The rules of one file.
#[derive(Debug)]
pub(super) struct IgnoreRuleFile {
    matcher: Gitignore,
    /// Length of the path of its directory, with the slash behind it (0 for the root).
    prefix_len: usize,
    /// The next file up.
    outer: Option<IgnoreRules>,
}

/// The rules that hold in a directory: of its own file and of those above.
pub(super) type IgnoreRules = Arc<IgnoreRuleFile>;

impl IgnoreRuleFile {
    /// Reads the rules in `dir`, whose path is `path`, if it has any. Messages tell of rules that are not understood.
    pub(super) fn read_rules(
        dir: &HeldDir,
        path: &[u8],
        outer: Option<&IgnoreRules>,
    ) -> (Option<IgnoreRules>, Vec<String>) {
        let text = match read_rule_text(dir) {
            Ok(Some(text)) => text,
            Ok(None) => return (outer.cloned(), Vec::new()),
            Err(message) => return (outer.cloned(), vec![message]),
        };
        let (matcher, messages) = parse_rules(&text);
        let prefix_len = if path.is_empty() { 0 } else { path.len() + 1 };
        let file = matcher.map(|matcher| Arc::new(Self { matcher, prefix_len, outer: outer.cloned() }));
        (file.or_else(|| outer.cloned()), messages)
    }

    /// Whether the entry at `path`, relative to the scan's root, is left out.
    pub(super) fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        let mut next = Some(self);
        while let Some(file) = next {
            let below = path.get(file.prefix_len..).unwrap_or_default();
            let verdict = file.matcher.matched(Path::new(OsStr::from_bytes(below)), is_dir);
            if !verdict.is_none() {
                return verdict.is_ignore();
            }
            next = file.outer.as_deref();
        }
        false
    }
}

#[cfg(test)]
impl IgnoreRuleFile {
    /// One more level, with rules that match nothing.
    pub(super) fn chained(outer: Option<IgnoreRules>) -> Option<IgnoreRules> {
        Some(Arc::new(Self { matcher: Gitignore::empty(), prefix_len: 0, outer }))
    }
}

impl Drop for IgnoreRuleFile {
    /// Takes the chain apart in a loop: a tree with a rule file on each of very many levels must not use up the stack.
    fn drop(&mut self) {
        let mut next = self.outer.take();
        while let Some(file) = next {
            next = Arc::into_inner(file).and_then(|mut file| file.outer.take());
        }
    }
}

fn read_rule_text(dir: &HeldDir) -> Result<Option<Vec<u8>>, String> {
    let opened = match dir.open_file(RULES_FILE) {
        Ok(opened) => opened,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = Vec::new();
    opened.file.take(RULES_MAX + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > RULES_MAX {
        return Err(format!("the file has more than {} KiB and is not applied", RULES_MAX >> 10));
    }
    Ok(Some(text))
}

fn parse_rules(text: &[u8]) -> (Option<Gitignore>, Vec<String>) {
    let mut builder = GitignoreBuilder::new("");
    let mut messages = Vec::new();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for line in text.split(|byte| *byte == b'\n') {
        let outcome = match std::str::from_utf8(line) {
            Ok(rule) => builder.add_line(None, rule).map(|_| ()).map_err(|error| error.to_string()),
            Err(_) => Err("it is not UTF-8".to_owned()),
        };
        if let Err(why) = outcome {
            messages.push(format!("rule '{}': {why}", EscapedPath(line)));
        }
    }
    match builder.build() {
        Ok(matcher) if matcher.is_empty() => (None, messages),
        Ok(matcher) => (Some(matcher), messages),
        Err(error) => {
            messages.push(error.to_string());
            (None, messages)
        }
    }
}

//! Reading rule files (`.vellumignore`), and reporting their problems.

use std::io::Read;
use std::sync::Arc;

use vellum_host::beneath::HeldDir;
use vellum_host::escape::EscapedPath;
use vellum_host::ignore_files::{IgnorePatterns, ParsedIgnoreFile};
use vellum_types::LookupResult;

/// Name of the rule files that are applied unless others are set.
pub const DEFAULT_RULES_FILE: &str = ".vellumignore";
/// Longest rule file, bytes: ten thousand rules. Matchers take many times the memory of the text.
const RULES_MAX: u64 = 256 << 10;

/// The rules of a directory: those of its own file and of those above.
pub(super) type IgnoreRules = Arc<IgnorePatterns>;

/// Reads the rules in the file `name` of `dir`, whose path is `path`, if it is there. Returns messages for rules that cannot
/// be parsed.
pub(super) fn read_rules(
    dir: &HeldDir,
    name: &str,
    path: &[u8],
    outer: Option<&IgnoreRules>,
) -> (Option<IgnoreRules>, Vec<String>) {
    let text = match read_rule_text(dir, name) {
        Ok(Some(text)) => text,
        Ok(None) => return (outer.cloned(), Vec::new()),
        Err(message) => return (outer.cloned(), vec![message]),
    };
    // As in gitignore, rules are relative to the directory of their file, and matched with paths from the root.
    let offset = if path.is_empty() { 0 } else { path.len() + 1 };
    let ParsedIgnoreFile { patterns, problems } = IgnorePatterns::parse_file(&text, offset, outer.cloned());
    let messages = problems.iter().map(|problem| match &problem.line {
        Some(line) => format!("rule '{}': {}", EscapedPath(line), problem.cause),
        None => problem.cause.to_string(),
    });
    (patterns, messages.collect())
}

fn read_rule_text(dir: &HeldDir, name: &str) -> Result<Option<Vec<u8>>, String> {
    let Some(opened) = dir.open_file(name.as_bytes()).none_if_missing().map_err(|error| error.to_string())?
    else {
        return Ok(None);
    };
    let mut text = Vec::new();
    // One byte more than is allowed shows that there is more.
    opened.file.take(RULES_MAX + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > RULES_MAX {
        return Err(format!("the file has more than {} KiB and is not applied", RULES_MAX >> 10));
    }
    Ok(Some(text))
}

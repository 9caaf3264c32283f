//! What a scan leaves out on purpose: what rule files say, and what a command says beside them.

use std::io::Read;
use std::sync::Arc;

use vellum_host::beneath::HeldDir;
use vellum_host::exclusions::{CACHE_SIGNATURE, CACHE_TAG};
use vellum_host::ignore_files::IgnorePatterns;

use super::rules::DEFAULT_RULES_FILE;

/// What a scan leaves out.
#[derive(Debug, Clone)]
pub struct ScanExclusions {
    /// Names of the files whose rules are applied; of several in one directory, the last one decides first.
    pub rule_files: Vec<String>,
    /// Patterns that decide before all rule files.
    pub patterns: Option<Arc<IgnorePatterns>>,
    /// Leave out what is in directories of other filesystems than the root, or the selected path, is on.
    pub other_file_systems: bool,
    /// Leave out what is in directories marked as caches, but for the mark.
    pub caches: bool,
}

impl Default for ScanExclusions {
    fn default() -> Self {
        Self {
            rule_files: vec![DEFAULT_RULES_FILE.into()],
            patterns: None,
            other_file_systems: false,
            caches: false,
        }
    }
}

impl ScanExclusions {
    /// Whether the rules in files of this name are applied.
    #[must_use]
    pub fn is_rule_file(&self, name: &[u8]) -> bool {
        self.rule_files.iter().any(|file| file.as_bytes() == name)
    }
}

/// Whether a directory is marked as a cache. One whose mark cannot be read is none.
pub(super) fn is_cache_dir(dir: &HeldDir) -> bool {
    let Ok(opened) = dir.open_file(CACHE_TAG) else { return false };
    let mut start = [0; CACHE_SIGNATURE.len()];
    (&opened.file).read_exact(&mut start).is_ok() && start == CACHE_SIGNATURE
}

//! Walking a directory tree: one `statx` for each entry, several directories at a time.
//!
//! Invariant: the resulting [`ScanTree`] contains only entries that were seen; an entry that could not be read is a
//! [`ScanProblem`] and marked as unread, and is never treated as empty. Symlinks are not followed, files are not opened
//! (except rule files), and depth needs heap memory instead of stack. Deliberately absent: the meaning of differences.

mod exclusions;
mod finish;
mod open_dirs;
mod problem;
mod rules;
mod selection;
mod tree;
mod visit;
mod walk;

use crate::statcache::StatCache;

pub use exclusions::ScanExclusions;
pub use open_dirs::OpenTreeDirs;
pub use problem::{ScanProblem, ScanProblemCause};
pub use selection::PathSelection;
pub use tree::{ScanDir, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanTree, ScanTreeWalk};
use vellum_host::beneath::{BeneathError, HeldDir};

/// The directory in a worktree's root with its volume's state; never part of a tree.
pub const STATE_DIR: &[u8] = b".vellum";
/// Most threads of a scan by default: more only contend for the kernel's directory locks.
const THREADS_MAX: usize = 16;

/// The options of a scan.
#[derive(Debug, Default)]
pub struct ScanOptions {
    /// The last stat cache: entries are matched with it, and its device numbers are updated.
    pub cache: Option<StatCache>,
    /// Scan these paths only (and the directories above them).
    pub selection: Option<PathSelection>,
    /// What is left out.
    pub exclusions: ScanExclusions,
    /// Number of threads; 0 chooses by the machine.
    pub threads: usize,
}

/// Scans the tree below `root`. Fails only if the root itself cannot be examined.
pub fn scan_tree(root: &HeldDir, options: ScanOptions) -> Result<ScanTree, BeneathError> {
    let root_stat = root.stat_self()?;
    let mut cache = options.cache;
    if let Some(cache) = &mut cache {
        cache.set_root_device(root_stat.dev);
    }
    // At least two threads, also on one core: with a cold cache, a scan mostly waits for the disk.
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(2, usize::from).clamp(2, THREADS_MAX),
        threads => threads,
    };
    let selection = options.selection.filter(|selection| !selection.is_everything());
    let input = walk::ScanInput {
        cache: cache.as_ref(),
        selection: selection.as_ref(),
        exclusions: &options.exclusions,
        threads,
    };
    let walked = walk::ScanWalk::new(root, root_stat, input).run_walk();
    Ok(finish::build_scan_tree(walked, root_stat, cache))
}

#[cfg(test)]
mod tests;

//! Walking a directory tree: one `statx` for each entry, several directories at a time.
//!
//! Invariant: the resulting [`ScanTree`] holds no entry that was not seen, and what could not be read is a [`ScanProblem`] and
//! marked as unread, never taken for empty. Symlinks are not followed, files are not opened (but for rule files),
//! and depth costs heap, not stack. Deliberately absent: what a difference means.

mod finish;
mod open_dirs;
mod problem;
mod rules;
mod selection;
mod tree;
mod visit;
mod walk;

use crate::statcache::StatCache;

pub use open_dirs::OpenTreeDirs;
pub use problem::{ScanProblem, ScanProblemCause};
pub use rules::RULES_FILE;
pub use selection::PathSelection;
pub use tree::{ScanDir, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanTree, ScanTreeWalk};
use vellum_host::beneath::{BeneathError, HeldDir};

/// The folder in a worktree's root where its volume's state is kept; never part of a tree.
pub const STATE_DIR: &[u8] = b".vellum";
/// Most threads that a scan starts by itself: more only contend for the kernel's directory locks.
const THREADS_MAX: usize = 16;

/// How to scan.
#[derive(Debug, Default)]
pub struct ScanOptions {
    /// What was there last time: entries are matched with it, and its device is brought up to date.
    pub cache: Option<StatCache>,
    /// Look at these paths only (and at the directories on the way to them).
    pub selection: Option<PathSelection>,
    /// Worker threads; 0 chooses by the machine.
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
    let walked = walk::ScanWalk::new(root, root_stat, cache.as_ref(), selection.as_ref(), threads).run_walk();
    Ok(finish::build_scan_tree(walked, root_stat, cache))
}

#[cfg(test)]
mod tests;

//! Basis directories: trees beside the destination from which unchanged files are taken that the destination lacks.
//!
//! Invariant: a basis directory is read and never written to. Deliberately absent: the choice of the directory for each
//! entry (see `plan`).

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Most basis directories of a run, as in rsync: a plan refers to one of them by a byte.
pub const BASIS_DIRS_MAX: usize = 20;

/// The basis directories of a run, all used in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// What happens with a file that one of them has unchanged.
    pub usage: BasisUsage,
    /// Paths on the destination's host; the first one with an unchanged entry is used.
    pub dirs: Vec<Vec<u8>>,
}

/// What happens with a file that a basis directory has unchanged and the destination lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BasisUsage {
    /// It becomes a hard link to the basis directory's file.
    Link,
    /// It is copied from there.
    Copy,
    /// It is left out.
    LeaveOut,
}

/// Resolves `..` behind directories that do not exist: the destination's path once it is made.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the user names this directory: it may be reached through symlinks"
)]
pub fn resolve_missing_path(path: &Path) -> PathBuf {
    let mut real = PathBuf::new();
    for component in path.components() {
        let goes_back = component == Component::ParentDir
            && matches!(real.components().next_back(), Some(Component::Normal(_)))
            // Behind a directory that exists, `..` is left to the kernel: the directory may be a symlink,
            // whose parent is elsewhere.
            && !real.exists();
        if goes_back {
            real.pop();
        } else {
            real.push(component);
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_back_out_of_a_directory_that_is_not_there() {
        let temp = tempfile::tempdir().unwrap();
        let at = |path: &str| temp.path().join(path);
        assert_eq!(resolve_missing_path(&at("new/../old")), at("old"));
        assert_eq!(resolve_missing_path(&at("new/deep/../../old")), at("old"));
        std::fs::create_dir(at("there")).unwrap();
        assert_eq!(resolve_missing_path(&at("there/../old")), at("there/../old"));
        assert_eq!(resolve_missing_path(Path::new("../../old")), Path::new("../../old"));
    }
}

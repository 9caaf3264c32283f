//! A bound for the memory of lists of paths.
//!
//! Each path of a list is whole, so that the paths of one very deep tree take memory with the square of its depth. Paths
//! that the system can open at once are free: however many there are, their bytes grow with their number alone.

use vellum_host::escape::format_path;

use crate::error::{Result, VolumeError};

/// Longest path that costs nothing, bytes (`PATH_MAX`).
const FREE_LEN: usize = 4096;

/// Bytes that the longer paths of one list may have: directories with names of one letter, one in the other, may be some
/// 11,000 levels deep.
const LONG_PATHS_MAX: usize = 128 << 20;

/// Bytes of a path that an error shows.
const SHOWN_LEN: usize = 60;

/// What the long paths of one list may still take.
#[derive(Debug, Clone)]
pub struct PathBudget {
    left: usize,
}

impl Default for PathBudget {
    fn default() -> Self {
        Self { left: LONG_PATHS_MAX }
    }
}

impl PathBudget {
    /// Counts a path that is added to a list. Fails with [`VolumeError::DeepPaths`] if the long paths of the list take too much.
    pub fn charge_path(&mut self, path: &[u8]) -> Result<()> {
        if path.len() <= FREE_LEN {
            return Ok(());
        }
        match self.left.checked_sub(path.len()) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(VolumeError::DeepPaths {
                path: format_path(path.get(..SHOWN_LEN).unwrap_or(path)),
                levels: path.iter().filter(|byte| **byte == b'/').count(),
            }),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn ordinary_paths_are_free_and_deep_ones_are_not() {
        let mut budget = PathBudget { left: 3 * 5000 };
        let ordinary = "d/".repeat(2048);
        let deep = "d/".repeat(2500);
        for _ in 0..10 {
            budget.charge_path(ordinary.as_bytes()).unwrap();
        }
        for _ in 0..3 {
            budget.charge_path(deep.as_bytes()).unwrap();
        }
        let refused = budget.charge_path(deep.as_bytes()).unwrap_err();
        assert!(matches!(refused, VolumeError::DeepPaths { levels: 2500, .. }), "{refused}");
        budget.charge_path(ordinary.as_bytes()).unwrap();
    }
}

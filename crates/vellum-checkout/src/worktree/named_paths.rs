//! Paths that a command names: whether they mean something.

use vellum_volume::FsTree;
use vellum_volume::history::HistoryEntry;

use super::CheckoutWorktree;
use crate::error::{CheckoutError, Result};

impl CheckoutWorktree {
    /// A path that is named must mean something: a typing error must not record that a file is gone.
    pub(crate) fn check_paths(
        &self,
        paths: &[Vec<u8>],
        base: Option<&FsTree>,
        entry: Option<&HistoryEntry>,
    ) -> Result<()> {
        for path in paths {
            let here = self.root.resolve_parent(path).and_then(|(dir, name)| match name {
                b"" => dir.stat_self(),
                name => dir.stat(name),
            });
            let there = || base.is_some_and(|base| base.find_path(path, "").is_ok());
            if here.is_err() && !there() {
                return Err(self.no_such_path_error(path, entry));
            }
        }
        Ok(())
    }

    pub(crate) fn no_such_path_error(&self, path: &[u8], entry: Option<&HistoryEntry>) -> CheckoutError {
        let short = entry.and_then(|entry| self.volume.short_id(&entry.id).ok());
        let place = short.map_or_else(|| "the last snapshot".into(), |short| format!("snapshot {short}"));
        CheckoutError::NoSuchPath { path: vellum_host::escape::format_path(path), place }
    }

    /// A path whose directory is gone cannot be recorded alone: that directory would have to be recorded as gone too,
    /// with all else that was in it.
    pub(super) fn check_parents(&self, paths: &[Vec<u8>]) -> Result<()> {
        for path in paths {
            let names: Vec<_> = vellum_volume::tree::path_components(path).collect();
            let Some((_, above)) = names.split_last() else { continue };
            match self.root.resolve_dir(&above.join(&b'/')) {
                Err(error) if error.is_not_found() || error.is_not_a_directory() => {
                    return Err(CheckoutError::ParentGone(vellum_host::escape::format_path(path)));
                }
                // Other errors are found, and reported with the path, when it is scanned.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

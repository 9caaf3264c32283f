//! Renaming of objects: one system call for each, one flush for those that get into one folder.

use rustix::fs::fsync;
use vellum_types::LookupResult;

use super::LocalStore;
use crate::error::StoreError;
use crate::object::{ObjectRename, RenameObjects};

impl RenameObjects for LocalStore {
    fn rename_objects(&self, renames: &[ObjectRename]) -> Result<Vec<bool>, StoreError> {
        let mut found = Vec::with_capacity(renames.len());
        for group in renames.chunk_by(|a, b| a.to.folder() == b.to.folder()) {
            let Some(first) = group.first() else { continue };
            let folder = self
                .tree
                .open_writable_folder(first.to.folder())
                .map_err(|error| self.wrap_io_error("make the folder of", &first.to, error))?;
            for ObjectRename { from, to } in group {
                // A descriptor is kept of what a key meant when it was read.
                self.handles.evict_handle(from);
                self.handles.evict_handle(to);
                let renamed = self.tree.rename_file(from, &folder, to.name()).none_if_missing();
                found.push(renamed.map_err(|e| self.wrap_io_error("rename", from, e))?.is_some());
            }
            // The new name first becomes durable, or with it that the old one is gone: no filesystem forgets both.
            fsync(&*folder).map_err(|errno| self.wrap_io_error("rename", &first.from, errno.into()))?;
        }
        Ok(found)
    }
}

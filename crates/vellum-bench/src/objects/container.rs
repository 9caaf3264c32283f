//! The place of a store: made if there is none, and then removed again.
//!
//! Invariant: only what was not there before is removed, and directories only when they are empty.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vellum_store::{KeyUse, NumberedRefStore, ObjectStore, StoreError, StoreLocation, StoreMode};

/// What a store in a directory keeps beside objects.
const OWN: [&str; 2] = [".tmp", ".lock"];

/// The store of a bench, and what has to go when it ends.
pub struct BenchStore {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    directory: Option<PathBuf>,
    /// What was not there before, the innermost first.
    made: Vec<PathBuf>,
}

impl BenchStore {
    /// Opens the store, or creates it.
    pub fn open_or_create(location: &StoreLocation) -> Result<Self, StoreError> {
        let directory = local_dir(&location.url);
        let mut made = Vec::new();
        if let Some(directory) = &directory {
            made.extend(OWN.iter().map(|name| directory.join(name)).filter(|path| is_path_absent(path)));
            // The innermost comes first, so that each is empty when its turn comes.
            let above = directory.ancestors().filter(|path| !path.as_os_str().is_empty());
            made.extend(above.take_while(|path| is_path_absent(path)).map(Path::to_path_buf));
        }
        let store = vellum_store::create_store(location)?;
        // What cannot be tried keeps nothing, which the checks show.
        let mode = if store.is_remote() {
            store.probe_guarantees().ok().and_then(|found| found.best_mode())
        } else {
            None
        };
        let store = match mode {
            Some(StoreMode::NumberedRefs) => Arc::new(NumberedRefStore::with_refs(store, classify_key)),
            Some(StoreMode::Shared) | None => store,
        };
        Ok(Self { store, directory, made })
    }

    /// Whether the store is new.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.directory.as_ref().is_some_and(|directory| self.made.contains(directory))
    }
}

impl Drop for BenchStore {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            for folder in list_with_prefix(directory, "vellum-objbench-") {
                // Folders of other benches that are at work are not empty.
                list_with_prefix(&folder, "").iter().for_each(|inner| drop(std::fs::remove_dir(inner)));
                let _ = std::fs::remove_dir(folder);
            }
        }
        for path in &self.made {
            // What others use by now is not empty, or not ours to judge: it stays.
            if path.ends_with(".lock") {
                let _ = std::fs::remove_file(path);
            } else {
                let _ = std::fs::remove_dir(path);
            }
        }
    }
}

/// What the keys of a bench are for.
fn classify_key(key: &str) -> KeyUse {
    let parts: Vec<_> = key.split('/').collect();
    match parts.get(1) {
        // The checks change these by compare-and-swap, and write all other objects once.
        Some(&"ref" | &"counter") => KeyUse::UniqueRef,
        Some(_) | None => KeyUse::Object,
    }
}

/// What is in a directory, and has a name that begins so.
fn list_with_prefix(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    // What cannot be listed stays: this is only called to tidy up.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect()
}

fn is_path_absent(path: &Path) -> bool {
    path.symlink_metadata().is_err()
}

/// Where an address means a directory of this machine.
fn local_dir(url: &str) -> Option<PathBuf> {
    match url.split_once("://") {
        Some(("file", path)) => Some(path.into()),
        Some(_) => None,
        None => Some(url.strip_prefix("file:").unwrap_or(url).into()),
    }
}

#[cfg(test)]
mod tests {
    use vellum_store::ObjectKey;

    use super::*;

    #[test]
    fn a_store_that_was_made_goes_and_one_that_was_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("a/b").display().to_string();
        let location = StoreLocation::new(&*url);
        let key = ObjectKey::new("vellum-objbench-x/y").unwrap();
        let container = BenchStore::open_or_create(&location).unwrap();
        assert!(container.is_new());
        container.store.put_object(&key, b"1").unwrap();
        container.store.swap_ref(&ObjectKey::new("vellum-objbench-x/z").unwrap(), None, Some(b"1")).unwrap();
        for name in ["y", "z"] {
            container
                .store
                .delete_object(&ObjectKey::new(format!("vellum-objbench-x/{name}")).unwrap())
                .unwrap();
        }
        drop(container);
        assert!(!dir.path().join("a").exists());

        std::fs::create_dir_all(&url).unwrap();
        std::fs::write(Path::new(&url).join("mine"), "x").unwrap();
        let container = BenchStore::open_or_create(&location).unwrap();
        assert!(!container.is_new());
        container.store.put_object(&key, b"1").unwrap();
        container.store.delete_object(&key).unwrap();
        drop(container);
        let left: Vec<_> = std::fs::read_dir(&url).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mine"]);
    }
}

//! Directories that Vellum itself uses: stores, and the state directories of worktrees.
//!
//! They are recognised by their content, so that a program which writes or deletes directories can leave them alone.
//! Invariant: only a file `config` is opened, to read its first bytes. Deliberately absent: what is done about it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::config::{CONFIG_OBJECT, MAGIC};
use crate::state::STATE_DIR;

/// Folders that every store has; a directory with all of them is one even if its config is lost.
const STORE_FOLDERS: [&str; 4] = ["index", "packs", "refs", "snapshots"];

/// Bytes of a file `config` that tell whether it is a store's.
pub const CONFIG_HEAD_LEN: usize = MAGIC.len();

/// A directory that Vellum itself uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservedDirectory {
    /// A store.
    Store(PathBuf),
    /// The state directory of a worktree.
    StateDir(PathBuf),
}

impl ReservedDirectory {
    /// Returns the reserved directory that a path is, or lies in. Components of the path that do not exist count by their
    /// names.
    #[must_use]
    pub fn find_containing(path: &Path) -> Option<Self> {
        // Symlinks are resolved first: they may lead into a store from anywhere.
        let real = resolve_existing_path(path);
        real.ancestors().find_map(|dir| {
            if dir.file_name() == Some(OsStr::new(STATE_DIR)) {
                return Some(Self::StateDir(dir.into()));
            }
            let is_store = is_vellum_store(read_config_head(dir).as_deref(), |name| dir.join(name).is_dir());
            is_store.then(|| Self::Store(dir.into()))
        })
    }

    /// Returns what messages call it, with an article.
    #[must_use]
    pub fn display_name(&self) -> &'static str {
        match self {
            Self::Store(_) => "a Vellum store",
            Self::StateDir(_) => "the state directory of a Vellum worktree",
        }
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Store(path) | Self::StateDir(path) => path,
        }
    }
}

/// Returns whether a directory is a store: its file `config` begins like one, or it has all folders of a store. `config`
/// is the beginning of that file, [`CONFIG_HEAD_LEN`] bytes if there are so many.
pub fn is_vellum_store(config: Option<&[u8]>, has_folder: impl Fn(&str) -> bool) -> bool {
    config.is_some_and(|head| head.starts_with(MAGIC)) || STORE_FOLDERS.into_iter().all(has_folder)
}

fn read_config_head(dir: &Path) -> Option<Vec<u8>> {
    let path = dir.join(CONFIG_OBJECT);
    // What is no file may block whoever opens it.
    path.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
    // Only so many bytes as tell: the file may be anybody's, and of any length.
    let mut head = Vec::new();
    File::open(path).ok()?.take(CONFIG_HEAD_LEN as u64).read_to_end(&mut head).ok()?;
    Some(head)
}

/// The path without symlinks, as far as there is something.
#[must_use]
pub fn resolve_existing_path(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), _, _) => real,
        // A name alone has the empty path as its parent, which the kernel does not resolve.
        (Err(_), Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
            resolve_existing_path(Path::new(".")).join(name)
        }
        // What does not exist yet is about to be made: what counts is where.
        (Err(_), Some(parent), Some(name)) => resolve_existing_path(parent).join(name),
        (Err(_), _, _) => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use super::*;

    #[test]
    fn stores_and_state_directories_are_known_by_what_is_in_them() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let place = |path: &str| ReservedDirectory::find_containing(&root.join(path));
        fs::create_dir_all(root.join("store/packs/ab")).unwrap();
        fs::write(root.join("store/config"), [&MAGIC[..], b"rest"].concat()).unwrap();
        for path in ["store", "store/packs/ab", "store/new/er"] {
            assert_eq!(place(path), Some(ReservedDirectory::Store(root.join("store"))), "{path}");
        }
        fs::create_dir_all(root.join("tree/.vellum/live")).unwrap();
        assert_eq!(
            place("tree/.vellum/live/x"),
            Some(ReservedDirectory::StateDir(root.join("tree/.vellum")))
        );
        assert_eq!((place("tree"), place("tree/new"), place("")), (None, None, None));
        fs::create_dir(root.join("like")).unwrap();
        fs::write(root.join("like/config"), "[core]").unwrap();
        assert_eq!(place("like"), None);
        for folder in STORE_FOLDERS {
            assert_eq!(place("like"), None);
            fs::create_dir(root.join("like").join(folder)).unwrap();
        }
        assert!(place("like/packs").is_some());
    }
}

//! The keys of a bucket, in the order that S3 has them: of whole keys, by bytes.
//!
//! A directory stands where `name/` does, not where its name does: `a.b` comes before `a/b`. So each directory is sorted by
//! names, with a slash behind those of directories, and is then walked into, depth first.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use vellum_library::{FileKind, Metadata};

use super::keys::{KEY_MAX, ObjectKey, is_reserved};
use crate::served_tree::ServedTree;

/// Directories that are kept after they were read.
const DIRS_MAX: usize = 4;
/// Fewest names of a directory that is kept: smaller ones are read again soon enough.
const NAMES_MIN: usize = 1000;
/// Most names of a directory that is kept: some 70 MiB for all of them.
const NAMES_MAX: usize = 250_000;

/// Which keys are asked for.
#[derive(Debug, Clone, Default)]
pub struct KeyQuery {
    /// With what they begin.
    pub prefix: String,
    /// Whether those of a directory below the prefix are one row.
    pub is_delimited: bool,
    /// After which one.
    pub after: Option<KeyPosition>,
    /// How many rows at most.
    pub limit: usize,
}

/// A place in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPosition {
    /// Behind this key.
    Key(String),
    /// Behind all keys that begin so.
    Prefix(String),
}

/// A row of a listing.
#[derive(Debug)]
pub enum KeyRow {
    /// An object.
    Object {
        /// Its key.
        key: String,
        /// Its attributes.
        metadata: Metadata,
    },
    /// The directory in which objects are, with a slash at its end.
    Prefix(String),
}

/// A part of a listing.
#[derive(Debug, Default)]
pub struct KeyPage {
    /// Its rows.
    pub rows: Vec<KeyRow>,
    /// Whether others follow.
    pub more: bool,
}

/// A name, with a slash behind that of a directory.
struct SortedName {
    key: String,
    is_dir: bool,
    /// The inode number of a file, by which a snapshot has its attributes. None: the path has to be looked up.
    file_ino: Option<u64>,
}

/// The names of a directory, by their keys.
type SortedNames = Arc<[SortedName]>;

/// A directory that is being walked: its path with a slash, and which of its names are left.
struct OpenDir {
    path: String,
    names: SortedNames,
    left: Range<usize>,
}

/// Lists the keys of a tree.
pub struct KeyLister {
    tree: ServedTree,
    /// Directories that were read last, the newest first: the pages of a listing go through the same ones.
    read: Mutex<VecDeque<ReadDir>>,
    /// How often names were read from the tree.
    #[cfg(test)]
    reads: std::sync::atomic::AtomicUsize,
}

/// A directory that was read.
struct ReadDir {
    path: String,
    version: DirVersion,
    names: SortedNames,
}

/// Which names a directory had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirVersion {
    /// That of a snapshot: it never changes.
    Fixed,
    /// That of a live worktree, which has another time of change after each change, within one tick of the clock too.
    Changed {
        /// The directory, since another one may be renamed to its place.
        ino: u64,
        /// When it was changed last.
        at: SystemTime,
    },
}

impl KeyPosition {
    /// The place as a word without meaning for clients.
    #[must_use]
    pub fn to_token(&self) -> String {
        let (mark, key) = match self {
            Self::Key(key) => ('k', key),
            Self::Prefix(prefix) => ('p', prefix),
        };
        format!("{mark}{}", utf8_percent_encode(key, NON_ALPHANUMERIC))
    }

    /// Parses such a word.
    #[must_use]
    pub fn from_token(token: &str) -> Option<Self> {
        let (mark, encoded) = token.split_at_checked(1)?;
        let key = percent_decode_str(encoded).decode_utf8().ok()?.into_owned();
        match mark {
            "k" => Some(Self::Key(key)),
            "p" => Some(Self::Prefix(key)),
            _ => None,
        }
    }
}

impl KeyRow {
    /// The place behind it.
    #[must_use]
    pub fn position(&self) -> KeyPosition {
        match self {
            Self::Object { key, .. } => KeyPosition::Key(key.clone()),
            Self::Prefix(prefix) => KeyPosition::Prefix(prefix.clone()),
        }
    }
}

impl KeyLister {
    /// Of this tree.
    #[must_use]
    pub fn new(tree: ServedTree) -> Self {
        Self {
            tree,
            read: Mutex::default(),
            #[cfg(test)]
            reads: std::sync::atomic::AtomicUsize::default(),
        }
    }

    /// Lists keys. What has no key is left out: names that are not UTF-8, symlinks that lead to no file, devices, and what would
    /// have a longer key than there can be.
    pub fn list(&self, query: &KeyQuery) -> vellum_library::Result<KeyPage> {
        let mut page = KeyPage::default();
        if query.limit == 0 {
            return Ok(page);
        }
        // Up to the last slash the prefix names a directory; what follows is the beginning of names in it.
        let slash = query.prefix.rfind('/').map_or(0, |slash| slash + 1);
        let (base, beginning) = query.prefix.split_at(slash);
        if !base.is_empty() && !self.is_dir(base)? {
            return Ok(page);
        }
        let first = self.open_dir(base.to_owned(), beginning, query)?;
        if first.names.is_empty() && !base.is_empty() && beginning.is_empty() && is_after(query, base) {
            self.push_object(&mut page, base.to_owned())?;
        }
        let mut open = vec![first];
        while let Some(dir) = open.last_mut() {
            let Some(name) = dir.left.next().and_then(|at| dir.names.get(at)) else {
                open.pop();
                continue;
            };
            let key = format!("{}{}", dir.path, name.key);
            if key.len() > KEY_MAX || !is_wanted(query, &key, name.is_dir) {
                continue;
            }
            if page.rows.len() == query.limit {
                // A directory may turn out to have nothing to list; then the next page is empty, and the last one.
                page.more = true;
                break;
            }
            match name.is_dir {
                true if query.is_delimited => page.rows.push(KeyRow::Prefix(key)),
                true => {
                    let below = self.open_dir(key.clone(), "", query)?;
                    // Without a key of its own, an empty directory would not be there.
                    if below.names.is_empty() && is_after(query, &key) {
                        self.push_object(&mut page, key)?;
                    }
                    open.push(below);
                }
                false => self.push_named(&mut page, key, name.file_ino)?,
            }
        }
        Ok(page)
    }

    /// Adds what a directory names, unless it has vanished or is no object.
    fn push_named(
        &self,
        page: &mut KeyPage,
        key: String,
        file_ino: Option<u64>,
    ) -> vellum_library::Result<()> {
        // In a live worktree an upload may have put another file in its place, so the path decides there.
        let (ServedTree::Snapshot(snapshot), Some(ino)) = (&self.tree, file_ino) else {
            return self.push_object(page, key);
        };
        // What has no key is left out here, too.
        if ObjectKey::parse(&key).is_ok() {
            let metadata = snapshot.stat_inode(ino)?;
            page.rows.push(KeyRow::Object { key, metadata });
        }
        Ok(())
    }

    /// Adds an object by its path, unless it has vanished or is none.
    fn push_object(&self, page: &mut KeyPage, key: String) -> vellum_library::Result<()> {
        let Ok(parsed) = ObjectKey::parse(&key) else { return Ok(()) };
        match self.tree.stat(parsed.path()) {
            Ok(metadata) if metadata.is_file() || key.ends_with('/') => {
                page.rows.push(KeyRow::Object { key, metadata });
                Ok(())
            }
            // A symlink to a directory would be walked without end.
            Ok(_) => Ok(()),
            Err(error) if error.errno().is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a key with a slash at its end is a directory. A symlink to one is none: its content has keys already.
    fn is_dir(&self, key: &str) -> vellum_library::Result<bool> {
        let Ok(parsed) = ObjectKey::parse(key) else { return Ok(false) };
        match self.tree.lstat(parsed.path()) {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.errno().is_some() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names of a directory that begin so, without those that a listing is past.
    fn open_dir(&self, path: String, beginning: &str, query: &KeyQuery) -> vellum_library::Result<OpenDir> {
        let names = self.read_names(&path)?;
        let mut start = names.partition_point(|name| name.key.as_str() < beginning);
        let end =
            names.partition_point(|name| name.key.as_str() < beginning || name.key.starts_with(beginning));
        let after = match &query.after {
            None => None,
            Some(KeyPosition::Key(after) | KeyPosition::Prefix(after)) => after.strip_prefix(path.as_str()),
        };
        if let Some(after) = after {
            let behind = names.partition_point(|name| name.key.as_str() <= after);
            // The directory in which the place is comes before it, and nothing can stand between the two.
            start = start.max(behind.saturating_sub(1));
        }
        Ok(OpenDir { path, names, left: start..end })
    }

    fn read_names(&self, path: &str) -> vellum_library::Result<SortedNames> {
        // Before the names: if they change in between, they are read again the next time.
        let version = self.find_version(path);
        let is_same = |dir: &&ReadDir| dir.path == path && Some(dir.version) == version;
        if let Some(dir) = self.read.lock().iter().find(is_same) {
            return Ok(dir.names.clone());
        }
        #[cfg(test)]
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let names = sort_names(&self.tree, path)?;
        if let Some(version) = version
            && (NAMES_MIN..NAMES_MAX).contains(&names.len())
        {
            let mut read = self.read.lock();
            read.retain(|dir| dir.path != path);
            read.truncate(DIRS_MAX - 1);
            read.push_front(ReadDir { path: path.to_owned(), version, names: names.clone() });
        }
        Ok(names)
    }

    /// None: it is not there any more.
    fn find_version(&self, path: &str) -> Option<DirVersion> {
        match &self.tree {
            ServedTree::Snapshot(_) => Some(DirVersion::Fixed),
            ServedTree::Live(_) => {
                let found = self.tree.lstat(Path::new(path.trim_end_matches('/'))).ok()?;
                Some(DirVersion::Changed { ino: found.ino(), at: found.changed() })
            }
        }
    }
}

/// Whether a key, or one below a directory, can be in the listing.
fn is_wanted(query: &KeyQuery, key: &str, is_dir: bool) -> bool {
    match &query.after {
        None => true,
        Some(KeyPosition::Prefix(prefix)) => key > prefix.as_str() && !key.starts_with(prefix),
        Some(KeyPosition::Key(after)) => key > after.as_str() || (is_dir && after.starts_with(key)),
    }
}

fn is_after(query: &KeyQuery, key: &str) -> bool {
    match &query.after {
        None => true,
        Some(KeyPosition::Key(after) | KeyPosition::Prefix(after)) => key > after.as_str(),
    }
}

fn sort_names(tree: &ServedTree, path: &str) -> vellum_library::Result<SortedNames> {
    let entries = match tree.read_dir(Path::new(path.trim_end_matches('/'))) {
        Ok(entries) => entries,
        // Removed since its name was read: nothing in it is there any more.
        Err(error) if error.errno().is_some() => Vec::new(),
        Err(error) => return Err(error),
    };
    let is_root = path.is_empty();
    let names = entries.into_iter().filter_map(|entry| {
        let name = entry.name.into_string().ok().filter(|name| !(is_root && is_reserved(name)))?;
        match entry.kind {
            FileKind::Dir => Some(SortedName { key: name + "/", is_dir: true, file_ino: None }),
            FileKind::File => Some(SortedName { key: name, is_dir: false, file_ino: Some(entry.ino) }),
            // Its target may be anywhere in the tree, and is listed as if it were here.
            FileKind::Symlink => Some(SortedName { key: name, is_dir: false, file_ino: None }),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => None,
        }
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(names.into())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests;

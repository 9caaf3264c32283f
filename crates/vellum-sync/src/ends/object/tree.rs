//! Arranges keys as a tree of names.
//!
//! Invariant: every name in the tree is a valid file name, and every object is in the tree or is reported. Deliberately
//! absent: rules, and the content of objects.

use std::collections::BTreeMap;

use vellum_store::PlainListing;
use vellum_types::limits::NAME_MAX;

use crate::model::listing::UnlistedEntry;

/// Longest key of S3, bytes.
const KEY_MAX: usize = 1024;
/// Why an object is left out whose key is the beginning of others.
const TWOFOLD: &str = "this object has the name of a directory, because other keys begin with it and a slash";

/// The entries of a directory by name.
pub(super) type KeyDirectory = BTreeMap<Box<str>, KeyNode>;

/// A name: an object or a directory; never both once the tree is complete.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeyNode {
    /// The object, by its position in the listing.
    pub object: Option<usize>,
    /// The directory, which exists because of longer keys or a directory marker.
    pub entries: Option<KeyDirectory>,
}

/// All keys of a folder.
#[derive(Debug, Default)]
pub(super) struct KeyTree {
    pub root: KeyDirectory,
    /// Objects that cannot be part of a tree of files.
    pub problems: Vec<UnlistedEntry>,
}

impl KeyTree {
    /// Builds the tree of listed keys.
    pub fn from_listing(listing: &PlainListing) -> Self {
        let mut tree = Self::default();
        for marker in &listing.markers {
            match check_key_parts(marker) {
                Ok(()) => drop(tree.enter_dir(marker)),
                Err(reason) => tree.add_problem(&format!("{marker}/"), reason),
            }
        }
        for (place, object) in listing.objects.iter().enumerate() {
            match check_key_parts(&object.key) {
                Ok(()) => tree.add_object(&object.key, place),
                Err(reason) => tree.add_problem(&object.key, reason),
            }
        }
        // An object with the name of a directory is left out. All directories are known only now: a key that
        // makes one can come after the object of the same name.
        for object in &listing.objects {
            if tree.remove_twofold(&object.key) {
                tree.add_problem(&object.key, TWOFOLD);
            }
        }
        for key in &listing.misnamed {
            tree.add_problem(key, "a key that ends with a slash cannot be the name of a file");
        }
        tree
    }

    fn add_object(&mut self, key: &str, place: usize) {
        let (parent, name) = key.rsplit_once('/').unwrap_or(("", key));
        let dir = if parent.is_empty() { &mut self.root } else { self.enter_dir(parent) };
        dir.entry(name.into()).or_default().object = Some(place);
    }

    /// The directory at a path, created if it is missing.
    fn enter_dir(&mut self, path: &str) -> &mut KeyDirectory {
        path.split('/').fold(&mut self.root, |here, name| {
            here.entry(name.into()).or_default().entries.get_or_insert_default()
        })
    }

    /// Removes an object from the tree if a directory has its name.
    fn remove_twofold(&mut self, key: &str) -> bool {
        let mut here = &mut self.root;
        let mut names = key.split('/').peekable();
        while let Some(node) = names.next().and_then(|name| here.get_mut(name)) {
            if names.peek().is_none() {
                return node.entries.is_some() && node.object.take().is_some();
            }
            let Some(entries) = &mut node.entries else { return false };
            here = entries;
        }
        false
    }

    fn add_problem(&mut self, key: &str, reason: &str) {
        let path = key.as_bytes().to_vec();
        self.problems.push(UnlistedEntry { path, message: reason.to_owned(), vanished: false });
    }
}

/// Fails if a file cannot be stored under its path; `folder` is the length of the key before the path, bytes.
pub(super) fn check_storable_path(path: &[u8], folder: usize) -> Result<(), String> {
    let key =
        std::str::from_utf8(path).map_err(|_| "the name is not UTF-8, which keys of objects have to be")?;
    if folder + key.len() > KEY_MAX {
        return Err(format!("the key would have {} bytes, and {KEY_MAX} are allowed", folder + key.len()));
    }
    Ok(check_key_parts(key)?)
}

/// Fails if a key is not also a path of files.
fn check_key_parts(key: &str) -> Result<(), &'static str> {
    // The HTTP layer does not carry white space at the ends of a key.
    if key.trim() != key {
        return Err("a key that begins or ends with white space cannot be requested");
    }
    // Listings are XML, which has no form for these characters.
    if key.chars().any(|char| char.is_control() || matches!(char, '\u{fffe}' | '\u{ffff}')) {
        return Err("listings of objects cannot have control characters");
    }
    key.split('/').try_for_each(|name| match name {
        "" => Err("an empty part of a key cannot be the name of a directory"),
        "." | ".." => Err("'.' and '..' cannot be parts of a key"),
        name if name.len() > NAME_MAX => Err("a part of the key is too long to be the name of a file"),
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use vellum_store::{ObjectTag, PlainObject};
    use vellum_types::UnixTime;

    use super::*;

    fn tree_of(keys: &[&str], markers: &[&str]) -> KeyTree {
        let object = |key: &&str| PlainObject {
            key: (*key).to_owned(),
            size: 1,
            uploaded: UnixTime::default(),
            tag: ObjectTag::default(),
        };
        KeyTree::from_listing(&PlainListing {
            objects: keys.iter().map(object).collect(),
            markers: markers.iter().map(|key| (*key).to_owned()).collect(),
            misnamed: vec!["odd/".to_owned()],
        })
    }

    fn problem_paths(tree: &KeyTree) -> Vec<String> {
        tree.problems.iter().map(|problem| String::from_utf8_lossy(&problem.path).into_owned()).collect()
    }

    #[test]
    fn keys_become_directories_and_files_or_problems() {
        let long = "x".repeat(256);
        let keys = ["a/b/c", "a.txt", "a/b.txt", "", "x//y", "../up", "./here", "a/./b", " lead", &long];
        let tree = tree_of(&keys, &["empty", "a/b"]);
        assert_eq!(tree.root.keys().map(|name| &**name).collect::<Vec<_>>(), ["a", "a.txt", "empty"]);
        let mut problems = problem_paths(&tree);
        problems.sort();
        assert_eq!(problems, ["", " lead", "../up", "./here", "a/./b", "odd/", "x//y", &long]);
    }

    #[test]
    fn an_object_that_has_the_name_of_a_directory_is_told_in_any_order() {
        for keys in [["a", "a/b"], ["a/b", "a"]] {
            let tree = tree_of(&keys, &[]);
            let node = tree.root.get("a").expect("the directory");
            assert!(node.object.is_none() && node.entries.as_ref().is_some_and(|entries| entries.len() == 1));
            assert_eq!(problem_paths(&tree), ["a", "odd/"]);
        }
    }

    #[test]
    fn paths_that_cannot_be_keys_are_told_why() {
        let check = |path: &[u8]| check_storable_path(path, 10).is_ok();
        assert!(check("dir/näme with spaces & %20+?#.txt".as_bytes()) && check(b"a \\ b"));
        for path in [&b"\xff"[..], b"a\nb", b"trailing ", b" leading", &[b'x'; 1015]] {
            assert!(!check(path), "{path:?}");
        }
    }
}

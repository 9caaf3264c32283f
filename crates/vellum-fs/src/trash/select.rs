//! Which entries of the trash a restore brings back: of each path the one that was removed last.

use std::collections::BTreeMap;

use vellum_host::escape::format_path;
use vellum_types::{FileKind, Ino};
use vellum_volume::tree::path_components;

use super::{TrashEntry, TrashRestore};
use crate::error::{FsError, Result};

type PathNames<'a> = Vec<&'a [u8]>;

/// Returns the newest entries of a path and of all paths below it. With `to` they get that path instead. What was below a
/// name that later was no directory is left out.
pub fn select_path(entries: &[TrashEntry], path: &[u8], to: Option<&[u8]>) -> Result<Vec<TrashRestore>> {
    let wanted: PathNames<'_> = path_components(path).collect();
    let mut newest: BTreeMap<PathNames<'_>, &TrashEntry> = BTreeMap::new();
    for entry in entries {
        let names: PathNames<'_> = path_components(&entry.record.path).collect();
        // Entries are in the order in which they were removed.
        if names.starts_with(&wanted) {
            newest.insert(names, entry);
        }
    }
    let mut selected = Vec::new();
    let mut last_file: Option<PathNames<'_>> = None;
    for (names, entry) in newest {
        if last_file.as_ref().is_some_and(|file| names.starts_with(file)) {
            continue;
        }
        let rest = names.get(wanted.len()..).unwrap_or_default();
        let path = match to {
            Some(to) => path_components(to).chain(rest.iter().copied()).collect::<Vec<_>>().join(&b'/'),
            None => entry.record.path.clone(),
        };
        selected.push(TrashRestore { number: entry.number, path });
        last_file = if entry.kind == FileKind::Dir { last_file } else { Some(names) };
    }
    if selected.is_empty() { Err(FsError::NotInTrash(format_path(path))) } else { Ok(selected) }
}

/// Returns the entry of a number. With `to` it gets that path instead.
pub fn select_number(entries: &[TrashEntry], number: Ino, to: Option<&[u8]>) -> Result<TrashRestore> {
    let entry = entries.iter().find(|entry| entry.number == number);
    let entry = entry.ok_or_else(|| FsError::NotInTrash(number.0.to_string()))?;
    Ok(TrashRestore { number, path: to.unwrap_or(&entry.record.path).to_vec() })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::TrashRecord;
    use super::*;

    fn entries(removed: &[&str]) -> Vec<TrashEntry> {
        let entry = |(number, path): (u64, &&str)| {
            let (path, kind) = match path.strip_suffix('/') {
                Some(dir) => (dir, FileKind::Dir),
                None => (*path, FileKind::File),
            };
            let record = TrashRecord { path: path.into(), uid: 0, removed: Default::default() };
            TrashEntry { number: Ino(number), record, kind, size: 0 }
        };
        (0..).zip(removed).map(entry).collect()
    }

    fn select(removed: &[&str], path: &str, to: Option<&str>) -> Vec<(u64, String)> {
        let selected = select_path(&entries(removed), path.as_bytes(), to.map(str::as_bytes)).unwrap();
        let show = |entry: TrashRestore| (entry.number.0, String::from_utf8(entry.path).unwrap());
        selected.into_iter().map(show).collect()
    }

    fn shown(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
        expected.iter().map(|(number, path)| (*number, (*path).to_owned())).collect()
    }

    #[test]
    fn of_each_path_the_newest_counts() {
        let removed = ["d/a", "d/b", "d/a", "d/", "da"];
        assert_eq!(select(&removed, "d", None), shown(&[(3, "d"), (2, "d/a"), (1, "d/b")]));
        assert_eq!(select(&removed, "d/a", Some("x/y")), shown(&[(2, "x/y")]));
        assert_eq!(select(&removed, "d", Some("x")), shown(&[(3, "x"), (2, "x/a"), (1, "x/b")]));
        assert_eq!(select(&removed, "", None).len(), 4);
        assert!(select_path(&entries(&removed), b"e", None).is_err());
    }

    #[test]
    fn a_file_hides_what_was_below_a_directory_of_its_name() {
        let removed = ["d/e/x", "d/e/", "d/e", "d/f", "d/"];
        assert_eq!(select(&removed, "d", None), shown(&[(4, "d"), (2, "d/e"), (3, "d/f")]));
        assert_eq!(select_number(&entries(&removed), Ino(1), None).unwrap().path, b"d/e");
        assert!(select_number(&entries(&removed), Ino(9), None).is_err());
    }
}

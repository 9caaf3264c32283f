//! The names of users and groups on this machine.
//!
//! Deliberately absent: users that are not in `/etc/passwd` and `/etc/group`. Files are read instead of asking the C library:
//! name services may need the network, and a statically linked program cannot load them.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::beneath::HeldDir;

/// Most lines of a table that are read.
const NAMES_MAX: usize = 100_000;
/// Most bytes of a table that are read.
const ID_FILE_MAX: u64 = 4 << 20;

/// A table of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerTable {
    /// Users.
    Users,
    /// Groups.
    Groups,
}

/// The numbers in a table, and the first name of each. A table that cannot be read has no names.
#[must_use]
pub fn read_owner_names(table: OwnerTable) -> BTreeMap<u32, String> {
    let file: &[u8] = match table {
        OwnerTable::Users => b"passwd",
        OwnerTable::Groups => b"group",
    };
    let dir = HeldDir::open_root(Path::new("/etc")).ok();
    let text = dir.and_then(|dir| read_id_file(&dir, file)).unwrap_or_default();
    parse_id_names(&String::from_utf8_lossy(&text))
}

/// The beginning of a file of `/etc`: names beyond its limit are unknown here, as those that are not in it are.
fn read_id_file(dir: &HeldDir, name: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    dir.open_file(name).ok()?.file.take(ID_FILE_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

fn parse_id_names(text: &str) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    for line in text.lines().take(NAMES_MAX) {
        let mut fields = line.split(':');
        let (Some(name), Some(id)) = (fields.next(), fields.nth(1).and_then(|id| id.parse().ok())) else {
            continue;
        };
        // Lines with `+` and `-` refer to NIS and contain no user.
        if !name.is_empty() && !name.starts_with(['+', '-']) {
            // The first line of a number counts, as it does for `getpwuid(3)`.
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_names_are_passed_over() {
        let text = "root:x:0:0::/:/bin/sh\n+@nis::::::\nbad\nann:x:no:1\ntoor:x:0:0\nbob:x:12:1:::\n";
        assert_eq!(parse_id_names(text), BTreeMap::from([(0, "root".to_owned()), (12, "bob".to_owned())]));
    }
}

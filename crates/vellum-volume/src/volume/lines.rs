//! Lines of snapshots that no worktree has: of directories that are none, and of streams.
//!
//! Invariant: the name of such a line has a colon in it, which no name of a worktree or a tag has. No ref names its newest
//! snapshot: that is the newest record of the line.

use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_types::limits::REF_NAME_MAX;

use super::Volume;
use crate::error::Result;
use crate::history::{HistoryEntry, list_history};
use crate::record::WHO_MAX;

/// Separates the host from what the snapshots are of.
const SEPARATOR: char = ':';
/// Hexadecimal digits that tell names apart of which only the beginning is the same.
const DIGEST_DIGITS: usize = 16;
/// Longest host in a name, bytes: `HOST_NAME_MAX` is 64.
const HOST_MAX: usize = 100;

/// The name of the line of a directory's snapshots, by its absolute path, or of a stream's, by the name of its file.
#[must_use]
pub fn name_outside_line(subject: &[u8]) -> String {
    let mut host = host_name();
    host.truncate(host.floor_char_boundary(HOST_MAX.min(WHO_MAX)));
    shorten_name(format!("{host}{SEPARATOR}{}", format_path(subject)))
}

/// Shortens a name to what a record may have; what was cut off still counts.
fn shorten_name(mut name: String) -> String {
    if name.len() <= REF_NAME_MAX {
        return name;
    }
    let digest = blake3::hash(name.as_bytes()).to_hex();
    name.truncate(name.floor_char_boundary(REF_NAME_MAX - 1 - DIGEST_DIGITS));
    name.push(SEPARATOR);
    name.push_str(digest.get(..DIGEST_DIGITS).unwrap_or_default());
    name
}

/// Whether a name can be that of a line that no worktree has.
#[must_use]
pub fn is_outside_line(name: &str) -> bool {
    name.contains(SEPARATOR)
}

impl Volume {
    /// The newest snapshot of a line. Of two that were made at once, the one with the higher id.
    pub fn find_newest_in_line(&self, line: &str) -> Result<Option<HistoryEntry>> {
        Ok(list_history(&self.catalog)?.into_iter().find(|entry| entry.record.worktree == line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refs::check_ref_name;

    #[test]
    fn names_are_short_enough_differ_and_are_those_of_no_worktree() {
        let deep = |last: &str| format!("/{}{last}", "d/".repeat(400));
        let names = ["/srv/data", "/srv/data2", "dump.sql", &deep("a"), &deep("b")]
            .map(|path| name_outside_line(path.as_bytes()));
        for (at, name) in names.iter().enumerate() {
            assert!(name.len() <= REF_NAME_MAX && is_outside_line(name), "{name}");
            assert!(check_ref_name(name).is_err(), "{name}");
            assert!(!names[..at].contains(name), "{name}");
        }
        assert!(names[0].ends_with(":/srv/data"), "{}", names[0]);
    }
}

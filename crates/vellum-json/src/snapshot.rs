//! Snapshots, and moments.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use vellum_types::UnixTime;
use vellum_volume::SnapshotRecord;
use vellum_volume::history::HistoryEntry;
use vellum_volume::record::SnapshotOrigin;

use crate::name::NameJson;

/// A moment: RFC 3339, UTC, nanoseconds; seconds since 1970 after an `@` where no year has four digits.
#[must_use]
pub fn format_json_time(time: UnixTime) -> String {
    // Times come from filesystems, which allow more years than RFC 3339 does; none of them may make an answer fail.
    let moment = i32::try_from(time.nanos).ok().and_then(|nanos| Timestamp::new(time.secs, nanos).ok());
    // Nine digits in all cases, so that texts sort as their moments do.
    moment.map_or_else(|| format!("@{}", time.secs), |moment| format!("{moment:.9}"))
}

/// A snapshot.
#[derive(Serialize)]
pub struct SnapshotJson {
    id: String,
    parents: Vec<String>,
    time: String,
    worktree: String,
    author: String,
    host: String,
    note: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    properties: BTreeMap<String, String>,
    origin: &'static str,
    tags: Vec<String>,
    heads: Vec<String>,
    paths: Vec<NameJson>,
    root: String,
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
    changed: u64,
    stored: u64,
}

impl SnapshotJson {
    /// The snapshot with the tags that name it and the worktrees that stand on it.
    #[must_use]
    pub fn new(entry: &HistoryEntry, tags: Vec<String>, heads: Vec<String>) -> Self {
        let SnapshotRecord { root, parents, time, worktree, author, host, note, paths, .. } = &*entry.record;
        let statistics = entry.record.statistics;
        Self {
            id: entry.id.to_string(),
            parents: parents.iter().map(ToString::to_string).collect(),
            time: format_json_time(*time),
            worktree: worktree.clone(),
            author: author.clone(),
            host: host.clone(),
            // The note that the snapshot was made with; see with_annotation for one that was changed later.
            note: note.clone(),
            properties: BTreeMap::new(),
            origin: origin_name(entry.record.origin),
            tags,
            heads,
            paths: paths.iter().map(|path| NameJson::new(path)).collect(),
            root: root.0.to_string(),
            files: statistics.files,
            directories: statistics.dirs,
            others: statistics.others,
            bytes: statistics.bytes,
            changed: statistics.changed,
            stored: statistics.stored,
        }
    }

    /// The same with what was said later.
    #[must_use]
    pub fn with_annotation(mut self, note: &str, properties: BTreeMap<String, String>) -> Self {
        self.note = note.into();
        self.properties = properties;
        self
    }
}

/// The values of `origin` for a snapshot.
#[must_use]
pub fn origin_name(origin: SnapshotOrigin) -> &'static str {
    match origin {
        // Programs compare these words: they stay, whatever the variants are called.
        SnapshotOrigin::User => "user",
        SnapshotOrigin::Safety => "safety",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_exact() {
        let far = UnixTime { secs: i64::MAX, nanos: 0 };
        assert_eq!(format_json_time(far), format!("@{}", i64::MAX));
        assert_eq!(
            format_json_time(UnixTime { secs: -1, nanos: 500_000_000 }),
            "1969-12-31T23:59:59.500000000Z"
        );
    }
}

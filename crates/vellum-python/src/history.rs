//! Snapshots, versions and differences as JSON: the shapes of docs/json.md, which the package turns into its own types.

use pyo3::prelude::*;
use serde::Serialize;
use vellum_json::{ChangeJson, SnapshotJson, file_kind_name, format_json_time};
use vellum_library::{HistoryPage, HistoryRow, PathVersion};

/// A part of the history.
#[derive(Serialize)]
pub struct HistoryPageJson {
    snapshots: Vec<SnapshotJson>,
    more: bool,
}

impl From<HistoryPage> for HistoryPageJson {
    fn from(page: HistoryPage) -> Self {
        Self { more: page.more, snapshots: page.rows.into_iter().map(snapshot_json).collect() }
    }
}

/// What is known of a snapshot.
pub fn snapshot_json(row: HistoryRow) -> SnapshotJson {
    let labels = row.labels;
    SnapshotJson::new(&row.entry, labels.tags, labels.heads).with_annotation(&labels.note, labels.properties)
}

/// A content that a path had.
#[derive(Serialize)]
pub struct PathVersionJson {
    first: String,
    last: String,
    first_time: String,
    last_time: String,
    count: u64,
    kind: &'static str,
    size: u64,
    content: String,
}

impl From<PathVersion> for PathVersionJson {
    fn from(version: PathVersion) -> Self {
        Self {
            first: version.first.to_string(),
            last: version.last.to_string(),
            first_time: format_json_time(version.first_time),
            last_time: format_json_time(version.last_time),
            count: version.count,
            kind: file_kind_name(version.kind),
            size: version.size,
            content: version.content.to_string(),
        }
    }
}

/// The differences between two snapshots.
#[derive(Serialize)]
pub struct ChangeListJson {
    /// Sorted by path.
    pub changes: Vec<ChangeJson>,
}

/// A value as JSON text.
pub fn to_json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))
}

//! Lists: the history, in full and in short, and directories.

use std::os::unix::ffi::OsStrExt;

use hyper::StatusCode;
use serde::Serialize;
use vellum_json::{FileJson, NameJson, SnapshotJson};
use vellum_library::{HistoryQuery, HistoryRow, LaneStep, PageEntry, Tree as _};
use vellum_types::{Ino, UnixTime};

use super::content::os_path;
use super::{ApiState, bad_cursor, immutable, snapshot_json};
use crate::web::answer::{Answer, ApiError, Freshness, json_answer};
use crate::web::route::{HistoryParameters, TreeOrder, TreeParameters};

/// Most rows of the history in short.
const SHORT_ROWS_MAX: usize = 20_000;
/// Most characters of a note in short.
const SHORT_NOTE: usize = 80;
/// Most entries of a directory that is sorted by something else than names.
const SORTED_MAX: usize = 200_000;

/// A column, and the lines beside it: from and to which column (null: the snapshot itself), and the number of the line.
type LanesJson = (usize, Vec<(Option<usize>, Option<usize>, u32)>);

fn lanes_json(step: &LaneStep) -> LanesJson {
    (step.column, step.edges.iter().map(|edge| (edge.above, edge.below, edge.colour)).collect())
}

#[derive(Serialize)]
struct HistoryPageJson {
    snapshots: Vec<SnapshotJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lanes: Option<Vec<LanesJson>>,
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

pub(super) fn answer_history(state: &ApiState, asked: &HistoryParameters) -> Result<Answer, ApiError> {
    // A cursor is of the same question only.
    let list = format!(
        // In the debug form, which quotes texts: two different questions are never written alike.
        "history {:?} {:?} {:?} {:?} {:?} {:?}",
        asked.worktree, asked.path, asked.grep, asked.tag, asked.from, asked.to
    );
    let open = |cursor: &String| {
        let id =
            state.cursors.open(&list, cursor).and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
        id.ok_or_else(bad_cursor)
    };
    let moment = |secs: Option<u64>, nanos| {
        secs.map(|secs| UnixTime { secs: i64::try_from(secs).unwrap_or(i64::MAX), nanos })
    };
    let page = state.volume.history(&HistoryQuery {
        worktree: asked.worktree.clone(),
        after: asked.page.after.as_ref().map(open).transpose()?,
        limit: asked.page.limit,
        path: asked.path.clone(),
        grep: asked.grep.clone(),
        tag: asked.tag.clone(),
        from: moment(asked.from, 0),
        // Requests have whole seconds, and the last one counts to its end.
        to: moment(asked.to, 999_999_999),
    })?;
    // The place is the id of a snapshot and not a number of rows: new snapshots come first in the list, and would shift the
    // numbers.
    let last = page.rows.last().map(|row| row.entry.id.to_string());
    let json = HistoryPageJson {
        lanes: page.rows.iter().map(|row| row.lane.as_ref().map(lanes_json)).collect(),
        after: last.filter(|_| page.more).map(|id| state.cursors.seal(&list, id.as_bytes())),
        more: page.more,
        snapshots: page.rows.into_iter().map(snapshot_json).collect(),
    };
    json_answer(&json, &Freshness::Now)
}

#[derive(Serialize)]
struct RowsJson {
    rows: Vec<ShortRowJson>,
    more: bool,
}

/// `[id, seconds since 1970, column, lines, made by a restore, changed, note, tags, worktrees]`
#[derive(Serialize)]
struct ShortRowJson(
    String,
    i64,
    usize,
    Vec<(Option<usize>, Option<usize>, u32)>,
    bool,
    u64,
    String,
    Vec<String>,
    Vec<String>,
);

pub(super) fn answer_rows(state: &ApiState, worktree: Option<String>) -> Result<Answer, ApiError> {
    let page =
        state.volume.history(&HistoryQuery { worktree, ..HistoryQuery::first_rows(SHORT_ROWS_MAX) })?;
    let json = RowsJson { more: page.more, rows: page.rows.into_iter().map(short_row).collect() };
    json_answer(&json, &Freshness::Now)
}

fn short_row(row: HistoryRow) -> ShortRowJson {
    let (column, edges) = row.lane.as_ref().map(lanes_json).unwrap_or_default();
    let line = row.labels.note.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let record = &row.entry.record;
    ShortRowJson(
        row.entry.id.to_string(),
        record.time.secs,
        column,
        edges,
        vellum_json::origin_name(record.origin) == "safety",
        record.statistics.changed,
        line.chars().take(SHORT_NOTE).collect(),
        row.labels.tags,
        row.labels.heads,
    )
}

#[derive(Serialize)]
struct TreeJson {
    snapshot: String,
    #[serde(flatten)]
    path: NameJson,
    entries: Vec<FileJson>,
    total: usize,
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

pub(super) fn answer_tree(state: &ApiState, asked: &TreeParameters) -> Result<Answer, ApiError> {
    let id = asked.at.snapshot.to_string();
    let path = os_path(&asked.at.path);
    let tree = state.volume.open_snapshot(&id)?;
    // The path is that of the directory itself, not of what a symlink leads to.
    if !tree.lstat(path)?.is_dir() {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "usage", "this is no directory"));
    }
    // A cursor is of the same directory in the same order only.
    let list = format!("tree {id} {:?} {:?}", asked.at.path, asked.order);
    let limit = asked.page.limit;
    let (entries, total, more, after) = match asked.order {
        TreeOrder::Name => {
            let open = |cursor: &String| state.cursors.open(&list, cursor).ok_or_else(bad_cursor);
            let after = asked.page.after.as_ref().map(open).transpose()?;
            let page = tree.read_dir_page(path, after.as_deref(), limit)?;
            let last = page.entries.last().map(|entry| state.cursors.seal(&list, entry.name.as_bytes()));
            (page.entries, page.total, page.more, last)
        }
        TreeOrder::Size | TreeOrder::Modified => {
            let skip = state.open_cursor(&list, &asked.page)?;
            // The tree has its entries by name. In any other order, each page needs all of them, sorted anew.
            let page = tree.read_dir_page(path, None, SORTED_MAX)?;
            if page.more {
                return Err(too_many_entries());
            }
            let mut all = page.entries;
            sort_entries(&mut all, asked.order);
            let rest = all.into_iter().skip(skip);
            let entries: Vec<_> = rest.take(limit).collect();
            let end = skip + entries.len();
            (entries, page.total, end < page.total, Some(state.seal_cursor(&list, end)))
        }
    };
    // A cursor is of this process: an answer with one in it must not outlive it in a browser.
    let freshness = match more || asked.page.after.is_some() {
        true => Freshness::Now,
        false => immutable(&[list.as_bytes(), &limit.to_le_bytes()]),
    };
    let json = TreeJson {
        snapshot: id,
        path: NameJson::new(&asked.at.path),
        entries: entries.iter().map(file_json).collect(),
        total,
        more,
        after: after.filter(|_| more),
    };
    json_answer(&json, &freshness)
}

fn too_many_entries() -> ApiError {
    let message = format!("a directory of more than {SORTED_MAX} entries is listed by name only");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "usage", message)
}

/// The largest or newest first; what is equal stays in the order of names.
fn sort_entries(entries: &mut [PageEntry], order: TreeOrder) {
    match order {
        TreeOrder::Name => {}
        TreeOrder::Size => entries.sort_by_key(|entry| std::cmp::Reverse(entry.metadata.size())),
        TreeOrder::Modified => entries.sort_by_key(|entry| std::cmp::Reverse(entry.metadata.modified())),
    }
}

fn file_json(entry: &PageEntry) -> FileJson {
    FileJson::new(entry.name.as_bytes(), Ino(entry.metadata.ino()), entry.metadata.attributes())
}

//! Answers to questions: each is read from the library and written in the shapes of `vellum-json`.

mod content;
mod listing;

use std::sync::Arc;

use hyper::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vellum_json::{
    ChangeCounts, ChangeJson, FileDetailsJson, NameJson, SnapshotJson, file_kind_name, format_json_time,
};
use vellum_library::{ContentId, HistoryRow, PathVersion, SnapshotComparison, SnapshotId, Tree as _, Volume};

pub use self::content::{ContentReader, open_content, parse_range};
use self::listing::{answer_history, answer_rows, answer_tree};
use crate::web::actions::{answer_approval, approvals_json, check_may_change};
use crate::web::answer::{Answer, ApiError, Freshness, json_answer};
use crate::web::cursor::CursorKey;
use crate::web::query::{check_path, decode_hex};
use crate::web::route::{ApiRequest, CompareParameters, PageParameters, PathInSnapshot, TextParameters};
use crate::web::text::{TEXT_MAX, TextComparison, compare_text};
use crate::web::tickets::TicketBox;

/// Comparisons that are kept: their pages are asked for one after another.
const COMPARISONS_KEPT: usize = 4;

/// What answers are made from.
pub struct ApiState {
    /// The volume.
    pub volume: Volume,
    /// Makes and checks cursors.
    pub cursors: CursorKey,
    /// Tickets for downloads.
    pub tickets: TicketBox,
    place: WorktreePlace,
    comparisons: Mutex<Vec<KeptComparison>>,
}

/// The worktree that the page changes.
#[derive(Debug, Clone)]
pub struct WorktreePlace {
    /// Its root.
    pub root: String,
    /// Whether it is a mount.
    pub is_mounted: bool,
    /// Whether the page only shows.
    pub is_read_only: bool,
}

/// A comparison, and of what.
struct KeptComparison {
    a: SnapshotId,
    b: SnapshotId,
    path: Vec<u8>,
    found: Arc<SnapshotComparison>,
}

impl ApiState {
    /// For a volume, with a key of this process.
    #[must_use]
    pub fn new(volume: Volume, key: [u8; 32], place: WorktreePlace) -> Self {
        Self {
            volume,
            place,
            cursors: CursorKey::new(key),
            tickets: TicketBox::default(),
            comparisons: Mutex::default(),
        }
    }

    /// How many rows come before the page that `page` asks for.
    fn open_cursor(&self, list: &str, page: &PageParameters) -> Result<usize, ApiError> {
        let Some(after) = &page.after else { return Ok(0) };
        let position = self.cursors.open(list, after).and_then(|bytes| bytes.try_into().ok());
        let position = position.ok_or_else(bad_cursor)?;
        usize::try_from(u64::from_le_bytes(position)).map_err(|_| bad_cursor())
    }

    fn seal_cursor(&self, list: &str, rows: usize) -> String {
        self.cursors.seal(list, &(rows as u64).to_le_bytes())
    }

    fn compare(&self, asked: &CompareParameters) -> Result<Arc<SnapshotComparison>, ApiError> {
        // A comparison reads both trees, and each page of it asks for the same one again.
        let is_asked =
            |kept: &KeptComparison| kept.a == asked.a && kept.b == asked.b && kept.path == asked.path;
        if let Some(kept) = self.comparisons.lock().iter().find(|kept| is_asked(kept)) {
            return Ok(kept.found.clone());
        }
        // Without the lock: another comparison does not wait for this one.
        let found = Arc::new(self.volume.compare(asked.a, asked.b, &asked.path)?);
        let mut kept = self.comparisons.lock();
        // Two requests may have computed the same one; then it is here twice for a while, which does no harm.
        kept.truncate(COMPARISONS_KEPT - 1);
        let comparison =
            KeptComparison { a: asked.a, b: asked.b, path: asked.path.clone(), found: found.clone() };
        // In front, so that the oldest one is what the next cuts off.
        kept.insert(0, comparison);
        Ok(found)
    }
}

fn bad_cursor() -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "usage", "'after' is none that was given out for this list")
}

/// A tag for something immutable.
fn immutable(parts: &[&[u8]]) -> Freshness {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        // With the lengths, so that other parts with the same bytes in a row have another tag.
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    // Another version may answer with more fields.
    hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
    // 128 bits are enough to tell contents apart.
    Freshness::Forever(format!("\"{}\"", &hasher.finalize().to_hex()[..32]))
}

/// Answers a question, except of content, which [`open_content`] does.
pub fn answer_question(state: &ApiState, request: &ApiRequest, body: &[u8]) -> Result<Answer, ApiError> {
    match request {
        ApiRequest::Volume => answer_volume(state),
        ApiRequest::History(asked) => answer_history(state, asked),
        ApiRequest::HistoryRows(worktree) => answer_rows(state, worktree.clone()),
        ApiRequest::Snapshot(id) => answer_snapshot(state, *id),
        ApiRequest::Tree(asked) => answer_tree(state, asked),
        ApiRequest::Entry(place) => answer_entry(state, place),
        ApiRequest::Versions(place, page) => answer_versions(state, place, page),
        ApiRequest::Compare(asked) => answer_compare(state, asked),
        ApiRequest::Text(asked) => answer_text(state, asked),
        ApiRequest::NewTicket => issue_ticket(state, body),
        ApiRequest::Approvals => json_answer(&approvals_json(state)?, &Freshness::Now),
        ApiRequest::AnswerApproval(id) => {
            check_may_change(state.place.is_read_only)?;
            answer_approval(state, id, body)
        }
        // The server does not pass these on: content is sent while it is read, and is not in one answer.
        ApiRequest::Content(_) => {
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "io", "content is not answered here"))
        }
    }
}

#[derive(Serialize)]
struct VolumeJson {
    volume: String,
    store: String,
    encrypted: bool,
    worktree: String,
    directory: String,
    root: String,
    worktrees: Vec<WorktreeFactsJson>,
    capabilities: CapabilitiesJson,
    state: Value,
}

#[derive(Serialize)]
struct WorktreeFactsJson {
    worktree: String,
    head: Option<String>,
}

#[derive(Serialize)]
struct CapabilitiesJson {
    read_only: bool,
    mounted: bool,
}

/// How the store is: another value after each change.
pub fn read_state(api: &ApiState) -> Result<Value, ApiError> {
    let state = api.volume.read_state()?;
    Ok(json!({
        "snapshots": state.snapshots.to_string(),
        "refs": state.refs.to_string(),
        "operations": state.operations.to_string(),
    }))
}

fn answer_volume(state: &ApiState) -> Result<Answer, ApiError> {
    // First: what changes from here on is told by the stream of events as another state.
    let stored = read_state(state)?;
    let facts = state.volume.facts()?;
    let worktree = |found: vellum_library::WorktreeFacts| WorktreeFactsJson {
        worktree: found.name,
        head: found.head.map(|id| id.to_string()),
    };
    let json = VolumeJson {
        volume: facts.volume,
        store: facts.store,
        encrypted: facts.encrypted,
        worktree: facts.worktree,
        directory: facts.directory,
        worktrees: facts.worktrees.into_iter().map(worktree).collect(),
        root: state.place.root.clone(),
        capabilities: CapabilitiesJson {
            read_only: state.place.is_read_only,
            mounted: state.place.is_mounted,
        },
        state: stored,
    };
    json_answer(&json, &Freshness::Now)
}

/// A snapshot of a list.
#[must_use]
pub fn snapshot_json(row: HistoryRow) -> SnapshotJson {
    SnapshotJson::new(&row.entry, row.labels.tags, row.labels.heads)
        .with_annotation(&row.labels.note, row.labels.properties)
}

#[derive(Serialize)]
struct ShowJson {
    snapshot: SnapshotJson,
}

fn answer_snapshot(state: &ApiState, id: SnapshotId) -> Result<Answer, ApiError> {
    let (entry, labels) = state.volume.find_snapshot(id)?;
    let snapshot = snapshot_json(HistoryRow { entry, labels, lane: None });
    // Its tags and notes may change.
    json_answer(&ShowJson { snapshot }, &Freshness::Now)
}

#[derive(Serialize)]
struct EntryJson {
    snapshot: String,
    file: FileDetailsJson,
    content: String,
}

fn answer_entry(state: &ApiState, place: &PathInSnapshot) -> Result<Answer, ApiError> {
    let found = state.volume.read_path(place.snapshot, &place.path)?;
    let id = place.snapshot.to_string();
    let freshness = immutable(&[b"entry", id.as_bytes(), &place.path]);
    let file = FileDetailsJson::new(&place.path, &found.inode);
    json_answer(&EntryJson { snapshot: id, file, content: found.content.to_string() }, &freshness)
}

#[derive(Serialize)]
struct VersionsPageJson {
    #[serde(flatten)]
    path: NameJson,
    versions: Vec<PathVersionJson>,
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

#[derive(Serialize)]
struct PathVersionJson {
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

fn answer_versions(
    state: &ApiState,
    place: &PathInSnapshot,
    page: &PageParameters,
) -> Result<Answer, ApiError> {
    // A part of each cursor, so that one of another list is refused.
    let list = format!("versions {} {:?}", place.snapshot, place.path);
    let skip = state.open_cursor(&list, page)?;
    // The versions of earlier pages are looked for once more: where one begins and ends follows from the snapshots after it.
    let mut found = state.volume.path_versions(&place.path, place.snapshot)?.skip(skip);
    let mut versions = Vec::new();
    while versions.len() < page.limit {
        match found.next().transpose()? {
            Some(version) => versions.push(version.into()),
            None => break,
        }
    }
    // One further version is looked for, so that no page promises a next one that is empty.
    let more = versions.len() == page.limit && found.next().transpose()?.is_some();
    let after = more.then(|| state.seal_cursor(&list, skip + versions.len()));
    json_answer(
        &VersionsPageJson { path: NameJson::new(&place.path), versions, more, after },
        // Not kept by browsers: snapshots before this one may be forgotten, and leave the list.
        &Freshness::Now,
    )
}

#[derive(Serialize)]
struct CompareJson {
    from: String,
    to: String,
    counts: ChangeCounts,
    changes: Vec<ChangeJson>,
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

fn answer_compare(state: &ApiState, asked: &CompareParameters) -> Result<Answer, ApiError> {
    let list = format!("compare {} {} {:?}", asked.a, asked.b, asked.path);
    let skip = state.open_cursor(&list, &asked.page)?;
    let found = state.compare(asked)?;
    let (page, more) = found.page(skip, asked.page.limit);
    let json = CompareJson {
        from: asked.a.to_string(),
        to: asked.b.to_string(),
        // Of all changes, whichever page this is.
        counts: ChangeCounts::from_changes(&found.changes),
        changes: page.iter().map(ChangeJson::from).collect(),
        more,
        after: more.then(|| state.seal_cursor(&list, skip + page.len())),
    };
    // Not kept by browsers: the cursor in it is of no use to a later process.
    json_answer(&json, &Freshness::Now)
}

fn answer_text(state: &ApiState, asked: &TextParameters) -> Result<Answer, ApiError> {
    let old_path = asked.old_path.as_deref().unwrap_or(&asked.path);
    let old = read_text(state, asked.a, old_path)?;
    let new = read_text(state, asked.b, &asked.path)?;
    if old.is_none() && new.is_none() {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", "neither snapshot has this path"));
    }
    let comparison = match (old.unwrap_or(SideText::None), new.unwrap_or(SideText::None)) {
        // As for binary content, of which there are no lines to compare.
        (SideText::TooLong, _) | (_, SideText::TooLong) => {
            TextComparison { binary: true, ..TextComparison::default() }
        }
        (old, new) => compare_text(old.bytes(), new.bytes()),
    };
    // Not kept by browsers: how far a comparison gets depends on the time that it had.
    json_answer(&comparison, &Freshness::Now)
}

/// What one side of a comparison contains.
enum SideText {
    /// Nothing: the path is not there, or is no file.
    None,
    Content(Vec<u8>),
    TooLong,
}

impl SideText {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None | Self::TooLong => &[],
            Self::Content(content) => content,
        }
    }
}

/// The text at a path; None if the snapshot does not have the path.
fn read_text(state: &ApiState, id: SnapshotId, path: &[u8]) -> Result<Option<SideText>, ApiError> {
    let attr = match state.volume.read_path(id, path) {
        Ok(found) => found.inode.attr,
        Err(error)
            if error.kind() == vellum_types::ErrorKind::NotFound
                // A path that is missing is one side of a comparison; a snapshot that is missing is an error.
                && state.volume.find_snapshot(id).is_ok() =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Some(match attr.kind {
        vellum_library::FileKind::File if attr.size > TEXT_MAX => SideText::TooLong,
        vellum_library::FileKind::File => {
            SideText::Content(state.volume.open_snapshot(&id.to_string())?.read(content::os_path(path))?)
        }
        // As git has it: where a symlink leads is its content.
        vellum_library::FileKind::Symlink => SideText::Content(attr.target),
        // Directories, devices and the like have no lines.
        _ => SideText::None,
    }))
}

/// What a ticket is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TicketRequest {
    snapshot: String,
    path: Option<String>,
    path_hex: Option<String>,
}

#[derive(Serialize)]
struct TicketJson {
    ticket: String,
}

fn issue_ticket(state: &ApiState, body: &[u8]) -> Result<Answer, ApiError> {
    let usage = |message: String| ApiError::new(StatusCode::BAD_REQUEST, "usage", message);
    let asked: TicketRequest = serde_json::from_slice(body)
        .map_err(|error| usage(format!("the body is no such request: {error}")))?;
    let snapshot = asked.snapshot.parse().map_err(|_| usage("'snapshot' is no whole id".into()))?;
    let path = match (asked.path, asked.path_hex) {
        // The text beside hexadecimal bytes is for people.
        (_, Some(hex)) => decode_hex(&hex).ok_or_else(|| usage("'path_hex' is not hexadecimal".into()))?,
        (Some(path), None) => path.into_bytes(),
        (None, None) => return Err(usage("'path' is missing".into())),
    };
    check_path(&path)?;
    let place = PathInSnapshot { snapshot, path };
    // A link that leads to nothing would only be noticed in the list of downloads.
    open_content(state, &place)?;
    let failed = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "io", "the system has no random bytes");
    json_answer(&TicketJson { ticket: state.tickets.issue(place).ok_or_else(failed)? }, &Freshness::Now)
}

/// The tag of a content.
fn content_freshness(content: ContentId) -> Freshness {
    immutable(&[b"content", content.to_string().as_bytes()])
}

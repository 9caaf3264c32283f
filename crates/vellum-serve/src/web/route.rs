//! Requests: method, path and query become one of these, or a refusal. Nothing is read here.

use hyper::StatusCode;
use percent_encoding::percent_decode_str;
use vellum_types::SnapshotId;

use crate::web::actions::{CommandRequest, PlanKind};
use crate::web::answer::ApiError;
use crate::web::cursor::CURSOR_MAX;
use crate::web::query::{BadAddress, QueryFields};
use crate::web::reports::{FindParameters, HealthPart};

/// Most rows of one answer.
pub const ROWS_MAX: usize = 1000;
/// Longest pattern of a search, bytes: a path.
const PATTERN_MAX: usize = 4096;
/// Rows of an answer if the request does not say how many.
const ROWS_DEFAULT: usize = 500;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    /// A file of the page, by its name.
    Asset(String),
    /// A file, by the ticket for it.
    Download(String),
    /// A question to the API.
    Api(ApiRequest),
    /// What the API needs the command line for.
    Command(CommandRequest),
    /// To be told of changes.
    Events {
        /// Also what mounts do, each second.
        wants_figures: bool,
    },
}

/// What a request asks the API for.
#[derive(Debug, PartialEq, Eq)]
pub enum ApiRequest {
    /// What the volume is.
    Volume,
    /// Snapshots in full.
    History(HistoryParameters),
    /// All snapshots, in short.
    HistoryRows(Option<String>),
    /// One snapshot.
    Snapshot(SnapshotId),
    /// A directory.
    Tree(TreeParameters),
    /// Everything recorded about a path.
    Entry(PathInSnapshot),
    /// The contents that a path had in a snapshot and before it.
    Versions(PathInSnapshot, PageParameters),
    /// What differs between two snapshots.
    Compare(CompareParameters),
    /// The lines that differ.
    Text(TextParameters),
    /// The content of a file.
    Content(PathInSnapshot),
    /// A ticket with which a browser can download a file; the body says which.
    NewTicket,
    /// What agents ask for.
    Approvals,
    /// What a person says to a request; the body has it.
    AnswerApproval(String),
}

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageParameters {
    /// Where it begins, as an earlier answer said.
    pub after: Option<String>,
    /// At most so many rows.
    pub limit: usize,
}

/// A filtered part of the history.
#[derive(Debug, PartialEq, Eq)]
pub struct HistoryParameters {
    /// Only ancestors of this worktree's state.
    pub worktree: Option<String>,
    /// Only those that changed this path.
    pub path: Option<Vec<u8>>,
    /// Only those with this in their note.
    pub grep: Option<String>,
    /// Only those with this tag.
    pub tag: Option<String>,
    /// Only those made then or later, seconds since 1970.
    pub from: Option<u64>,
    /// Only those made then or before, seconds since 1970.
    pub to: Option<u64>,
    /// Which part.
    pub page: PageParameters,
}

/// A path in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathInSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The path from its root.
    pub path: Vec<u8>,
}

/// By what a directory is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeOrder {
    /// By the bytes of names.
    Name,
    /// The largest first.
    Size,
    /// The newest first.
    Modified,
}

/// A part of a directory.
#[derive(Debug, PartialEq, Eq)]
pub struct TreeParameters {
    /// The directory.
    pub at: PathInSnapshot,
    /// Its order.
    pub order: TreeOrder,
    /// Which part.
    pub page: PageParameters,
}

/// A part of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub struct CompareParameters {
    /// The snapshot before.
    pub a: SnapshotId,
    /// The snapshot after.
    pub b: SnapshotId,
    /// At and under this path.
    pub path: Vec<u8>,
    /// Which part.
    pub page: PageParameters,
}

/// A file on two sides.
#[derive(Debug, PartialEq, Eq)]
pub struct TextParameters {
    /// The snapshot before.
    pub a: SnapshotId,
    /// The snapshot after.
    pub b: SnapshotId,
    /// The path after, and before unless `old_path` is another one.
    pub path: Vec<u8>,
    /// The path before, if it was renamed.
    pub old_path: Option<Vec<u8>>,
}

impl From<BadAddress> for ApiError {
    fn from(BadAddress(message): BadAddress) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "usage", message)
    }
}

/// Finds out what a request asks for. `path` and `query` are as the request has them.
pub fn parse_route(method: &str, path: &str, query: &str) -> Result<Route, ApiError> {
    // Split before anything is decoded, so that an encoded slash does not make two segments of one.
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    match (method, segments.as_slice()) {
        // No HEAD: the answer has no end, and its head says nothing.
        ("GET", ["api", "v1", "events"]) => parse_events(query),
        ("GET" | "HEAD", ["api", "v1", rest @ ..]) => match parse_command(rest, query)? {
            Some(asked) => Ok(Route::Command(asked)),
            None => Ok(Route::Api(parse_question(rest, query)?)),
        },
        ("POST", ["api", "v1", rest @ ..]) => {
            // What is posted has no parameters: one that is given is a mistake, and is told.
            QueryFields::parse(query, &[])?;
            parse_post(rest)
        }
        // The name is only for the browser, which saves the file under the last part of the address.
        ("GET" | "HEAD", ["d", ticket, _name]) => Ok(Route::Download((*ticket).into())),
        ("GET" | "HEAD", [name]) => {
            Ok(Route::Asset(if name.is_empty() { "index.html" } else { name }.into()))
        }
        // Another status would say that the address exists, and only the method is wrong.
        ("GET" | "HEAD" | "POST", _) => Err(not_found()),
        _ => Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "usage", "no request here has this method")),
    }
}

/// None: the library answers it.
fn parse_command(segments: &[&str], query: &str) -> Result<Option<CommandRequest>, ApiError> {
    let asked = match segments {
        ["find"] => return Ok(Some(CommandRequest::Find(parse_find(query)?))),
        ["pins"] => CommandRequest::Pins,
        ["live"] => CommandRequest::Live,
        ["jobs", "verify"] => CommandRequest::Verify,
        ["health", name] => {
            let part = HealthPart::ALL.into_iter().find(|part| part.name() == *name);
            CommandRequest::Health(part.ok_or_else(not_found)?)
        }
        _ => return Ok(None),
    };
    QueryFields::parse(query, &[])?;
    Ok(Some(asked))
}

fn parse_events(query: &str) -> Result<Route, ApiError> {
    let wants_figures = parse_switch(&QueryFields::parse(query, &["live"])?, "live")?;
    Ok(Route::Events { wants_figures })
}

fn parse_switch(fields: &QueryFields, name: &str) -> Result<bool, ApiError> {
    match fields.text(name)? {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) => Err(BadAddress(format!("'{name}' is 0 or 1")).into()),
    }
}

fn parse_find(query: &str) -> Result<FindParameters, ApiError> {
    let fields = QueryFields::parse(query, &["pattern", "up_to", "ignore_case", "deleted"])?;
    let pattern = fields.bytes("pattern").unwrap_or_default();
    if pattern.is_empty() || pattern.len() > PATTERN_MAX || pattern.contains(&0) {
        return Err(BadAddress("'pattern' is missing, too long, or has a NUL".into()).into());
    }
    Ok(FindParameters {
        pattern: pattern.into(),
        up_to: fields.text("up_to")?.map(parse_id).transpose()?,
        is_case_ignored: parse_switch(&fields, "ignore_case")?,
        is_deleted: parse_switch(&fields, "deleted")?,
    })
}

fn parse_post(segments: &[&str]) -> Result<Route, ApiError> {
    match segments {
        ["jobs", "verify"] => Ok(Route::Command(CommandRequest::StartVerify)),
        ["tickets"] => Ok(Route::Api(ApiRequest::NewTicket)),
        ["approvals", id] => Ok(Route::Api(ApiRequest::AnswerApproval((*id).into()))),
        ["plans", id, "run"] => Ok(Route::Command(CommandRequest::Run((*id).into()))),
        ["plans", name] => {
            let kind = PlanKind::ALL.into_iter().find(|kind| kind.name() == *name).ok_or_else(not_found)?;
            Ok(Route::Command(CommandRequest::Plan(kind)))
        }
        _ => Err(not_found()),
    }
}

fn not_found() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this address")
}

fn parse_question(segments: &[&str], query: &str) -> Result<ApiRequest, ApiError> {
    Ok(match segments {
        ["volume"] => {
            QueryFields::parse(query, &[])?;
            ApiRequest::Volume
        }
        ["approvals"] => {
            QueryFields::parse(query, &[])?;
            ApiRequest::Approvals
        }
        ["history"] => ApiRequest::History(parse_history(query)?),
        ["history", "rows"] => {
            let fields = QueryFields::parse(query, &["worktree"])?;
            ApiRequest::HistoryRows(fields.text("worktree")?.map(Into::into))
        }
        ["snapshots", id] => {
            QueryFields::parse(query, &[])?;
            ApiRequest::Snapshot(parse_id(id)?)
        }
        ["tree", id] => ApiRequest::Tree(parse_tree(id, query)?),
        ["entry", id] => ApiRequest::Entry(parse_place(id, &QueryFields::parse(query, &PATH_FIELDS)?)?),
        ["content", id] => ApiRequest::Content(parse_place(id, &QueryFields::parse(query, &PATH_FIELDS)?)?),
        ["versions", id] => {
            let fields = QueryFields::parse(query, &["path", "path_hex", "after", "limit"])?;
            ApiRequest::Versions(parse_place(id, &fields)?, parse_page(&fields)?)
        }
        ["compare"] => {
            let fields = QueryFields::parse(query, &["a", "b", "path", "path_hex", "after", "limit"])?;
            ApiRequest::Compare(CompareParameters {
                a: parse_id_field(&fields, "a")?,
                b: parse_id_field(&fields, "b")?,
                path: fields.path("path")?.unwrap_or_default(),
                page: parse_page(&fields)?,
            })
        }
        ["text"] => {
            let known = ["a", "b", "path", "path_hex", "old_path", "old_path_hex"];
            let fields = QueryFields::parse(query, &known)?;
            ApiRequest::Text(TextParameters {
                a: parse_id_field(&fields, "a")?,
                b: parse_id_field(&fields, "b")?,
                path: fields.path("path")?.ok_or_else(|| BadAddress("'path' is missing".into()))?,
                old_path: fields.path("old_path")?,
            })
        }
        _ => return Err(not_found()),
    })
}

/// The parameters of a path.
const PATH_FIELDS: [&str; 2] = ["path", "path_hex"];

fn parse_history(query: &str) -> Result<HistoryParameters, ApiError> {
    let known = ["worktree", "path", "path_hex", "grep", "tag", "from", "to", "after", "limit"];
    let fields = QueryFields::parse(query, &known)?;
    Ok(HistoryParameters {
        worktree: fields.text("worktree")?.map(Into::into),
        path: fields.path("path")?,
        grep: fields.text("grep")?.map(Into::into),
        tag: fields.text("tag")?.map(Into::into),
        from: fields.number("from")?,
        to: fields.number("to")?,
        page: parse_page(&fields)?,
    })
}

fn parse_tree(id: &str, query: &str) -> Result<TreeParameters, ApiError> {
    let fields = QueryFields::parse(query, &["path", "path_hex", "sort", "after", "limit"])?;
    let order = match fields.text("sort")? {
        None | Some("name") => TreeOrder::Name,
        Some("size") => TreeOrder::Size,
        Some("modified") => TreeOrder::Modified,
        Some(_) => return Err(BadAddress("'sort' is name, size or modified".into()).into()),
    };
    Ok(TreeParameters { at: parse_place(id, &fields)?, order, page: parse_page(&fields)? })
}

fn parse_place(id: &str, fields: &QueryFields) -> Result<PathInSnapshot, ApiError> {
    // Without a path, the root is meant.
    Ok(PathInSnapshot { snapshot: parse_id(id)?, path: fields.path("path")?.unwrap_or_default() })
}

fn parse_page(fields: &QueryFields) -> Result<PageParameters, ApiError> {
    let after = fields.text("after")?.map(ToOwned::to_owned);
    if after.as_ref().is_some_and(|after| after.len() > CURSOR_MAX) {
        return Err(BadAddress("'after' is none that was given out".into()).into());
    }
    let limit = match fields.number("limit")? {
        None => ROWS_DEFAULT,
        // Refused instead of cut: a client that counts on its own limit would take a shorter page for the last one.
        Some(limit) => usize::try_from(limit)
            .ok()
            .filter(|limit| (1..=ROWS_MAX).contains(limit))
            .ok_or_else(|| BadAddress(format!("'limit' is between 1 and {ROWS_MAX}")))?,
    };
    Ok(PageParameters { after, limit })
}

fn parse_id_field(fields: &QueryFields, name: &str) -> Result<SnapshotId, ApiError> {
    parse_id(fields.text(name)?.ok_or_else(|| BadAddress(format!("'{name}' is missing")))?)
}

/// Whole ids only: what an address says must mean the same tomorrow.
fn parse_id(text: &str) -> Result<SnapshotId, ApiError> {
    // What is not UTF-8 becomes a character that no id has.
    let text = percent_decode_str(text).decode_utf8_lossy();
    text.parse().map_err(|_| BadAddress("a snapshot is named by its whole id here".into()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn parse(method: &str, address: &str) -> Result<Route, u16> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        parse_route(method, path, query).map_err(|error| error.status().as_u16())
    }

    #[test]
    fn questions_are_understood() {
        assert_eq!(parse("GET", "/"), Ok(Route::Asset("index.html".into())));
        assert_eq!(parse("GET", "/api/v1/volume"), Ok(Route::Api(ApiRequest::Volume)));
        let tree = parse("GET", &format!("/api/v1/tree/{ID}?path=a%2Fb&sort=size&limit=7"));
        let Ok(Route::Api(ApiRequest::Tree(tree))) = tree else { panic!("{tree:?}") };
        assert_eq!((tree.at.path.as_slice(), tree.page.limit), (b"a/b".as_slice(), 7));
        assert!(parse("POST", "/api/v1/tickets").is_ok());
        assert_eq!(
            parse("POST", "/api/v1/plans/12ab/run"),
            Ok(Route::Command(CommandRequest::Run("12ab".into())))
        );
        for kind in PlanKind::ALL {
            let planned = parse("POST", &format!("/api/v1/plans/{}", kind.name()));
            assert_eq!(planned, Ok(Route::Command(CommandRequest::Plan(kind))));
        }
    }

    #[test]
    fn wrong_requests_are_refused() {
        let cases = [
            ("GET", "/api/v1/nothing".into(), 404),
            ("GET", "/a/b/c/d".into(), 404),
            ("POST", "/api/v1/volume".into(), 404),
            ("POST", "/api/v1/plans/repair".into(), 404),
            ("GET", "/api/v1/find".into(), 400),
            ("GET", "/api/v1/events?live=yes".into(), 400),
            ("GET", "/api/v1/events?token=x".into(), 400),
            ("HEAD", "/api/v1/events".into(), 404),
            ("POST", "/api/v1/events".into(), 404),
            ("GET", "/api/v1/find?pattern=a%00".into(), 400),
            ("GET", "/api/v1/find?pattern=a&deleted=yes".into(), 400),
            ("GET", "/api/v1/find?pattern=a&up_to=HEAD".into(), 400),
            ("GET", "/api/v1/health/keys".into(), 404),
            ("GET", "/api/v1/health/doctor?repair=1".into(), 400),
            ("POST", "/api/v1/health/doctor".into(), 404),
            ("POST", "/api/v1/plans/a/b/run".into(), 404),
            ("POST", "/api/v1/plans/restore?run=1".into(), 400),
            ("GET", "/api/v1/plans/restore".into(), 404),
            ("GET", "/api/v1/plans/12ab/run".into(), 404),
            ("DELETE", "/api/v1/volume".into(), 405),
            ("OPTIONS", "/".into(), 405),
            ("GET", "/api/v1/tree/HEAD".into(), 400),
            ("GET", format!("/api/v1/tree/{}", &ID[..16]), 400),
            ("GET", format!("/api/v1/tree/{ID}?path=../x"), 400),
            ("GET", format!("/api/v1/tree/{ID}?limit=0"), 400),
            ("GET", format!("/api/v1/tree/{ID}?limit=1001"), 400),
            ("GET", format!("/api/v1/tree/{ID}?limit=-1"), 400),
            ("GET", format!("/api/v1/tree/{ID}?sort=random"), 400),
            ("GET", format!("/api/v1/tree/{ID}?token=x"), 400),
            ("GET", format!("/api/v1/tree/{ID}?after={}", "0".repeat(513)), 400),
            ("GET", format!("/api/v1/compare?a={ID}"), 400),
            ("GET", format!("/api/v1/text?a={ID}&b={ID}"), 400),
        ];
        for (method, address, expected) in cases {
            assert_eq!(parse(method, &address).err(), Some(expected), "{address}");
        }
    }
}

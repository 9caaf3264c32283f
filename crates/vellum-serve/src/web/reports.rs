//! What the command line reports and the page shows: names that were searched for, the health of the volume, mounts.
//!
//! Nothing here changes the volume. A verification reads for long, so that it runs by itself, and is asked about.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use hyper::StatusCode;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use vellum_types::SnapshotId;

use crate::web::actions::{ActionState, check_may_change, parse_body};
use crate::web::answer::{Answer, ApiError, Freshness, json_answer};

/// Most rows of a search.
const FOUND_MAX: usize = 5000;
/// Most mounts whose figures are asked for at once: each is a process.
const MOUNTS_MAX: usize = 8;
/// Most findings of a verification that are shown.
const FINDINGS_MAX: usize = 200;

/// What is searched for.
#[derive(Debug, PartialEq, Eq)]
pub struct FindParameters {
    /// A name or a path with wildcards, not empty.
    pub pattern: Vec<u8>,
    /// Up to this snapshot; None: in all of the volume.
    pub up_to: Option<SnapshotId>,
    /// Whether case counts.
    pub is_case_ignored: bool,
    /// Only what the newest snapshots do not have any more.
    pub is_deleted: bool,
}

/// A part of the health of the volume: each is asked for by itself, since some take long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthPart {
    /// What 'vellum doctor' finds.
    Doctor,
    /// What the worktree is: changes, leases, what waits to be uploaded.
    Status,
    /// What the store holds.
    Store,
    /// What could be freed.
    Gc,
    /// What snapshots take of the store.
    Usage,
    /// Where worktrees are.
    Worktrees,
}

impl HealthPart {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Doctor, Self::Status, Self::Store, Self::Gc, Self::Usage, Self::Worktrees];

    /// As requests have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Doctor => "doctor",
            Self::Status => "status",
            Self::Store => "store",
            Self::Gc => "gc",
            Self::Usage => "usage",
            Self::Worktrees => "worktrees",
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Doctor => &["doctor"],
            Self::Status => &["status"],
            Self::Store => &["info"],
            Self::Gc => &["gc", "plan"],
            Self::Usage => &["usage"],
            Self::Worktrees => &["worktree", "list"],
        }
    }
}

/// How much is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum VerifyScope {
    /// Names, attributes and structure of the current snapshot.
    Metadata,
    /// A part of the store, what was looked at longest ago first.
    Sample,
    /// The current snapshot.
    Snapshot,
    /// The whole store.
    All,
}

impl VerifyScope {
    fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Sample => "sample",
            Self::Snapshot => "snapshot",
            Self::All => "all",
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Metadata => &["verify", "--metadata-only"],
            Self::Sample => &["verify", "--sample=5%"],
            Self::Snapshot => &["verify"],
            Self::All => &["verify", "--all"],
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VerifyRequestBody {
    scope: VerifyScope,
}

/// The verification of this process: at most one at a time, and the last one.
#[derive(Default)]
pub struct VerifyState {
    last: Mutex<Option<LastVerify>>,
}

struct LastVerify {
    scope: VerifyScope,
    begun: SystemTime,
    ended: Option<(SystemTime, Value)>,
}

/// Searches for names. If the client goes away, the search is stopped.
pub async fn answer_find(actions: &ActionState, asked: &FindParameters) -> Result<Answer, ApiError> {
    let mut words = vec![OsString::from("find")];
    match asked.up_to {
        Some(id) => words.push(format!("--in=..{id}").into()),
        None => words.push("--all".into()),
    }
    if asked.is_case_ignored {
        words.push("--ignore-case".into());
    }
    if asked.is_deleted {
        words.push("--deleted".into());
    }
    words.extend(["--".into(), OsStr::from_bytes(&asked.pattern).to_owned()]);
    let mut found = actions.run_command(words).await?;
    let total = found["found"].as_array().map_or(0, Vec::len);
    if let Some(rows) = found["found"].as_array_mut() {
        rows.truncate(FOUND_MAX);
    }
    let answer = json!({ "found": found["found"].take(), "total": total, "more": total > FOUND_MAX });
    json_answer(&answer, &Freshness::Now)
}

/// A part of the health of the volume, as its command reports it.
pub async fn answer_health(actions: &ActionState, part: HealthPart) -> Result<Answer, ApiError> {
    let mut report = actions.run_command(part.words().iter().copied()).await?;
    // Each answer has its own.
    if let Some(fields) = report.as_object_mut() {
        fields.remove("version");
    }
    json_answer(&report, &Freshness::Now)
}

/// The mounts of the volume's store on this machine, each with its figures of one second.
pub async fn read_live(actions: &ActionState, store: &str) -> Result<Value, ApiError> {
    let mut listed = actions.run_command(["mounts"]).await?;
    let all = listed["mounts"].as_array_mut().map(std::mem::take).unwrap_or_default();
    // Those of other volumes are none of this page's affairs.
    let own: Vec<Value> = all.into_iter().filter(|mount| mount["store"].as_str() == Some(store)).collect();
    let figures = own.iter().take(MOUNTS_MAX).map(|mount| read_figures(actions, mount));
    let figures = join_all(figures).await;
    let rows = own.into_iter().zip(figures).map(|(mut mount, figures)| {
        mount["figures"] = figures;
        mount
    });
    Ok(json!({ "mounts": rows.collect::<Vec<_>>() }))
}

/// Null: the mount has none, or has just ended.
async fn read_figures(actions: &ActionState, mount: &Value) -> Value {
    let Some(mountpoint) = mount["mountpoint"].as_str().filter(|_| mount["silent"] != true) else {
        return Value::Null;
    };
    let words = ["stats", "--count=1", "--interval=1", "--", mountpoint];
    let figures = actions.run_command(words).await;
    figures.unwrap_or_default()
}

/// Begins a verification. Fails if one is under way.
pub fn start_verify(actions: &Arc<ActionState>, body: &[u8]) -> Result<Answer, ApiError> {
    check_may_change(actions.is_read_only())?;
    let VerifyRequestBody { scope } = parse_body(body)?;
    {
        let mut last = actions.verify.last.lock();
        if last.as_ref().is_some_and(|last| last.ended.is_none()) {
            let message = "a verification is under way";
            return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message));
        }
        *last = Some(LastVerify { scope, begun: SystemTime::now(), ended: None });
    }
    let own = Arc::clone(actions);
    // By itself: it takes as long as reading the store does, and nobody has to keep the page open.
    tokio::spawn(async move {
        let result = match own.run_command(scope.words().iter().copied()).await {
            Ok(report) => shorten_report(report),
            Err(error) => json!({ "error": error.to_json() }),
        };
        if let Some(last) = own.verify.last.lock().as_mut() {
            last.ended = Some((SystemTime::now(), result));
        }
    });
    json_answer(&verify_json(actions), &Freshness::Now)
}

/// The verification that is under way, or the last one of this process.
#[must_use]
pub fn verify_json(actions: &ActionState) -> Value {
    let seconds = |since: SystemTime| since.elapsed().unwrap_or(Duration::ZERO).as_secs();
    let last = actions.verify.last.lock();
    let job = last.as_ref().map(|last| {
        let begun = last.begun.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut job = json!({
            "scope": last.scope.name(), "begun": begun as u64, "seconds": seconds(last.begun), "running": true,
        });
        if let Some((ended, result)) = &last.ended {
            job["running"] = json!(false);
            job["ended_seconds"] = json!(seconds(*ended));
            job["result"] = result.clone();
        }
        job
    });
    json!({ "job": job })
}

fn shorten_report(mut report: Value) -> Value {
    let count = report["findings"].as_array().map_or(0, Vec::len);
    if let Some(findings) = report["findings"].as_array_mut() {
        findings.truncate(FINDINGS_MAX);
    }
    json!({
        "sound": report["sound"], "snapshots": report["snapshots"], "blobs": report["blobs"], "bytes": report["bytes"],
        "findings": report["findings"].take(), "finding_count": count, "part": report["part"].take(),
    })
}

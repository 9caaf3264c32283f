//! How commands print JSON, and the shapes that only they share; `vellum-json` has those that windows answer with, too.
//! docs/json.md describes all shapes; a field is never removed or given another meaning without a new version.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use vellum_host::progress::ProgressReading;
use vellum_json::VersionedJson;
pub use vellum_json::{
    FailureJson, FileDetailsJson, FileJson, NameJson, SnapshotJson, error_code, file_kind_name,
    format_json_time,
};
use vellum_types::{ErrorKind, UnixTime};
use vellum_volume::refs::WorktreeHead;

use super::progress::ProgressTask;

/// How results are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum JsonForm {
    /// Indented.
    #[default]
    Object,
    /// An object a line, and others before it that tell the progress.
    Lines,
}

impl JsonForm {
    /// The form that the words of a command line ask for, which the parser may have refused.
    pub fn find_in_words(words: impl Iterator<Item = OsString>) -> Option<Self> {
        // What comes after '--' belongs to others.
        let mut words = words.take_while(|word| word != "--");
        words.find_map(|word| {
            let word = word.to_str()?;
            let (name, form) = word.split_once('=').unwrap_or((word, ""));
            // Options can be abbreviated.
            let is_json = name.len() > "--".len() && "--json".starts_with(name);
            is_json.then_some(if form == "lines" { Self::Lines } else { Self::Object })
        })
    }
}

/// Writes an object with its version.
pub fn write_object(out: &mut impl Write, form: JsonForm, value: &impl Serialize) -> io::Result<()> {
    let value = VersionedJson::new(value);
    match form {
        JsonForm::Object => serde_json::to_writer_pretty(&mut *out, &value)?,
        JsonForm::Lines => serde_json::to_writer(&mut *out, &value)?,
    }
    writeln!(out)
}

/// What the parser of the command line printed, which has the failure first, then advice and usage.
pub fn describe_usage_error(printed: &str) -> FailureJson {
    // clap's message has its parts in paragraphs: the error, then tips or the usage.
    let mut parts =
        printed.trim().split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let message = parts.next().unwrap_or_default();
    let hint = parts.next().filter(|hint| !hint.is_empty());
    FailureJson::new(error_code(ErrorKind::Usage), message.trim_start_matches("error: ").into(), hint)
}

/// A line of the progress of a long operation.
#[derive(Serialize)]
pub struct ProgressLineJson {
    progress: ProgressJson,
}

#[derive(Serialize)]
struct ProgressJson {
    task: &'static str,
    item: &'static str,
    items: u64,
    total_items: Option<u64>,
    bytes: u64,
    total_bytes: Option<u64>,
    seconds: f64,
}

impl ProgressLineJson {
    /// What was done until now.
    pub fn new(task: ProgressTask, now: ProgressReading, elapsed: Duration) -> Self {
        let known = |total: u64| (total > 0).then_some(total);
        Self {
            progress: ProgressJson {
                task: if now == ProgressReading::default() { task.first } else { task.verb },
                item: task.item,
                items: now.items,
                total_items: known(now.total_items),
                bytes: now.bytes,
                total_bytes: known(now.total_bytes),
                seconds: elapsed.as_secs_f64(),
            },
        }
    }
}

/// Who may change a mounted worktree.
#[derive(Serialize)]
pub struct LeaseJson {
    /// The worktree.
    pub worktree: String,
    /// The machine.
    pub host: String,
    /// The process.
    pub process: u32,
    /// Where it mounted the worktree; None: it did not.
    pub mountpoint: Option<String>,
    /// Where its live state is.
    pub directory: String,
    since: String,
    renewed: String,
    expires: String,
    /// When that ends unless it is renewed.
    #[serde(skip)]
    pub ends: UnixTime,
}

impl LeaseJson {
    /// The lease of a worktree, if a process has it: one that is gone has none.
    pub fn from_worktree_head(worktree: &str, head: &WorktreeHead) -> Option<Self> {
        // The lease of a process that died on this machine is over, although its time has not run out.
        let lease = head.lease.as_ref().filter(|lease| !lease.ended && !lease.session.is_process_dead())?;
        Some(Self {
            worktree: worktree.into(),
            host: lease.session.host.clone(),
            process: lease.session.pid,
            mountpoint: lease.mountpoint.clone(),
            directory: head.place.clone(),
            since: format_json_time(lease.since),
            renewed: format_json_time(lease.session.renewed),
            expires: format_json_time(lease.expiry_time()),
            ends: lease.expiry_time(),
        })
    }
}

/// Something that could not be done, while all else was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProblemJson {
    #[serde(flatten)]
    name: NameJson,
    message: String,
    #[serde(skip)]
    shown: String,
}

impl ProblemJson {
    /// A problem with this path.
    pub fn new(path: &[u8], message: impl Into<String>) -> Self {
        Self {
            name: NameJson::new(path),
            message: message.into(),
            shown: vellum_host::escape::format_path(path),
        }
    }
}

impl From<&vellum_checkout::CheckoutProblem> for ProblemJson {
    fn from(problem: &vellum_checkout::CheckoutProblem) -> Self {
        Self::new(&problem.path, problem.message.clone())
    }
}

impl std::fmt::Display for ProblemJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.shown, self.message)
    }
}

/// A time as other times are written; null if there is none.
#[expect(clippy::ref_option, reason = "what serde calls")]
pub fn serialize_time<S: serde::Serializer>(time: &Option<UnixTime>, out: S) -> Result<S::Ok, S::Error> {
    time.map(format_json_time).serialize(out)
}

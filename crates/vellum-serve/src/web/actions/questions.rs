//! What a plan is asked for: bodies of requests, what would change, and the words of the command.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use hyper::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vellum_library::{AnnotationChange, Checkout, SnapshotId, Volume};

use super::ActionSettings;
use crate::web::answer::ApiError;
use crate::web::query::{check_path, decode_hex};

/// Most bytes of a name or a reason.
const TEXT_MAX: usize = 4096;
/// Most paths that are restored at once.
const PATHS_MAX: usize = 1000;

/// Kinds of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanKind {
    /// Bring the worktree, or paths in it, back to a snapshot.
    Restore,
    /// Make a worktree from a snapshot.
    Fork,
    /// Name a snapshot.
    Tag,
    /// Remove a name.
    Untag,
    /// Keep a snapshot.
    Pin,
    /// Let a snapshot be forgotten.
    Unpin,
    /// Say something about a snapshot.
    Note,
    /// Remove snapshots from the history.
    Forget,
    /// Delete what no snapshot needs.
    Gc,
}

impl PlanKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Restore,
        Self::Fork,
        Self::Tag,
        Self::Untag,
        Self::Pin,
        Self::Unpin,
        Self::Note,
        Self::Forget,
        Self::Gc,
    ];

    /// As requests and answers have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Restore => "restore",
            Self::Fork => "fork",
            Self::Tag => "tag",
            Self::Untag => "untag",
            Self::Pin => "pin",
            Self::Unpin => "unpin",
            Self::Note => "note",
            Self::Forget => "forget",
            Self::Gc => "gc",
        }
    }
}

/// A body without anything in it: `{}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmptyBody {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRestoreBody {
    target: String,
    #[serde(default)]
    paths: Vec<RawRestorePath>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRestorePath {
    path: Option<String>,
    path_hex: Option<String>,
}

/// What is to be restored.
pub struct RestoreBody {
    /// The snapshot.
    pub target: SnapshotId,
    /// From the root; none: everything.
    pub paths: Vec<OsString>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawActionBody {
    target: String,
    name: Option<String>,
    directory: Option<String>,
    reason: Option<String>,
    until: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNoteBody {
    target: String,
    note: Option<String>,
    #[serde(default)]
    set: BTreeMap<String, String>,
    #[serde(default)]
    unset: BTreeSet<String>,
}

/// An action on a snapshot that takes nothing away but what was said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionQuestion {
    /// The snapshot.
    pub target: SnapshotId,
    /// What is to be done with it.
    pub action: SnapshotAction,
}

/// What is to be done with a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotAction {
    /// Make a worktree from it.
    Fork {
        /// Of the worktree.
        name: String,
        /// Where it is made.
        directory: PathBuf,
    },
    /// Add this tag.
    Tag(String),
    /// Remove this tag.
    Untag(String),
    /// Keep it.
    Pin {
        /// Why.
        reason: String,
        /// When the pin ends, as `vellum pin` takes it; None: never.
        until: Option<String>,
    },
    /// Let it be forgotten.
    Unpin,
    /// Say this about it.
    Note(AnnotationChange),
}

pub(super) fn usage(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "usage", message)
}

/// Parses the body of a request.
pub fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| usage(format!("the body is no such request: {error}")))
}

pub(super) fn parse_target(text: &str) -> Result<SnapshotId, ApiError> {
    text.parse().map_err(|_| usage("'target' is no whole id of a snapshot"))
}

/// A text that a command can be given as a word.
pub(super) fn check_text(name: &str, text: Option<String>) -> Result<String, ApiError> {
    let text = text.unwrap_or_default();
    match text.len() > TEXT_MAX || text.contains('\0') {
        true => Err(usage(format!("'{name}' is too long, or has a NUL"))),
        false => Ok(text),
    }
}

fn require_text(name: &str, text: Option<String>) -> Result<String, ApiError> {
    let text = check_text(name, text)?;
    match text.is_empty() {
        true => Err(usage(format!("'{name}' is missing"))),
        false => Ok(text),
    }
}

impl RestoreBody {
    /// Parses it. Each path is one that a tree could have.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let RawRestoreBody { target, paths } = parse_body(body)?;
        if paths.len() > PATHS_MAX {
            return Err(usage(format!("at most {PATHS_MAX} paths are restored at once")));
        }
        let parse = |RawRestorePath { path, path_hex }| {
            let bytes = match (path, path_hex) {
                // The text beside hexadecimal bytes is for people.
                (_, Some(hex)) => decode_hex(&hex).ok_or_else(|| usage("'path_hex' is not hexadecimal"))?,
                (Some(path), None) => path.into_bytes(),
                (None, None) => return Err(usage("'path' is missing")),
            };
            check_path(&bytes)?;
            // Without paths, everything is restored: nobody means that by a path without a name.
            if bytes.is_empty() {
                return Err(usage("'path' is empty; leave 'paths' out to restore everything"));
            }
            Ok(OsString::from_vec(bytes))
        };
        let paths = paths.into_iter().map(parse).collect::<Result<_, ApiError>>()?;
        Ok(Self { target: parse_target(&target)?, paths })
    }
}

impl ActionQuestion {
    /// Parses the body of such an action.
    pub fn parse(kind: PlanKind, body: &[u8]) -> Result<Self, ApiError> {
        if kind == PlanKind::Note {
            return Self::parse_note(body);
        }
        let RawActionBody { target, name, directory, reason, until } = parse_body(body)?;
        let target = parse_target(&target)?;
        let action = match kind {
            PlanKind::Restore | PlanKind::Note | PlanKind::Forget | PlanKind::Gc => {
                return Err(usage("this action has another body"));
            }
            PlanKind::Fork => {
                let directory = PathBuf::from(require_text("directory", directory)?);
                SnapshotAction::Fork { name: require_text("name", name)?, directory }
            }
            PlanKind::Tag => SnapshotAction::Tag(require_text("name", name)?),
            PlanKind::Untag => SnapshotAction::Untag(require_text("name", name)?),
            PlanKind::Pin => {
                let until = check_text("until", until)?;
                let until = Some(until).filter(|until| !until.is_empty());
                SnapshotAction::Pin { reason: check_text("reason", reason)?, until }
            }
            PlanKind::Unpin => SnapshotAction::Unpin,
        };
        Ok(Self { target, action })
    }

    fn parse_note(body: &[u8]) -> Result<Self, ApiError> {
        let RawNoteBody { target, note, set, unset } = parse_body(body)?;
        let change = AnnotationChange { note, set, unset };
        if change.is_empty() {
            return Err(usage("nothing is to be changed: 'note', 'set' and 'unset' are missing"));
        }
        // Either order would be a guess.
        if let Some(name) = change.unset.iter().find(|name| change.set.contains_key(*name)) {
            return Err(usage(format!("'{}' is set and unset", name.escape_debug())));
        }
        // As the library does again: what becomes a word of a command has no NUL in it.
        change.check().map_err(vellum_library::Error::from)?;
        Ok(Self { target: parse_target(&target)?, action: SnapshotAction::Note(change) })
    }

    /// What it would change. Fails as the command would.
    pub fn preview(&self, volume: &Volume, settings: &ActionSettings) -> Result<Value, ApiError> {
        let id = self.target.to_string();
        match &self.action {
            SnapshotAction::Fork { name, directory } => {
                preview_fork(volume, settings, self.target, name, directory)
            }
            SnapshotAction::Tag(name) => {
                let plan = volume.plan_tag(name, &id)?;
                let tags = volume.find_snapshot(self.target)?.1.tags;
                Ok(json!({ "kind": "tag", "name": plan.name, "target": id, "tags": tags }))
            }
            SnapshotAction::Untag(name) => {
                let tags = volume.find_snapshot(self.target)?.1.tags;
                if !tags.contains(name) {
                    let message = "the snapshot has no such tag any more";
                    return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message));
                }
                Ok(json!({ "kind": "untag", "name": name, "target": id, "tags": tags }))
            }
            SnapshotAction::Pin { reason, until } => {
                let replaces = volume.plan_pin(&id, reason, None)?.replaces;
                Ok(
                    json!({ "kind": "pin", "target": id, "reason": reason, "until": until, "replaces": replaces }),
                )
            }
            SnapshotAction::Unpin => {
                let missing =
                    || ApiError::new(StatusCode::NOT_FOUND, "not_found", "the snapshot is not pinned");
                let reason = volume.plan_pin(&id, "", None)?.replaces.ok_or_else(missing)?;
                Ok(json!({ "kind": "unpin", "target": id, "reason": reason }))
            }
            SnapshotAction::Note(change) => {
                let replaces = volume.plan_note(&id, change)?.replaces;
                Ok(json!({
                    "kind": "note", "target": id, "note": change.note, "set": change.set, "unset": change.unset,
                    "replaces": { "note": replaces.note, "properties": replaces.properties },
                }))
            }
        }
    }

    /// The words of the command. What the request said stands behind '--', or in one word with its option.
    #[must_use]
    pub fn words(&self, is_mounted: bool) -> Vec<OsString> {
        let id = || OsString::from(self.target.to_string());
        match &self.action {
            SnapshotAction::Fork { name, directory } => {
                // A mount has no plain files that could be cloned.
                let to = option_word(if is_mounted { "--mount=" } else { "--to=" }, directory.as_os_str());
                vec!["fork".into(), to, option_word("--from=", &id()), "--".into(), name.into()]
            }
            SnapshotAction::Tag(name) => vec!["tag".into(), "add".into(), "--".into(), name.into(), id()],
            SnapshotAction::Untag(name) => vec!["tag".into(), "remove".into(), "--".into(), name.into()],
            SnapshotAction::Pin { reason, until } => {
                let mut words = vec!["pin".into(), "--snapshot".into()];
                words.extend(until.iter().map(|until| option_word("--until=", until.as_ref())));
                words.extend([option_word("--reason=", reason.as_ref()), "--".into(), id()]);
                words
            }
            SnapshotAction::Unpin => vec!["unpin".into(), "--snapshot".into(), "--".into(), id()],
            SnapshotAction::Note(change) => {
                let mut words = vec!["note".into()];
                words.extend(change.note.iter().map(|note| option_word("--note=", note.as_ref())));
                let set = change.set.iter().map(|(name, value)| format!("--set={name}={value}").into());
                words.extend(set);
                words.extend(change.unset.iter().map(|name| option_word("--unset=", name.as_ref())));
                words.extend(["--".into(), id()]);
                words
            }
        }
    }
}

/// An option with its value, in one word.
pub(super) fn option_word(option: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(option);
    word.push(value);
    word
}

fn preview_fork(
    volume: &Volume,
    settings: &ActionSettings,
    target: SnapshotId,
    name: &str,
    directory: &Path,
) -> Result<Value, ApiError> {
    // From the root on, and without '..': what is shown is what is made.
    let is_plain = directory.is_absolute()
        && directory.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !is_plain {
        return Err(usage("'directory' has to be a whole path, from '/' on and without '..'"));
    }
    if directory.starts_with(&settings.worktree) {
        return Err(usage("a fork inside of the worktree would be in its snapshots")
            .with_hint("choose a directory outside of it"));
    }
    if volume.list_worktrees()?.iter().any(|taken| taken == name) {
        let message = format!("there is a worktree '{name}' already");
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message).with_hint("choose another name"));
    }
    if !settings.is_mounted {
        // Looks at the name and at the directory as the command does.
        Checkout::open(&settings.worktree)?.plan_fork(name, directory, &target.to_string())?;
    }
    let statistics = volume.find_snapshot(target)?.0.record.statistics;
    Ok(json!({
        "kind": "fork", "target": target.to_string(), "name": name, "directory": directory.display().to_string(),
        "files": statistics.files, "bytes": statistics.bytes, "is_mount": settings.is_mounted,
    }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn restore(paths: &str) -> Result<Vec<OsString>, u16> {
        let body = format!(r#"{{"target":"{ID}","paths":{paths}}}"#);
        RestoreBody::parse(body.as_bytes()).map(|body| body.paths).map_err(|error| error.status().as_u16())
    }

    #[test]
    fn paths_of_a_restore_stay_inside() {
        assert_eq!(restore("[]").unwrap(), Vec::<OsString>::new());
        assert_eq!(restore(r#"[{"path":"a/b"}]"#).unwrap(), ["a/b"]);
        assert_eq!(
            restore(r#"[{"path":"x","path_hex":"61ff"}]"#).unwrap(),
            [OsString::from_vec(vec![97, 255])]
        );
        for wrong in [
            r#"[{"path":"../a"}]"#,
            r#"[{"path":"/a"}]"#,
            r#"[{"path":""}]"#,
            r#"[{"path":"a\u0000"}]"#,
            r#"[{"path_hex":"2e2e"}]"#,
            r#"[{"path_hex":"6"}]"#,
            r#"[{}]"#,
            r#"["a"]"#,
        ] {
            assert_eq!(restore(wrong), Err(400), "{wrong}");
        }
        assert!(RestoreBody::parse(br#"{"target":"HEAD"}"#).is_err());
        assert!(RestoreBody::parse(format!(r#"{{"target":"{ID}","discard":true}}"#).as_bytes()).is_err());
    }

    #[test]
    fn nothing_that_was_said_is_an_option() {
        let said = |kind, fields: &str| {
            let body = format!(r#"{{"target":"{ID}",{fields}}}"#);
            let words = ActionQuestion::parse(kind, body.as_bytes()).unwrap().words(false);
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let from = format!("--from={ID}");
        assert_eq!(
            said(PlanKind::Fork, r#""name":"--mount=/x","directory":"--y""#),
            format!("fork --to=--y {from} -- --mount=/x")
        );
        assert_eq!(said(PlanKind::Tag, r#""name":"-d""#), format!("tag add -- -d {ID}"));
        assert_eq!(said(PlanKind::Untag, r#""name":"--all""#), "tag remove -- --all");
        assert_eq!(
            said(PlanKind::Pin, r#""reason":"--until=1d","until":"30d""#),
            format!("pin --snapshot --until=30d --reason=--until=1d -- {ID}")
        );
        assert_eq!(
            said(PlanKind::Note, r#""note":"--set=a=b","set":{"by":"--unset=x"},"unset":["old"]"#),
            format!("note --note=--set=a=b --set=by=--unset=x --unset=old -- {ID}")
        );
        for wrong in [
            r#""note":"a\u0000""#,
            r#""set":{"-d":"x"}"#,
            r#""set":{"a=b":"x"}"#,
            r#""set":{"a":"x"},"unset":["a"]"#,
            r#""unset":[]"#,
            r#""tag":"a""#,
        ] {
            let body = format!(r#"{{"target":"{ID}",{wrong}}}"#);
            assert!(ActionQuestion::parse(PlanKind::Note, body.as_bytes()).is_err(), "{wrong}");
        }
        for wrong in [r#""name":"""#, r#""reason":"x""#, r#""name":"a\u0000""#] {
            let body = format!(r#"{{"target":"{ID}",{wrong}}}"#);
            assert!(ActionQuestion::parse(PlanKind::Tag, body.as_bytes()).is_err(), "{wrong}");
        }
    }
}

//! Forgetting snapshots, and freeing what no snapshot needs.
//!
//! Both are planned by the commands' own dry runs. What is carried out is what was shown: snapshots are forgotten by their ids,
//! whatever the rules would say by then, and a collection gets the plan as a file.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use vellum_library::SnapshotId;

use super::questions::{EmptyBody, check_text, option_word, parse_body, parse_target, usage};
use super::{ActionState, PlanKind, PlannedAction, ROWS_MAX, changed_since, run_on_thread};
use crate::command_line::CommandFailure;
use crate::plan_folder::draw_id;
use crate::web::answer::ApiError;

/// Most snapshots that are forgotten at once: each is a word of the command.
const FORGOTTEN_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawForgetBody {
    targets: Option<Vec<String>>,
    #[serde(default)]
    policy: bool,
    keep: Option<KeepRules>,
    worktree: Option<String>,
}

/// How many snapshots stay, by rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepRules {
    last: Option<NonZeroU32>,
    hourly: Option<NonZeroU32>,
    daily: Option<NonZeroU32>,
    weekly: Option<NonZeroU32>,
    monthly: Option<NonZeroU32>,
    yearly: Option<NonZeroU32>,
}

/// What is to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForgetQuestion {
    /// These.
    Named(Vec<SnapshotId>),
    /// What no rule keeps.
    Ruled {
        /// The rules; None: those that are set.
        keep: Option<KeepRules>,
        /// Of this worktree; None: of that of the page.
        worktree: Option<String>,
    },
}

impl KeepRules {
    fn words(&self) -> Vec<OsString> {
        let rules = [
            ("last", self.last),
            ("hourly", self.hourly),
            ("daily", self.daily),
            ("weekly", self.weekly),
            ("monthly", self.monthly),
            ("yearly", self.yearly),
        ];
        let word = |(name, number): &(&str, Option<NonZeroU32>)| {
            Some(format!("--keep-{name}={}", (*number)?).into())
        };
        rules.iter().filter_map(word).collect()
    }
}

impl ForgetQuestion {
    /// Parses it: exactly one of `targets`, `policy` and `keep`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let RawForgetBody { targets, policy, keep, worktree } = parse_body(body)?;
        let worktree = worktree.map(|name| check_text("worktree", Some(name))).transpose()?;
        match (targets, policy, keep) {
            (Some(targets), false, None) => {
                if targets.is_empty() || targets.len() > FORGOTTEN_MAX || worktree.is_some() {
                    return Err(usage(format!(
                        "'targets' are from 1 to {FORGOTTEN_MAX} ids, of any worktree"
                    )));
                }
                Ok(Self::Named(targets.iter().map(|id| parse_target(id)).collect::<Result<_, _>>()?))
            }
            (None, true, None) => Ok(Self::Ruled { keep: None, worktree }),
            (None, false, Some(keep)) if !keep.words().is_empty() => {
                Ok(Self::Ruled { keep: Some(keep), worktree })
            }
            (_, _, _) => Err(usage("exactly one of 'targets', 'policy' and 'keep' says what is forgotten")),
        }
    }

    /// The words of the command that says what would be forgotten. What the request said stands behind '--', or in one word
    /// with its option.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        let mut words = vec!["forget".into(), "--dry-run".into()];
        match self {
            Self::Named(ids) => {
                words.push("--".into());
                words.extend(ids.iter().map(|id| OsString::from(id.to_string())));
            }
            Self::Ruled { keep, worktree } => {
                words.extend(keep.as_ref().map_or_else(|| vec!["--policy".into()], KeepRules::words));
                words.extend(worktree.iter().map(|name| option_word("--worktree=", name.as_ref())));
            }
        }
        words
    }
}

/// What would be forgotten, with the reasons why the others stay.
pub(super) async fn plan_forget(
    actions: &ActionState,
    question: ForgetQuestion,
) -> Result<(PlannedAction, Value), ApiError> {
    let mut planned = actions.run_command(question.words()).await?;
    let forgotten = planned["forgotten"].take();
    let count = forgotten.as_array().map_or(0, Vec::len);
    if count > FORGOTTEN_MAX {
        let message = format!("the rules forget {count} snapshots, and a page at most {FORGOTTEN_MAX}");
        return Err(usage(message).with_hint("'vellum forget' with the same rules forgets them all"));
    }
    let mut rows = planned["snapshots"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let kept = rows.iter().filter(|row| row["kept"] == true).count();
    // Those that go are what somebody has to see; of the others, as many as there is room for.
    rows.sort_by_key(|row| row["kept"] == true);
    rows.truncate(ROWS_MAX);
    let preview = json!({
        "kind": PlanKind::Forget.name(), "snapshots": rows, "kept_count": kept, "forgotten_count": count,
    });
    Ok((PlannedAction::Forget { question, forgotten }, preview))
}

/// Forgets what was shown, if it would still be the same.
pub(super) async fn forget_planned(
    actions: &ActionState,
    question: &ForgetQuestion,
    forgotten: &Value,
) -> Result<Value, ApiError> {
    let planned = actions.run_command(question.words()).await?;
    if planned["forgotten"] != *forgotten {
        return Err(changed_since());
    }
    let ids = forgotten.as_array().into_iter().flatten().filter_map(Value::as_str);
    let ids: Vec<OsString> = ids.map(OsString::from).collect();
    if ids.is_empty() {
        return Ok(planned);
    }
    // By name and not by rule: a snapshot that is made now does not push out one that was shown as kept. What got a tag, a
    // pin or a reader meanwhile is refused by the command, with all others.
    actions.run_command(["forget".into(), "--".into()].into_iter().chain(ids)).await
}

/// What would be freed.
pub(super) async fn plan_collection(
    actions: &ActionState,
    body: &[u8],
) -> Result<(PlannedAction, Value), ApiError> {
    parse_body::<EmptyBody>(body)?;
    let plan = actions.run_command(["gc", "plan"]).await?;
    let file = actions.folder.file(&draw_id()?)?;
    let text = plan.to_string();
    let own = file.clone();
    run_on_thread(move || Ok(std::fs::write(&own, text).map_err(|error| describe_failure(&own, &error))?))
        .await?;
    let preview = json!({
        "kind": PlanKind::Gc.name(), "snapshots": plan["snapshots"], "live_bytes": plan["live_bytes"],
        "dead_bytes": plan["dead_bytes"], "freed": plan["freed"],
        "pack_count": plan["packs"].as_array().map_or(0, Vec::len),
    });
    Ok((PlannedAction::Collect(file), preview))
}

fn describe_failure(file: &Path, error: &std::io::Error) -> CommandFailure {
    CommandFailure::new("io", format!("cannot write {}: {error}", file.display()))
}

/// Frees what was shown, and nothing that was needed since.
pub(super) async fn collect_planned(actions: &ActionState, file: &Path) -> Result<Value, ApiError> {
    actions.run_command(["gc".into(), "run".into(), option_word("--plan=", file.as_os_str())]).await
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn said(body: &str) -> Option<String> {
        let words = ForgetQuestion::parse(body.as_bytes()).ok()?.words();
        Some(words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn what_is_forgotten_is_said_once() {
        let named = format!(r#"{{"targets":["{ID}"]}}"#);
        assert_eq!(said(&named).unwrap(), format!("forget --dry-run -- {ID}"));
        assert_eq!(said(r#"{"policy":true}"#).unwrap(), "forget --dry-run --policy");
        assert_eq!(
            said(r#"{"keep":{"last":3,"yearly":1},"worktree":"--all"}"#).unwrap(),
            "forget --dry-run --keep-last=3 --keep-yearly=1 --worktree=--all"
        );
        for wrong in [
            "{}",
            r#"{"targets":[]}"#,
            r#"{"targets":["HEAD"]}"#,
            r#"{"targets":["--force"]}"#,
            r#"{"keep":{}}"#,
            r#"{"keep":{"last":0}}"#,
            r#"{"keep":{"last":-1}}"#,
            r#"{"keep":{"last":"1 --force"}}"#,
            r#"{"keep":{"force":1}}"#,
            r#"{"policy":true,"keep":{"last":1}}"#,
            r#"{"policy":true,"force":true}"#,
            r#"{"policy":true,"worktree":"a\u0000"}"#,
        ] {
            assert_eq!(said(wrong), None, "{wrong}");
        }
        assert_eq!(said(&format!(r#"{{"targets":["{ID}"],"policy":true}}"#)), None);
        assert_eq!(said(&format!(r#"{{"targets":["{ID}"],"worktree":"a"}}"#)), None);
    }
}

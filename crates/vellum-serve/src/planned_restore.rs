//! A restore that the command line has planned: shown first, and carried out only if it would still do the same.
//!
//! A plain directory has plan files (`restore --plan` and `--run`), which check everything themselves. A mount has none: what
//! would change is compared with what would have changed, and what comes in between is in the safety snapshot.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use crate::command_line::{CommandFailure, CommandResult, CommandRunner};
use crate::plan_folder::PlanFolder;

/// What is to be restored.
#[derive(Debug, Clone)]
pub struct RestoreQuestion {
    /// The id of the plan.
    pub id: String,
    /// The root of the worktree.
    pub directory: PathBuf,
    /// Whether it is a mount.
    pub is_mounted: bool,
    /// The id of the snapshot.
    pub target: String,
    /// From the root; none: everything.
    pub paths: Vec<OsString>,
}

/// A restore that was planned.
#[derive(Debug, Clone)]
pub struct PlannedRestore {
    /// What was asked for.
    pub question: RestoreQuestion,
    /// What would be done, by path.
    pub steps: Vec<PlannedRestoreStep>,
    /// Paths with content that no snapshot has; a safety snapshot keeps it.
    pub unsaved: Vec<PlannedRestorePath>,
    way: PlannedWay,
}

/// What would be done with a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedRestoreStep {
    /// A verb: `create`, `replace`, `change`, `rename` or `delete`.
    pub action: &'static str,
    /// The path.
    #[serde(flatten)]
    pub path: PlannedRestorePath,
}

/// A path from the root, as docs/json.md has names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedRestorePath {
    /// As text.
    pub path: String,
    /// Its bytes in hexadecimal digits, if they are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
}

/// How a plan is made sure of when it is carried out.
#[derive(Debug, Clone)]
enum PlannedWay {
    /// A file of 'vellum restore --plan'.
    SavedPlan(PathBuf),
    /// In a mount: what would change, to be the same again.
    SameChanges(Value),
}

impl PlannedRestore {
    /// Asks the command line what a restore would do. Changes nothing.
    pub async fn plan(
        commands: &CommandRunner,
        folder: &PlanFolder,
        question: RestoreQuestion,
    ) -> CommandResult<Self> {
        match question.is_mounted {
            true => Self::plan_in_mount(commands, question).await,
            false => Self::plan_in_directory(commands, folder, question).await,
        }
    }

    async fn plan_in_directory(
        commands: &CommandRunner,
        folder: &PlanFolder,
        question: RestoreQuestion,
    ) -> CommandResult<Self> {
        let file = folder.file(&question.id)?;
        let mut option = OsString::from("--plan=");
        option.push(&file);
        let words = question.words([OsString::from("restore"), option]);
        let planned = commands.run_for_json(&question.directory, words).await?;
        let steps = read_rows(&planned["steps"], |row| {
            let action = match row["action"].as_str() {
                Some("create") => "create",
                Some("replace") => "replace",
                Some("delete") => "delete",
                Some(_) | None => "change",
            };
            PlannedRestoreStep { action, path: PlannedRestorePath::read(row) }
        });
        let unsaved = read_rows(&planned["unsaved"], PlannedRestorePath::read);
        Ok(Self { question, steps, unsaved, way: PlannedWay::SavedPlan(file) })
    }

    async fn plan_in_mount(commands: &CommandRunner, question: RestoreQuestion) -> CommandResult<Self> {
        let changes = list_mount_changes(commands, &question).await?;
        // Nearly in the words of a directory's plan, which knows no renaming.
        let steps = read_rows(&changes, |row| {
            let action = match row["change"].as_str() {
                Some("added") => "create",
                Some("deleted") => "delete",
                Some("renamed") => "rename",
                Some(_) | None => "replace",
            };
            PlannedRestoreStep { action, path: PlannedRestorePath::read(row) }
        });
        // Without '--all', a new directory is one row, and a path in it could not be found.
        let words = ["status", "--all"].map(OsString::from).to_vec();
        let status = commands.run_for_json(&question.directory, words).await?;
        let mut unsaved = read_rows(&status["changes"], PlannedRestorePath::read);
        unsaved.retain(|path| question.concerns(path));
        Ok(Self { question, steps, unsaved, way: PlannedWay::SameChanges(changes) })
    }

    /// Restores. Fails with `conflict`, and changes nothing, if something has changed since it was planned.
    pub async fn carry_out(&self, commands: &CommandRunner) -> CommandResult<Value> {
        let words = match &self.way {
            PlannedWay::SavedPlan(file) => {
                let mut option = OsString::from("--run=");
                option.push(file);
                vec![OsString::from("restore"), option]
            }
            PlannedWay::SameChanges(planned) => {
                // A mount writes no plan files, so the comparison is made here. What is changed between it and the restore is
                // in the safety snapshot.
                if list_mount_changes(commands, &self.question).await? != *planned {
                    return Err(CommandFailure::new(
                        "conflict",
                        "something has changed since the plan was made",
                    ));
                }
                self.question.words([OsString::from("restore")])
            }
        };
        let mut done = commands.run_for_json(&self.question.directory, words).await?;
        let mut answer = json!({ "status": "restored" });
        for field in ["target", "safety", "written", "deleted", "problems"] {
            answer[field] = done[field].take();
        }
        Ok(answer)
    }
}

impl RestoreQuestion {
    /// The words of a command about the snapshot and the paths: what a client said stands behind '--'.
    fn words(&self, command: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        let named = [OsString::from("--"), OsString::from(&self.target)];
        command.into_iter().chain(named).chain(self.paths.iter().cloned()).collect()
    }

    /// Whether a path is one of those that were named, or under one.
    fn concerns(&self, path: &PlannedRestorePath) -> bool {
        let is_under = |named: &OsString| {
            let rest = path.path.as_bytes().strip_prefix(OsStr::as_bytes(named));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        // A name that is no text is shown rather than left out: what is lost without a word is worse.
        self.paths.is_empty() || path.path_hex.is_some() || self.paths.iter().any(is_under)
    }
}

impl PlannedRestorePath {
    fn read(row: &Value) -> Self {
        let path = row["path"].as_str().unwrap_or_default().to_owned();
        Self { path, path_hex: row["path_hex"].as_str().map(str::to_owned) }
    }
}

async fn list_mount_changes(commands: &CommandRunner, question: &RestoreQuestion) -> CommandResult<Value> {
    let words = question.words(["restore", "--dry-run"].map(OsString::from));
    let mut planned = commands.run_for_json(&question.directory, words).await?;
    Ok(planned["changes"].take())
}

fn read_rows<T>(list: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    list.as_array().into_iter().flatten().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PlannedRestorePath {
        PlannedRestorePath { path: text.into(), path_hex: None }
    }

    #[test]
    fn what_is_lost_is_that_under_the_named_paths() {
        let question = |paths: &[&str]| RestoreQuestion {
            id: String::new(),
            directory: PathBuf::new(),
            is_mounted: true,
            target: String::new(),
            paths: paths.iter().map(OsString::from).collect(),
        };
        assert!(question(&[]).concerns(&path("a")));
        assert!(question(&["a"]).concerns(&path("a")));
        assert!(question(&["b", "a"]).concerns(&path("a/b")));
        assert!(!question(&["a"]).concerns(&path("ab")));
        assert!(!question(&["a/b"]).concerns(&path("a")));
    }

    #[test]
    fn what_was_said_stands_behind_the_options() {
        let question = RestoreQuestion {
            id: String::new(),
            directory: PathBuf::new(),
            is_mounted: false,
            target: "id".into(),
            paths: vec!["--discard".into()],
        };
        let words = question.words(["restore".into()]);
        assert_eq!(words, ["restore", "--", "id", "--discard"].map(OsString::from));
    }
}

//! A restore that the command line has planned: shown first, and carried out only if it would still do the same.
//!
//! The plan is a file of `restore --plan`; `restore --run` checks it again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::command_line::{CommandResult, CommandRunner};
use crate::plan_folder::PlanFolder;

/// What is to be restored.
#[derive(Debug, Clone)]
pub struct RestoreQuestion {
    /// The id of the plan.
    pub id: String,
    /// The root of the worktree.
    pub directory: PathBuf,
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
    file: PathBuf,
}

/// What would be done with a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedRestoreStep {
    /// A verb: `create`, `replace`, `change` or `delete`.
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

impl PlannedRestore {
    /// Asks the command line what a restore would do. Changes nothing.
    pub async fn plan(
        commands: &CommandRunner,
        folder: &PlanFolder,
        question: RestoreQuestion,
    ) -> CommandResult<Self> {
        let file = folder.file(&question.id)?;
        let words = question.words([OsString::from("restore"), option_word("--plan=", &file)]);
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
        Ok(Self { question, steps, unsaved, file })
    }

    /// Restores. Fails with `conflict`, and changes nothing, if something has changed since it was planned.
    pub async fn carry_out(&self, commands: &CommandRunner) -> CommandResult<Value> {
        let words = vec![OsString::from("restore"), option_word("--run=", &self.file)];
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
}

impl PlannedRestorePath {
    fn read(row: &Value) -> Self {
        let path = row["path"].as_str().unwrap_or_default().to_owned();
        Self { path, path_hex: row["path_hex"].as_str().map(str::to_owned) }
    }
}

fn option_word(option: &str, file: &Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(file);
    word
}

fn read_rows<T>(list: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    list.as_array().into_iter().flatten().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_stands_behind_the_options() {
        let question = RestoreQuestion {
            id: String::new(),
            directory: PathBuf::new(),
            target: "id".into(),
            paths: vec!["--discard".into()],
        };
        let words = question.words(["restore".into()]);
        assert_eq!(words, ["restore", "--", "id", "--discard"].map(OsString::from));
    }
}

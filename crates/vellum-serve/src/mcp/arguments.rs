//! The arguments of tools. What is not described is refused, and so is what could mean something else to a command.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::answer::{ToolError, ToolResult};
use crate::web::query::check_path;

/// Longest name of a snapshot, bytes: an id, a tag, or a time in words.
const SNAPSHOT_NAME_MAX: usize = 300;
/// Longest note, characters.
pub const NOTE_MAX: usize = 500;
/// Longest name of a turn or a fork, bytes.
const NAME_MAX: usize = 64;
/// Most paths of one call.
const PATHS_MAX: usize = 100;
/// Most words of a command.
const WORDS_MAX: usize = 200;
/// Longest pattern or text to look for, bytes.
const PATTERN_MAX: usize = 1000;
/// Most rows of an answer.
pub const ROWS_MAX: usize = 100;

/// None.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

/// A snapshot to be made.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotArguments {
    pub note: Option<String>,
    pub turn: Option<String>,
}

/// A part of the history.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct HistoryArguments {
    pub path: Option<String>,
    pub grep: Option<String>,
    pub limit: Option<usize>,
}

/// Two states to be compared.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffArguments {
    pub from: Option<String>,
    pub to: Option<String>,
    pub path: Option<String>,
    #[serde(default)]
    pub patch: bool,
}

/// A path in a snapshot, and a part of what is there.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct PathArguments {
    pub snapshot: Option<String>,
    pub path: Option<String>,
    pub offset: Option<u64>,
    pub limit: Option<usize>,
}

/// Names to be found.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindArguments {
    pub pattern: String,
    #[serde(default)]
    pub deleted: bool,
}

/// A fork to be made.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkArguments {
    pub name: String,
    pub from: Option<String>,
}

/// A command to be tried.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TryArguments {
    pub command: Vec<String>,
    pub timeout: Option<u64>,
}

/// A try to be decided about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideArguments {
    pub r#try: String,
}

/// A restore to be planned.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestorePlanArguments {
    pub to: String,
    #[serde(default)]
    pub paths: Vec<String>,
    pub fork: Option<String>,
}

/// A plan to be carried out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreArguments {
    pub plan: String,
}

/// Reads the arguments of a call.
pub fn parse_arguments<T: DeserializeOwned>(arguments: Option<Map<String, Value>>) -> ToolResult<T> {
    let value = Value::Object(arguments.unwrap_or_default());
    // What is not described fails, too: a model that invents an option must not believe that it had an effect.
    serde_json::from_value(value)
        .map_err(|error| ToolError::usage(format!("the arguments are wrong: {error}")))
}

/// Fails unless a text can be the name of a snapshot.
pub fn check_snapshot_name(name: &str) -> ToolResult<()> {
    // Times in words have spaces and braces. No name has control characters, which could forge lines of a message.
    let is_odd = name.is_empty() || name.len() > SNAPSHOT_NAME_MAX || name.chars().any(char::is_control);
    match is_odd {
        true => Err(ToolError::usage("this is no name of a snapshot")
            .with_hint("an id, a tag, HEAD, HEAD~2, or a time such as @{2 hours ago}")),
        false => Ok(()),
    }
}

/// Fails unless a text is a path within the worktree.
pub fn check_tool_path(path: &str) -> ToolResult<()> {
    check_path(path.as_bytes()).map_err(|error| ToolError::usage(error.0))
}

/// Fails unless all are paths within the worktree.
pub fn check_tool_paths(paths: &[String]) -> ToolResult<()> {
    if paths.len() > PATHS_MAX {
        return Err(ToolError::usage(format!("these are more than {PATHS_MAX} paths")));
    }
    if paths.iter().any(String::is_empty) {
        return Err(ToolError::usage("a path is empty; without paths, everything is meant"));
    }
    paths.iter().try_for_each(|path| check_tool_path(path))
}

/// Fails unless a text is short and plain enough for the name of a fork or a turn, which becomes that of a directory.
pub fn check_plain_name(what: &str, name: &str) -> ToolResult<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // An option begins with '-', and '..' and hidden directories with a dot.
    let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match begins_well && name.len() <= NAME_MAX && name.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(ToolError::usage(format!(
            "'{what}' has to be 1 to {NAME_MAX} letters, digits, '-', '_' and '.', and to begin with a letter or digit"
        ))),
    }
}

/// Fails unless a text to look for is neither empty nor long.
pub fn check_pattern(pattern: &str) -> ToolResult<()> {
    match pattern.is_empty() || pattern.len() > PATTERN_MAX || pattern.contains('\0') {
        true => Err(ToolError::usage("this cannot be looked for: it is empty, too long or has a NUL")),
        false => Ok(()),
    }
}

/// Fails unless the words are a command.
pub fn check_command(words: &[String]) -> ToolResult<()> {
    // The system passes no argument that contains a NUL.
    let is_odd = words.is_empty() || words.len() > WORDS_MAX || words.iter().any(|word| word.contains('\0'));
    match is_odd {
        true => Err(ToolError::usage(format!("'command' has to be 1 to {WORDS_MAX} words without NUL"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_mean_something_else_is_refused() {
        for name in ["a", "try-1", "2026.05", "A_b"] {
            assert!(check_plain_name("name", name).is_ok(), "{name}");
        }
        for name in ["", "-a", ".", "..", ".git", "a/b", "a b", "a\n", "ä", &"a".repeat(65)] {
            assert!(check_plain_name("name", name).is_err(), "{name}");
        }
        for path in ["..", "a/../b", "/etc/passwd", "a//b", "a\0"] {
            assert!(check_tool_path(path).is_err(), "{path}");
        }
        assert!(check_tool_paths(&[String::new()]).is_err());
        assert!(check_snapshot_name("@{2 hours ago}").is_ok());
        assert!(check_snapshot_name("a\nb").is_err());
        assert!(check_command(&[]).is_err());
    }

    #[test]
    fn arguments_that_nobody_described_are_refused() {
        let parse = |text: &str| {
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            parse_arguments::<RestoreArguments>(value.as_object().cloned())
        };
        assert!(parse(r#"{"plan":"1"}"#).is_ok());
        for wrong in [r#"{"plan":"1","confirm":true}"#, r#"{"plan":1}"#, "{}", r#"{"plan":["1"]}"#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

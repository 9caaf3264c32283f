//! Tools that add something: snapshots, forks, and tries.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use super::answer::{ToolError, ToolResult};
use super::arguments::{
    DecideArguments, ForkArguments, NOTE_MAX, SnapshotArguments, TryArguments, check_command,
    check_plain_name,
};
use super::connection::SharedTools;
use super::reading::cut_rows;
use crate::command_line::{CommandEnd, OutputLimit};

/// How long a command is tried if the call does not say, seconds.
pub const TRY_SECONDS: u64 = 120;
/// How long a command is tried at most, seconds.
pub const TRY_SECONDS_MAX: u64 = 600;
/// What is kept of the output of a command that is tried, bytes: of its beginning, and of its end with the result.
const TRY_OUTPUT: OutputLimit = OutputLimit { head: 48 << 10, tail: 16 << 10 };
/// How the last line of a command's answer begins. A name in it cannot look like this: quotation marks are escaped.
const RESULT_BEGIN: &str = "{\"version\":1,";

impl SharedTools {
    /// Records the worktree.
    pub async fn make_snapshot(&self, asked: SnapshotArguments, client: &str) -> ToolResult<Value> {
        let note = asked.note.unwrap_or_default();
        if note.chars().count() > NOTE_MAX || note.contains('\0') {
            return Err(ToolError::usage(format!("'note' has more than {NOTE_MAX} characters, or a NUL")));
        }
        if let Some(turn) = &asked.turn {
            check_plain_name("turn", turn)?;
            // Two calls of one turn that arrive together would both find none.
            let _alone = self.snapshots.lock().await;
            if let Some(snapshot) = self.find_turn(turn).await? {
                return Ok(json!({ "snapshot": snapshot, "made": false }));
            }
            return self.record_worktree(&note, Some(turn), client).await;
        }
        self.record_worktree(&note, None, client).await
    }

    async fn find_turn(&self, turn: &str) -> ToolResult<Option<Value>> {
        let mut found = self
            .run_in_worktree(["history".into(), format!("--where=turn={turn}"), "--number=1".into()])
            .await?;
        Ok(found["snapshots"].get_mut(0).map(Value::take))
    }

    async fn record_worktree(&self, note: &str, turn: Option<&str>, client: &str) -> ToolResult<Value> {
        // Each value in one word with its option, so that no text of a client can become an option.
        let mut words = vec!["snapshot".to_owned(), format!("--set=agent={client}")];
        words.extend(turn.map(|turn| format!("--set=turn={turn}")));
        if !note.is_empty() {
            words.push(format!("--note={note}"));
        }
        let mut made = self.run_in_worktree(words).await?;
        Ok(
            json!({ "snapshot": made["snapshot"].take(), "made": made["made"], "problems": made["problems"].take() }),
        )
    }

    /// Makes a fork in the directory for forks.
    pub async fn make_fork(&self, asked: ForkArguments) -> ToolResult<Value> {
        check_plain_name("name", &asked.name)?;
        let from = match &asked.from {
            Some(from) => Some(self.resolve_snapshot(Some(from)).await?),
            None => None,
        };
        let forks = &self.settings.forks;
        let failed =
            |error: std::io::Error| ToolError::new("io", format!("cannot make {}: {error}", forks.display()));
        fs::create_dir_all(forks).map_err(failed)?;
        // The fork is in the directory itself, whatever that is a symlink to.
        let directory = forks.canonicalize().map_err(failed)?.join(&asked.name);
        // Without following: a symlink there would lead the fork elsewhere.
        if directory.symlink_metadata().is_ok() {
            return Err(ToolError::new("conflict", format!("{} exists", directory.display())));
        }
        let mut to = OsString::from("--to=");
        to.push(&directory);
        let mut words = vec![OsString::from("fork"), to];
        words.extend(from.map(|id| OsString::from(format!("--from={id}"))));
        words.extend([OsString::from("--"), OsString::from(&asked.name)]);
        let made = self.run_in_worktree(words).await?;
        // Only after it was made: what is listed here is restored without asking a person.
        self.forks.lock().insert(asked.name.clone(), directory);
        Ok(json!({ "name": made["name"], "directory": made["directory"], "snapshot": made["snapshot"] }))
    }

    /// Runs a command in a fork of the worktree.
    pub async fn try_command(&self, asked: TryArguments) -> ToolResult<Value> {
        check_command(&asked.command)?;
        let seconds = asked.timeout.unwrap_or(TRY_SECONDS);
        if !(1..=TRY_SECONDS_MAX).contains(&seconds) {
            return Err(ToolError::usage(format!("'timeout' has to be 1 to {TRY_SECONDS_MAX} seconds")));
        }
        // Nothing behind the `--` is an option of 'vellum': the words are those of the command.
        let words = ["--json=lines", "--quiet", "try", "--"].into_iter().map(OsString::from);
        let words = words.chain(asked.command.into_iter().map(OsString::from)).collect();
        let time = Duration::from_secs(seconds);
        let end = self.command_line.run(&self.settings.worktree, words, TRY_OUTPUT, time).await?;
        let result = TryEnd::read(&end)?;
        let mut answer = json!({
            "status": result.answer["status"],
            "timed_out": end.timed_out,
            "output": result.output,
            "errors": end.errors.to_text(),
            "truncated": false,
            "counts": result.answer["counts"],
        });
        if result.answer["decision"] == "keep"
            && let Some(name) = result.answer["name"].as_str()
        {
            // Before its changes are listed: if that fails, the client can decide about the try all the same.
            self.tries.lock().insert(name.into());
            answer["try"] = json!(name);
            // Applying changes the worktree: that is a person's to do.
            answer["apply_command"] = json!(format!("vellum try --apply {name}"));
            self.add_changes(&mut answer, &result.answer).await?;
        }
        Ok(answer)
    }

    /// Adds what a try changed.
    async fn add_changes(&self, answer: &mut Value, ended: &Value) -> ToolResult<()> {
        let (Some(base), Some(snapshot)) = (ended["base"].as_str(), ended["snapshot"].as_str()) else {
            return Ok(());
        };
        let mut compared = self.run_in_worktree(["diff", "--all", base, snapshot]).await?;
        answer["truncated"] = json!(cut_rows(&mut compared["changes"]));
        answer["changes"] = compared["changes"].take();
        Ok(())
    }

    /// Makes a try a worktree.
    pub async fn keep_try(&self, asked: DecideArguments) -> ToolResult<Value> {
        self.decide_try("keep", &asked.r#try).await
    }

    /// Removes a try.
    pub async fn discard_try(&self, asked: DecideArguments) -> ToolResult<Value> {
        self.decide_try("discard", &asked.r#try).await
    }

    async fn decide_try(&self, decision: &str, name: &str) -> ToolResult<Value> {
        if !self.tries.lock().contains(name) {
            return Err(ToolError::new("denied", "this connection has made no such try")
                .with_hint("a person decides about other tries: 'vellum try --list'"));
        }
        let done = self.run_in_worktree(["try".to_owned(), format!("--{decision}={name}")]).await?;
        // Only after it was done: a decision that failed can be made again.
        self.tries.lock().remove(name);
        Ok(json!({ "name": name, "decision": decision, "worktree": done["worktree"] }))
    }
}

/// How a try ended: what its command wrote, and what 'vellum try' says about it, which comes behind that.
struct TryEnd {
    output: String,
    answer: Value,
}

impl TryEnd {
    fn read(end: &CommandEnd) -> ToolResult<Self> {
        let mut text = end.output.to_text();
        // From the end: the output of the tried command comes first, and may contain the same text.
        let begin = text.rfind(RESULT_BEGIN);
        let answer = begin.and_then(|begin| serde_json::from_str::<Value>(text[begin..].trim_end()).ok());
        let (Some(begin), Some(answer)) = (begin, answer) else {
            return Err(ToolError::new("io", "the try was killed before it could say what changed")
                .with_hint("a person can look at it: 'vellum try --list'"));
        };
        if let Some(error) = answer.get("error") {
            let said = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            let failed = ToolError::new(&said("code"), said("message"));
            return Err(if error.get("hint").is_some() { failed.with_hint(said("hint")) } else { failed });
        }
        text.truncate(begin);
        Ok(Self { output: text, answer })
    }
}

//! Running commands of the command line: bounded in time and in what is kept of their output.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// How long a command of an agent may take that is not a try.
pub const COMMAND_TIME: Duration = Duration::from_secs(600);
/// How long a command has to end by itself when its time is over.
const ENDING_TIME: Duration = Duration::from_secs(5);
/// Most bytes of an answer of a command: a million changes.
const JSON_MAX: usize = 256 << 20;
/// Most bytes of an error text.
const ERROR_MAX: usize = 64 << 10;
/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// Exit codes of commands that did what they should: done, and done with findings.
const DONE: [i32; 2] = [0, 1];

/// Result of a command.
pub type CommandResult<T> = std::result::Result<T, CommandFailure>;

/// Why a command failed, as docs/json.md has failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFailure {
    /// The code, which never changes.
    pub code: String,
    /// For people and models.
    pub message: String,
    /// What may help.
    pub hint: Option<String>,
}

impl CommandFailure {
    /// A failure with a code of docs/json.md.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), hint: None }
    }
}

/// The command line.
#[derive(Clone)]
pub struct CommandRunner {
    program: PathBuf,
    time: Duration,
}

/// What is kept of an output: its first and its last bytes.
#[derive(Default)]
pub struct KeptOutput {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The last bytes behind those.
    pub tail: Vec<u8>,
    /// How many bytes there were.
    pub total: u64,
}

/// How much is kept of an output, bytes.
#[derive(Clone, Copy)]
pub struct OutputLimit {
    /// Of its beginning.
    pub head: usize,
    /// Of its end.
    pub tail: usize,
}

/// A command that has ended.
pub struct CommandEnd {
    /// Its exit code; None: a signal ended it.
    pub code: Option<i32>,
    /// What it wrote.
    pub output: KeptOutput,
    /// Its errors.
    pub errors: KeptOutput,
    /// Whether it was stopped because its time was over.
    pub timed_out: bool,
}

impl KeptOutput {
    /// Everything that was kept, as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.head).into_owned();
        let left_out = self.total - (self.head.len() + self.tail.len()) as u64;
        if left_out > 0 {
            text.push_str(&format!("\n[{left_out} bytes left out]\n"));
        }
        text.push_str(&String::from_utf8_lossy(&self.tail));
        text
    }

    fn add(&mut self, piece: &[u8], limit: OutputLimit) {
        self.total += piece.len() as u64;
        // The head is never longer than its limit, so that the difference is not negative.
        let to_head = piece.len().min(limit.head - self.head.len());
        let parts = piece.split_at(to_head);
        self.head.extend_from_slice(parts.0);
        self.tail.extend_from_slice(parts.1);
        let surplus = self.tail.len().saturating_sub(limit.tail);
        self.tail.drain(..surplus);
    }
}

impl CommandRunner {
    /// That of a program, whose commands may take so long.
    #[must_use]
    pub fn new(program: PathBuf, time: Duration) -> Self {
        Self { program, time }
    }

    /// Runs a command that answers in JSON. `words` are its name, its options, and behind '--' what a client said.
    pub async fn run_for_json(&self, directory: &Path, words: Vec<OsString>) -> CommandResult<Value> {
        // A part of an object in JSON is of no use: an answer that is longer fails as a whole.
        let limit = OutputLimit { head: JSON_MAX, tail: 0 };
        let words = ["--json", "--quiet"].into_iter().map(OsString::from).chain(words).collect();
        let end = self.run(directory, words, limit, self.time).await?;
        let answer = serde_json::from_slice::<Value>(&end.output.head).ok();
        match (end.code, answer) {
            (Some(code), Some(answer)) if DONE.contains(&code) => Ok(answer),
            // With --json, commands report failures on standard output, too.
            (_, Some(answer)) if answer.get("error").is_some() => Err(read_failure(&answer["error"])),
            (_, _) => Err(end.to_error()),
        }
    }

    /// Runs a command that answers in text, of which at most so many bytes are kept.
    pub async fn run_for_text(
        &self,
        directory: &Path,
        words: Vec<OsString>,
        max: usize,
    ) -> CommandResult<KeptOutput> {
        let limit = OutputLimit { head: max, tail: 0 };
        let words = ["--quiet", "--no-pager", "--color=never"].into_iter().map(OsString::from).chain(words);
        let end = self.run(directory, words.collect(), limit, self.time).await?;
        match end.code {
            Some(code) if DONE.contains(&code) => Ok(end.output),
            Some(_) | None => Err(end.to_error()),
        }
    }

    /// Runs a command in a directory. If the call is given up, the command is killed.
    pub async fn run(
        &self,
        directory: &Path,
        words: Vec<OsString>,
        limit: OutputLimit,
        time: Duration,
    ) -> CommandResult<CommandEnd> {
        let failed = |error: std::io::Error| {
            CommandFailure::new("io", format!("cannot execute {}: {error}", self.program.display()))
        };
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(directory).kill_on_drop(true);
        // Standard input and output of this process are the client's.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let output = tokio::spawn(keep_output(child.stdout.take(), limit));
        let errors =
            tokio::spawn(keep_output(child.stderr.take(), OutputLimit { head: ERROR_MAX, tail: ERROR_MAX }));
        let mut timed_out = false;
        let status = match tokio::time::timeout(time, child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                timed_out = true;
                end_child(&mut child).await
            }
        };
        let code = status.map_err(failed)?.code();
        // Something that the command left running may keep the pipes open. It is not waited for longer than ENDING_TIME, and
        // nothing is kept of such an output.
        Ok(CommandEnd { code, output: finish(output).await, errors: finish(errors).await, timed_out })
    }
}

impl CommandEnd {
    fn to_error(&self) -> CommandFailure {
        let said = self.errors.to_text();
        let message = match (self.timed_out, said.trim()) {
            (true, _) => "the command took too long, and was stopped",
            (false, "") => "the command failed without a message",
            (false, said) => said,
        };
        CommandFailure::new("io", message)
    }
}

/// Asks a command to end, and kills it if it does not.
async fn end_child(child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    // It has not been waited for: the number is still its own.
    // With TERM first: 'vellum try' passes it on to its command, and then still reports what that has changed.
    let asked = pid.map(|pid| kill_process(pid, Signal::TERM));
    if asked.is_some_and(|asked| asked.is_ok())
        && let Ok(status) = tokio::time::timeout(ENDING_TIME, child.wait()).await
    {
        return status;
    }
    child.kill().await?;
    child.wait().await
}

/// Reads an output to its end: a command whose output nobody reads would stop.
async fn keep_output(stream: Option<impl AsyncRead + Unpin>, limit: OutputLimit) -> KeptOutput {
    let mut kept = KeptOutput::default();
    let Some(mut stream) = stream else { return kept };
    let mut piece = vec![0; PIECE];
    // An output that cannot be read has ended.
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        kept.add(piece.get(..count).unwrap_or_default(), limit);
    }
    kept
}

async fn finish(output: tokio::task::JoinHandle<KeptOutput>) -> KeptOutput {
    let mut output = output;
    match tokio::time::timeout(ENDING_TIME, &mut output).await {
        Ok(kept) => kept.unwrap_or_default(),
        Err(_) => {
            output.abort();
            KeptOutput::default()
        }
    }
}

/// What a command said about its failure.
fn read_failure(error: &Value) -> CommandFailure {
    let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
    CommandFailure {
        code: text("code").unwrap_or_else(|| "io".into()),
        message: text("message").unwrap_or_else(|| "the command failed".into()),
        hint: text("hint"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_of_an_output_are_kept() {
        let limit = OutputLimit { head: 3, tail: 2 };
        let mut kept = KeptOutput::default();
        for piece in ["a", "bcd", "efg", ""] {
            kept.add(piece.as_bytes(), limit);
        }
        assert_eq!((kept.head.as_slice(), kept.tail.as_slice(), kept.total), (&b"abc"[..], &b"fg"[..], 7));
        assert_eq!(kept.to_text(), "abc\n[2 bytes left out]\nfg");
        let mut short = KeptOutput::default();
        short.add(b"ab", limit);
        assert_eq!(short.to_text(), "ab");
    }
}

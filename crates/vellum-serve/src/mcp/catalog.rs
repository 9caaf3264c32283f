//! The tools: names, descriptions, arguments. Descriptions are fixed texts: nothing that a volume holds gets into them.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::arguments::{NOTE_MAX, ROWS_MAX};
use super::changing::{TRY_SECONDS, TRY_SECONDS_MAX};
use super::reading::READ_MAX;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolName {
    /// What changed.
    Status,
    /// Record the worktree.
    Snapshot,
    /// List snapshots.
    History,
    /// Compare.
    Diff,
    /// List a directory.
    List,
    /// Read a file.
    Read,
    /// The contents that a path had.
    Versions,
    /// Find names.
    Find,
    /// Make a fork.
    Fork,
    /// Run a command in a fork.
    Try,
    /// Make a try a worktree.
    KeepTry,
    /// Remove a try.
    DiscardTry,
    /// Say what a restore would do.
    RestorePlan,
    /// Restore.
    Restore,
}

/// What a tool does to what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToolEffect {
    ReadOnly,
    Additive,
    Destructive,
}

impl ToolName {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Status,
        Self::Snapshot,
        Self::History,
        Self::Diff,
        Self::List,
        Self::Read,
        Self::Versions,
        Self::Find,
        Self::Fork,
        Self::Try,
        Self::KeepTry,
        Self::DiscardTry,
        Self::RestorePlan,
        Self::Restore,
    ];

    /// The tool of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.as_str() == name)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Snapshot => "snapshot",
            Self::History => "history",
            Self::Diff => "diff",
            Self::List => "list",
            Self::Read => "read",
            Self::Versions => "versions",
            Self::Find => "find",
            Self::Fork => "fork",
            Self::Try => "try",
            Self::KeepTry => "keep_try",
            Self::DiscardTry => "discard_try",
            Self::RestorePlan => "restore_plan",
            Self::Restore => "restore",
        }
    }

    /// Whether it is offered only if it was allowed.
    pub fn is_about_tries(self) -> bool {
        matches!(self, Self::Try | Self::KeepTry | Self::DiscardTry)
    }

    fn effect(self) -> ToolEffect {
        match self {
            Self::Status
            | Self::History
            | Self::Diff
            | Self::List
            | Self::Read
            | Self::Versions
            | Self::Find
            | Self::RestorePlan => ToolEffect::ReadOnly,
            Self::Snapshot | Self::Fork | Self::KeepTry => ToolEffect::Additive,
            // A command in a try can change what is outside the worktree, and what is discarded with a try is nowhere else.
            Self::Try | Self::DiscardTry | Self::Restore => ToolEffect::Destructive,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Status => {
                "What changed in the worktree since the last snapshot: counts, and the first 100 changes. Untracked and \
                 generated files count, too."
            }
            Self::Snapshot => {
                "Record the whole worktree as it is now, whoever changed it. Cheap: do it before risky steps. With 'turn', a \
                 second call of the same turn returns the first snapshot."
            }
            Self::History => "Snapshots, newest first; with 'path', those that changed it.",
            Self::Diff => {
                "What differs between two snapshots, or between a snapshot and the worktree as it is now. With 'patch', also \
                 the lines."
            }
            Self::List => "The entries of a directory in a snapshot, by name, 100 at a time.",
            Self::Read => "A file as a snapshot has it: text, or base64 if it is none.",
            Self::Versions => {
                "The different contents that a path had, newest first, and the snapshots that have them."
            }
            Self::Find => {
                "Find names in all ancestors of the worktree's state, also deleted ones. '*' and '?' as in a shell; with a \
                 '/', the whole path is compared."
            }
            Self::Fork => {
                "Make another directory with the files of a snapshot, to work in without touching the worktree. What no \
                 snapshot has is not in it: take a snapshot first."
            }
            Self::Try => {
                "Run a command in a fork of the worktree as it is now, at the same path, and report what it changed. The \
                 worktree does not change. Only the worktree is protected: other directories and the network are not."
            }
            Self::KeepTry => "Make a try of this connection a worktree, to be mounted or merged later.",
            Self::DiscardTry => "Remove a try of this connection with all that its command changed.",
            Self::RestorePlan => {
                "Say what restoring a snapshot would replace, create and delete, and what no snapshot has yet. Changes \
                 nothing. The plan is good for ten minutes, and as long as nothing changes."
            }
            Self::Restore => {
                "Carry out a plan. What no snapshot has is saved in a snapshot first. In the worktree of the user, a person \
                 has to approve it: until then the answer is 'pending', with the command for the person; call again \
                 afterwards. In a fork of this connection it is done at once."
            }
        }
    }

    /// The schema of its arguments.
    fn input_schema(self) -> Value {
        let snapshot = text("An id or its first digits, a tag, HEAD, HEAD~2, or '@{2 hours ago}'");
        let path = text("A path from the root of the worktree, without '..'");
        match self {
            Self::Status => object(json!({}), &[]),
            Self::Snapshot => {
                let note = json!({ "type": "string", "maxLength": NOTE_MAX, "description": "What this is" });
                object(json!({ "note": note, "turn": text("An id of the turn, of your own") }), &[])
            }
            Self::History => object(
                json!({ "path": path, "grep": text("In the note"), "limit": number(1, ROWS_MAX as u64) }),
                &[],
            ),
            Self::Diff => object(
                json!({ "from": snapshot, "to": snapshot, "path": path, "patch": { "type": "boolean" } }),
                &[],
            ),
            Self::List => object(
                json!({ "snapshot": snapshot, "path": path, "offset": number(0, u64::MAX), "limit": number(1, ROWS_MAX as u64) }),
                &[],
            ),
            Self::Read => object(
                json!({ "snapshot": snapshot, "path": path, "offset": number(0, u64::MAX), "limit": number(1, READ_MAX as u64) }),
                &["path"],
            ),
            Self::Versions => object(
                json!({ "snapshot": snapshot, "path": path, "limit": number(1, ROWS_MAX as u64) }),
                &["path"],
            ),
            Self::Find => object(
                json!({ "pattern": text("As in '*.rs' or 'src/**/*.rs'"), "deleted": { "type": "boolean" } }),
                &["pattern"],
            ),
            Self::Fork => {
                object(json!({ "name": text("Letters, digits, '-', '_', '.'"), "from": snapshot }), &["name"])
            }
            Self::Try => {
                let words = json!({ "type": "array", "items": { "type": "string" }, "minItems": 1,
                    "description": "A program and its arguments; no shell" });
                let mut timeout = number(1, TRY_SECONDS_MAX);
                timeout["description"] = json!(format!("Seconds, {TRY_SECONDS} if it is absent"));
                object(json!({ "command": words, "timeout": timeout }), &["command"])
            }
            Self::KeepTry | Self::DiscardTry => {
                object(json!({ "try": text("As 'try' returned it") }), &["try"])
            }
            Self::RestorePlan => {
                let paths = json!({ "type": "array", "items": path, "description": "Only these; everything if absent" });
                let fork = text("The name of a fork of this connection; the worktree if absent");
                object(json!({ "to": snapshot, "paths": paths, "fork": fork }), &["to"])
            }
            Self::Restore => object(json!({ "plan": text("As 'restore_plan' returned it") }), &["plan"]),
        }
    }

    /// The fields that its answer always has.
    fn answer_fields(self) -> &'static [&'static str] {
        match self {
            Self::Status => &["worktree", "directory", "clean", "counts", "changes", "truncated"],
            Self::Snapshot => &["snapshot", "made"],
            Self::History => &["snapshots", "more"],
            Self::Diff => &["from", "to", "counts", "changes", "truncated"],
            Self::List => &["snapshot", "path", "entries", "total", "more"],
            Self::Read => &["snapshot", "path", "size", "offset", "truncated"],
            Self::Versions => &["path", "versions", "more"],
            Self::Find => &["found", "truncated"],
            Self::Fork => &["name", "directory", "snapshot"],
            Self::Try => &["status", "timed_out", "output", "errors", "truncated"],
            Self::KeepTry | Self::DiscardTry => &["name", "decision"],
            Self::RestorePlan => {
                &["plan", "target", "directory", "step_count", "steps", "unsaved", "truncated"]
            }
            Self::Restore => &["status"],
        }
    }

    /// The tool as clients see it.
    pub fn describe(self) -> Tool {
        let is_read_only = self.effect() == ToolEffect::ReadOnly;
        let is_destructive = self.effect() == ToolEffect::Destructive;
        let annotations = ToolAnnotations::new()
            .read_only(is_read_only)
            .destructive(is_destructive)
            // Only a command that is tried can reach other machines.
            .open_world(self == Self::Try);
        let schema = |value: Value| Arc::new(value.as_object().cloned().unwrap_or_default());
        let mut tool = Tool::new(self.as_str(), self.description(), schema(self.input_schema()));
        // Only which fields there are: their shapes are those of docs/json.md, to which fields may be added.
        tool.output_schema = Some(schema(json!({ "type": "object", "required": self.answer_fields() })));
        tool.annotations = Some(annotations);
        tool
    }
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn number(least: u64, most: u64) -> Value {
    match most {
        // Many readers of JSON take numbers for floating point, which has no such integer: then there is no maximum.
        u64::MAX => json!({ "type": "integer", "minimum": least }),
        _ => json!({ "type": "integer", "minimum": least, "maximum": most }),
    }
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

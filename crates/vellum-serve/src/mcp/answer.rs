//! What tools answer: structured content, and the same as text.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};
use vellum_json::error_code;

use crate::command_line::CommandFailure;

/// Most characters of the text form: clients put it before a model as it is.
const TEXT_MAX: usize = 25_000;

/// Result of a tool.
pub type ToolResult<T> = std::result::Result<T, ToolError>;

/// Why a tool failed, as docs/json.md has failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    /// The code, which never changes.
    pub code: String,
    /// For people and models.
    pub message: String,
    /// What may help.
    pub hint: Option<String>,
}

impl ToolError {
    /// An error with a code of docs/json.md.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), hint: None }
    }

    /// What was asked for is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new("usage", message)
    }

    /// The same with what may help.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The answer of a tool that failed.
    pub fn to_answer(&self) -> CallToolResult {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(hint) = &self.hint {
            error["hint"] = json!(hint);
        }
        CallToolResult::structured_error(json!({ "error": error }))
    }
}

impl From<CommandFailure> for ToolError {
    fn from(CommandFailure { code, message, hint }: CommandFailure) -> Self {
        Self { code, message, hint }
    }
}

impl From<vellum_library::Error> for ToolError {
    fn from(error: vellum_library::Error) -> Self {
        Self::new(error_code(error.kind()), error.to_string())
    }
}

/// The answer of a tool that did what was asked. Names, notes and contents stand in its fields, and nowhere else.
pub fn build_answer(value: Value) -> CallToolResult {
    let text = value.to_string();
    let mut answer = CallToolResult::structured(value);
    if text.chars().count() > TEXT_MAX {
        let mut cut: String = text.chars().take(TEXT_MAX).collect();
        cut.push_str("… (cut; ask for less, or see the structured content)");
        // Only the text is cut: the structured content stays whole for programs.
        answer.content = vec![ContentBlock::text(cut)];
    }
    answer
}

/// A text of at most so many bytes, and whether something was cut off.
pub fn cut_text(text: &str, max: usize) -> (&str, bool) {
    // After three steps at most: a character has up to 4 bytes.
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    (&text[..end], end < text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut_text("aä", 3), ("aä", false));
        assert_eq!(cut_text("aä", 2), ("a", true));
        assert_eq!(cut_text("", 0), ("", false));
        let answer = build_answer(json!({ "note": "x".repeat(TEXT_MAX * 2) }));
        let text = answer.content[0].as_text().map_or(0, |text| text.text.chars().count());
        assert!(text < TEXT_MAX + 100, "{text}");
    }
}

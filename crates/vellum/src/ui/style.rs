//! Colours, where they are welcome: on a terminal that is not dumb, unless `NO_COLOR` is set; or as the user has set.

use std::sync::OnceLock;

/// Whether the user always wants colours, or never. Not set: where they are welcome.
static CHOICE: OnceLock<bool> = OnceLock::new();

/// Sets whether this process colours, wherever its output goes. Only the first call counts.
pub fn set_colour_choice(is_coloured: bool) {
    CHOICE.get_or_init(|| is_coloured);
}

/// Whether to colour.
#[derive(Debug, Clone, Copy, Default)]
pub struct TextStyle {
    on: bool,
}

impl TextStyle {
    /// The style for a stream that is a terminal or is not.
    pub fn for_terminal(terminal: bool) -> Self {
        // no-color.org defines that an empty variable does not count.
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        // By no-color.org, what a user has set for a program counts before the variable.
        Self { on: CHOICE.get().copied().unwrap_or(terminal && !refused) }
    }

    /// Whether it colours.
    pub fn is_coloured(self) -> bool {
        self.on
    }

    fn paint_with_code(self, code: &str, text: &str) -> String {
        // An empty text stays empty, by which tables know an empty cell.
        if self.on && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }

    /// Errors, and what is gone.
    pub fn paint_red(self, text: &str) -> String {
        self.paint_with_code("31", text)
    }

    /// What is new.
    pub fn paint_green(self, text: &str) -> String {
        self.paint_with_code("32", text)
    }

    /// Warnings, ids, and what changed.
    pub fn paint_yellow(self, text: &str) -> String {
        self.paint_with_code("33", text)
    }

    /// Hints, names, and what moved.
    pub fn paint_cyan(self, text: &str) -> String {
        self.paint_with_code("36", text)
    }

    /// What matters most.
    pub fn paint_bold(self, text: &str) -> String {
        self.paint_with_code("1", text)
    }

    /// What matters least.
    pub fn paint_dim(self, text: &str) -> String {
        self.paint_with_code("2", text)
    }
}

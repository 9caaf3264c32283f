//! Colours, where they are welcome: on a terminal that is not dumb, unless the user chose otherwise.

use super::preferences::ColorChoice;

/// Whether to colour.
#[derive(Debug, Clone, Copy, Default)]
pub struct TextStyle {
    on: bool,
}

impl TextStyle {
    /// The style for a stream that is a terminal or is not.
    pub fn for_terminal(terminal: bool, choice: ColorChoice) -> Self {
        let is_dumb = || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let on = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !is_dumb(),
        };
        Self { on }
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

//! How the user wants output to look: what the command line says, or else the settings, or else the environment.

use std::env;

use vellum_volume::settings::Settings;

/// When to colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal
    #[default]
    Auto,
    /// Also in files and pipes
    Always,
    /// Not at all
    Never,
}

/// The program that shows what does not fit on the terminal, if neither the user nor the system names one.
const DEFAULT_PAGER: &str = "less";

/// What the user chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputPreferences {
    /// When to colour.
    pub color: ColorChoice,
    /// The pager's command line; none: no pager.
    pub pager: Option<String>,
}

impl OutputPreferences {
    /// What was chosen on the command line, or else in the settings, or else in the environment.
    pub fn read(color: Option<ColorChoice>, no_pager: bool, settings: &Settings) -> Self {
        // no-color.org and bixense.com/clicolors: an empty variable does not count.
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let from_environment = || match (variable("NO_COLOR"), variable("CLICOLOR_FORCE")) {
            (Some(_), _) => ColorChoice::Never,
            (None, Some(value)) if value != "0" => ColorChoice::Always,
            (None, _) => ColorChoice::Auto,
        };
        // By no-color.org, what a user has set for a program counts before the variable.
        let set = match settings.get_text("ui.color").as_deref() {
            Some("always") => Some(ColorChoice::Always),
            Some("never") => Some(ColorChoice::Never),
            // It has no other values, and this one is what holds if nothing is set.
            Some(_) | None => None,
        };
        Self {
            color: color.or(set).unwrap_or_else(from_environment),
            pager: if no_pager { None } else { read_pager(settings.get_text("ui.pager")) },
        }
    }
}

/// The first that is set decides: Vellum's variable, the setting, the variable of all programs. An empty one, or `cat`, means
/// that none is wanted, as for git.
fn read_pager(setting: Option<String>) -> Option<String> {
    let chosen = env::var("VELLUM_PAGER").ok().or(setting).or_else(|| env::var("PAGER").ok());
    let chosen = chosen.unwrap_or_else(|| DEFAULT_PAGER.into());
    let command = chosen.trim();
    (!command.is_empty() && command != "cat").then(|| command.to_owned())
}

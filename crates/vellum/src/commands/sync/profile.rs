//! `--profile NAME`: options from the user's config file, as if they stood before those that were typed.
//!
//! ```toml
//! [sync.backup]
//! options = ["-aHAX", "--delete", "--exclude=*.tmp"]
//! ```

use std::ffi::OsString;

use serde::Deserialize;

use super::args::profile_config_path;
use crate::error::{CliError, Result};

#[derive(Deserialize)]
struct ProfileFile {
    #[serde(default)]
    sync: std::collections::BTreeMap<String, SyncProfile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SyncProfile {
    options: Vec<String>,
}

/// The command line with the options of a profile in it.
pub fn expand_profile(name: &str, typed: impl Iterator<Item = OsString>) -> Result<Vec<OsString>> {
    let options = read_profile_options(name)?;
    // Right behind the word 'sync': later options override earlier ones, so that what was typed counts.
    let mut words: Vec<OsString> = typed.collect();
    let place = words.iter().skip(1).position(|word| word == "sync").map_or(words.len(), |place| place + 2);
    words.splice(place..place, options.into_iter().map(OsString::from));
    Ok(words)
}

fn read_profile_options(name: &str) -> Result<Vec<String>> {
    let none = || {
        CliError::usage_error(
            "there is no config file to read a profile from",
            "~/.config/vellum/config.toml",
        )
    };
    let path = profile_config_path().ok_or_else(none)?;
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(&path).map_err(CliError::io_error("read", shown.clone()))?;
    let config: ProfileFile = toml::from_str(&text).map_err(|error| {
        CliError::usage_error(format!("{shown}: {}", error.message()), "docs/sync.md shows one")
    })?;
    let mut profiles = config.sync;
    let known: Vec<&String> = profiles.keys().collect();
    let hint = format!("it has: {}", known.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "));
    let missing = CliError::usage_error(format!("{shown} has no section [sync.{name}]"), hint);
    let profile = profiles.remove(name).ok_or(missing)?;
    // Profiles are put into the command line once: the options of a second one would be missing without a word.
    if profile.options.iter().any(|option| option.starts_with("--profile")) {
        return Err(CliError::usage_error(
            format!("the profile '{name}' refers to another profile"),
            "write its options out",
        ));
    }
    Ok(profile.options)
}

//! `--profile NAME`: options from the user's config file, as if they stood before those that were typed.
//!
//! ```toml
//! [sync.backup]
//! options = ["-aHAX", "--delete", "--exclude=*.tmp"]
//! ```

use std::ffi::OsString;

use serde::Deserialize;

use super::args::config_file;
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
pub fn expand(name: &str, typed: impl Iterator<Item = OsString>) -> Result<Vec<OsString>> {
    let options = read(name)?;
    let mut words: Vec<OsString> = typed.collect();
    let place = words.iter().skip(1).position(|word| word == "sync").map_or(words.len(), |place| place + 2);
    words.splice(place..place, options.into_iter().map(OsString::from));
    Ok(words)
}

fn read(name: &str) -> Result<Vec<String>> {
    let none =
        || CliError::usage("there is no config file to take a profile from", "~/.config/vellum/config.toml");
    let path = config_file().ok_or_else(none)?;
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(&path).map_err(CliError::io("read", shown.clone()))?;
    let config: ProfileFile = toml::from_str(&text).map_err(|error| {
        CliError::usage(format!("{shown}: {}", error.message()), "docs/sync.md shows one")
    })?;
    let mut profiles = config.sync;
    let known: Vec<&String> = profiles.keys().collect();
    let hint = format!("it has: {}", known.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "));
    let missing = CliError::usage(format!("{shown} has no section [sync.{name}]"), hint);
    let profile = profiles.remove(name).ok_or(missing)?;
    if profile.options.iter().any(|option| option.starts_with("--profile")) {
        return Err(CliError::usage(
            format!("the profile '{name}' names a profile"),
            "write its options out",
        ));
    }
    Ok(profile.options)
}

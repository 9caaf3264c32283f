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
    let mut words: Vec<OsString> = typed.collect();
    let place = find_options_place(&words);
    // In front of the typed options, because of two that contradict each other the later one counts.
    words.splice(place..place, options.into_iter().map(OsString::from));
    Ok(words)
}

/// The place right behind the command's name: later options override earlier ones, so that what was typed counts.
fn find_options_place(words: &[OsString]) -> usize {
    let mut is_value = false;
    let is_command = |word: &OsString| {
        // The word behind -C or --retry-for is its value, which may be 'sync' as well. Both can also have it attached.
        let bytes = word.as_encoded_bytes();
        let is_cluster = bytes.starts_with(b"-") && !bytes.starts_with(b"--");
        let takes_value = bytes == b"--retry-for"
            || is_cluster && bytes.iter().position(|b| *b == b'C') == bytes.len().checked_sub(1);
        !std::mem::replace(&mut is_value, takes_value) && word == "sync"
    };
    words.iter().skip(1).position(is_command).map_or(words.len(), |place| place + 2)
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
    // Put together before the profile is taken out, because the hint names all of them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_the_name_of_the_command_is_not_taken_for_it() {
        let place = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            find_options_place(&words)
        };
        assert_eq!(place("vellum sync a b"), 2);
        assert_eq!(place("vellum -C sync sync a b"), 4);
        assert_eq!(place("vellum -qC sync sync a b"), 4);
        assert_eq!(place("vellum -Csync sync a b"), 3);
        assert_eq!(place("vellum --retry-for 1m -v sync sync b"), 5);
    }
}

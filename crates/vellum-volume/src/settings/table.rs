//! The table of settings.

use std::time::Duration;

use jiff::tz::TimeZone;
use vellum_chunker::ChunkSizes;
use vellum_host::escape::is_invisible_char;
use vellum_types::key::check_name;

use super::SettingScope;
use crate::record::WHO_MAX;
use crate::refs::check_ref_name;

/// Most values of a list.
pub const VALUES_MAX: usize = 64;
/// Longest value, bytes: a command line of some length.
pub const VALUE_MAX: usize = 1024;
/// The setting that says how a volume cuts content.
pub(crate) const CHUNK_SIZE: &str = "chunk-size";
/// Most letters that differ between a name and what was typed for it.
const TYPOS_MAX: usize = 4;

/// What a value can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// A number from 1.
    Count,
    /// A time like `14d`.
    Duration,
    /// The name of a time zone.
    Zone,
    /// Any number of tags.
    Tags,
    /// Any number of names of files.
    FileNames,
    /// Any number of absolute paths of directories.
    Directories,
    /// `none`, or a number from 1 to 19.
    Compression,
    /// An average length of chunks.
    ChunkSize,
    /// The name of a user.
    UserName,
    /// A command line.
    CommandLine,
    /// The address of an engine of shared logs, without a password.
    LogAddress,
    /// One of some words.
    Choice(&'static [&'static str]),
}

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettingDefinition {
    /// Its name.
    pub name: &'static str,
    /// What its value can be.
    pub kind: SettingKind,
    /// Where it can be set.
    pub scopes: &'static [SettingScope],
    /// Its value where it is not set.
    pub default: &'static [&'static str],
    /// What it does, in one sentence.
    pub help: &'static str,
}

const EVERYWHERE: &[SettingScope] = &SettingScope::ALL;
// What runs a program or says who the user is: whoever has the key of a volume could set it for all machines.
const NOT_IN_VOLUMES: &[SettingScope] = &[SettingScope::Worktree, SettingScope::User];
/// What is chosen when a volume is made is read like a setting, and cannot be set.
const NOWHERE: &[SettingScope] = &[];
const USER_ALONE: &[SettingScope] = &[SettingScope::User];

const fn count(name: &'static str, help: &'static str) -> SettingDefinition {
    SettingDefinition { name, kind: SettingKind::Count, scopes: EVERYWHERE, default: &[], help }
}

const fn duration(name: &'static str, help: &'static str) -> SettingDefinition {
    SettingDefinition { name, kind: SettingKind::Duration, scopes: EVERYWHERE, default: &[], help }
}

const fn hook(name: &'static str, help: &'static str) -> SettingDefinition {
    SettingDefinition { name, kind: SettingKind::CommandLine, scopes: NOT_IN_VOLUMES, default: &[], help }
}

/// All settings, by name.
pub const SETTINGS: &[SettingDefinition] = &[
    SettingDefinition {
        name: "author",
        kind: SettingKind::UserName,
        scopes: NOT_IN_VOLUMES,
        default: &[],
        help: "who makes snapshots and pins, if not the user that the environment names",
    },
    SettingDefinition {
        name: CHUNK_SIZE,
        kind: SettingKind::ChunkSize,
        scopes: NOWHERE,
        default: &["64K"],
        help: "how long the chunks are, on average, into which content is cut; chosen by 'init --chunk-size' for good",
    },
    SettingDefinition {
        name: "compression",
        kind: SettingKind::Compression,
        scopes: EVERYWHERE,
        default: &[],
        help: "the level of zstd for what is stored from now on, if not that with which the volume was made",
    },
    hook("hooks.after-mount", "a command that runs when a mount is ready"),
    hook("hooks.after-snapshot", "a command that runs when a snapshot was made"),
    hook("hooks.before-restore", "a command that runs before a restore, and stops it by failing"),
    hook("hooks.before-snapshot", "a command that runs before a snapshot, and stops it by failing"),
    hook("hooks.on-damage", "a command that runs when 'verify' has found damage"),
    SettingDefinition {
        name: "hooks.timeout",
        kind: SettingKind::Duration,
        scopes: NOT_IN_VOLUMES,
        default: &["60s"],
        help: "how long a hook may run before it is killed",
    },
    SettingDefinition {
        name: "ignore-files",
        kind: SettingKind::FileNames,
        scopes: EVERYWHERE,
        default: &[".vellumignore"],
        help: "names of the files whose rules say what is left out of snapshots; the last one decides first",
    },
    SettingDefinition {
        name: "merge.tool",
        kind: SettingKind::CommandLine,
        scopes: NOT_IN_VOLUMES,
        default: &[],
        help: "the command that 'resolve --tool' runs: it merges $BASE, $LOCAL and $REMOTE into $MERGED",
    },
    SettingDefinition {
        name: "merge.tool-timeout",
        kind: SettingKind::Duration,
        scopes: NOT_IN_VOLUMES,
        default: &["10m"],
        help: "how long a merge tool may run where there is no terminal, before it is killed",
    },
    SettingDefinition {
        name: "mount.meta",
        kind: SettingKind::LogAddress,
        scopes: EVERYWHERE,
        default: &[],
        help: "where new worktrees that are mounted have a log from which another machine can continue them: 'mount --meta'",
    },
    count("retention.keep-daily", "'forget --policy' keeps the newest snapshot of each of the last N days"),
    count("retention.keep-hourly", "'forget --policy' keeps the newest snapshot of each of the last N hours"),
    count("retention.keep-last", "'forget --policy' keeps the newest N snapshots"),
    count(
        "retention.keep-monthly",
        "'forget --policy' keeps the newest snapshot of each of the last N months",
    ),
    SettingDefinition {
        name: "retention.keep-tag",
        kind: SettingKind::Tags,
        scopes: EVERYWHERE,
        default: &[],
        help: "'forget --policy' keeps snapshots with one of these tags",
    },
    count("retention.keep-weekly", "'forget --policy' keeps the newest snapshot of each of the last N weeks"),
    duration("retention.keep-within", "'forget --policy' keeps all snapshots of this time"),
    duration(
        "retention.keep-within-daily",
        "'forget --policy' keeps one snapshot of each day within this time",
    ),
    duration(
        "retention.keep-within-hourly",
        "'forget --policy' keeps one snapshot of each hour within this time",
    ),
    duration(
        "retention.keep-within-monthly",
        "'forget --policy' keeps one snapshot of each month within this time",
    ),
    duration(
        "retention.keep-within-weekly",
        "'forget --policy' keeps one snapshot of each week within this time",
    ),
    duration(
        "retention.keep-within-yearly",
        "'forget --policy' keeps one snapshot of each year within this time",
    ),
    count("retention.keep-yearly", "'forget --policy' keeps the newest snapshot of each of the last N years"),
    SettingDefinition {
        name: "retention.zone",
        kind: SettingKind::Zone,
        scopes: EVERYWHERE,
        default: &["UTC"],
        help: "the time zone whose days and hours 'forget --policy' counts",
    },
    SettingDefinition {
        name: "safety.keep-last",
        kind: SettingKind::Count,
        scopes: EVERYWHERE,
        default: &["3"],
        help: "how many of the newest safety snapshots 'forget' keeps",
    },
    SettingDefinition {
        name: "safety.keep-within",
        kind: SettingKind::Duration,
        scopes: EVERYWHERE,
        default: &["14d"],
        help: "'forget' keeps all safety snapshots of this time",
    },
    SettingDefinition {
        name: "trusted-directories",
        kind: SettingKind::Directories,
        scopes: USER_ALONE,
        default: &[],
        help: "directories below which hooks and merge tools of worktrees are run although another user owns them",
    },
    SettingDefinition {
        name: "ui.color",
        kind: SettingKind::Choice(&["auto", "always", "never"]),
        scopes: USER_ALONE,
        default: &["auto"],
        help: "whether output has colours; auto: on a terminal",
    },
    SettingDefinition {
        name: "ui.pager",
        kind: SettingKind::CommandLine,
        scopes: USER_ALONE,
        default: &[],
        help: "the program that shows long output on a terminal",
    },
];

/// The setting of this name.
#[must_use]
pub fn find_setting(name: &str) -> Option<&'static SettingDefinition> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The setting whose name is most like what was typed, if one is.
#[must_use]
pub fn suggest_setting(typed: &str) -> Option<&'static str> {
    // What was typed may be very long.
    let nearest = SETTINGS.iter().map(|setting| {
        // Whoever typed the last part alone made no typing error.
        let last = setting.name.rsplit('.').next().unwrap_or(setting.name);
        let distance = if typed == last { 0 } else { count_typos(typed, setting.name) };
        (distance, setting.name)
    });
    nearest.min().filter(|(distance, _)| *distance <= TYPOS_MAX).map(|(_, name)| name)
}

/// The number of letters to insert, remove or replace to make one word of the other; more than [`TYPOS_MAX`] is not told
/// exactly.
fn count_typos(typed: &str, name: &str) -> usize {
    let typed: Vec<_> = typed.chars().take(name.len() + TYPOS_MAX + 1).collect();
    // Levenshtein's distance, of whose table only one row is kept.
    let mut row: Vec<usize> = (0..=typed.len()).collect();
    for (line, letter) in name.chars().enumerate() {
        let mut diagonal = line;
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
        let mut left = line + 1;
        for (above, other) in row.iter_mut().skip(1).zip(&typed) {
            let replaced = diagonal + usize::from(*other != letter);
            diagonal = *above;
            *above = replaced.min(left + 1).min(*above + 1);
            left = *above;
        }
    }
    row.last().copied().unwrap_or(name.len())
}

impl SettingDefinition {
    /// Whether it can be set there.
    #[must_use]
    pub fn may_be_set_in(&self, scope: SettingScope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Whether it is chosen once, when a volume is made.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.scopes.is_empty()
    }

    /// What its value is, in words.
    #[must_use]
    pub fn describe_kind(&self) -> String {
        match self.kind {
            SettingKind::Count => "a number from 1".into(),
            SettingKind::Duration => "a time like 14d, with the unit s, m, h, d, w or y".into(),
            SettingKind::Zone => "a time zone like UTC or Europe/Berlin".into(),
            SettingKind::Tags => "names of tags, as a list".into(),
            SettingKind::FileNames => "names of files without a '/', as a list".into(),
            SettingKind::Directories => "absolute paths of directories, as a list".into(),
            SettingKind::Compression => "none, or a level from 1 to 19".into(),
            SettingKind::ChunkSize => "a size from 8K to 1M, which never changes".into(),
            SettingKind::UserName => "a name".into(),
            SettingKind::CommandLine => "a command line".into(),
            SettingKind::LogAddress => {
                "the address of an engine, without a password; 'store:' is the volume's store".into()
            }
            SettingKind::Choice(words) => words.join(" or "),
        }
    }

    /// Whether it has any number of values.
    #[must_use]
    pub fn is_list(&self) -> bool {
        matches!(self.kind, SettingKind::Tags | SettingKind::FileNames | SettingKind::Directories)
    }

    /// Fails if these are no values of it, and says what its value is.
    pub fn check_values(&self, values: &[String]) -> Result<(), String> {
        let is_number_right = if self.is_list() { values.len() <= VALUES_MAX } else { values.len() == 1 };
        if is_number_right && values.iter().all(|value| self.is_value(value)) {
            return Ok(());
        }
        Err(format!("{} takes {}", self.name, self.describe_kind()))
    }

    fn is_value(&self, value: &str) -> bool {
        // A value must not look like something else where it is listed.
        let is_shown = value.chars().all(|c| !c.is_control() && !is_invisible_char(c));
        let is_of_kind = match self.kind {
            SettingKind::Count => value.parse::<u32>().is_ok_and(|number| number > 0),
            SettingKind::Duration => parse_setting_duration(value).is_ok_and(|time| !time.is_zero()),
            SettingKind::Zone => TimeZone::get(value).is_ok(),
            SettingKind::Tags => check_ref_name(value).is_ok(),
            SettingKind::FileNames => check_name(value.as_bytes()).is_ok(),
            SettingKind::Directories => value.starts_with('/'),
            SettingKind::Compression => parse_compression_level(value).is_some(),
            SettingKind::ChunkSize => parse_chunk_size(value).is_some(),
            SettingKind::UserName => !value.trim().is_empty() && value.len() <= WHO_MAX,
            SettingKind::CommandLine => !value.trim().is_empty(),
            SettingKind::LogAddress => is_log_address(value),
            SettingKind::Choice(words) => words.contains(&value),
        };
        is_shown && is_of_kind && value.len() <= VALUE_MAX
    }
}

/// Whether a value may be the address of an engine. One with a password never is: volumes keep no secrets of others.
fn is_log_address(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once("://") else { return value == "store:" };
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase());
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    let has_password = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    is_scheme && !authority.is_empty() && !has_password
}

/// The level of zstd that a value means; 0: nothing is compressed.
#[must_use]
pub fn parse_compression_level(value: &str) -> Option<i32> {
    match value {
        "none" => Some(0),
        number => number.parse().ok().filter(|level| (1..=19).contains(level)),
    }
}

/// The average length of a volume's chunks, as it is typed: `64K`.
#[must_use]
pub fn format_chunk_size(sizes: ChunkSizes) -> String {
    let target = sizes.target_len();
    match (target % (1 << 20), target % (1 << 10)) {
        (0, _) => format!("{}M", target >> 20),
        (_, 0) => format!("{}K", target >> 10),
        (_, _) => target.to_string(),
    }
}

/// What [`format_chunk_size`] writes.
fn parse_chunk_size(value: &str) -> Option<ChunkSizes> {
    let (digits, shift) = match (value.strip_suffix('K'), value.strip_suffix('M')) {
        (Some(digits), _) => (digits, 10),
        (_, Some(digits)) => (digits, 20),
        (None, None) => (value, 0),
    };
    let number: usize = digits.parse().ok()?;
    ChunkSizes::from_target(number.checked_mul(1 << shift)?).ok()
}

/// A duration: a number and a unit, as in `30d`. A year has 365 days.
pub fn parse_setting_duration(typed: &str) -> Result<Duration, String> {
    let wrong = || "a duration is typed like 30d; the units are s, m, h, d, w and y".to_owned();
    let unit = typed.chars().last().ok_or_else(wrong)?;
    let secs = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        'w' => 7 * 24 * 60 * 60,
        'y' => 365 * 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number: u64 = typed.strip_suffix(unit).and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
    number.checked_mul(secs).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_defaults_are_values() {
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            let default: Vec<_> = setting.default.iter().map(|value| (*value).into()).collect();
            assert_eq!(setting.check_values(&default), Ok(()), "{}", setting.name);
        }
    }

    #[test]
    fn what_runs_a_program_or_names_the_user_comes_from_no_volume() {
        for setting in SETTINGS {
            let is_personal = matches!(setting.kind, SettingKind::CommandLine | SettingKind::UserName);
            assert!(!is_personal || !setting.may_be_set_in(SettingScope::Volume), "{}", setting.name);
        }
    }

    #[test]
    fn addresses_of_engines_have_no_passwords() {
        for address in
            ["store:", "redis://10.0.0.4/1", "postgres://ann@db:5432/logs?sslmode=require", "etcds://[::1]"]
        {
            assert!(is_log_address(address), "{address}");
        }
        for other in
            ["", "store", "redis:", "redis://", "redis://:secret@host", "postgres://ann:secret@db", "/a/path"]
        {
            assert!(!is_log_address(other), "{other}");
        }
    }

    #[test]
    fn sizes_of_chunks_are_read_as_they_are_written() {
        for value in ["8K", "64K", "1M", "10000", "520K"] {
            assert_eq!(parse_chunk_size(value).map(format_chunk_size).as_deref(), Some(value));
        }
        for other in
            ["", "0", "K", "-8K", "8k", "2M", "4K", "1.5K", "99999999999999999999M", "18446744073709551615K"]
        {
            assert_eq!(parse_chunk_size(other), None, "{other}");
        }
    }

    #[test]
    fn mistyped_names_find_the_nearest_one() {
        assert_eq!(suggest_setting("retention.keep-dayly"), Some("retention.keep-daily"));
        assert_eq!(suggest_setting("ui.colour"), Some("ui.color"));
        assert_eq!(suggest_setting("keep-last"), Some("retention.keep-last"));
        assert_eq!(suggest_setting("autor"), Some("author"));
        assert_eq!(suggest_setting("something.else"), None);
        assert_eq!(suggest_setting(&"x".repeat(1 << 20)), None);
    }

    #[test]
    fn values_are_checked_by_kind() {
        let check = |name: &str, values: &[&str]| {
            let values: Vec<String> = values.iter().map(|value| (*value).into()).collect();
            find_setting(name).is_some_and(|setting| setting.check_values(&values).is_ok())
        };
        assert!(check("retention.keep-last", &["12"]) && check("compression", &["none"]));
        assert!(check("ignore-files", &[".gitignore", ".vellumignore"]) && check("ignore-files", &[]));
        assert!(check("compression", &["19"]) && check("retention.keep-tag", &["v1", "v2"]));
        assert!(check("trusted-directories", &["/srv/work", "/"]));
        for (name, values) in [
            ("retention.keep-last", &["0"][..]),
            ("retention.keep-last", &["-1"]),
            ("retention.keep-last", &["1", "2"]),
            ("retention.keep-last", &[]),
            ("retention.keep-within", &["0d"]),
            ("retention.keep-within", &["soon"]),
            ("retention.zone", &["Nowhere/Else"]),
            ("retention.keep-tag", &["a b"]),
            ("compression", &["20"]),
            ("ignore-files", &["dir/.gitignore"]),
            ("ignore-files", &[".."]),
            ("trusted-directories", &["work"]),
            ("author", &["a\x1b[2J"]),
            ("ui.color", &["blue"]),
        ] {
            assert!(!check(name, values), "{name} {values:?}");
        }
    }
}

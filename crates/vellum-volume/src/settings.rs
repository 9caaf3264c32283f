//! Settings: which there are, where each can be set, what its values are, and what holds of several places.
//!
//! Invariant: a value is checked before it is kept and again when it is read; what a newer version wrote is kept as it is,
//! and never replaced by a default. A setting that runs a program, or says who the user is, is never taken from a volume.

mod stored;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use jiff::tz::TimeZone;

pub use self::stored::{StoredSetting, StoredSettings};
pub(crate) use self::stored::{copy_settings, decode_settings};
use self::table::{CHUNK_SIZE, parse_compression_level};
pub use self::table::{
    SETTINGS, SettingDefinition, SettingKind, find_setting, format_chunk_size, parse_setting_duration,
    suggest_setting,
};
use crate::config::VolumeConfig;
use crate::retention::{PeriodRule, RetentionPeriod, RetentionPolicy, SafetyPolicy};

/// Where a setting is kept; of several places the first one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SettingScope {
    /// The state directory of a worktree.
    Worktree,
    /// The store: for all machines that use it.
    Volume,
    /// The user's config file.
    User,
}

impl SettingScope {
    /// All of them, the first that counts first.
    pub const ALL: [Self; 3] = [Self::Worktree, Self::Volume, Self::User];

    /// What messages call it.
    #[must_use]
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Worktree => "worktree",
            Self::Volume => "volume",
            Self::User => "user",
        }
    }
}

impl fmt::Display for SettingScope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.display_name())
    }
}

/// The values of settings by name. A setting that is no list has one value.
pub type SettingValues = BTreeMap<String, Vec<String>>;

/// The settings of all places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    places: BTreeMap<SettingScope, SettingValues>,
    /// How the volume cuts content, which is no setting of any place.
    chunk_size: Option<String>,
}

/// Those that hold in this process beside the ones of volumes.
static LOCAL_SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Lets the settings of the user and the worktree hold in this process, for volumes that are opened afterwards. The first call
/// counts.
pub fn set_local_settings(settings: Settings) {
    let _ = LOCAL_SETTINGS.set(settings);
}

pub(crate) fn local_settings() -> Settings {
    LOCAL_SETTINGS.get().cloned().unwrap_or_default()
}

/// What a setting is, and who says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingInForce {
    /// Its values; none if it is a list that is empty, or if it is unset without a default.
    pub values: Vec<String>,
    /// Where it was set; None: by default.
    pub scope: Option<SettingScope>,
}

impl Settings {
    /// Adds what is set in one place. Values are left out that cannot be set there, and those that are none.
    pub fn add_place(&mut self, scope: SettingScope, mut values: SettingValues) {
        values.retain(|name, values| {
            find_setting(name)
                .is_some_and(|found| found.may_be_set_in(scope) && found.check_values(values).is_ok())
        });
        self.places.insert(scope, values);
    }

    /// Adds what was chosen when the volume was made.
    pub fn add_volume_config(&mut self, config: &VolumeConfig) {
        self.chunk_size = Some(format_chunk_size(config.chunker));
    }

    /// What a setting is.
    #[must_use]
    pub fn find_value(&self, setting: &SettingDefinition) -> SettingInForce {
        if let (CHUNK_SIZE, Some(size)) = (setting.name, &self.chunk_size) {
            return SettingInForce { values: vec![size.clone()], scope: Some(SettingScope::Volume) };
        }
        // The map is sorted by scope, which is the order in which the scopes count.
        let found = self.places.iter().find_map(|(scope, values)| Some((*scope, values.get(setting.name)?)));
        match found {
            Some((scope, values)) => SettingInForce { values: values.clone(), scope: Some(scope) },
            None => SettingInForce {
                values: setting.default.iter().map(|value| (*value).into()).collect(),
                scope: None,
            },
        }
    }

    /// The one value of a setting, if it has one.
    #[must_use]
    pub fn get_text(&self, name: &str) -> Option<String> {
        let found = self.find_value(find_setting(name)?);
        found.values.into_iter().next()
    }

    /// The level of zstd that is set; 0: nothing is compressed.
    #[must_use]
    pub fn compression_level(&self) -> Option<i32> {
        parse_compression_level(&self.get_text("compression")?)
    }

    /// Names of the ignore files whose rules are applied.
    #[must_use]
    pub fn ignore_files(&self) -> Vec<String> {
        find_setting("ignore-files").map(|setting| self.find_value(setting).values).unwrap_or_default()
    }

    fn get_count(&self, name: &str) -> u32 {
        // 0 only if it is unset: what does not parse was left out by `add_place`.
        self.get_text(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// The time that a setting is, if it is set.
    #[must_use]
    pub fn get_duration(&self, name: &str) -> Option<std::time::Duration> {
        table::parse_setting_duration(&self.get_text(name)?).ok()
    }

    /// The policy of retention that is set.
    #[must_use]
    pub fn retention_policy(&self) -> RetentionPolicy {
        let zone = self.get_text("retention.zone").and_then(|name| TimeZone::get(&name).ok());
        let rule = |period: RetentionPeriod| {
            let word = period.rule_word();
            PeriodRule {
                count: self.get_count(&format!("retention.keep-{word}")),
                within: self.get_duration(&format!("retention.keep-within-{word}")),
            }
        };
        let tags = find_setting("retention.keep-tag").map(|setting| self.find_value(setting).values);
        RetentionPolicy {
            last: self.get_count("retention.keep-last"),
            within: self.get_duration("retention.keep-within"),
            periods: RetentionPeriod::ALL.into_iter().map(|period| (period, rule(period))).collect(),
            tags: tags.unwrap_or_default().into_iter().collect(),
            zone: zone.unwrap_or(TimeZone::UTC),
        }
    }

    /// What is kept of safety snapshots.
    #[must_use]
    pub fn safety_policy(&self) -> SafetyPolicy {
        SafetyPolicy {
            last: self.get_count("safety.keep-last"),
            within: self.get_duration("safety.keep-within"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn values(pairs: &[(&str, &[&str])]) -> SettingValues {
        pairs
            .iter()
            .map(|(name, values)| ((*name).into(), values.iter().map(|it| (*it).into()).collect()))
            .collect()
    }

    #[test]
    fn the_nearest_place_counts_and_each_setting_by_itself() {
        let mut settings = Settings::default();
        settings
            .add_place(SettingScope::User, values(&[("retention.keep-last", &["3"]), ("author", &["ann"])]));
        let stored =
            [("retention.keep-last", &["5"][..]), ("retention.keep-daily", &["7"]), ("author", &["eve"])];
        settings.add_place(SettingScope::Volume, values(&stored));
        settings.add_place(SettingScope::Worktree, values(&[("retention.keep-daily", &["9"])]));
        let policy = settings.retention_policy();
        assert_eq!((policy.last, policy.periods[&RetentionPeriod::Day].count), (5, 9));
        // Nobody becomes somebody else because a volume says so.
        assert_eq!(settings.get_text("author").as_deref(), Some("ann"));
        let safety = settings.safety_policy();
        assert_eq!((safety.last, safety.within), (3, Some(Duration::from_secs(14 * 86_400))));
    }

    #[test]
    fn the_policy_has_all_rules() {
        let mut settings = Settings::default();
        assert!(settings.retention_policy().is_empty());
        let set = [
            ("retention.keep-within", &["2w"][..]),
            ("retention.keep-within-yearly", &["10y"]),
            ("retention.keep-hourly", &["4"]),
            ("retention.keep-tag", &["v1", "v2"]),
            ("retention.zone", &["Europe/Berlin"]),
        ];
        settings.add_place(SettingScope::Volume, values(&set));
        let policy = settings.retention_policy();
        assert_eq!(policy.within, Some(Duration::from_secs(14 * 86_400)));
        assert!(policy.periods[&RetentionPeriod::Year].within.is_some());
        assert_eq!(policy.periods[&RetentionPeriod::Hour].count, 4);
        assert_eq!(policy.tags.len(), 2);
        assert_eq!(policy.zone.iana_name(), Some("Europe/Berlin"));
    }

    #[test]
    fn what_is_no_value_is_left_out() {
        let mut settings = Settings::default();
        let wrong =
            [("retention.keep-last", &["many"][..]), ("nothing", &["1"]), ("safety.keep-last", &["1", "2"])];
        settings.add_place(SettingScope::Worktree, values(&wrong));
        assert_eq!(settings.places[&SettingScope::Worktree], SettingValues::new());
    }
}

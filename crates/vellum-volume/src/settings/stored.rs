//! The settings of a volume: one ref, changed by compare-and-swap, and brought to other stores by push and pull.
//!
//! Invariants: settings that this version does not know are kept; a form that it does not know is refused and kept. From another
//! store come only settings that may be set for a volume, with values that are checked: none of them runs a program or says who
//! the user is. Between two stores, what was said last about each setting counts.

use std::collections::BTreeMap;

use vellum_types::{DecodeError, FieldReader, FieldWriter, UnixTime};

use super::table::{VALUE_MAX, VALUES_MAX};
use super::{SettingScope, SettingValues, Settings, find_setting, local_settings};
use crate::error::{Result, VolumeError};
use crate::refs::{RefKind, StoredRef, VOLUME_SETTINGS};
use crate::session::current_time;
use crate::volume::Volume;

/// The form with times.
const VERSION: u8 = 2;
/// The form without times, and without settings that were unset.
const FIRST_VERSION: u8 = 1;
/// Most settings of a volume, those included that were unset: several times as many as there are.
const SETTINGS_MAX: usize = 256;
/// Longest name of a setting, bytes.
const NAME_MAX: usize = 64;
/// When a setting of the first version was set.
const UNKNOWN_TIME: UnixTime = UnixTime { secs: 0, nanos: 0 };

/// What was said last about a setting of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredSetting {
    /// When. First, because the later of two counts.
    pub set: UnixTime,
    /// Its values; None if it was unset.
    pub values: Option<Vec<String>>,
}

/// The settings that a volume has, also those that this version does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredSettings {
    fields: BTreeMap<String, StoredSetting>,
}

impl StoredSettings {
    /// The settings that are set, by name.
    #[must_use]
    pub fn values(&self) -> SettingValues {
        let fields = self.fields.iter();
        fields.filter_map(|(name, field)| Some((name.clone(), field.values.clone()?))).collect()
    }

    /// Sets or unsets a setting; returns whether that changed it.
    fn change(&mut self, name: &str, values: Option<&[String]>) -> bool {
        let old = self.fields.get(name);
        if old.and_then(|old| old.values.as_deref()) == values {
            return false;
        }
        let now = current_time();
        // After what it replaces, also by a clock that is behind.
        let set = match old {
            Some(old) => now.max(UnixTime { secs: old.set.secs.saturating_add(1), nanos: 0 }),
            None => now,
        };
        let values = values.map(<[String]>::to_vec);
        self.fields.insert(name.into(), StoredSetting { set, values });
        true
    }

    /// What another one says, said now where it differs.
    pub(crate) fn renew(&self, other: &Self) -> Self {
        let mut new = self.clone();
        for name in self.fields.keys().chain(other.fields.keys()) {
            new.change(name, other.fields.get(name).and_then(|field| field.values.as_deref()));
        }
        new
    }

    /// Takes over what another store says later, as far as a volume may say it. Returns whether there was something.
    fn merge(&mut self, other: &Self) -> bool {
        let mut is_changed = false;
        for (name, field) in &other.fields {
            let is_later = self.fields.get(name).is_none_or(|own| own < field);
            // Of a setting that is not known here, nobody can tell what it would do.
            if is_later
                && is_allowed(name, field)
                // With more fields, the ref could not be decoded again.
                && (self.fields.len() < SETTINGS_MAX || self.fields.contains_key(name))
            {
                self.fields.insert(name.clone(), field.clone());
                is_changed = true;
            }
        }
        is_changed
    }

    /// The value of the ref.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        // In the first form, if nothing needs the second: what an early version wrote keeps its bytes.
        let has_times = self.has_times();
        writer.write_u8(if has_times { VERSION } else { FIRST_VERSION });
        writer.write_varint(self.fields.len() as u64);
        for (name, StoredSetting { set, values }) in &self.fields {
            writer.write_bytes(name.as_bytes());
            if has_times {
                set.encode(&mut writer);
                writer.write_u8(u8::from(values.is_some()));
            }
            let Some(values) = values else { continue };
            writer.write_varint(values.len() as u64);
            for value in values {
                writer.write_bytes(value.as_bytes());
            }
        }
        writer.into_vec()
    }

    /// Whether something in it has no place in the first version.
    fn has_times(&self) -> bool {
        self.fields.values().any(|field| field.set != UNKNOWN_TIME || field.values.is_none())
    }

    /// Reads the value of the ref.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = FieldReader::new(bytes);
        let reader = &mut rest;
        let has_times = match reader.read_u8()? {
            VERSION => true,
            FIRST_VERSION => false,
            other => return Err(DecodeError::Version(u32::from(other))),
        };
        let mut fields = BTreeMap::<String, StoredSetting>::new();
        for _ in 0..reader.read_count(SETTINGS_MAX)? {
            let name = reader.read_string(NAME_MAX)?.to_owned();
            // In one order: equal settings have equal bytes.
            if fields.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(DecodeError::Invalid("order of settings"));
            }
            let set = if has_times { UnixTime::decode(reader)? } else { UNKNOWN_TIME };
            let is_set = match if has_times { reader.read_u8()? } else { 1 } {
                0 => false,
                1 => true,
                _ => return Err(DecodeError::Invalid("setting")),
            };
            let values = if is_set { Some(decode_values(reader)?) } else { None };
            fields.insert(name, StoredSetting { set, values });
        }
        rest.expect_end()?;
        let decoded = Self { fields };
        // In one form: equal settings have equal bytes.
        match decoded.has_times() == has_times {
            true => Ok(decoded),
            false => Err(DecodeError::Invalid("times of settings")),
        }
    }
}

fn decode_values(reader: &mut FieldReader<'_>) -> Result<Vec<String>, DecodeError> {
    (0..reader.read_count(VALUES_MAX)?).map(|_| Ok(reader.read_string(VALUE_MAX)?.to_owned())).collect()
}

/// Whether another store may say this of a setting.
fn is_allowed(name: &str, field: &StoredSetting) -> bool {
    find_setting(name).is_some_and(|setting| {
        let is_value = field.values.as_ref().is_none_or(|values| setting.check_values(values).is_ok());
        setting.may_be_set_in(SettingScope::Volume) && is_value
    })
}

/// Brings settings of one store to another: what was said last about each counts.
pub(crate) fn copy_settings(from: &Volume, to: &Volume) -> Result<()> {
    let source = from.read_settings()?;
    // Most often there is nothing new.
    if source == StoredSettings::default() || !to.read_settings()?.merge(&source) {
        return Ok(());
    }
    to.refs.update_ref(RefKind::Settings, VOLUME_SETTINGS, |old| {
        let mut settings = old.map(decode_settings).transpose()?.unwrap_or_default();
        // Once more, into the value that the swap is based on.
        settings.merge(&source);
        Ok(Some(settings.encode()))
    })
}

impl Volume {
    /// The settings of the volume.
    pub fn read_settings(&self) -> Result<StoredSettings> {
        let found = self.refs.get_ref(RefKind::Settings, VOLUME_SETTINGS)?;
        Ok(found.as_ref().map(decode_settings).transpose()?.unwrap_or_default())
    }

    /// The settings that hold for this volume in this process, read once.
    pub fn settings_in_force(&self) -> Result<&Settings> {
        if let Some(known) = self.settings.get() {
            return Ok(known);
        }
        let mut settings = local_settings();
        settings.add_place(SettingScope::Volume, self.read_settings()?.values());
        // If another thread was faster, what it read holds for both.
        Ok(self.settings.get_or_init(|| settings))
    }

    /// The level of zstd with which this process stores blobs.
    pub fn compression_level(&self) -> Result<i32> {
        let set = self.settings_in_force()?.compression_level();
        Ok(set.unwrap_or(i32::from(self.config.level)))
    }

    /// Sets a setting of the volume, or unsets it. Returns whether it was another one before. Fails with
    /// [`VolumeError::BadSetting`] if it is none, cannot be set in volumes, or has no such value.
    pub fn change_setting(&self, name: &str, values: Option<&[String]>) -> Result<bool> {
        if let Some(values) = values {
            check_setting(name, values)?;
        }
        let mut is_changed = false;
        self.refs.update_ref(RefKind::Settings, VOLUME_SETTINGS, |old| {
            let mut settings = old.map(decode_settings).transpose()?.unwrap_or_default();
            is_changed = settings.change(name, values);
            if settings.fields.len() > SETTINGS_MAX {
                return Err(VolumeError::BadSetting("the volume has too many settings".into()));
            }
            Ok(Some(settings.encode()))
        })?;
        Ok(is_changed)
    }
}

fn check_setting(name: &str, values: &[String]) -> Result<()> {
    let none = || VolumeError::BadSetting(format!("there is no setting '{}'", name.escape_debug()));
    let setting = find_setting(name).ok_or_else(none)?;
    if !setting.may_be_set_in(SettingScope::Volume) {
        return Err(VolumeError::BadSetting(format!("{name} cannot be set for a volume")));
    }
    setting.check_values(values).map_err(VolumeError::BadSetting)
}

pub(crate) fn decode_settings(found: &StoredRef) -> Result<StoredSettings> {
    StoredSettings::decode(&found.value).map_err(VolumeError::wrap_decode_error("the settings of the volume"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(fields: &[(&str, i64, Option<&[&str]>)]) -> StoredSettings {
        let field = |set: &i64, values: &Option<&[&str]>| StoredSetting {
            set: UnixTime { secs: *set, nanos: 0 },
            values: values.map(|values| values.iter().map(|value| (*value).into()).collect()),
        };
        let fields = fields.iter().map(|(name, set, values)| ((*name).into(), field(set, values)));
        StoredSettings { fields: fields.collect() }
    }

    #[test]
    fn settings_are_read_as_they_were_written_and_in_no_other_form() {
        let first = settings(&[("a", 0, Some(&[])), ("b.c", 0, Some(&["1", "2"])), ("d", 0, Some(&["x"]))]);
        let second = settings(&[("a", 5, None), ("b.c", 0, Some(&["1", "2"])), ("d", 7, Some(&["x"]))]);
        for (version, settings) in [(1, first), (2, second)] {
            let bytes = settings.encode();
            assert_eq!(bytes[0], version);
            assert_eq!(StoredSettings::decode(&bytes), Ok(settings));
            assert!((0..bytes.len()).all(|len| StoredSettings::decode(&bytes[..len]).is_err()));
            assert!(StoredSettings::decode(&[&bytes[..], b"x"].concat()).is_err());
        }
        assert_eq!(StoredSettings::decode(&[3]), Err(DecodeError::Version(3)));
        assert!(StoredSettings::decode(b"\x01\x02\x01b\0\x01a\0").is_err());
        assert!(StoredSettings::decode(b"\x01\x02\x01a\0\x01a\0").is_err());
        // Without times, there is the first form only.
        assert!(StoredSettings::decode(b"\x02\0").is_err());
    }

    #[test]
    fn the_later_of_two_counts_and_no_store_sets_a_command() {
        let daily: Option<&[&str]> = Some(&["7"]);
        let mut here = settings(&[("retention.keep-daily", 5, daily), ("safety.keep-last", 9, Some(&["4"]))]);
        let there = settings(&[
            ("author", 20, Some(&["eve"])),
            ("hooks.after-snapshot", 20, Some(&["rm -rf ~"])),
            ("newer.than-this", 20, Some(&["x"])),
            ("retention.keep-daily", 6, None),
            ("retention.keep-last", 3, Some(&["many"])),
            ("retention.keep-weekly", 3, Some(&["2"])),
            ("safety.keep-last", 8, Some(&["1"])),
            ("ui.pager", 20, Some(&["sh -c evil"])),
        ]);
        assert!(here.merge(&there));
        let expected = settings(&[
            ("retention.keep-daily", 6, None),
            ("retention.keep-weekly", 3, Some(&["2"])),
            ("safety.keep-last", 9, Some(&["4"])),
        ]);
        assert_eq!(here, expected);
        assert!(!here.merge(&there));
    }

    #[test]
    fn what_is_set_again_is_later_also_by_a_clock_that_is_behind() {
        let future = i64::MAX / 4;
        let mut changed = settings(&[("retention.keep-last", future, Some(&["3"]))]);
        assert!(!changed.change("retention.keep-last", Some(&["3".into()])));
        assert!(changed.change("retention.keep-last", None));
        assert_eq!(changed, settings(&[("retention.keep-last", future + 1, None)]));
        let back = changed.renew(&settings(&[("retention.keep-last", 1, Some(&["3"]))]));
        assert_eq!(back, settings(&[("retention.keep-last", future + 2, Some(&["3"]))]));
    }
}

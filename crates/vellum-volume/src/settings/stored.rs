//! The settings of a volume: one ref, changed by compare-and-swap.
//!
//! Invariant: settings that this version does not know are kept; a form that it does not know is refused and kept.

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use super::table::{VALUE_MAX, VALUES_MAX};
use super::{SettingScope, SettingValues, find_setting};
use crate::error::{Result, VolumeError};
use crate::refs::{RefKind, StoredRef, VOLUME_SETTINGS};
use crate::volume::Volume;

const VERSION: u8 = 1;
/// Most settings of a volume: several times as many as there are.
const SETTINGS_MAX: usize = 256;
/// Longest name of a setting, bytes.
const NAME_MAX: usize = 64;

/// The settings that a volume has, also those that this version does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredSettings {
    /// By name.
    pub values: SettingValues,
}

impl StoredSettings {
    /// The value of the ref.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_varint(self.values.len() as u64);
        for (name, values) in &self.values {
            writer.write_bytes(name.as_bytes()).write_varint(values.len() as u64);
            for value in values {
                writer.write_bytes(value.as_bytes());
            }
        }
        writer.into_vec()
    }

    /// Reads the value of the ref.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        match reader.read_u8()? {
            VERSION => {}
            other => return Err(DecodeError::Version(u32::from(other))),
        }
        let mut values = SettingValues::new();
        for _ in 0..reader.read_count(SETTINGS_MAX)? {
            let name = reader.read_string(NAME_MAX)?.to_owned();
            // In one order: equal settings have equal bytes.
            if values.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(DecodeError::Invalid("order of settings"));
            }
            let own = (0..reader.read_count(VALUES_MAX)?)
                .map(|_| Ok(reader.read_string(VALUE_MAX)?.to_owned()))
                .collect::<std::result::Result<_, DecodeError>>()?;
            values.insert(name, own);
        }
        reader.expect_end()?;
        Ok(Self { values })
    }
}

impl Volume {
    /// The settings of the volume.
    pub fn read_settings(&self) -> Result<StoredSettings> {
        let found = self.refs.get_ref(RefKind::Settings, VOLUME_SETTINGS)?;
        Ok(found.as_ref().map(decode_settings).transpose()?.unwrap_or_default())
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
            let before = match values {
                Some(values) => settings.values.insert(name.into(), values.to_vec()),
                None => settings.values.remove(name),
            };
            is_changed = before.as_deref() != values;
            if settings.values.len() > SETTINGS_MAX {
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

    #[test]
    fn settings_are_read_as_they_were_written_and_in_no_other_form() {
        let text = |text: &str| text.to_owned();
        let settings = StoredSettings {
            values: [
                (text("a"), vec![]),
                (text("b.c"), vec![text("1"), text("2")]),
                (text("d"), vec![text("x")]),
            ]
            .into(),
        };
        let bytes = settings.encode();
        assert_eq!(StoredSettings::decode(&bytes), Ok(settings));
        assert!((0..bytes.len()).all(|len| StoredSettings::decode(&bytes[..len]).is_err()));
        assert_eq!(StoredSettings::decode(&[2]), Err(DecodeError::Version(2)));
        assert!(StoredSettings::decode(b"\x01\x02\x01b\0\x01a\0").is_err());
        assert!(StoredSettings::decode(b"\x01\x02\x01a\0\x01a\0").is_err());
    }
}

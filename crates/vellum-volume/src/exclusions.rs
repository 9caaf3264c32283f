//! What snapshots of a worktree leave out, as the commands say that make them.
//!
//! Deliberately absent: where it is kept, and how it is applied, which checked-out directories and mounts do differently.

use serde::{Deserialize, Serialize};
use vellum_types::{DecodeError, FieldReader, FieldWriter};

/// Version of the stored form.
const VERSION: u8 = 1;
/// Most patterns that are kept: a command line has room for fewer.
const PATTERNS_MAX: usize = 1 << 20;

/// What a snapshot leaves out, beside what ignore files say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotExclusions {
    /// Patterns of gitignore, relative to the root.
    pub patterns: Vec<String>,
    /// What is mounted below the root, or a path that is named.
    pub other_file_systems: bool,
    /// What is in directories that are marked as caches.
    pub caches: bool,
}

impl SnapshotExclusions {
    /// Whether nothing is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What either leaves out.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        Self {
            patterns: self.patterns.iter().chain(&other.patterns).cloned().collect(),
            other_file_systems: self.other_file_systems || other.other_file_systems,
            caches: self.caches || other.caches,
        }
    }

    /// The form in which a live worktree stores it: version (1 byte), number of patterns, the patterns, a byte each for the two
    /// options.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_varint(self.patterns.len() as u64);
        for pattern in &self.patterns {
            writer.write_bytes(pattern.as_bytes());
        }
        writer.write_u8(self.other_file_systems.into()).write_u8(self.caches.into());
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        reader.expect_version(VERSION)?;
        let patterns = (0..reader.read_count(PATTERNS_MAX)?)
            .map(|_| reader.read_string(usize::MAX).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        let other_file_systems = read_flag(&mut reader)?;
        let caches = read_flag(&mut reader)?;
        reader.expect_end()?;
        Ok(Self { patterns, other_file_systems, caches })
    }
}

fn read_flag(reader: &mut FieldReader<'_>) -> Result<bool, DecodeError> {
    match reader.read_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid("option")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_back_and_what_is_cut_or_longer_is_refused() {
        let kept = SnapshotExclusions {
            patterns: vec!["*.o".into(), "!keep.o".into()],
            other_file_systems: false,
            caches: true,
        };
        let bytes = kept.encode();
        assert_eq!(SnapshotExclusions::decode(&bytes), Ok(kept));
        for end in 0..bytes.len() {
            assert!(SnapshotExclusions::decode(&bytes[..end]).is_err(), "{end}");
        }
        assert!(SnapshotExclusions::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }
}

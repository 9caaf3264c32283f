//! Values of tags, pins, notes and settings: when two of them say the same, and what is written to go back to one.
//!
//! Pins and notes of two stores are merged by their times: what goes back to an earlier value is said now, so that it counts
//! there, too.

use crate::annotation::SnapshotAnnotation;
use crate::error::Result;
use crate::refs::RefKind;
use crate::settings::StoredSettings;
use crate::snapshot_pin::SnapshotPin;

/// Whether two values of a ref mean the same, whoever said it and when.
pub(super) fn is_same_value(kind: RefKind, one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    let is_same = match kind {
        RefKind::Pin => decode_pin(one).and_then(|one| Ok(one.is_same_pin(&decode_pin(other)?))),
        RefKind::Annotation => {
            decode_annotation(one).and_then(|one| Ok(one.is_same_annotation(&decode_annotation(other)?)))
        }
        RefKind::Settings => {
            decode_settings(one).and_then(|one| Ok(one.values() == decode_settings(other)?.values()))
        }
        RefKind::Tag | RefKind::Worktree | RefKind::Chain => Ok(false),
    };
    // What cannot be read is the same as nothing else.
    is_same.unwrap_or(false)
}

/// The value of a ref that now says `present`, and is to say what `wanted` does; empty if it is to be removed.
pub(super) fn renew_value(kind: RefKind, present: &[u8], wanted: &[u8]) -> Result<Vec<u8>> {
    let decoded = match kind {
        RefKind::Pin => {
            decode_pin(present).and_then(|present| Ok(present.renew(&decode_pin(wanted)?).encode()))
        }
        RefKind::Annotation => decode_annotation(present)
            .and_then(|present| Ok(present.renew(&decode_annotation(wanted)?).encode())),
        RefKind::Settings => {
            decode_settings(present).and_then(|present| Ok(present.renew(&decode_settings(wanted)?).encode()))
        }
        RefKind::Tag | RefKind::Worktree | RefKind::Chain => Ok(wanted.to_vec()),
    };
    decoded.map_err(crate::error::VolumeError::wrap_decode_error(format!("a {}", kind.display_name())))
}

type Decoded<T> = Result<T, vellum_types::DecodeError>;

/// What a removed ref says: that nothing is pinned.
fn decode_pin(value: &[u8]) -> Decoded<SnapshotPin> {
    if value.is_empty() { Ok(SnapshotPin::none()) } else { SnapshotPin::decode(value) }
}

fn decode_annotation(value: &[u8]) -> Decoded<SnapshotAnnotation> {
    if value.is_empty() { Ok(SnapshotAnnotation::default()) } else { SnapshotAnnotation::decode(value) }
}

fn decode_settings(value: &[u8]) -> Decoded<StoredSettings> {
    if value.is_empty() { Ok(StoredSettings::default()) } else { StoredSettings::decode(value) }
}

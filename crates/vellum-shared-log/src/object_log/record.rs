//! Objects of the log in an object store: one append each, and their keys.
//!
//! Invariant: an object says itself where it belongs, so that one under a wrong key, or a truncated one, is not taken
//! for part of the log. The bytes of the append are the caller's, and sealed.

use vellum_store::ObjectKey;
use vellum_types::{DecodeError, FieldReader, FieldWriter};
use xxhash_rust::xxh3::xxh3_64;

use crate::log::{APPEND_MAX, LogEpoch, LogIncarnation, LogPosition};

/// What an object begins with.
const MAGIC: [u8; 7] = *b"vlm-log";
/// Version of the format.
const VERSION: u8 = 1;
/// Bytes before those of the append: magic, version, incarnation, epoch, position, checksum.
pub(super) const HEADER_LEN: u64 = 7 + 1 + 16 + 8 + 8 + 8;
/// Longest object, bytes.
pub(super) const RECORD_MAX: u64 = HEADER_LEN + APPEND_MAX as u64;

/// The place of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordPlace {
    /// The epoch under which it was stored.
    pub epoch: LogEpoch,
    /// Where it begins.
    pub at: LogPosition,
}

/// One append, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogRecord<'a> {
    /// The log that it belongs to.
    pub incarnation: LogIncarnation,
    /// Where it belongs.
    pub place: RecordPlace,
    /// The bytes of the append.
    pub bytes: &'a [u8],
}

impl<'a> LogRecord<'a> {
    /// Encodes the object (docs/format.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_raw(&MAGIC).write_u8(VERSION).write_raw(&self.incarnation.0);
        writer.write_u64(self.place.epoch.0).write_u64(self.place.at.0);
        writer.write_u64(xxh3_64(self.bytes)).write_raw(self.bytes);
        writer.into_vec()
    }

    /// Decodes what [`Self::encode`] wrote.
    pub fn decode(object: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(object);
        if reader.read_array()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        match reader.read_u8()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other.into())),
        }
        let incarnation = LogIncarnation(reader.read_array()?);
        let epoch = LogEpoch(reader.read_u64()?);
        let at = LogPosition(reader.read_u64()?);
        let checksum = reader.read_u64()?;
        let bytes = reader.read_rest();
        if bytes.is_empty() {
            return Err(DecodeError::Truncated);
        }
        // The bytes are sealed, so that this has to find accidents only, and may be fast.
        if xxh3_64(bytes) != checksum {
            return Err(DecodeError::Invalid("checksum of an append"));
        }
        Ok(Self { incarnation, place: RecordPlace { epoch, at }, bytes })
    }
}

/// The folder of the objects of an epoch. `folder` is that of the worktree.
pub(super) fn epoch_folder(folder: &str, incarnation: LogIncarnation, epoch: LogEpoch) -> String {
    format!("{folder}/{incarnation}/{:016x}", epoch.0)
}

/// The text of the key of an append.
pub(super) fn record_key_text(folder: &str, incarnation: LogIncarnation, place: RecordPlace) -> String {
    format!("{}/{:016x}", epoch_folder(folder, incarnation, place.epoch), place.at.0)
}

/// The log and the place that a key names; None if it is not the key of an append.
pub(super) fn parse_record_key(folder: &str, key: &ObjectKey) -> Option<(LogIncarnation, RecordPlace)> {
    let rest = key.as_str().strip_prefix(folder)?.strip_prefix('/')?;
    let mut parts = rest.split('/');
    let incarnation = parse_incarnation(parts.next()?)?;
    let epoch = LogEpoch(parse_number(parts.next()?)?);
    let at = LogPosition(parse_number(parts.next()?)?);
    parts.next().is_none().then_some((incarnation, RecordPlace { epoch, at }))
}

fn parse_incarnation(text: &str) -> Option<LogIncarnation> {
    // The length in characters is that in bytes: only digits pass.
    let high = parse_number(text.get(..16)?)?;
    let low = parse_number(text.get(16..)?)?;
    Some(LogIncarnation(((u128::from(high) << 64) | u128::from(low)).to_be_bytes()))
}

fn parse_number(text: &str) -> Option<u64> {
    // `from_str_radix` takes a sign and capital letters as well, which no key has.
    let is_plain = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_plain { u64::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{HEADER_LEN, LogRecord, RecordPlace, parse_record_key, record_key_text};
    use crate::log::{LogEpoch, LogIncarnation, LogPosition};
    use vellum_store::ObjectKey;

    const PLACE: RecordPlace = RecordPlace { epoch: LogEpoch(3), at: LogPosition(1 << 33) };

    #[test]
    fn an_append_is_decoded_as_it_was_and_otherwise_refused() {
        let record = LogRecord { incarnation: LogIncarnation([5; 16]), place: PLACE, bytes: b"content" };
        let object = record.encode();
        assert_eq!(object.len() as u64, HEADER_LEN + 7);
        assert_eq!(LogRecord::decode(&object).unwrap(), record);
        for len in 0..object.len() {
            assert!(LogRecord::decode(&object[..len]).is_err(), "{len} bytes");
        }
        for place in [0, 7, object.len() - 1] {
            let mut changed = object.clone();
            changed[place] ^= 1;
            assert!(LogRecord::decode(&changed).is_err(), "byte {place}");
        }
    }

    #[test]
    fn a_key_names_one_place() {
        let incarnation = LogIncarnation([0xa7; 16]);
        let text = record_key_text("live/w", incarnation, PLACE);
        assert_eq!(text, format!("live/w/{}/0000000000000003/0000000200000000", "a7".repeat(16)));
        let parse = |text: &str| parse_record_key("live/w", &ObjectKey::new(text).unwrap());
        assert_eq!(parse(&text), Some((incarnation, PLACE)));
        for other in [
            text.to_uppercase(),
            text.replace("/w/", "/v/"),
            text.replace("0003/", "003/"),
            format!("{text}0"),
            format!("{text}/0"),
            "live/w/clock/0000000000000003".to_owned(),
        ] {
            assert_eq!(parse(&other), None, "{other}");
        }
    }
}

//! The content of one frame of the journal.
//!
//! Transaction: kind 1, u8 ‖ sequence, u64 ‖ number of dropped prefixes, varint ‖ each: length, varint, and bytes ‖
//! changes up to the end, each: length of the key, varint ‖ key ‖ 0 for a removal, or length of the value plus one,
//! varint ‖ value. Prefixes go before keys are changed.
//!
//! Mark: kind 2, u8 ‖ sequence, u64: all transactions up to this one were durable when the mark was written.

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use crate::store::ValueBytes;

const TRANSACTION: u8 = 1;
const MARK: u8 = 2;
/// Bytes of a mark, always.
pub(crate) const MARK_LEN: usize = 9;

/// A change of one key: its new value, or None if it goes.
pub(crate) type KeyChange = (Vec<u8>, Option<ValueBytes>);

/// What a transaction changed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct TransactionChanges {
    /// Prefixes whose keys all went, before anything else.
    pub dropped: Vec<Vec<u8>>,
    /// Changed keys.
    pub changes: Vec<KeyChange>,
}

/// A frame of the journal, decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JournalRecord {
    /// A committed transaction and its place in the order.
    Transaction(u64, TransactionChanges),
    /// Everything up to this place was durable.
    Mark(u64),
}

/// Appends the body of a transaction's frame.
pub(crate) fn encode_transaction<'a>(
    out: &mut Vec<u8>,
    sequence: u64,
    dropped: &[Vec<u8>],
    changes: impl Iterator<Item = (&'a [u8], Option<&'a ValueBytes>)>,
) {
    let mut writer = FieldWriter::from_vec(std::mem::take(out));
    writer.write_u8(TRANSACTION).write_u64(sequence).write_varint(dropped.len() as u64);
    for prefix in dropped {
        writer.write_bytes(prefix);
    }
    for (key, value) in changes {
        writer.write_bytes(key);
        match value {
            // The length plus one, so that 0 stands for a removal and an empty value is possible.
            None => writer.write_varint(0),
            Some(value) => writer.write_varint(value.len() as u64 + 1).write_raw(value),
        };
    }
    *out = writer.into_vec();
}

/// Appends the body of a mark's frame.
pub(crate) fn encode_mark(out: &mut Vec<u8>, sequence: u64) {
    out.push(MARK);
    out.extend_from_slice(&sequence.to_le_bytes());
}

/// Reads the body of a frame.
pub(crate) fn decode_record(body: &[u8]) -> Result<JournalRecord, DecodeError> {
    let mut reader = FieldReader::new(body);
    let kind = reader.read_u8()?;
    let sequence = reader.read_u64()?;
    match kind {
        MARK => {
            reader.expect_end()?;
            Ok(JournalRecord::Mark(sequence))
        }
        TRANSACTION => Ok(JournalRecord::Transaction(sequence, decode_changes(reader)?)),
        _ => Err(DecodeError::Invalid("kind")),
    }
}

fn decode_changes(mut reader: FieldReader<'_>) -> Result<TransactionChanges, DecodeError> {
    let max = reader.remaining();
    let dropped = (0..reader.read_count(max)?).map(|_| Ok(reader.read_bytes(max)?.to_vec()));
    let dropped = dropped.collect::<Result<_, DecodeError>>()?;
    let mut changes = Vec::new();
    while reader.remaining() > 0 {
        let key = reader.read_bytes(max)?.to_vec();
        let value = match reader.read_varint()?.checked_sub(1) {
            None => None,
            Some(len) => {
                Some(reader.read_raw(usize::try_from(len).map_err(|_| DecodeError::Truncated)?)?.into())
            }
        };
        changes.push((key, value));
    }
    Ok(TransactionChanges { dropped, changes })
}

/// Decodes any bytes; what decodes must encode to the same.
pub(crate) fn fuzz_record(body: &[u8]) {
    let mut out = Vec::new();
    match decode_record(body) {
        Err(_) => return,
        Ok(JournalRecord::Mark(sequence)) => encode_mark(&mut out, sequence),
        Ok(JournalRecord::Transaction(sequence, TransactionChanges { dropped, changes })) => {
            let changes = changes.iter().map(|(key, value)| (key.as_slice(), value.as_ref()));
            encode_transaction(&mut out, sequence, &dropped, changes);
        }
    }
    assert_eq!(out, body, "one record has one encoding");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_read_back() {
        let changes = TransactionChanges {
            dropped: vec![b"l".to_vec(), Vec::new()],
            changes: vec![
                (b"a".to_vec(), None),
                (b"b".to_vec(), Some([].into())),
                (vec![], Some([7; 300].into())),
            ],
        };
        let mut out = Vec::new();
        let entries = changes.changes.iter().map(|(key, value)| (key.as_slice(), value.as_ref()));
        encode_transaction(&mut out, 42, &changes.dropped, entries);
        assert_eq!(decode_record(&out), Ok(JournalRecord::Transaction(42, changes)));
        for len in 0..out.len() {
            let _ = decode_record(&out[..len]);
        }
    }

    #[test]
    fn a_mark_has_its_length() {
        let mut out = Vec::new();
        encode_mark(&mut out, u64::MAX);
        assert_eq!(out.len(), MARK_LEN);
        assert_eq!(decode_record(&out), Ok(JournalRecord::Mark(u64::MAX)));
        out.push(0);
        assert_eq!(decode_record(&out), Err(DecodeError::Trailing));
    }
}

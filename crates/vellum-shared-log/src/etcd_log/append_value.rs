//! What etcd holds of one append: its bytes, or where its parts are.

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use crate::log::APPEND_MAX;

/// Bytes of a part: etcd takes requests of 1.5 MiB, with everything that is in them.
pub(super) const PART_LEN: usize = 1 << 20;

/// The value of an append's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AppendValue {
    /// The bytes.
    Whole(Vec<u8>),
    /// The parts, which were stored before.
    Parts {
        /// Tells apart the parts of attempts at one position.
        attempt: u64,
        /// Bytes of all parts.
        len: usize,
    },
}

impl AppendValue {
    /// Encodes the value (docs/format.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        match self {
            Self::Whole(bytes) => writer.write_u8(0).write_raw(bytes),
            Self::Parts { attempt, len } => writer.write_u8(1).write_u64(*attempt).write_u64(*len as u64),
        };
        writer.into_vec()
    }

    /// Decodes what [`Self::encode`] wrote.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(value);
        match reader.read_u8()? {
            0 => match reader.read_rest() {
                // An append of nothing is not stored.
                [] => Err(DecodeError::Truncated),
                bytes => Ok(Self::Whole(bytes.to_vec())),
            },
            1 => {
                let attempt = reader.read_u64()?;
                let len = usize::try_from(reader.read_u64()?).ok().filter(|len| *len <= APPEND_MAX);
                let len = len.filter(|len| *len > 0).ok_or(DecodeError::Invalid("length of an append"))?;
                reader.expect_end()?;
                Ok(Self::Parts { attempt, len })
            }
            _ => Err(DecodeError::Invalid("kind of an append")),
        }
    }
}

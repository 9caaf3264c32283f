//! The record of an entry of the trash: where it was, and who removed it when.

use vellum_types::key::check_name;
use vellum_types::{DecodeError, FieldReader, FieldWriter, UnixTime};

/// The extended attribute of an entry that holds its record. It has no namespace, so no file can have brought it along.
pub(crate) const RECORD_NAME: &[u8] = b"vellum-trash";
/// Longest path of an entry, bytes: below the limit of an attribute. What lies deeper is not kept.
pub(crate) const PATH_MAX: usize = 32 << 10;

const VERSION: u8 = 1;

/// Where an entry of the trash was, and who removed it when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashRecord {
    /// Its path, from the root of the worktree, without a slash in front.
    pub path: Vec<u8>,
    /// The user who removed it.
    pub uid: u32,
    /// When.
    pub removed: UnixTime,
}

impl TrashRecord {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_bytes(&self.path).write_varint(u64::from(self.uid));
        self.removed.encode(&mut writer);
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let version = reader.read_u8()?;
        if version != VERSION {
            return Err(DecodeError::Version(u32::from(version)));
        }
        let path = reader.read_bytes(PATH_MAX)?.to_vec();
        // Anything else could lead out of the worktree, or to its root.
        if path.split(|byte| *byte == b'/').any(|name| check_name(name).is_err()) {
            return Err(DecodeError::Invalid("path"));
        }
        let uid = reader.read_varint_u32()?;
        let removed = UnixTime::decode(&mut reader)?;
        reader.expect_end()?;
        Ok(Self { path, uid, removed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &[u8]) -> TrashRecord {
        TrashRecord { path: path.to_vec(), uid: 1000, removed: UnixTime { secs: 1_700_000_000, nanos: 5 } }
    }

    #[test]
    fn a_record_is_read_back() {
        let whole = record(b"dir/\xff").encode();
        assert_eq!(whole, b"\x01\x05dir/\xff\xe8\x07\x80\xc4\x9f\xd5\x0c\x05");
        assert_eq!(TrashRecord::decode(&whole), Ok(record(b"dir/\xff")));
        for len in 0..whole.len() {
            assert!(TrashRecord::decode(&whole[..len]).is_err(), "{len} bytes");
        }
        assert!(TrashRecord::decode(&[&whole[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        for path in [&b""[..], b"/etc/passwd", b"../up", b"a/../b", b"a//b", b"a/", b"./a", b"a/\0"] {
            assert!(TrashRecord::decode(&record(path).encode()).is_err(), "{path:?}");
        }
        let long = vec![b'x'; PATH_MAX + 1];
        assert!(TrashRecord::decode(&record(&long).encode()).is_err());
    }
}

//! The trash of a mounted worktree as it is stored: a tree in whose root directory each entry has its number as its name,
//! and a record of where it was, who removed it, and when.
//!
//! Deliberately absent: what moves entries there and back.

use vellum_types::key::check_name;
use vellum_types::{DecodeError, FieldReader, FieldWriter, FileKind, Ino, MapKey, UnixTime};

use crate::error::{Result, VolumeError};
use crate::tree::FsTree;

/// The extended attribute of an entry that holds its record. It has no namespace, so no file can have brought it along.
pub const TRASH_RECORD_NAME: &[u8] = b"vellum-trash";
/// Longest path of an entry, bytes: below the limit of an attribute. What lies deeper is not kept.
pub const TRASH_PATH_MAX: usize = 32 << 10;

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
        reader.expect_version(VERSION)?;
        let path = reader.read_bytes(TRASH_PATH_MAX)?.to_vec();
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

/// An entry of the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashEntry {
    /// Its number, by which it is restored.
    pub number: Ino,
    /// Where it was, and who removed it when.
    pub record: TrashRecord,
    /// What it is.
    pub kind: FileKind,
    /// Bytes of content of a file, holes included; otherwise 0.
    pub size: u64,
}

/// Returns the entries of a published trash, in the order in which they were removed.
pub fn list_trash_entries(tree: &FsTree) -> Result<Vec<TrashEntry>> {
    let mut numbers: Vec<Ino> =
        tree.list_entries(Ino::ROOT)?.into_iter().map(|(_, dentry)| dentry.ino).collect();
    numbers.sort_unstable();
    numbers.into_iter().filter_map(|number| read_trash_entry(tree, number).transpose()).collect()
}

fn read_trash_entry(tree: &FsTree, number: Ino) -> Result<Option<TrashEntry>> {
    let Some(attr) = tree.inode_attr(number)? else { return Ok(None) };
    let Some(record) = read_trash_record(tree, number)? else { return Ok(None) };
    let size = if attr.kind == FileKind::File { attr.size } else { 0 };
    Ok(Some(TrashEntry { number, record, kind: attr.kind, size }))
}

/// Returns the record of an entry of a published trash, if it has one.
pub fn read_trash_record(tree: &FsTree, number: Ino) -> Result<Option<TrashRecord>> {
    let Some(record) = tree.get_value(&MapKey::for_xattr(number, TRASH_RECORD_NAME))? else {
        return Ok(None);
    };
    let decoded = TrashRecord::decode(&record);
    Ok(Some(decoded.map_err(VolumeError::wrap_decode_error(format!("entry {number} of the trash")))?))
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
        let long = vec![b'x'; TRASH_PATH_MAX + 1];
        assert!(TrashRecord::decode(&record(&long).encode()).is_err());
    }
}

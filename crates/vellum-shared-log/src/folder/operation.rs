//! One change of a file or a name, as a record of the log holds it.
//!
//! A record is a sequence of operations. Each: kind, u8 ‖ fields (docs/format.md). Files have numbers, because a file that
//! is renamed or removed while it is open stays the same file.

use vellum_types::{DecodeError, FieldReader, FieldWriter};

/// Longest name of a file, bytes: the engine and the write log use names of some 30.
const NAME_MAX: usize = 255;
/// Most bytes of one write: longer ones are split, so that a record has a bounded length.
pub(crate) const WRITE_MAX: usize = 1 << 20;

const NAME: u8 = 1;
const REMOVE: u8 = 2;
const RENAME: u8 = 3;
const WRITE: u8 = 4;
const ZEROS: u8 = 5;
const SET_LEN: u8 = 6;
const BASE_BEGIN: u8 = 7;
const BASE_END: u8 = 8;

/// The number of a file, unique from one complete base to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub(crate) u64);

/// One of the two folders of a live worktree whose changes a log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoggedFolder {
    /// The files of the live metadata.
    Metadata,
    /// The segments of the write log.
    WriteLog,
}

impl LoggedFolder {
    fn as_byte(self) -> u8 {
        match self {
            Self::Metadata => 1,
            Self::WriteLog => 2,
        }
    }

    fn from_byte(byte: u8) -> Result<Self, DecodeError> {
        match byte {
            1 => Ok(Self::Metadata),
            2 => Ok(Self::WriteLog),
            _ => Err(DecodeError::Invalid("folder")),
        }
    }
}

/// A change, or the beginning or end of a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FolderOperation<'a> {
    /// A name stands for a file from now on. A file that is not known yet is empty.
    Name { folder: LoggedFolder, name: &'a str, file: FileNumber },
    /// A name stands for nothing any more.
    Remove { folder: LoggedFolder, name: &'a str },
    /// A file gets another name, and replaces what had it.
    Rename { folder: LoggedFolder, from: &'a str, to: &'a str, file: FileNumber },
    /// Bytes of a file.
    Write { file: FileNumber, offset: u64, bytes: &'a [u8] },
    /// Zeros in a file: what is written ahead of its use would otherwise take as much of the log as what is used.
    Zeros { file: FileNumber, offset: u64, len: u64 },
    /// The length of a file.
    SetLen { file: FileNumber, len: u64 },
    /// From here to the end of the base, all files are repeated. `is_new`: what was before does not belong to it, and
    /// its numbers of files mean nothing any more.
    BaseBegin { is_new: bool },
    /// All files have been repeated.
    BaseEnd,
}

impl<'a> FolderOperation<'a> {
    /// Appends the operation.
    pub(crate) fn encode(&self, writer: &mut FieldWriter) {
        match *self {
            Self::Name { folder, name, file } => {
                writer.write_u8(NAME).write_u8(folder.as_byte()).write_bytes(name.as_bytes());
                writer.write_varint(file.0);
            }
            Self::Remove { folder, name } => {
                writer.write_u8(REMOVE).write_u8(folder.as_byte()).write_bytes(name.as_bytes());
            }
            Self::Rename { folder, from, to, file } => {
                writer.write_u8(RENAME).write_u8(folder.as_byte()).write_bytes(from.as_bytes());
                writer.write_bytes(to.as_bytes()).write_varint(file.0);
            }
            Self::Write { file, offset, bytes } => {
                writer.write_u8(WRITE).write_varint(file.0).write_varint(offset).write_bytes(bytes);
            }
            Self::Zeros { file, offset, len } => {
                writer.write_u8(ZEROS).write_varint(file.0).write_varint(offset).write_varint(len);
            }
            Self::SetLen { file, len } => {
                writer.write_u8(SET_LEN).write_varint(file.0).write_varint(len);
            }
            Self::BaseBegin { is_new } => {
                writer.write_u8(BASE_BEGIN).write_u8(is_new.into());
            }
            Self::BaseEnd => {
                writer.write_u8(BASE_END);
            }
        }
    }

    /// Reads the next operation.
    pub(crate) fn decode(reader: &mut FieldReader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.read_u8()? {
            NAME => Self::Name {
                folder: LoggedFolder::from_byte(reader.read_u8()?)?,
                name: decode_name(reader)?,
                file: FileNumber(reader.read_varint()?),
            },
            REMOVE => Self::Remove {
                folder: LoggedFolder::from_byte(reader.read_u8()?)?,
                name: decode_name(reader)?,
            },
            RENAME => Self::Rename {
                folder: LoggedFolder::from_byte(reader.read_u8()?)?,
                from: decode_name(reader)?,
                to: decode_name(reader)?,
                file: FileNumber(reader.read_varint()?),
            },
            WRITE => {
                let file = FileNumber(reader.read_varint()?);
                let offset = reader.read_varint()?;
                let bytes = reader.read_bytes(WRITE_MAX)?;
                check_end(offset, bytes.len() as u64)?;
                Self::Write { file, offset, bytes }
            }
            ZEROS => {
                let file = FileNumber(reader.read_varint()?);
                let offset = reader.read_varint()?;
                let len = reader.read_varint()?;
                check_end(offset, len)?;
                Self::Zeros { file, offset, len }
            }
            SET_LEN => {
                let file = FileNumber(reader.read_varint()?);
                let len = reader.read_varint()?;
                check_end(0, len)?;
                Self::SetLen { file, len }
            }
            BASE_BEGIN => match reader.read_u8()? {
                0 => Self::BaseBegin { is_new: false },
                1 => Self::BaseBegin { is_new: true },
                _ => return Err(DecodeError::Invalid("base")),
            },
            BASE_END => Self::BaseEnd,
            _ => return Err(DecodeError::Invalid("operation")),
        })
    }
}

/// A name is one component of a path: a log that was forged by whoever has the key must not lead out of the folder.
fn decode_name<'a>(reader: &mut FieldReader<'a>) -> Result<&'a str, DecodeError> {
    let name = reader.read_string(NAME_MAX)?;
    let is_component = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if is_component { Ok(name) } else { Err(DecodeError::Invalid("name of a file")) }
}

/// No file has bytes behind this.
fn check_end(offset: u64, len: u64) -> Result<(), DecodeError> {
    // System calls take offsets as signed numbers.
    let is_within = offset.checked_add(len).is_some_and(|end| i64::try_from(end).is_ok());
    if is_within { Ok(()) } else { Err(DecodeError::Invalid("offset")) }
}

/// Decodes any bytes as operations.
pub fn fuzz_operations(bytes: &[u8]) {
    let mut reader = FieldReader::new(bytes);
    while reader.remaining() > 0 {
        let before = reader.remaining();
        let Ok(operation) = FolderOperation::decode(&mut reader) else { return };
        let mut writer = FieldWriter::new();
        operation.encode(&mut writer);
        let start = bytes.len() - before;
        let end = bytes.len() - reader.remaining();
        assert_eq!(bytes.get(start..end), Some(writer.as_slice()), "there are two forms of {operation:?}");
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn decode_all(bytes: &[u8]) -> Result<Vec<FolderOperation<'_>>, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let mut operations = Vec::new();
        while reader.remaining() > 0 {
            operations.push(FolderOperation::decode(&mut reader)?);
        }
        Ok(operations)
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let file = FileNumber(300);
        let folder = LoggedFolder::WriteLog;
        let all = [
            FolderOperation::BaseBegin { is_new: true },
            FolderOperation::Name { folder: LoggedFolder::Metadata, name: "journal-1", file },
            FolderOperation::Write { file, offset: 7, bytes: b"bytes" },
            FolderOperation::Zeros { file, offset: 12, len: 1 << 40 },
            FolderOperation::SetLen { file, len: 5 },
            FolderOperation::BaseEnd,
            FolderOperation::Rename { folder, from: "a", to: "b", file },
            FolderOperation::Remove { folder, name: "b" },
        ];
        let mut writer = FieldWriter::new();
        all.iter().for_each(|operation| operation.encode(&mut writer));
        assert_eq!(decode_all(writer.as_slice()).unwrap(), all);
        fuzz_operations(writer.as_slice());
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in ["..", ".", "", "a/b", "/etc/passwd", "a\0b"] {
            let mut writer = FieldWriter::new();
            FolderOperation::Remove { folder: LoggedFolder::Metadata, name }.encode(&mut writer);
            assert!(decode_all(writer.as_slice()).is_err(), "{name:?}");
        }
    }

    #[test]
    fn no_file_is_longer_than_files_can_be() {
        let file = FileNumber(1);
        for operation in [
            FolderOperation::Zeros { file, offset: u64::MAX, len: 1 },
            FolderOperation::Zeros { file, offset: 0, len: 1 << 63 },
            FolderOperation::SetLen { file, len: u64::MAX },
            FolderOperation::Write { file, offset: i64::MAX as u64, bytes: b"x" },
        ] {
            let mut writer = FieldWriter::new();
            operation.encode(&mut writer);
            assert!(decode_all(writer.as_slice()).is_err(), "{operation:?}");
        }
    }
}

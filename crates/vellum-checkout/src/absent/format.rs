//! The bytes of the list of absent paths (docs/format.md).
//!
//! Invariant: a list that is not whole, or not in order, is an error, never a shorter list.

use vellum_types::key::check_name;
use vellum_types::{DecodeError, FieldReader, FieldWriter};
use vellum_volume::diff::is_path_within;

use super::{AbsentPaths, TreePath};

const MAGIC: &[u8; 8] = b"VLMABSNT";
const VERSION: u32 = 1;
/// Bytes of the checksum at the end: BLAKE3.
const CHECKSUM_LEN: usize = 32;
/// Most paths of a list: what fits in a few GiB of memory. A directory that is absent as a whole is one path.
const PATHS_MAX: usize = 16 << 20;
/// Longest path, bytes. Deeper trees can be absent as a whole.
const PATH_LEN_MAX: usize = 64 << 10;
/// Bytes of all paths together: what they share is stored once, and must not take memory without bound.
const TOTAL_LEN_MAX: usize = 2 << 30;

/// Why a list of absent paths cannot be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AbsentListError {
    /// Its bytes are not those of a list.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// Its checksum is wrong.
    #[error("its checksum is wrong")]
    Damaged,
    /// It is larger than a list may be.
    #[error("it would hold more than {PATHS_MAX} paths, or a path longer than {PATH_LEN_MAX} bytes")]
    TooLarge,
}

impl AbsentPaths {
    /// The bytes of the list.
    pub fn encode(&self) -> Result<Vec<u8>, AbsentListError> {
        let mut writer = FieldWriter::new();
        writer.write_raw(MAGIC).write_u32(VERSION).write_varint(self.len() as u64);
        let mut last: &[u8] = &[];
        let mut total = 0_usize;
        for path in self.iter() {
            let shared = path.iter().zip(last).take_while(|(a, b)| a == b).count();
            writer.write_varint(shared as u64).write_bytes(path.get(shared..).unwrap_or_default());
            total = total.saturating_add(path.len());
            if path.len() > PATH_LEN_MAX {
                return Err(AbsentListError::TooLarge);
            }
            last = path;
        }
        if self.len() > PATHS_MAX || total > TOTAL_LEN_MAX {
            return Err(AbsentListError::TooLarge);
        }
        let checksum = blake3::hash(writer.as_slice());
        writer.write_raw(checksum.as_bytes());
        Ok(writer.into_vec())
    }

    /// The list of some bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, AbsentListError> {
        let mut head = FieldReader::new(bytes);
        if head.read_array()? != *MAGIC {
            return Err(DecodeError::Magic.into());
        }
        // Before the checksum, of which another version may have another one, or in another place.
        match head.read_u32()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other).into()),
        }
        let content_len = bytes.len().checked_sub(CHECKSUM_LEN).ok_or(DecodeError::Truncated)?;
        let (content, checksum) = bytes.split_at_checked(content_len).ok_or(DecodeError::Truncated)?;
        if blake3::hash(content).as_bytes() != checksum {
            return Err(AbsentListError::Damaged);
        }
        let mut reader = FieldReader::new(content);
        reader.read_raw(MAGIC.len() + size_of_val(&VERSION))?;
        Ok(decode_paths(reader)?)
    }
}

fn decode_paths(mut reader: FieldReader<'_>) -> Result<AbsentPaths, DecodeError> {
    let count = reader.read_count(PATHS_MAX)?;
    let mut paths: Vec<TreePath> = Vec::with_capacity(count);
    let mut total = 0_usize;
    for _ in 0..count {
        let shared = usize::try_from(reader.read_varint()?).map_err(|_| DecodeError::Invalid("shared"))?;
        let last = paths.last().map_or(&[][..], |path| path.0.as_slice());
        let mut path = last.get(..shared).ok_or(DecodeError::Invalid("shared"))?.to_vec();
        path.extend_from_slice(reader.read_bytes(PATH_LEN_MAX)?);
        total = total.saturating_add(path.len());
        if path.len() > PATH_LEN_MAX || total > TOTAL_LEN_MAX {
            return Err(DecodeError::Invalid("path length"));
        }
        path.split(|byte| *byte == b'/').try_for_each(check_name)?;
        let path = TreePath(path);
        // `find_covering` looks at one path alone, which is right only as long as none lies below another.
        if paths.last().is_some_and(|last| *last >= path || is_path_within(&path.0, &last.0)) {
            return Err(DecodeError::Invalid("order"));
        }
        paths.push(path);
    }
    reader.expect_end()?;
    Ok(AbsentPaths { paths: paths.into_iter().collect() })
}

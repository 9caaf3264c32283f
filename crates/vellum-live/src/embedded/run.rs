//! A run: a file with the entries of one frozen group, sorted, never changed.
//!
//! Header and frames (`frame`). First the blocks, one frame each of about 4 KiB: entries one after the other, each:
//! bytes shared with the key before in this block, varint ‖ length of the rest of the key, varint, and bytes ‖ length
//! of the value, varint, and bytes. Keys are what follows the group's. Then a frame with the index: number of
//! blocks, varint ‖ each: length of its first key, varint, and bytes ‖ offset, varint ‖ length of the frame, varint.
//! Then a frame with the filter (`filter`). At the end of the file a frame with: length of the group's key, u8 ‖ that
//! key, padded with zeros to 9 bytes ‖ number of entries, u64 ‖ offset of the index, u64 ‖ offset of the filter, u64.
//!
//! Index and filter are in memory. A block is read and checked anew for each question: the callers' caches and the
//! system's lie above and beneath.

mod build;
mod filter;

use std::io;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use vellum_map::KeySpan;
use vellum_types::{DecodeError, FieldReader};

pub(crate) use build::RunBuilder;

use super::folder::{EngineFile, EngineFolder, wrap_io_error};
use super::frame::{self, BODY_MAX, FRAME_HEAD, FileHeader};
use super::journal::parse_numbered_name;
use super::suffix::{GROUP_LEN, GroupKey, split_key};
use crate::error::LiveError;
use crate::store::{ValueBytes, VisitScan};
use filter::RunFilter;

const MAGIC: [u8; 8] = *b"VLMLIVER";
const NAME: &str = "run-";
/// Bytes of the frame at the end.
const TRAILER_LEN: usize = FRAME_HEAD + 1 + GROUP_LEN + 3 * 8;

/// The name of a run's file.
pub(crate) fn format_run_name(number: u64) -> String {
    format!("{NAME}{number:016x}")
}

/// The number in the name of a run's file.
pub(crate) fn parse_run_number(name: &str) -> Option<u64> {
    parse_numbered_name(name, NAME)
}

/// Called with what follows the group in each key, and the value, until it breaks off.
type VisitRest<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// An open run.
pub(crate) struct SortedRun {
    pub number: u64,
    pub group: GroupKey,
    /// How many entries it has.
    pub entries: u64,
    /// Bytes of its file.
    pub len: u64,
    salt: u64,
    file: Arc<dyn EngineFile>,
    blocks: Vec<RunBlock>,
    filter: RunFilter,
    /// What messages call it.
    path: String,
}

struct RunBlock {
    first: Box<[u8]>,
    offset: u64,
    len: usize,
}

/// Why a file is no run.
enum RunFault {
    Io(io::Error),
    At(u64, DecodeError),
}

impl From<io::Error> for RunFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl SortedRun {
    /// Opens the run of a number. Its blocks are checked when they are read.
    pub(crate) fn open_run(folder: &dyn EngineFolder, number: u64) -> Result<Self, LiveError> {
        let name = format_run_name(number);
        let path = folder.describe_file(&name);
        let file = folder.open_file(&name).map_err(|error| match error.kind() {
            // A checkpoint names this run, so its file should be here.
            io::ErrorKind::NotFound => {
                LiveError::Damaged { path: path.clone(), what: "it is missing".into() }
            }
            _ => wrap_io_error(folder, "open", &name)(error),
        })?;
        Self::read_run(file, number, path.clone()).map_err(|fault| to_live_error(path, fault))
    }

    fn read_run(file: Arc<dyn EngineFile>, number: u64, path: String) -> Result<Self, RunFault> {
        let header = FileHeader::read_from_file(&*file, MAGIC)?.map_err(|what| RunFault::At(0, what))?;
        if header.number != number {
            return Err(RunFault::At(0, DecodeError::Invalid("number")));
        }
        let salt = header.salt;
        let len = file.size()?;
        // The trailer has a fixed length, so it is found from the end of the file.
        let at = len.checked_sub(TRAILER_LEN as u64).ok_or(RunFault::At(len, DecodeError::Truncated))?;
        let body = read_run_frame(&*file, salt, at, TRAILER_LEN)?;
        let trailer = RunTrailer::decode(&body).map_err(|what| RunFault::At(at, what))?;
        let index_len = trailer.filter.checked_sub(trailer.index);
        let filter_len = at.checked_sub(trailer.filter);
        let (Some(index_len), Some(filter_len)) = (index_len, filter_len) else {
            return Err(RunFault::At(at, DecodeError::Invalid("offset")));
        };
        let index = read_run_frame(&*file, salt, trailer.index, index_len as usize)?;
        let blocks =
            decode_run_index(&index, trailer.index).map_err(|what| RunFault::At(trailer.index, what))?;
        let filter =
            RunFilter::from_bytes(read_run_frame(&*file, salt, trailer.filter, filter_len as usize)?)
                .map_err(|what| RunFault::At(trailer.filter, what))?;
        let RunTrailer { group, entries, .. } = trailer;
        Ok(Self { number, group, entries, len, salt, file, blocks, filter, path })
    }

    /// Bytes of memory, about.
    pub(crate) fn memory_size(&self) -> usize {
        let index: usize = self.blocks.iter().map(|block| size_of::<RunBlock>() + block.first.len()).sum();
        index + self.filter.len()
    }

    /// The value under a key of the group.
    pub(crate) fn get_value(&self, rest: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        // The filter is in memory. It saves a read for nearly all keys that the run does not have.
        if !self.filter.may_contain(rest) {
            return Ok(None);
        }
        // The last block that begins at or before the key is the only one that can have it.
        let after = self.blocks.partition_point(|block| *block.first <= *rest);
        let Some(block) = after.checked_sub(1).and_then(|number| self.blocks.get(number)) else {
            return Ok(None);
        };
        let mut found = None;
        self.visit_block(block, &mut |key, value| {
            if key < rest {
                return ControlFlow::Continue(());
            }
            if key == rest {
                found = Some(value.into());
            }
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Visits the entries of a span that begins in the group.
    pub(crate) fn scan_span(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        let from = span.start.get(GROUP_LEN..).unwrap_or_default();
        let to = match span.end.as_deref().map(split_key) {
            Some((group, to)) if group == self.group => Bound::Excluded(to),
            _ => Bound::Unbounded,
        };
        if span.end.as_ref().is_none_or(|end| *end > span.start) {
            let _ = self.scan_entries(from, to, &mut self.group.as_bytes().to_vec(), visit)?;
        }
        Ok(())
    }

    /// Visits entries; `key` holds the group's part of their keys.
    pub(crate) fn scan_entries(
        &self,
        from: &[u8],
        to: Bound<&[u8]>,
        key: &mut Vec<u8>,
        visit: &mut VisitScan<'_>,
    ) -> Result<ControlFlow<()>, LiveError> {
        let start = key.len();
        // The block before may end with keys of the span.
        let first = self.blocks.partition_point(|block| *block.first <= *from).saturating_sub(1);
        for block in self.blocks.iter().skip(first) {
            let mut flow = ControlFlow::Continue(());
            let mut ended = false;
            self.visit_block(block, &mut |rest, value| {
                if rest < from {
                    return ControlFlow::Continue(());
                }
                ended = matches!(to, Bound::Excluded(to) if rest >= to);
                if ended {
                    return ControlFlow::Break(());
                }
                key.truncate(start);
                key.extend_from_slice(rest);
                flow = visit(key, &value.into());
                flow
            })?;
            if ended || flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn visit_block(&self, block: &RunBlock, visit: &mut VisitRest<'_>) -> Result<(), LiveError> {
        let visited = read_run_frame(&*self.file, self.salt, block.offset, block.len).and_then(|body| {
            visit_block_entries(&body, visit).map_err(|what| RunFault::At(block.offset, what))
        });
        visited.map_err(|fault| to_live_error(self.path.clone(), fault))
    }
}

fn to_live_error(path: String, fault: RunFault) -> LiveError {
    match fault {
        RunFault::Io(source) => LiveError::Io { action: "read", path, source },
        RunFault::At(offset, what) => LiveError::Damaged { path, what: format!("at byte {offset}: {what}") },
    }
}

/// The body of the frame of `len` bytes at `offset`.
fn read_run_frame(file: &dyn EngineFile, salt: u64, offset: u64, len: usize) -> Result<Vec<u8>, RunFault> {
    let at = |what| RunFault::At(offset, what);
    // A length from the file must not ask for any amount of memory.
    if len > BODY_MAX + FRAME_HEAD {
        return Err(at(DecodeError::Invalid("length")));
    }
    let mut bytes = vec![0; len];
    let count = file.read_at(&mut bytes, offset)?;
    bytes.truncate(count);
    let body = frame::decode_frame_body(&bytes, salt, offset).map_err(at)?;
    if body.len() + FRAME_HEAD != len {
        return Err(at(DecodeError::Trailing));
    }
    bytes.drain(..FRAME_HEAD);
    Ok(bytes)
}

/// Visits the entries of a block's body.
fn visit_block_entries(body: &[u8], visit: &mut VisitRest<'_>) -> Result<(), DecodeError> {
    let mut reader = FieldReader::new(body);
    let mut key = Vec::with_capacity(64);
    while reader.remaining() > 0 {
        let shared = usize::try_from(reader.read_varint()?).map_err(|_| DecodeError::Invalid("shared"))?;
        // Keys share their beginning with the one before in the same block, and never with one of another block.
        if shared > key.len() {
            return Err(DecodeError::Invalid("shared"));
        }
        key.truncate(shared);
        key.extend_from_slice(reader.read_bytes(body.len())?);
        let value = reader.read_bytes(body.len())?;
        if visit(&key, value).is_break() {
            break;
        }
    }
    Ok(())
}

fn decode_run_index(body: &[u8], end: u64) -> Result<Vec<RunBlock>, DecodeError> {
    let mut reader = FieldReader::new(body);
    let count = reader.read_count(body.len())?;
    let mut blocks: Vec<RunBlock> = Vec::with_capacity(count);
    for _ in 0..count {
        let first: Box<[u8]> = reader.read_bytes(body.len())?.into();
        let offset = reader.read_varint()?;
        let len = reader.read_varint()?;
        // Blocks lie before the index. The file may be forged, so no offset of it is believed.
        if offset.checked_add(len).is_none_or(|block_end| block_end > end) {
            return Err(DecodeError::Invalid("offset"));
        }
        if blocks.last().is_some_and(|before| before.first >= first) {
            return Err(DecodeError::Invalid("order"));
        }
        let len = usize::try_from(len).map_err(|_| DecodeError::Invalid("length"))?;
        blocks.push(RunBlock { first, offset, len });
    }
    reader.expect_end()?;
    Ok(blocks)
}

/// What stands at the end of the file.
struct RunTrailer {
    group: GroupKey,
    entries: u64,
    index: u64,
    filter: u64,
}

impl RunTrailer {
    fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(body);
        let len = usize::from(reader.read_u8()?);
        let padded: [u8; GROUP_LEN] = reader.read_array()?;
        let group = GroupKey::from_key(padded.get(..len).ok_or(DecodeError::Invalid("group"))?);
        let trailer = Self {
            group,
            entries: reader.read_u64()?,
            index: reader.read_u64()?,
            filter: reader.read_u64()?,
        };
        reader.expect_end()?;
        Ok(trailer)
    }
}

/// Decodes any bytes as a block.
pub(crate) fn fuzz_run_block(body: &[u8]) {
    let _ = visit_block_entries(body, &mut |_, _| ControlFlow::Continue(()));
}

/// Decodes any bytes as an index.
pub(crate) fn fuzz_run_index(body: &[u8]) {
    let _ = decode_run_index(body, u64::MAX);
}

/// Decodes any bytes as the frame at the end.
pub(crate) fn fuzz_run_trailer(body: &[u8]) {
    let _ = RunTrailer::decode(body);
}

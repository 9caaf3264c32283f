//! A checkpoint: a file with all entries in memory and the list of runs, which replaces older files of the journal.
//!
//! Header and frames (`frame`); the number is that of the first file of the journal that comes after. First a frame
//! with: kind 1, u8 ‖ `begin`, u64 ‖ number of runs, varint ‖ each: number, u64 ‖ length of its group's key, varint,
//! and bytes. Then frames with: kind 2, u8 ‖ entries to the end, each: length of the key, varint, and bytes ‖ length
//! of the value, varint, and bytes. At the end a frame with: kind 3, u8 ‖ `upto`, u64 ‖ number of entries, u64.
//!
//! Transactions go on while it is written: an entry is as it was at some moment from `begin` to `upto`, and whatever
//! changed in between is in the journal from the first file that comes after. So the entries are a state that
//! existed once the journal was carried out up to `upto`, which was durable before the checkpoint got its name.

use std::io;

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use super::folder::{EngineFolder, wrap_io_error};
use super::frame::{FileHeader, FrameIterator, FrameWriter, HEADER_LEN, NextFrame};
use super::groups::{KeyGroups, KeyValue};
use super::journal::parse_numbered_name;
use super::suffix::GroupKey;
use crate::error::LiveError;
use crate::store::ValueBytes;

const MAGIC: [u8; 8] = *b"VLMLIVEC";
const NAME: &str = "checkpoint-";
/// What a name ends with until the file is whole.
pub(crate) const UNFINISHED: &str = ".new";
const BEGIN: u8 = 1;
const ENTRIES: u8 = 2;
const END: u8 = 3;
/// Bytes of entries in one frame, about.
const FRAME_TARGET: usize = 64 << 10;

/// The name of a checkpoint.
pub(crate) fn format_checkpoint_name(number: u64) -> String {
    format!("{NAME}{number:016x}")
}

/// The number in the name of a checkpoint.
pub(crate) fn parse_checkpoint_number(name: &str) -> Option<u64> {
    parse_numbered_name(name, NAME)
}

/// The group and the number of a run.
pub(crate) type GroupRun = (GroupKey, u64);

/// What a checkpoint begins with.
#[derive(Debug, Default)]
pub(crate) struct CheckpointHeader {
    /// The last transaction before the first file of the journal that comes after.
    pub begin: u64,
    pub runs: Vec<GroupRun>,
}

/// Writes a checkpoint, and then gives it its name. `portion` brings some entries from a key on, none at the end;
/// `settle` is called after the last of them, and returns `upto`.
pub(crate) fn write_checkpoint(
    folder: &dyn EngineFolder,
    number: u64,
    beginning: &CheckpointHeader,
    portion: impl FnMut(&[u8]) -> Vec<KeyValue>,
    settle: impl FnOnce() -> Result<u64, LiveError>,
) -> Result<(), LiveError> {
    let name = format_checkpoint_name(number);
    let new = format!("{name}{UNFINISHED}");
    let io = wrap_io_error(folder, "write", &new);
    // Emptied if an attempt that failed has left one.
    let file = folder.create_file(&new).map_err(&io)?;
    let header = FileHeader::new(MAGIC, number).map_err(&io)?;
    let mut frames = FrameWriter::new(&*file, &header);
    frames.push_frame(&encode_header(beginning)).map_err(&io)?;
    let count = write_entries(&mut frames, portion).map_err(&io)?;
    // Entries were read while transactions went on: what they show becomes durable before they replace the journal
    // that would show it.
    let upto = settle()?;
    let mut end = FieldWriter::new();
    end.write_u8(END).write_u64(upto).write_u64(count);
    frames.push_frame(&end.into_vec()).and_then(|()| frames.finish_file()).map_err(&io)?;
    folder
        // Only under this name is it read. A crash before leaves an unfinished file, which is removed at the next
        // start.
        .rename_file(&new, &name)
        .and_then(|()| folder.sync_folder())
        .map_err(wrap_io_error(folder, "rename", &new))
}

fn encode_header(beginning: &CheckpointHeader) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    writer.write_u8(BEGIN).write_u64(beginning.begin).write_varint(beginning.runs.len() as u64);
    for (group, number) in &beginning.runs {
        writer.write_u64(*number).write_bytes(group.as_bytes());
    }
    writer.into_vec()
}

fn write_entries(
    frames: &mut FrameWriter<'_>,
    mut portion: impl FnMut(&[u8]) -> Vec<KeyValue>,
) -> io::Result<u64> {
    let mut count = 0;
    let mut from = Vec::new();
    let mut body = vec![ENTRIES];
    loop {
        let entries = portion(&from);
        let Some((last, _)) = entries.last() else { break };
        // The least key behind the last one.
        // Entries may be added or removed between two portions. What matters is that none that stays is left out.
        from = [last, &[0][..]].concat();
        for (key, value) in &entries {
            let mut writer = FieldWriter::from_vec(body);
            writer.write_bytes(key).write_bytes(value);
            body = writer.into_vec();
            if body.len() >= FRAME_TARGET {
                frames.push_frame(&body)?;
                // The kind of the frame stays at the beginning of the buffer.
                body.truncate(1);
            }
        }
        count += entries.len() as u64;
    }
    if body.len() > 1 {
        frames.push_frame(&body)?;
    }
    Ok(count)
}

/// A checkpoint that was read.
#[derive(Default)]
pub(crate) struct Checkpoint {
    pub beginning: CheckpointHeader,
    pub groups: KeyGroups,
    /// The transaction up to which the journal has to be carried out for the entries to be a state that existed.
    pub upto: u64,
}

/// Reads the checkpoint of a number.
pub(crate) fn read_checkpoint(folder: &dyn EngineFolder, number: u64) -> Result<Checkpoint, LiveError> {
    let name = format_checkpoint_name(number);
    let io = wrap_io_error(folder, "read", &name);
    let damaged = |offset: u64, what: DecodeError| LiveError::Damaged {
        path: folder.describe_file(&name),
        what: format!("at byte {offset}: {what}"),
    };
    let file = folder.open_file(&name).map_err(&io)?;
    let header = FileHeader::read_from_file(&*file, MAGIC).map_err(&io)?.map_err(|what| damaged(0, what))?;
    if header.number != number {
        return Err(damaged(0, DecodeError::Invalid("number")));
    }
    let mut frames = FrameIterator::new(&*file, header.salt, HEADER_LEN as u64).map_err(&io)?;
    let mut loading = CheckpointLoader::default();
    loop {
        let offset = frames.offset();
        let taken = match frames.next_frame().map_err(&io)? {
            NextFrame::Body(body) => loading.load_frame(body),
            NextFrame::Broken(what) => Err(what),
            // A checkpoint has its name only when it is whole, so a missing end is damage.
            NextFrame::End if loading.ended => return Ok(loading.checkpoint),
            NextFrame::End => Err(DecodeError::Truncated),
        };
        taken.map_err(|what| damaged(offset, what))?;
    }
}

/// A checkpoint being read, frame by frame.
#[derive(Default)]
pub(crate) struct CheckpointLoader {
    checkpoint: Checkpoint,
    begun: bool,
    ended: bool,
    count: u64,
}

impl CheckpointLoader {
    pub(crate) fn load_frame(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut reader = FieldReader::new(body);
        let kind = reader.read_u8()?;
        // The first frame is the beginning, and no later one is; nothing follows the end.
        if self.ended || self.begun == (kind == BEGIN) {
            return Err(DecodeError::Invalid("kind"));
        }
        match kind {
            BEGIN => {
                self.begun = true;
                self.checkpoint.beginning = decode_header(reader)?;
                Ok(())
            }
            ENTRIES => self.load_entries(reader),
            END => {
                self.ended = true;
                self.checkpoint.upto = reader.read_u64()?;
                let count = reader.read_u64()?;
                // The number of entries shows that no frame is missing in the middle.
                let is_sound = count == self.count && self.checkpoint.upto >= self.checkpoint.beginning.begin;
                if is_sound { reader.expect_end() } else { Err(DecodeError::Invalid("count")) }
            }
            _ => Err(DecodeError::Invalid("kind")),
        }
    }

    fn load_entries(&mut self, mut reader: FieldReader<'_>) -> Result<(), DecodeError> {
        let max = reader.remaining();
        while reader.remaining() > 0 {
            let key = reader.read_bytes(max)?.to_vec();
            let value: ValueBytes = reader.read_bytes(max)?.into();
            self.checkpoint.groups.apply_transaction(&[], std::iter::once((key, Some(value))));
            self.count += 1;
        }
        Ok(())
    }
}

fn decode_header(mut reader: FieldReader<'_>) -> Result<CheckpointHeader, DecodeError> {
    let begin = reader.read_u64()?;
    let max = reader.remaining();
    let mut runs = Vec::new();
    for _ in 0..reader.read_count(max)? {
        let number = reader.read_u64()?;
        runs.push((GroupKey::from_key(reader.read_bytes(super::suffix::GROUP_LEN)?), number));
    }
    reader.expect_end()?;
    Ok(CheckpointHeader { begin, runs })
}

/// Decodes any frames, each with its length before it.
pub(crate) fn fuzz_checkpoint(bytes: &[u8]) {
    let mut reader = FieldReader::new(bytes);
    let mut loading = CheckpointLoader::default();
    while let Ok(body) = reader.read_bytes(bytes.len()) {
        if loading.load_frame(body).is_err() {
            return;
        }
    }
}

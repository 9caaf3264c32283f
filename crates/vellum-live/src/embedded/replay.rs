//! Replay: reads the journal's files when a store is opened.
//!
//! Rules: transactions are numbered without a gap. The journal ends at the first gap; what follows was never durable
//! and is cut off. But if a later mark records that it was durable, the file is damaged and opening fails. Of the
//! transactions after the last mark, those count whose data the hooks find intact, up to the first one that is not.

use std::sync::Arc;

use vellum_types::DecodeError;

use super::checkpoint::{CheckpointHeader, GroupRun};
use super::folder::{EngineFolder, wrap_io_error};
use super::frame::{FRAME_HEAD, FileHeader, FrameIterator, HEADER_LEN, NextFrame};
use super::groups::KeyGroups;
use super::hooks::DurabilityHooks;
use super::journal::{JournalSegment, MAGIC, format_journal_name};
use super::record::{self, JournalRecord, MARK_LEN, TransactionChanges};
use crate::error::LiveError;

/// Where the journal's files lead to.
pub(crate) struct JournalReplay<'a> {
    folder: &'a dyn EngineFolder,
    pub groups: KeyGroups,
    /// The runs that belong to them, not opened: files that are not needed any more may be gone.
    pub runs: Vec<GroupRun>,
    /// The last transaction in `groups`.
    pub last: u64,
    /// What was certainly durable.
    pub durable: u64,
    /// Transactions that no mark covers yet.
    held: Vec<HeldRecords>,
    /// Files that were read, oldest first, each with where its records end.
    pub segments: Vec<(Arc<JournalSegment>, u64)>,
}

struct HeldRecords {
    sequence: u64,
    changes: TransactionChanges,
    /// The place in `segments` of its file.
    segment: usize,
    offset: u64,
}

/// A place in one of the journal's files where no record is.
struct JournalGap {
    number: u64,
    offset: u64,
    what: DecodeError,
}

impl<'a> JournalReplay<'a> {
    /// Starts from a checkpoint.
    pub(crate) fn new(
        folder: &'a dyn EngineFolder,
        groups: KeyGroups,
        beginning: CheckpointHeader,
        upto: u64,
    ) -> Self {
        let CheckpointHeader { begin, runs } = beginning;
        Self { folder, groups, runs, last: begin, durable: upto, held: Vec::new(), segments: Vec::new() }
    }

    /// Reads the files with these numbers, in order, and applies their records. Cuts off what does not count. The
    /// file `first` must be there and have a sound header: it was durable before the checkpoint.
    pub(crate) fn replay_journal(
        &mut self,
        first: u64,
        numbers: &[u64],
        hooks: &dyn DurabilityHooks,
    ) -> Result<(), LiveError> {
        for (index, number) in numbers.iter().enumerate() {
            if let Some(gap) = self.read_segment(*number)? {
                let later = numbers.get(index..).unwrap_or_default();
                // The usual end after a crash: the last frames were being written. It is damage only if they had been
                // durable.
                self.check_gap_not_durable(&gap, later)?;
                break;
            }
        }
        // The first file's header was synced before the checkpoint got its name. If it cannot be read now, no crash
        // has done that.
        if self.segments.first().is_none_or(|(segment, _)| segment.number != first) {
            let what = DecodeError::Invalid("header");
            return Err(self.damage_error(&JournalGap { number: first, offset: 0, what }));
        }
        // Files after the checkpoint were read. What no mark covers may still be on the disk: it is kept as far as
        // the write log has the content that it names.
        self.apply_intact(hooks);
        // A mark, or the checkpoint, promised more than was found.
        if self.last < self.durable {
            return Err(self.damage_error(&JournalGap {
                number: numbers.last().copied().unwrap_or_default(),
                offset: self.segments.last().map_or(0, |(_, end)| *end),
                what: DecodeError::Truncated,
            }));
        }
        self.truncate_segments(numbers)
    }

    /// Reads one file. Returns where its valid records end.
    fn read_segment(&mut self, number: u64) -> Result<Option<JournalGap>, LiveError> {
        let gap = |offset, what| Ok(Some(JournalGap { number, offset, what }));
        let io = self.wrap_io_error("read", number);
        let file = self.folder.open_file(&format_journal_name(number)).map_err(&io)?;
        let header = match FileHeader::read_from_file(&*file, MAGIC).map_err(&io)? {
            Ok(header) if header.number == number => header,
            Ok(_) => return gap(0, DecodeError::Invalid("number")),
            Err(what) => return gap(0, what),
        };
        let index = self.segments.len();
        let mut frames = FrameIterator::new(&*file, header.salt, HEADER_LEN as u64).map_err(&io)?;
        let segment = JournalSegment { number, salt: header.salt, file: Arc::clone(&file) };
        // Kept even if its first frame is broken already: what follows is appended to this file.
        self.segments.push((Arc::new(segment), frames.offset()));
        loop {
            let offset = frames.offset();
            let decoded = match frames.next_frame().map_err(&io)? {
                NextFrame::End => return Ok(None),
                NextFrame::Broken(what) => return gap(offset, what),
                NextFrame::Body(body) => record::decode_record(body),
            };
            let taken = decoded.and_then(|record| self.take_record(record, index, offset));
            if let Err(what) = taken {
                return gap(offset, what);
            }
            if let Some((_, end)) = self.segments.get_mut(index) {
                *end = frames.offset();
            }
        }
    }

    fn take_record(&mut self, record: JournalRecord, segment: usize, offset: u64) -> Result<(), DecodeError> {
        // Numbers go on across files: the first file of a checkpoint begins with the number after its `begin`.
        let next = self.held.last().map_or(self.last, |held| held.sequence) + 1;
        match record {
            JournalRecord::Transaction(sequence, changes) if sequence == next => {
                self.held.push(HeldRecords { sequence, changes, segment, offset });
                self.apply_durable();
                Ok(())
            }
            // A mark is written after the sync that it reports, so it never covers a transaction behind it.
            JournalRecord::Mark(durable) if durable < next => {
                self.durable = self.durable.max(durable);
                self.apply_durable();
                Ok(())
            }
            JournalRecord::Transaction(..) | JournalRecord::Mark(_) => Err(DecodeError::Invalid("sequence")),
        }
    }

    /// Carries out what was durable.
    fn apply_durable(&mut self) {
        let count = self.held.iter().take_while(|held| held.sequence <= self.durable).count();
        for held in self.held.drain(..count).collect::<Vec<_>>() {
            self.apply_records(held);
        }
    }

    fn apply_records(&mut self, held: HeldRecords) {
        let TransactionChanges { dropped, changes } = held.changes;
        self.last = held.sequence;
        let goes = |(group, _): &GroupRun| dropped.iter().any(|prefix| group.as_bytes().starts_with(prefix));
        // Runs are opened only after replay: a file whose group was dropped may be gone already.
        self.runs.retain(|run| !goes(run));
        self.groups.apply_transaction(&dropped, changes.into_iter());
    }

    /// Carries out the rest, as far as what it points to is there.
    fn apply_intact(&mut self, hooks: &dyn DurabilityHooks) {
        for held in std::mem::take(&mut self.held) {
            // Removals point to nothing, so only new values are checked.
            let mut puts =
                held.changes.changes.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
            if !puts.all(|(key, value)| hooks.is_intact(key, value)) {
                // The first transaction whose content is not there ends the journal, and takes with it what came
                // later: what survives is a prefix of the sequence.
                self.segments.truncate(held.segment + 1);
                if let Some((_, end)) = self.segments.last_mut() {
                    *end = held.offset;
                }
                return;
            }
            self.apply_records(held);
        }
    }

    /// Fails if a mark behind a gap records that what should stand there was durable. `later` are the gap's file and
    /// those after it.
    fn check_gap_not_durable(&self, gap: &JournalGap, later: &[u64]) -> Result<(), LiveError> {
        let missing = self.held.last().map_or(self.last, |held| held.sequence) + 1;
        for number in later {
            let io = self.wrap_io_error("read", *number);
            let file = self.folder.open_file(&format_journal_name(*number)).map_err(&io)?;
            let Ok(header) = FileHeader::read_from_file(&*file, MAGIC).map_err(&io)? else {
                // A header is durable before the first record: one that is torn has nothing behind it.
                if file.size().map_err(&io)? > HEADER_LEN as u64 {
                    return Err(self.damage_error(gap));
                }
                continue;
            };
            let from = if *number == gap.number { gap.offset } else { 0 };
            let from = from.max(HEADER_LEN as u64);
            let mut frames = FrameIterator::new(&*file, header.salt, from).map_err(&io)?;
            while let Some(mark) = find_next_mark(&mut frames).map_err(&io)? {
                if mark >= missing {
                    return Err(self.damage_error(gap));
                }
            }
        }
        Ok(())
    }

    /// Makes the files end where the journal does, so that what follows is appended to sound records.
    fn truncate_segments(&mut self, numbers: &[u64]) -> Result<(), LiveError> {
        let kept = self.segments.len();
        // The newest first: whatever a crash leaves of them follows what is kept without a gap between the files.
        for number in numbers.iter().skip(kept).rev() {
            self.folder
                .remove_file(&format_journal_name(*number))
                .map_err(self.wrap_io_error("remove", *number))?;
        }
        if numbers.len() > kept {
            self.folder.sync_folder().map_err(wrap_io_error(self.folder, "sync", ""))?;
        }
        if let Some((segment, end)) = self.segments.last() {
            let io = self.wrap_io_error("cut", segment.number);
            // Synced before anything is appended: records of the old end must not come back behind new ones.
            if segment.file.size().map_err(&io)? > *end {
                segment.file.set_len(*end).map_err(&io)?;
                segment.file.sync_file().map_err(&io)?;
            }
        }
        Ok(())
    }

    fn wrap_io_error(
        &self,
        action: &'static str,
        number: u64,
    ) -> impl Fn(std::io::Error) -> LiveError + use<> {
        wrap_io_error(self.folder, action, &format_journal_name(number))
    }

    fn damage_error(&self, gap: &JournalGap) -> LiveError {
        let path = self.folder.describe_file(&format_journal_name(gap.number));
        LiveError::Damaged { path, what: format!("at byte {}: {}", gap.offset, gap.what) }
    }
}

/// The next mark, wherever it stands: what is before it need not make sense.
fn find_next_mark(frames: &mut FrameIterator<'_>) -> std::io::Result<Option<u64>> {
    loop {
        let bytes = frames.peek_bytes(FRAME_HEAD + MARK_LEN)?;
        if bytes.len() < FRAME_HEAD + MARK_LEN {
            return Ok(None);
        }
        // All marks have one length: this look spares the checksum at nearly every byte.
        let is_candidate = bytes.starts_with(&(MARK_LEN as u32).to_le_bytes());
        if is_candidate
            && let NextFrame::Body(body) = frames.next_frame()?
            && let Ok(JournalRecord::Mark(sequence)) = record::decode_record(body)
        {
            return Ok(Some(sequence));
        }
        frames.skip_byte();
    }
}

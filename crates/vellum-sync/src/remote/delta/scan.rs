//! Expresses a new file by ranges of an old one.
//!
//! Invariant: the operations, applied in order, produce the new file for any signature, as long as its hashes are those
//! of the blocks. Windows with a false weak match are hashed in full only a limited number of times for each block of
//! the file ([`LIES_PER_BLOCK`]); after that, the rest is sent as data.

use std::io::{self, Read};

use super::rolling::RollingSum;
use super::signature::{FileSignature, compute_strong_hash};
use super::table::BlockTable;

/// Bytes that are read at once, in addition to a block.
const READ_LEN: usize = 1 << 20;
/// Longest piece of data in one operation, bytes.
const DATA_MAX: usize = 256 << 10;
/// Longest run of blocks in one operation, bytes: its receiver can apply it while the rest is searched.
const COPY_MAX: u64 = 2 << 20;
/// How many false weak matches are allowed for each block's length of windows. By chance there is one in thousands of
/// blocks; a hostile signature could cause one at each byte.
const LIES_PER_BLOCK: u64 = 2;
/// How many are allowed in any case.
const LIES_MIN: u64 = 1000;

/// A piece of the new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaOperation<'d> {
    /// A range of the old file.
    Copy {
        /// Its offset.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// New data.
    Data(&'d [u8]),
}

/// A signature, prepared for the comparison with a new file.
#[derive(Debug)]
pub struct SignatureMatcher {
    signature: FileSignature,
    table: BlockTable,
    /// The old file is overwritten: a block may be used only if its offset is not below the position in the new file.
    is_overwritten: bool,
}

/// The scan of a new file.
struct DeltaWindow<'m> {
    matcher: &'m SignatureMatcher,
    buffer: Vec<u8>,
    /// Where the data that was not output yet begins.
    start: usize,
    /// Where the window begins.
    at: usize,
    /// The offset of the buffer in the new file.
    passed: u64,
    /// Matched blocks that were not output yet: offset and length.
    copied: Option<(u64, u64)>,
    /// The block after the one just matched: in an unchanged range it is the next match.
    next: Option<u32>,
    lies: u64,
    lies_max: u64,
}

type EmitOperation<'e> = &'e mut dyn FnMut(DeltaOperation<'_>) -> io::Result<()>;

impl SignatureMatcher {
    /// Builds the lookup table of the signature.
    #[must_use]
    pub fn new(signature: FileSignature) -> Self {
        let table = BlockTable::new(&signature);
        Self { signature, table, is_overwritten: false }
    }

    /// The same for a new file that is written over the old one, from its start on: no operation may use a range that
    /// is overwritten by then, so content that moved towards the end is sent as data.
    #[must_use]
    pub fn new_in_place(signature: FileSignature) -> Self {
        Self { is_overwritten: true, ..Self::new(signature) }
    }

    /// Whether a block at `offset` of the old file still exists when the new file has been written up to `position`.
    fn can_copy_from(&self, offset: u64, position: u64) -> bool {
        !self.is_overwritten || offset >= position
    }

    /// Reads a new file of about `len` bytes to its end and outputs its pieces in order.
    pub fn scan_file(
        &self,
        new: &mut dyn Read,
        len: u64,
        emit: &mut dyn FnMut(DeltaOperation<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        // A signature comes from the other side and can be made so that every window matches a weak hash.
        // Each such window costs a BLAKE3 hash of a whole block.
        let lies_max = (len / u64::from(self.signature.block) * LIES_PER_BLOCK).max(LIES_MIN);
        let buffer = Vec::with_capacity(READ_LEN + 2 * self.signature.block as usize);
        let mut window = DeltaWindow {
            matcher: self,
            buffer,
            start: 0,
            at: 0,
            passed: 0,
            copied: None,
            next: None,
            lies: 0,
            lies_max,
        };
        loop {
            let more = window.fill_buffer(new)?;
            window.advance_window(emit)?;
            if !more {
                return window.finish_scan(emit);
            }
        }
    }
}

impl DeltaWindow<'_> {
    fn block_len(&self) -> usize {
        self.matcher.signature.block as usize
    }

    /// Reads more data; false at the end of the file.
    fn fill_buffer(&mut self, new: &mut dyn Read) -> io::Result<bool> {
        // At most one block and what follows the window is kept, so this moves few bytes for each MiB that is
        // read.
        self.buffer.drain(..self.start);
        self.passed += self.start as u64;
        self.at -= self.start;
        self.start = 0;
        let wanted = READ_LEN.max(self.block_len()) as u64;
        // Less than a full portion is the end of the file. A file that grows while it is read is noticed by
        // its attributes afterwards.
        let got = new.take(wanted).read_to_end(&mut self.buffer)?;
        Ok(got as u64 == wanted)
    }

    /// Moves the window to the end of the buffer.
    fn advance_window(&mut self, emit: EmitOperation<'_>) -> io::Result<()> {
        let block = self.block_len();
        while self.lies < self.lies_max
            && let Some(found) = self.match_next_block().map(Some).or_else(|| self.find_known_window())
        {
            let place = found.map(|number| (number, self.matcher.signature.block_range(number)));
            if let Some((_, (offset, _))) = place
                // The block was found, but the receiver has written over it by the time that it would copy
                // it.
                && !self.matcher.can_copy_from(offset, self.passed + self.at as u64)
            {
                // The whole block is sent as data: the next block begins behind it, as in the old file.
                self.at += block;
            } else if let Some((number, (offset, len))) = place {
                self.flush_data(emit)?;
                self.record_copy(offset, len, emit)?;
                self.at += block;
                self.start = self.at;
                self.next = Some(number + 1);
            } else {
                self.lies += 1;
                self.at += 1;
            }
        }
        // The rest is sent as data without looking for blocks.
        if self.lies >= self.lies_max {
            self.at = self.buffer.len();
        }
        self.flush_data(emit)
    }

    /// The next block of the old file, if the window equals it: one strong hash decides, without the rolling one.
    fn match_next_block(&mut self) -> Option<u32> {
        let window = self.buffer.get(self.at..self.at + self.block_len())?;
        // An unchanged region is a run of consecutive blocks. One strong hash for each of them is cheaper
        // than a rolling hash over every byte.
        let next = self.next.take()?;
        let signature = &self.matcher.signature;
        let is_full = signature.block_range(next).1 == u64::from(signature.block);
        let (_, known) = signature.hashes.get(next as usize)?;
        (is_full && *known == compute_strong_hash(window)).then_some(next)
    }

    /// Moves to the next window whose weak hash is in the table; returns the block if the strong hash matches. None:
    /// the end of the buffer.
    fn find_known_window(&mut self) -> Option<Option<u32>> {
        let table = &self.matcher.table;
        let signature = &self.matcher.signature;
        let block = self.block_len();
        let window = self.buffer.get(self.at..self.at + block)?;
        let mut rolling = RollingSum::from_window(window);
        let leaving = self.buffer.get(self.at..)?;
        let coming = self.buffer.get(self.at + block..)?;
        let mut moved = 0;
        let mut pairs = leaving.iter().zip(coming);
        // The loop runs once for each byte of a changed region. The filter answers most of the time and stays
        // in the processor's cache; the table does not.
        while !(table.may_contain_weak(rolling.hash_value())
            && table.contains_weak(signature, rolling.hash_value()))
        {
            let Some((old, new)) = pairs.next() else {
                // The last window has been looked at: only the next byte makes another.
                self.at += moved + 1;
                return None;
            };
            rolling.roll_byte(*old, *new);
            moved += 1;
        }
        self.at += moved;
        let window = self.buffer.get(self.at..self.at + block)?;
        // Of several equal blocks the one that continues the current run is taken, so that the run stays one
        // operation.
        let expected = self.copied.map_or(0, |(offset, len)| (offset + len) / block as u64) as u32;
        Some(table.find_block(signature, rolling.hash_value(), compute_strong_hash(window), expected))
    }

    fn record_copy(&mut self, offset: u64, len: u64, emit: EmitOperation<'_>) -> io::Result<()> {
        match &mut self.copied {
            // Runs are cut at a maximum so that the receiver copies while the scan goes on.
            Some((from, so_far)) if *from + *so_far == offset && *so_far < COPY_MAX => *so_far += len,
            _ => {
                self.flush_copied(emit)?;
                self.copied = Some((offset, len));
            }
        }
        Ok(())
    }

    fn flush_copied(&mut self, emit: EmitOperation<'_>) -> io::Result<()> {
        self.copied.take().map_or(Ok(()), |(offset, len)| emit(DeltaOperation::Copy { offset, len }))
    }

    /// Outputs the data before the window.
    fn flush_data(&mut self, emit: EmitOperation<'_>) -> io::Result<()> {
        if self.start < self.at {
            self.flush_copied(emit)?;
            let data = self.buffer.get(self.start..self.at).unwrap_or_default();
            data.chunks(DATA_MAX).try_for_each(|piece| emit(DeltaOperation::Data(piece)))?;
            self.start = self.at;
        }
        Ok(())
    }

    /// At the end of the file: checks for the last, short block of the old file.
    fn finish_scan(mut self, emit: EmitOperation<'_>) -> io::Result<()> {
        let signature = &self.matcher.signature;
        // The last block of the old file is shorter than the others and is in no window of full length, so it
        // is compared with the end of the new file only. This finds the unchanged end of a file whose middle
        // changed.
        let short = (signature.len % u64::from(signature.block)) as usize;
        let rest = self.buffer.len() - self.start;
        if short > 0 && short <= rest {
            let at = self.buffer.len() - short;
            let tail = self.buffer.get(at..).unwrap_or_default();
            let can_use = self.matcher.can_copy_from(signature.len - short as u64, self.passed + at as u64);
            if can_use
                && signature.hashes.last()
                    == Some(&(RollingSum::from_window(tail).hash_value(), compute_strong_hash(tail)))
            {
                self.at = at;
                self.flush_data(emit)?;
                self.record_copy(signature.len - short as u64, short as u64, emit)?;
                return self.flush_copied(emit);
            }
        }
        self.at = self.buffer.len();
        self.flush_data(emit)?;
        self.flush_copied(emit)
    }
}

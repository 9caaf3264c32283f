//! Reading ahead: of a file that is read in sequence its next chunks, of files that are read whole, one after the other,
//! the files after them.
//!
//! Files that were made together have neighbouring inode numbers: their entries lie side by side in the map, and their
//! chunks in a pack. Invariant: fetching ahead changes nothing but time; it fails where a read of the map fails.

use std::ops::{ControlFlow, Range};

use vellum_map::KeySpan;
use vellum_types::{BlobId, Extent, ExtentSource, Ino, MapKey, MapKeyRef};

use super::extents::find_overlapping;
use super::source::ContentSource;
use crate::error::Result;
use crate::tree::{LiveMap, MapReader};

/// What is fetched at first of the files ahead, and of each of them at most, bytes.
const WINDOW_MIN: u64 = 512 << 10;

/// Inode numbers between two files that are read one after the other: directories and small files may lie between them.
const STEP_MAX: u64 = 16;
/// Files read whole in sequence before others are fetched: two may be chance.
const SEQUENCE_MIN: u32 = 3;
/// What is fetched of files ahead at most, bytes.
const FILES_WINDOW_MAX: u64 = 4 << 20;
/// Entries of the map that are looked through for the next files.
const ENTRIES_MAX: usize = 1024;

/// Files that are read to their ends, one after the other, in the order of their inode numbers.
#[derive(Debug, Default)]
pub(super) struct FileSequence {
    /// The last one.
    last: u64,
    /// How many there were.
    files: u32,
    /// The first inode of which nothing was asked for yet.
    fetched_to: u64,
    /// How many inodes the last request ahead was about.
    span: u64,
    /// How much to ask for next, bytes.
    window: u64,
}

/// What to fetch of the files after the one that was read.
#[derive(Debug, PartialEq, Eq)]
struct FilesAhead {
    /// The first inode.
    from: u64,
    /// Bytes.
    window: u64,
}

impl ContentSource {
    /// Asks for the chunks that a reader who goes on in sequence will want next, of this file or of those after it.
    pub(super) fn prefetch_after(
        &self,
        map: &LiveMap,
        ino: Ino,
        range: Range<u64>,
        is_file_end: bool,
    ) -> Result<()> {
        let noted = self.streams.note_read(ino, &range, is_file_end);
        self.chunks.note_file_read(noted.pattern);
        if let Some(ahead) = noted.ahead {
            // At a later moment than the read itself: should the file have changed in between, chunks are fetched
            // that nobody wants.
            let extents = map.read_head_state(|view| find_overlapping(view, ino, ahead))?;
            self.chunks.prefetch_chunks(extents.iter().filter_map(|(_, extent)| chunk_id(extent)));
        }
        if !is_file_end {
            return Ok(());
        }
        // A statement of its own: the lock must not be held while the map is read.
        let next_files = self.sequence.lock().next_files(ino);
        next_files.map_or(Ok(()), |ahead| self.prefetch_files(map, &ahead))
    }

    fn prefetch_files(&self, map: &LiveMap, ahead: &FilesAhead) -> Result<()> {
        let mut chunks = Vec::new();
        let mut reached = ahead.from.saturating_add(ENTRIES_MAX as u64);
        map.read_head_state(|view| {
            (chunks, reached) = find_chunks_of_files(view, ahead, reached)?;
            Ok(())
        })?;
        self.sequence.lock().set_fetched(ahead.from, reached);
        self.chunks.prefetch_chunks(chunks.into_iter());
        Ok(())
    }
}

/// The chunks at the beginnings of the files from an inode on, and the first inode that was not looked at.
fn find_chunks_of_files(view: &dyn MapReader, ahead: &FilesAhead, end: u64) -> Result<(Vec<BlobId>, u64)> {
    let span = KeySpan::from_bounds(
        MapKey::for_attr(Ino(ahead.from)).as_bytes(),
        MapKey::for_attr(Ino(end)).as_bytes(),
    );
    let mut chunks = Vec::new();
    let mut reached = end;
    let mut bytes = 0;
    let mut entries = 0;
    view.scan(span, &mut |key, value| {
        // What cannot be decoded is reported to whoever reads it.
        let Ok(key) = MapKeyRef::parse(key) else { return ControlFlow::Continue(()) };
        entries += 1;
        if bytes >= ahead.window || entries > ENTRIES_MAX {
            // This inode was begun: it is looked at again, or its later chunks would be left out.
            reached = key.ino().0;
            return ControlFlow::Break(());
        }
        if let MapKeyRef::Extent(_, offset) = key
            && offset < WINDOW_MIN
            && let Ok(extent) = Extent::decode(value)
            && let Some(id) = chunk_id(&extent)
        {
            chunks.push(id);
            bytes += extent.len;
        }
        ControlFlow::Continue(())
    })?;
    Ok((chunks, reached))
}

fn chunk_id(extent: &Extent) -> Option<BlobId> {
    match extent.source {
        ExtentSource::Chunk { id, .. } => Some(id),
        ExtentSource::Hole | ExtentSource::WriteLog { .. } => None,
    }
}

impl FileSequence {
    /// Notes a file that was read to its end; gives what to fetch ahead, if it is time to.
    fn next_files(&mut self, ino: Ino) -> Option<FilesAhead> {
        let Ino(ino) = ino;
        match ino.checked_sub(self.last) {
            Some(1..=STEP_MAX) => self.files = self.files.saturating_add(1),
            // Read again, or by one of several readers, who is a little behind.
            _ if ino.abs_diff(self.last) <= STEP_MAX => return None,
            Some(_) | None => *self = Self { files: 1, ..Self::default() },
        }
        self.last = ino;
        self.fetched_to = self.fetched_to.max(ino.saturating_add(1));
        // While more than half of the last request lies ahead, nothing new is asked for: requests are few,
        // and still ahead of the reader.
        if self.files < SEQUENCE_MIN || self.fetched_to - ino > self.span / 2 + 1 {
            return None;
        }
        // The window grows while the guess holds, so that a wrong one costs little.
        self.window = (self.window * 2).clamp(WINDOW_MIN, FILES_WINDOW_MAX);
        Some(FilesAhead { from: self.fetched_to, window: self.window })
    }

    /// Notes that the files from an inode on were asked for. Of two readers who asked the same, one counts.
    fn set_fetched(&mut self, from: u64, to: u64) {
        if from == self.fetched_to {
            self.span = to.saturating_sub(from);
            self.fetched_to = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead_of(sequence: &mut FileSequence, ino: u64) -> Option<u64> {
        sequence.next_files(Ino(ino)).map(|ahead| ahead.from)
    }

    #[test]
    fn three_files_in_order_are_a_sequence() {
        let mut sequence = FileSequence::default();
        assert_eq!([500, 501, 503].map(|ino| ahead_of(&mut sequence, ino)), [None, None, Some(504)]);
        sequence.set_fetched(504, 524);
        // Half of what was asked for is still ahead, then less.
        assert_eq!([504, 505, 512].map(|ino| ahead_of(&mut sequence, ino)), [None, None, None]);
        assert_eq!(ahead_of(&mut sequence, 513), Some(524));
    }

    #[test]
    fn a_second_reader_who_is_behind_ends_no_sequence() {
        let mut sequence = FileSequence::default();
        assert_eq!(
            [500, 501, 500, 501, 502].map(|ino| ahead_of(&mut sequence, ino)).last(),
            Some(&Some(503))
        );
    }

    #[test]
    fn files_here_and_there_are_no_sequence() {
        let mut sequence = FileSequence::default();
        for ino in [500, 900, 501, 901, 40, 41, 400, u64::MAX, 1] {
            assert_eq!(ahead_of(&mut sequence, ino), None, "{ino}");
        }
    }

    #[test]
    fn the_window_grows_to_its_limit() {
        let mut sequence = FileSequence::default();
        let mut windows = Vec::new();
        for ino in 500..520 {
            if let Some(ahead) = sequence.next_files(Ino(ino)) {
                windows.push(ahead.window);
                sequence.set_fetched(ahead.from, ahead.from + 1);
            }
        }
        assert_eq!(windows.first(), Some(&WINDOW_MIN));
        assert_eq!(windows.last(), Some(&FILES_WINDOW_MAX));
    }
}

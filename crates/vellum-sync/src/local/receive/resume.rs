//! Continuing a file, whose beginning an earlier run wrote, with pieces that arrive.
//!
//! Invariant: existing content is used only where the source confirms that it has the same bytes, and the hash of the
//! whole is compared in the end. Content that was overwritten is not used as old content.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::TransferControl;
use super::content::{BLOCK, hash_zeros, set_file_len, verify_digest};
use super::filling::FileFill;
use crate::ends::{ContentPieces, TransferPiece};
use crate::error::{Result, SyncError};
use crate::model::listing::ContentDigest;

/// The file being written.
struct ResumedFile<'f> {
    filling: FileFill<'f>,
    /// Its initial length.
    arrived: u64,
    /// From here on its old content was overwritten.
    changed: Option<u64>,
    position: u64,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl TransferControl<'_> {
    /// Completes `file`, whose initial length is `arrived`. If its content proves wrong, the file is emptied, and
    /// another try starts anew. Returns the hash of the new content.
    pub fn resume_content(
        &self,
        file: &File,
        arrived: u64,
        pieces: &mut dyn ContentPieces,
    ) -> Result<ContentDigest> {
        let hasher = blake3::Hasher::new();
        let mut going = ResumedFile {
            filling: FileFill::new_in_place(file),
            arrived,
            changed: None,
            position: 0,
            hasher,
            buffer: vec![0; BLOCK],
        };
        let outcome = self.resume_pieces(&mut going, pieces);
        // What is there has proved wrong. The run tries the file again, and without this the next attempt
        // would start from the same bytes and fail in the same way.
        if matches!(outcome, Err(SyncError::Unequal)) {
            set_file_len(file, 0)?;
        }
        outcome
    }

    fn resume_pieces(
        &self,
        going: &mut ResumedFile<'_>,
        pieces: &mut dyn ContentPieces,
    ) -> Result<ContentDigest> {
        while let Some(piece) = pieces.next_piece()? {
            let len = match piece {
                TransferPiece::Data(bytes) => {
                    going.hasher.update(bytes);
                    self.write_resumed(going, bytes)?;
                    bytes.len() as u64
                }
                TransferPiece::Hole(len) => {
                    hash_zeros(&mut going.hasher, len);
                    self.write_resumed_zeros(going, len)?;
                    len
                }
                TransferPiece::Old { offset, len } => {
                    self.reuse_arrived_range(going, offset, len)?;
                    len
                }
            };
            going.position = going.position.checked_add(len).ok_or(SyncError::Unequal)?;
            self.throttle_bytes(len)?;
        }
        // The earlier version may have been longer.
        set_file_len(going.filling.file, going.position)?;
        verify_digest(&going.hasher, pieces)
    }

    fn write_resumed(&self, going: &mut ResumedFile<'_>, bytes: &[u8]) -> Result<()> {
        going.changed.get_or_insert(going.position);
        // Zeros may become holes only behind what was there. Before that, skipping them would leave old
        // bytes.
        match going.position >= going.arrived {
            true => self.write_new_at(&going.filling, bytes, going.position),
            false => self.write_at(&going.filling, bytes, going.position),
        }
    }

    /// Beyond the initial length, a hole needs no write.
    fn write_resumed_zeros(&self, going: &mut ResumedFile<'_>, len: u64) -> Result<()> {
        going.changed.get_or_insert(going.position);
        let end = going.position.saturating_add(len).min(going.arrived);
        let zeros = vec![0; BLOCK];
        let mut at = going.position;
        while at < end {
            let step = (end - at).min(BLOCK as u64);
            self.write_at(&going.filling, zeros.get(..step as usize).unwrap_or_default(), at)?;
            at += step;
        }
        Ok(())
    }

    fn reuse_arrived_range(&self, going: &mut ResumedFile<'_>, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= going.arrived).ok_or(SyncError::Unequal)?;
        // The range has to be unchanged: it ends before the first overwritten byte, or begins at or after the
        // present position.
        let is_untouched = going.changed.is_none_or(|changed| end <= changed) || offset >= going.position;
        if !is_untouched {
            return Err(SyncError::Unequal);
        }
        let mut buffer = std::mem::take(&mut going.buffer);
        let mut done = 0;
        while done < len {
            let step = (len - done).min(BLOCK as u64) as usize;
            let window = buffer.get_mut(..step).unwrap_or_default();
            going
                .filling
                .file
                .read_exact_at(window, offset + done)
                .map_err(SyncError::wrap_io_error("read"))?;
            going.hasher.update(window);
            if offset != going.position {
                // From here on, what was there is no longer what the source compared with.
                going.changed.get_or_insert(going.position);
                self.write_at(&going.filling, window, going.position + done)?;
            }
            done += step as u64;
        }
        going.buffer = buffer;
        self.count_spared(len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use vellum_host::ProgressMeter;

    use super::*;

    enum TestPiece {
        Old(u64, u64),
        Data(&'static [u8]),
        Hole(u64),
    }

    struct All(std::vec::IntoIter<TestPiece>, ContentDigest);

    impl ContentPieces for All {
        fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
            Ok(self.0.next().map(|parts| match parts {
                TestPiece::Old(offset, len) => TransferPiece::Old { offset, len },
                TestPiece::Data(bytes) => TransferPiece::Data(bytes),
                TestPiece::Hole(len) => TransferPiece::Hole(len),
            }))
        }

        fn content_digest(&self) -> Option<ContentDigest> {
            Some(self.1)
        }
    }

    /// Resumes a file with the content `there` by pieces that result in `whole`.
    fn gone_on(there: &[u8], parts: Vec<TestPiece>, whole: &[u8]) -> Result<Vec<u8>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all_at(there, 0).unwrap();
        let meter = ProgressMeter::default();
        let flow = TransferControl::new(&meter, false, None);
        let mut pieces = All(parts.into_iter(), *blake3::hash(whole).as_bytes());
        let outcome = flow.resume_content(&file, there.len() as u64, &mut pieces);
        let mut found = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(outcome.is_ok() || found.is_empty(), "what is of no use stays");
        outcome.map(|_| found)
    }

    #[test]
    fn what_is_there_is_kept_and_the_rest_written() {
        use TestPiece::{Data, Hole, Old};
        let gone =
            |there: &[u8], parts, whole: &[u8]| assert_eq!(gone_on(there, parts, whole).unwrap(), whole);
        gone(b"abcd", vec![Old(0, 4), Data(b"ef")], b"abcdef");
        // Damaged, shorter, with zeros, moved towards the beginning.
        gone(b"aXcd", vec![Old(0, 1), Data(b"b"), Old(2, 2), Data(b"e")], b"abcde");
        gone(b"abcdef", vec![Old(0, 2)], b"ab");
        gone(b"abcd", vec![Old(0, 1), Hole(5), Data(b"z")], b"a\0\0\0\0\0z");
        gone(b"abcd", vec![Old(2, 2), Data(b"e")], b"cde");
    }

    #[test]
    fn what_was_written_over_or_lies_is_not_taken() {
        use TestPiece::{Data, Old};
        for (parts, whole) in [
            (vec![Data(b"XY"), Old(0, 2)], b"XYab"),
            (vec![Old(0, 4), Old(3, 2)], b"abcd"),
            (vec![Old(0, 4)], b"else"),
        ] {
            assert!(matches!(gone_on(b"abcd", parts, whole), Err(SyncError::Unequal)));
        }
    }
}

//! Writing over an old file, which the user has to request: readers, and a killed run, can leave a mixture of both
//! versions.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use vellum_host::beneath::{HeldDir, HeldNode, OpenedFile, stat_file};
use vellum_types::UnixTime;

use super::content::{BLOCK, hash_zeros, read_blocks, set_file_len, verify_digest};
use super::elsewhere::CopiedMetadata;
use super::file::EntryWriter;
use super::filling::FileFill;
use super::ranges::ContentRange;
use super::{PreviousOccupant, attributes};
use crate::ends::{ContentPieces, OldVersion, SourceContent, TransferPiece};
use crate::error::{Result, SyncError};
use crate::model::listing::{ContentDigest, ListingEntry};
use crate::model::options::DeltaMode;
use crate::plan::SyncStep;

impl EntryWriter<'_> {
    /// Writes over the old file from `start` on. None if the file has several names: it is not changed then.
    pub(super) fn write_in_place(
        &self,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
        append: bool,
    ) -> Result<Option<Vec<String>>> {
        // The file is opened once and everything below uses this descriptor, so the file that is checked is
        // the one that is written.
        let old = dir.open_file_to_update(entry.name())?;
        // Writing through one name would change the file under all of its names, also those that are not part of
        // this run.
        if old.stat.nlink > 1 {
            return Ok(None);
        }
        if let Some(keeper) = &self.keeper {
            // A second name would change with it: the old version is copied.
            self.copy_backup(keeper, dir, entry, &old)?;
        }
        // Appending needs the old file by any method of sending. The source learns that the file will be
        // written over: it then refers only to ranges that still exist when they are needed.
        let is_used = append || self.job.options.writing.delta != DeltaMode::Never;
        let there = OldVersion { file: &old.file, is_overwritten: true };
        let mut content = self.job.source.open_content(*entry, is_used.then_some(there))?;
        let start = if append { old.stat.size } else { 0 };
        self.update_in_place(step, &old, &mut content, entry, start)
            .map(Some)
            .map_err(|error| map_partial_write(error, &old))
    }

    /// Updates the old file to the new version, with its attributes.
    fn update_in_place(
        &self,
        step: &SyncStep,
        old: &OpenedFile,
        content: &mut SourceContent,
        entry: &ListingEntry<'_>,
        start: u64,
    ) -> Result<Vec<String>> {
        // A crash from here on leaves a mixture under the file's name. The next run sees another size or time
        // and writes the file again.
        let received = match content {
            SourceContent::File(from) => {
                self.flow.patch_file(&old.file, from, start)?;
                None
            }
            SourceContent::Pieces(pieces) => Some(self.write_pieces_over(&old.file, &mut **pieces)?),
        };
        let listed = step.old.map(|id| self.job.to.entry(id));
        let newcomer = PreviousOccupant::No { mode: old.stat.mode, old: listed };
        let node = HeldNode::from_file(&old.file);
        let failed = attributes::apply_attributes(&node, entry, newcomer, self.job.options)?;
        self.times.ensure_times(&node, entry, self.job.options);
        self.sync_and_verify(&old.file, content, received)?;
        Ok(failed)
    }

    /// Writes pieces over a file; returns the hash of the new content.
    fn write_pieces_over(&self, file: &File, pieces: &mut dyn ContentPieces) -> Result<ContentDigest> {
        let mut hasher = blake3::Hasher::new();
        let filling = FileFill::new_in_place(file);
        let mut position = 0;
        while let Some(piece) = pieces.next_piece()? {
            let len = match piece {
                TransferPiece::Data(bytes) => {
                    hasher.update(bytes);
                    self.flow.write_at(&filling, bytes, position)?;
                    bytes.len() as u64
                }
                TransferPiece::Hole(len) => {
                    hash_zeros(&mut hasher, len);
                    zero_range(file, position, len)?;
                    len
                }
                // Everything before `position` has been written over already. The range is read even if it stays where
                // it is: that the source has the same content was concluded from a short hash.
                TransferPiece::Old { offset, len } if offset >= position => {
                    let range = ContentRange::from_len(offset, len)?;
                    read_blocks(file, range, &mut vec![0; BLOCK], |block, at| {
                        hasher.update(block);
                        // What is overwritten was read before, since content moves towards the start.
                        match at - offset + position {
                            to if to == at => Ok(()),
                            to => self.flow.write_at(&filling, block, to),
                        }
                    })?;
                    len
                }
                // Nothing that was written over may be taken from there.
                TransferPiece::Old { .. } => return Err(SyncError::Unequal),
            };
            position = position.checked_add(len).ok_or(SyncError::Unequal)?;
            self.flow.throttle_bytes(len)?;
        }
        // The old file may have been longer.
        set_file_len(file, position)?;
        verify_digest(&hasher, pieces)
    }

    fn copy_backup(
        &self,
        keeper: &super::BackupKeeper,
        dir: &HeldDir,
        entry: &ListingEntry<'_>,
        old: &OpenedFile,
    ) -> Result<()> {
        // The copy is complete before the original is written to.
        let look = CopiedMetadata::read_from_entry(dir, entry.name())?;
        let aside = dir.stage_file()?;
        vellum_host::clone::clone_or_copy_content(&old.file, aside.file()?, &old.stat)?;
        // The owner before the mode: a change of owner clears the set-id bits.
        look.apply_to_node(&aside.node()?);
        let temp = vellum_host::beneath::new_temp_name()?;
        aside.commit(&temp, vellum_host::beneath::ReplacePolicy::Never)?;
        keeper.keep_copy(dir, &temp, entry.name(), &entry.path()).inspect_err(|_| {
            // If this fails, too, the next run removes it.
            let _ = dir.unlink(&temp);
        })
    }
}

/// Maps the error of a file that was being written over. If anything was written, the modification time is set to one
/// that no version has, so that the next run writes the file again, also with `--update`.
fn map_partial_write(error: SyncError, old: &OpenedFile) -> SyncError {
    /// The modification time of such a file.
    const LONG_AGO: UnixTime = UnixTime { secs: 0, nanos: 0 };
    // An error before the first write leaves the file as it was, and its time must stay.
    let is_untouched = stat_file(&old.file)
        .is_ok_and(|now| (now.size, now.mtime, now.ctime) == (old.stat.size, old.stat.mtime, old.stat.ctime));
    if is_untouched {
        return error;
    }
    // A user with write permission who is not the owner cannot set the time. The file then has that of the
    // last write.
    let _ = HeldNode::from_file(&old.file).set_mtime(LONG_AGO);
    SyncError::PartlyWritten(Box::new(error))
}

/// Writes zeros to a range of a file.
fn zero_range(file: &File, position: u64, len: u64) -> Result<()> {
    use std::io::Write;
    let mut file = file;
    file.seek(SeekFrom::Start(position)).map_err(SyncError::wrap_io_error("write"))?;
    let mut left = len;
    let block = [0; 4096];
    while left > 0 {
        let step = left.min(block.len() as u64) as usize;
        file.write_all(block.get(..step).unwrap_or_default()).map_err(SyncError::wrap_io_error("write"))?;
        left -= step as u64;
    }
    Ok(())
}

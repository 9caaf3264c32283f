//! Writing over an old file, which is asked for by name: whoever reads it meanwhile, and a run that is killed, see a
//! mixture.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use vellum_checkout::beneath::{HeldDir, HeldNode, OpenedFile, stat_file};
use vellum_types::UnixTime;

use super::content::{BLOCK, as_told, hash_zeros, set_len, shrunk};
use super::file::EntryWriter;
use super::filling::FileFill;
use super::{PreviousOccupant, attributes};
use crate::error::{Result, SyncError};
use crate::listing::{ContentDigest, ListingEntry};
use crate::options::DeltaMode;
use crate::plan::SyncStep;
use crate::source::{ContentPieces, FileContent, OldVersion, TransferPiece};

impl EntryWriter<'_> {
    /// Writes over the old file from `start` on. Gives None if the file has other names: it is not changed then.
    pub(super) fn over(
        &self,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
        append: bool,
    ) -> Result<Option<Vec<String>>> {
        let old = dir.open_file_to_update(entry.name())?;
        if old.stat.nlink > 1 {
            return Ok(None);
        }
        if let Some(keeper) = &self.keeper {
            // A second name would change with it: the old version is copied.
            self.copy_aside(keeper, dir, entry, &old)?;
        }
        // What is appended to has to be there, however content is sent.
        let is_used = append || self.job.options.writing.delta != DeltaMode::Never;
        let there = OldVersion { file: &old.file, is_overwritten: true };
        let mut content = self.job.source.open(*entry, is_used.then_some(there))?;
        let start = if append { old.stat.size } else { 0 };
        self.fill_over((step, &old), &mut content, entry, start)
            .map(Some)
            .map_err(|error| partly(error, &old))
    }

    /// Makes the old file the new one, with its attributes.
    fn fill_over(
        &self,
        (step, old): (&SyncStep, &OpenedFile),
        content: &mut FileContent,
        entry: &ListingEntry<'_>,
        start: u64,
    ) -> Result<Vec<String>> {
        let received = match content {
            FileContent::File(from) => {
                self.flow.patch(&old.file, from, start)?;
                None
            }
            FileContent::Pieces(pieces) => Some(self.write_over(&old.file, &mut **pieces)?),
        };
        let listed = step.old.map(|id| self.job.to.entry(id));
        let newcomer = PreviousOccupant::No { mode: old.stat.mode, old: listed };
        let node = HeldNode::of_file(&old.file);
        let failed = attributes::apply(&node, entry, newcomer, self.job.options)?;
        self.times.ensure(&node, entry, self.job.options);
        self.settle(&old.file, content, received)?;
        Ok(failed)
    }

    /// Writes pieces over a file; gives the hash of what shall be there.
    fn write_over(&self, file: &File, pieces: &mut dyn ContentPieces) -> Result<ContentDigest> {
        let mut hasher = blake3::Hasher::new();
        let (filling, mut position) = (FileFill::over(file), 0);
        while let Some(piece) = pieces.next()? {
            let len = match piece {
                TransferPiece::Data(bytes) => {
                    hasher.update(bytes);
                    self.flow.put(&filling, bytes, position)?;
                    bytes.len() as u64
                }
                TransferPiece::Hole(len) => {
                    hash_zeros(&mut hasher, len);
                    zeros(file, position, len)?;
                    len
                }
                TransferPiece::Old { offset, len } if offset >= position => {
                    self.move_down(&filling, &mut hasher, offset, position, len)?;
                    len
                }
                // Nothing that was written over may be taken from there.
                TransferPiece::Old { .. } => return Err(SyncError::Unequal),
            };
            position = position.checked_add(len).ok_or(SyncError::Unequal)?;
            self.flow.passed(len)?;
        }
        set_len(file, position)?;
        as_told(&hasher, pieces)
    }

    /// Takes a range that stands further on in the file, or just here. What stays is read, too: that the source has the
    /// same was concluded from a short hash.
    fn move_down(
        &self,
        to: &FileFill<'_>,
        hasher: &mut blake3::Hasher,
        offset: u64,
        position: u64,
        len: u64,
    ) -> Result<()> {
        let mut buffer = vec![0; BLOCK];
        let mut done = 0;
        while done < len {
            let step = (len - done).min(BLOCK as u64);
            let window = buffer.get_mut(..step as usize).unwrap_or_default();
            let from = offset.checked_add(done).ok_or(SyncError::Unequal)?;
            to.file.read_exact_at(window, from).map_err(shrunk)?;
            hasher.update(window);
            // What is written over here was read before, since it goes towards the start.
            if offset != position {
                self.flow.put(to, window, position + done)?;
            }
            done += step;
        }
        Ok(())
    }

    fn copy_aside(
        &self,
        keeper: &super::BackupKeeper,
        dir: &HeldDir,
        entry: &ListingEntry<'_>,
        old: &OpenedFile,
    ) -> Result<()> {
        let aside = dir.new_file()?;
        vellum_checkout::clone::copy_content(&old.file, aside.file()?, &old.stat)?;
        aside.node()?.set_mode(old.stat.mode)?;
        let _ = aside.node()?.set_owner(Some(old.stat.uid), Some(old.stat.gid));
        aside.node()?.set_mtime(old.stat.mtime)?;
        let temp = vellum_checkout::beneath::temp_name()?;
        aside.commit(&temp, vellum_checkout::beneath::ReplacePolicy::Never)?;
        keeper.take_as(dir, &temp, entry.name(), &entry.path())
    }
}

/// The failure of a file that was being written over. If something of it was written, the next run must see that it has
/// to be written: a time long ago is no other version's, nor newer than the source's.
fn partly(error: SyncError, old: &OpenedFile) -> SyncError {
    /// Its time of last change then.
    const LONG_AGO: UnixTime = UnixTime { secs: 0, nanos: 0 };
    let is_untouched = stat_file(&old.file)
        .is_ok_and(|now| (now.size, now.mtime, now.ctime) == (old.stat.size, old.stat.mtime, old.stat.ctime));
    if is_untouched {
        return error;
    }
    // Who may write to a file without owning it cannot set its time: then it is that of the last write.
    let _ = HeldNode::of_file(&old.file).set_mtime(LONG_AGO);
    SyncError::PartlyWritten(Box::new(error))
}

/// Makes a range of a file zeros.
fn zeros(file: &File, position: u64, len: u64) -> Result<()> {
    use std::io::Write;
    let mut file = file;
    file.seek(SeekFrom::Start(position)).map_err(SyncError::io("write"))?;
    let mut left = len;
    let block = [0; 4096];
    while left > 0 {
        let step = left.min(block.len() as u64) as usize;
        file.write_all(block.get(..step).unwrap_or_default()).map_err(SyncError::io("write"))?;
        left -= step as u64;
    }
    Ok(())
}

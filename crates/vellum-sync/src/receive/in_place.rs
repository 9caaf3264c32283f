//! Writing over an old file, which is asked for by name: whoever reads it meanwhile, and a run that is killed, see a
//! mixture.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use vellum_checkout::beneath::{Dir, Node};

use super::content::{BLOCK, as_told, hash_zeros, set_len, shrunk};
use super::file::Receiver;
use super::filling::Filling;
use super::{Newcomer, attributes};
use crate::error::{Result, SyncError};
use crate::listing::{Digest, Entry};
use crate::source::{Content, Piece, Pieces};

impl Receiver<'_> {
    /// Writes over the old file from `start` on. Gives None if the file has other names: it is not changed then.
    pub(super) fn over(&self, dir: &Dir, entry: &Entry<'_>, append: bool) -> Result<Option<Vec<String>>> {
        let old = dir.open_file_to_update(entry.name())?;
        if old.stat.nlink > 1 {
            return Ok(None);
        }
        if let Some(keeper) = &self.keeper {
            // A second name would change with it: the old version is copied.
            self.copy_aside(keeper, dir, entry, &old)?;
        }
        let mut content = self.job.source.open(*entry, Some(&old.file))?;
        let start = if append { old.stat.size } else { 0 };
        let received = match &mut content {
            Content::File(from) => {
                self.flow.patch(&old.file, from, start)?;
                None
            }
            Content::Pieces(pieces) => Some(self.write_over(&old.file, &mut **pieces)?),
        };
        let newcomer = Newcomer::No { mode: old.stat.mode };
        let node = Node::of_file(&old.file);
        let failed = attributes::apply(&node, entry, newcomer, self.job.options)?;
        self.times.ensure(&node, entry, self.job.options);
        self.settle(&old.file, &content, received)?;
        Ok(Some(failed))
    }

    /// Writes pieces over a file; gives the hash of what shall be there.
    fn write_over(&self, file: &File, pieces: &mut dyn Pieces) -> Result<Digest> {
        let mut hasher = blake3::Hasher::new();
        let (filling, mut position) = (Filling::over(file), 0);
        while let Some(piece) = pieces.next()? {
            let len = match piece {
                Piece::Data(bytes) => {
                    hasher.update(bytes);
                    self.flow.put(&filling, bytes, position)?;
                    bytes.len() as u64
                }
                Piece::Hole(len) => {
                    hash_zeros(&mut hasher, len);
                    zeros(file, position, len)?;
                    len
                }
                // Nothing that was written over may be taken from there. What stays is read: that the source has the
                // same was concluded from a short hash.
                Piece::Old { offset, len } if offset == position => {
                    hash_range(&mut hasher, file, position, len)?;
                    len
                }
                Piece::Old { .. } => return Err(SyncError::Unequal),
            };
            position = position.checked_add(len).ok_or(SyncError::Unequal)?;
            self.flow.passed(len)?;
        }
        set_len(file, position)?;
        as_told(&hasher, pieces)
    }

    fn copy_aside(
        &self,
        keeper: &super::Keeper,
        dir: &Dir,
        entry: &Entry<'_>,
        old: &vellum_checkout::beneath::OpenedFile,
    ) -> Result<()> {
        let aside = dir.new_file()?;
        vellum_checkout::clone::copy_content(&old.file, aside.file()?, &old.stat)?;
        aside.node()?.set_mode(old.stat.mode)?;
        let _ = aside.node()?.set_owner(Some(old.stat.uid), Some(old.stat.gid));
        aside.node()?.set_mtime(old.stat.mtime)?;
        let temp = vellum_checkout::beneath::temp_name()?;
        aside.commit(&temp, vellum_checkout::beneath::Replace::Never)?;
        keeper.take_as(dir, &temp, entry.name(), &entry.path())
    }
}

/// Hashes a range of a file.
fn hash_range(hasher: &mut blake3::Hasher, file: &File, mut position: u64, len: u64) -> Result<()> {
    let end = position.checked_add(len).ok_or(SyncError::Unequal)?;
    let mut buffer = vec![0; BLOCK];
    while position < end {
        let step = (end - position).min(BLOCK as u64);
        let window = buffer.get_mut(..step as usize).unwrap_or_default();
        file.read_exact_at(window, position).map_err(shrunk)?;
        hasher.update(window);
        position += step;
    }
    Ok(())
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

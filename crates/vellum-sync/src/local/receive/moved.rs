//! Writing a new version that shares blocks with the old one, including blocks that moved.
//!
//! An insertion into a file, or a deletion from it, moves all content behind it. A filesystem can share moved content
//! in whole blocks; it is found as in a transfer to another host (see `delta`). Invariant: shared content is compared
//! with the source, byte by byte, once no other process can change it. Deliberately absent: content that moved by less
//! than a block, which no filesystem can share, and moves within a file of unchanged length, which are rare and would
//! take a scan of every byte.

use std::fs::File;
use std::io;

use rustix::fs::{copy_file_range, fstatfs};
use rustix::io::Errno;
use vellum_host::beneath::OpenedFile;

use super::TransferControl;
use super::content::{PositionedReader, check_unchanged, set_file_len};
use super::filling::FileFill;
use super::ranges::ContentRange;
use crate::error::{Result, SyncError};
use crate::remote::delta::{DeltaOperation, FileSignature, SignatureMatcher};

/// A range of content that the old version also has.
#[derive(Clone, Copy)]
struct SharedRun {
    /// Its offsets in the old version and in the new one.
    old: u64,
    new: u64,
    len: u64,
}

impl SharedRun {
    /// Whether another range continues this one in both versions.
    fn is_continued_by(&self, next: &Self) -> bool {
        (self.old + self.len, self.new + self.len) == (next.old, next.new)
    }

    /// The part that can be shared in blocks of this size; None unless it moved by whole blocks.
    fn align_to_blocks(&self, block: u64) -> Option<Self> {
        let start = self.new.next_multiple_of(block);
        let len = (self.new + self.len).checked_sub(start)? / block * block;
        let moved_whole = self.old.abs_diff(self.new).is_multiple_of(block);
        (len > 0 && moved_whole).then(|| Self { old: self.old + (start - self.new), new: start, len })
    }
}

/// The writing of a new version.
struct SharedRewrite<'r> {
    flow: &'r TransferControl<'r>,
    to: &'r FileFill<'r>,
    from: &'r OpenedFile,
    old: &'r File,
    /// The filesystem's block size, bytes.
    block: u64,
    /// The last range found, which the next may continue.
    found: Option<SharedRun>,
    position: u64,
}

impl TransferControl<'_> {
    /// Makes a file with the old version's blocks equal to the source.
    pub(super) fn rewrite_shared(
        &self,
        to: &FileFill<'_>,
        from: &OpenedFile,
        old: &OpenedFile,
    ) -> Result<()> {
        let block = fstatfs(to.file).map_or(0, |is| u64::try_from(is.f_bsize).unwrap_or(0));
        let moved = old.stat.size.abs_diff(from.stat.size);
        // Content that moved by less than a block cannot be shared, and then comparing in place is all that
        // can be done.
        if moved == 0 || block == 0 || !moved.is_multiple_of(block) {
            return self.patch_file(to.file, from, 0);
        }
        let signature = FileSignature::from_reader(&mut PositionedReader::new(&old.file), old.stat.size)
            .map_err(SyncError::wrap_io_error("read"))?;
        let Some(signature) = signature else { return self.patch_file(to.file, from, 0) };
        // The clone of the old version is given up. Its blocks come back range by range, at their new places.
        set_file_len(to.file, 0)?;
        let mut renewal =
            SharedRewrite { flow: self, to, from, old: &old.file, block, found: None, position: 0 };
        let mut failed = None;
        let scanned = SignatureMatcher::new(signature).scan_file(
            &mut PositionedReader::new(&from.file),
            from.stat.size,
            &mut |op| {
                renewal.accept_operation(op).map_err(|error| {
                    failed = Some(error);
                    io::ErrorKind::Other.into()
                })
            },
        );
        match (scanned, failed) {
            (_, Some(error)) => return Err(error),
            (Err(error), None) => return Err(SyncError::wrap_io_error("read")(error)),
            (Ok(()), None) => renewal.flush_found_run()?,
        }
        set_file_len(to.file, renewal.position)?;
        check_unchanged(from)
    }
}

impl SharedRewrite<'_> {
    fn accept_operation(&mut self, op: DeltaOperation<'_>) -> Result<()> {
        match op {
            DeltaOperation::Data(bytes) => {
                self.flush_found_run()?;
                self.flow.write_new_at(self.to, bytes, self.position)?;
                self.position += bytes.len() as u64;
                self.flow.throttle_bytes(bytes.len() as u64)
            }
            DeltaOperation::Copy { offset, len } => {
                let run = SharedRun { old: offset, new: self.position, len };
                self.position += len;
                match &mut self.found {
                    // Longer runs contain more whole blocks: at each end of a run up to one block has to be
                    // written.
                    Some(found) if found.is_continued_by(&run) => found.len += len,
                    _ => {
                        self.flush_found_run()?;
                        self.found = Some(run);
                    }
                }
                Ok(())
            }
        }
    }

    /// Shares the whole blocks of the last range, and writes the rest.
    fn flush_found_run(&mut self) -> Result<()> {
        let Some(run) = self.found.take() else { return Ok(()) };
        let end = run.new + run.len;
        let Some(inner) = run.align_to_blocks(self.block) else { return self.write_range(run.new, end) };
        self.write_range(run.new, inner.new)?;
        self.share_run(&inner)?;
        // Two pieces may have a hash in common, and the old version may have been written to a moment ago.
        let range = ContentRange { start: inner.new, end: inner.new + inner.len };
        self.flow.patch_range(self.to, self.from, range)?;
        self.write_range(inner.new + inner.len, end)
    }

    /// Shares blocks by a call to the filesystem.
    fn share_run(&self, run: &SharedRun) -> Result<()> {
        let mut done = 0;
        while done < run.len {
            let mut read_at = run.old + done;
            let mut write_at = run.new + done;
            let left = (run.len - done) as usize;
            // On filesystems that can share blocks, this call shares them if offsets and length are aligned.
            // Where it copies instead, the result is the same.
            match copy_file_range(self.old, Some(&mut read_at), self.to.file, Some(&mut write_at), left) {
                Ok(count) if count > 0 => done += count as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(SyncError::wrap_io_error("write")(errno.into())),
                Ok(_) => return Err(SyncError::Changed),
            }
        }
        Ok(())
    }

    /// Copies a range of the source.
    fn write_range(&self, start: u64, end: u64) -> Result<()> {
        self.flow.copy_buffered(self.to, self.from, ContentRange { start, end }, self.flow.sparse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moved_by_whole_blocks_is_shared_between_its_ends() {
        let within = |old, new, len| {
            SharedRun { old, new, len }.align_to_blocks(4096).map(|inner| (inner.old, inner.new, inner.len))
        };
        assert_eq!(within(0, 0, 8192), Some((0, 0, 8192)));
        assert_eq!(within(100, 4196, 10_000), Some((4096, 8192, 4096)));
        assert_eq!(within(8192, 0, 4095), None, "less than a block");
        assert_eq!(within(100, 4196, 3996), None, "it ends where a block begins");
        assert_eq!(within(100, 0, 1 << 20), None, "it moved by less than a block");
    }
}

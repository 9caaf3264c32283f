//! Writing files in batches, so that their chunks are read by few requests and all threads have work.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use rayon::prelude::*;
use vellum_host::beneath::{HeldDir, ReplacePolicy, stat_file};
use vellum_host::clone::{CopyStrategy, clone_or_copy_content, copy_data};
use vellum_host::parallel::run_parallel;
use vellum_store::FetchedBlobs;
use vellum_types::{BlobId, BlobKind, ErrorKind, FileKind};
use vellum_volume::tree::{FilePiece, InodeRecord, collect_file_pieces, slice_chunk};

use super::unseen::HiddenFillDir;
use super::{CloneSource, MaterializeRequest, MaterializeRun};
use crate::error::{CheckoutError, Result};
use crate::plan::FileWrite;
use crate::scan::ScanEntryId;

/// Most files of a batch.
const BATCH_FILES: usize = 512;
/// How many files' inodes are looked up together: few, since a batch of large files contains only some of them.
const LOOKED_UP: usize = 64;
/// Approximate bytes of content that are fetched together.
const BATCH_BYTES: u64 = 16 << 20;
/// Permission bits, without those that grant the owner's privileges.
const PERMISSIONS: u32 = 0o777;
/// Pieces of a large file that are fetched together: 16 MiB, at 64 KiB each.
const WINDOW: usize = 256;

/// How the files of a fork are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkEngine {
    /// By sharing blocks; fails if the filesystem does not support that.
    Reflink,
    /// By copying unchanged files of the worktree.
    Copy,
    /// From the chunks in the store.
    Chunks,
}

impl ForkEngine {
    /// Its name in messages.
    #[must_use]
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Reflink => "reflink",
            Self::Copy => "copy",
            Self::Chunks => "chunks",
        }
    }
}

/// A batch of files with everything that is needed to write them.
pub struct FileBatch<'a> {
    items: Vec<BatchItem<'a>>,
    /// The chunks that were fetched for the whole batch.
    fetched: FetchedBlobs,
}

struct BatchItem<'a> {
    write: &'a FileWrite,
    inode: InodeRecord,
    pieces: Vec<FilePiece>,
    /// The index of its first chunk in `fetched`. None for a file that fetches its own chunks if it needs any: a large
    /// one, or one that will be cloned.
    first: Option<usize>,
}

impl<'a> FileBatch<'a> {
    /// Takes the next batch from the front of the list, and fetches its chunks.
    pub fn collect_batch(what: &MaterializeRequest<'_>, writes: &'a [FileWrite]) -> Result<Self> {
        let mut items = Vec::new();
        let mut chunks = Vec::new();
        let mut bytes = 0;
        // Inodes are read from the store in small portions: a batch of large files would otherwise look up
        // 512 inodes, keep a few of them, and repeat that for the next batch.
        for portion in writes.get(..writes.len().min(BATCH_FILES)).unwrap_or_default().chunks(LOOKED_UP) {
            if bytes >= BATCH_BYTES {
                break;
            }
            let load = || {
                portion.par_iter().map(|write| BatchItem::load_item(what, write)).collect::<Result<Vec<_>>>()
            };
            let found = run_parallel(load)?;
            for mut item in found {
                if bytes >= BATCH_BYTES {
                    break;
                }
                bytes += item.inode.attr.size;
                // A larger file would make all chunks of the batch wait in memory; it fetches its own in
                // windows while it is written.
                if item.inode.attr.size <= BATCH_BYTES && what.find_clone_source(item.write).is_none() {
                    item.first = Some(chunks.len());
                    chunks.extend(chunk_blobs(&item.pieces));
                }
                items.push(item);
            }
        }
        Ok(Self { items, fetched: what.volume.blobs.fetch_blobs(&chunks)? })
    }

    /// The number of files.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The files.
    pub fn writes(&self) -> impl Iterator<Item = &'a FileWrite> {
        self.items.iter().map(|item| item.write)
    }

    /// The files, with their sizes.
    pub fn sizes(&self) -> impl Iterator<Item = (&'a FileWrite, u64)> {
        self.items.iter().map(|item| (item.write, item.inode.attr.size))
    }

    /// Writes the files; returns for each the metadata that could not be applied.
    pub fn write_files(&self, work: &MaterializeRun<'_>) -> Vec<Result<Vec<String>>> {
        self.items.par_iter().map(|item| item.write_item(work, &self.fetched)).collect()
    }
}

fn chunk_blobs(pieces: &[FilePiece]) -> impl Iterator<Item = (BlobKind, BlobId)> {
    pieces.iter().filter_map(|piece| piece.chunk).map(|(id, _)| (BlobKind::Chunk, id))
}

impl MaterializeRequest<'_> {
    /// The file that a file may be cloned from.
    pub(super) fn find_clone_source(&self, write: &FileWrite) -> Option<(&CloneSource<'_>, ScanEntryId)> {
        if self.engine == Some(ForkEngine::Chunks) {
            return None;
        }
        self.clones.as_ref().zip(write.same_content)
    }
}

impl<'a> BatchItem<'a> {
    fn load_item(what: &MaterializeRequest<'_>, write: &'a FileWrite) -> Result<Self> {
        let inode = what.target.read_inode(write.place.ino)?;
        let pieces =
            if inode.attr.kind == FileKind::File { collect_file_pieces(&inode)? } else { Vec::new() };
        Ok(Self { write, inode, pieces, first: None })
    }

    fn write_item(&self, work: &MaterializeRun<'_>, fetched: &FetchedBlobs) -> Result<Vec<String>> {
        let place = &self.write.place;
        if let Some(home) = work.unseen.find_fill_dir(place.dir, |dir| work.dirs.open_dir(dir.dir))? {
            return self.write_hidden_file(work, fetched, &home);
        }
        let dir = work.dirs.open_dir(place.dir)?;
        if self.inode.attr.kind != FileKind::File {
            return self.create_special(work, &dir);
        }
        let new = dir.stage_file()?;
        self.write_content(work, new.file()?, fetched)?;
        // Metadata are set before the file gets its name, so no name ever leads to a file with wrong
        // permissions or times.
        let problems = work.apply_metadata(&new.node()?, &self.inode, true);
        // This is checked as late as possible: writing the content may have taken minutes.
        work.check_replaced(&dir, &place.name, self.write.replaces)?;
        let replaces = self.write.replaces.is_some() || self.write.overwrites;
        let replace = if replaces { ReplacePolicy::Always } else { ReplacePolicy::Never };
        new.commit(&place.name, replace)?;
        Ok(problems)
    }

    /// Creates the file under its final name in a hidden directory.
    fn write_hidden_file(
        &self,
        work: &MaterializeRun<'_>,
        fetched: &FetchedBlobs,
        home: &HiddenFillDir,
    ) -> Result<Vec<String>> {
        if self.inode.attr.kind != FileKind::File {
            return self.create_special(work, home.dir());
        }
        let name = &self.write.place.name;
        // Set-id bits come when the file has its owner.
        let (new, fresh) = home.stage_file(name, self.inode.attr.mode & PERMISSIONS)?;
        self.write_content(work, new.file()?, fetched)?;
        let problems = work.apply_fresh_metadata(&new.node()?, &self.inode, &fresh);
        new.commit(name, ReplacePolicy::Never)?;
        Ok(problems)
    }

    fn write_content(&self, work: &MaterializeRun<'_>, file: &File, fetched: &FetchedBlobs) -> Result<()> {
        if !self.clone_content(work, file)? {
            self.fill_from_chunks(work, file, fetched)?;
            work.counters.from_chunks.fetch_add(1, Ordering::Relaxed);
        }
        work.counters.bytes.fetch_add(self.inode.attr.size, Ordering::Relaxed);
        Ok(())
    }

    fn create_special(&self, work: &MaterializeRun<'_>, dir: &HeldDir) -> Result<Vec<String>> {
        let name = &self.write.place.name;
        // Symlinks and special files cannot be created without a name (O_TMPFILE makes regular files only),
        // so the old entry is removed first. A crash in between leaves neither; the next run of the restore
        // creates the new one.
        work.check_replaced(dir, name, self.write.replaces)?;
        if self.write.replaces.is_some() || self.write.overwrites {
            dir.unlink(name)?;
        }
        work.create_special(dir, name, &self.inode)?;
        Ok(work.apply_metadata(&dir.hold_node(name)?, &self.inode, true))
    }

    /// Clones the content of an equal file; false if it has to be written from chunks.
    fn clone_content(&self, work: &MaterializeRun<'_>, to: &File) -> Result<bool> {
        let Some((source, id)) = work.what.find_clone_source(self.write) else { return Ok(false) };
        let seen = source.tree.entry(id);
        // Cloning only saves work. If the source is not what was scanned, the chunks have the content that
        // was recorded.
        let opened = match source.dirs.open_dir(id.dir).and_then(|dir| dir.open_file(seen.name())) {
            Ok(opened) if opened.stat.is_same_state(seen.stat()) => opened,
            _ => return Ok(false),
        };
        let copied = match work.what.engine {
            Some(ForkEngine::Copy) => copy_data(&opened.file, to, &opened.stat),
            _ => clone_or_copy_content(&opened.file, to, &opened.stat),
        };
        // The source is checked again afterwards: a write during the copy would otherwise give the fork
        // content that is in no snapshot.
        let held_still = stat_file(&opened.file).is_ok_and(|now| now.is_same_state(seen.stat()));
        match copied {
            Ok(copied) if held_still => {
                let reflinked = copied.strategy == CopyStrategy::Reflink;
                if !reflinked && work.what.engine == Some(ForkEngine::Reflink) {
                    let reason = "this filesystem cannot share blocks between files".into();
                    return Err(CheckoutError::Engine { engine: ForkEngine::Reflink.display_name(), reason });
                }
                let counter = if reflinked { &work.counters.reflinked } else { &work.counters.copied };
                counter.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            }
            // Writing the same bytes from chunks would need the same space.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                Err(CheckoutError::path_error("copy", seen.name())(std::io::ErrorKind::StorageFull.into()))
            }
            // The source changed or failed underway: the chunks have what was recorded.
            Ok(_) | Err(_) => {
                to.set_len(0).map(|()| false).map_err(CheckoutError::path_error("write", seen.name()))
            }
        }
    }

    /// Writes the content from chunks; holes stay holes.
    fn fill_from_chunks(&self, work: &MaterializeRun<'_>, file: &File, fetched: &FetchedBlobs) -> Result<()> {
        let failed = |error| CheckoutError::path_error("write", &self.write.place.name)(error);
        if let Some(content) = &self.inode.attr.inline {
            return file.write_all_at(content, 0).map_err(failed);
        }
        if let Some(first) = self.first {
            self.fill_range(file, fetched, first, &self.pieces)?;
        } else {
            self.fill_in_windows(work, file)?;
        }
        // A hole at the end, or nothing but holes.
        if self.pieces.last().is_none_or(|piece| piece.chunk.is_none()) {
            file.set_len(self.inode.attr.size).map_err(failed)?;
        }
        Ok(())
    }

    fn fill_range(
        &self,
        file: &File,
        fetched: &FetchedBlobs,
        first: usize,
        pieces: &[FilePiece],
    ) -> Result<()> {
        let mut chunks = pieces.iter().filter(|piece| piece.chunk.is_some()).enumerate();
        chunks.try_for_each(|(number, piece)| self.write_piece(file, fetched, first + number, piece))
    }

    /// Writes a piece, whose chunk is the one of this number that was fetched.
    fn write_piece(
        &self,
        file: &File,
        fetched: &FetchedBlobs,
        number: usize,
        piece: &FilePiece,
    ) -> Result<()> {
        let Some((id, skip)) = piece.chunk else { return Ok(()) };
        let chunk = fetched.open_blob(number)?;
        let bytes = slice_chunk(&chunk, id, skip, piece.len)?;
        let failed = CheckoutError::path_error("write", &self.write.place.name);
        file.write_all_at(bytes, piece.offset).map_err(failed)
    }

    /// Writes a large file: while one window is decrypted and written, the next is fetched.
    fn fill_in_windows(&self, work: &MaterializeRun<'_>, file: &File) -> Result<()> {
        let fetch = |window: Option<&[FilePiece]>| -> Result<Option<FetchedBlobs>> {
            work.what.meter.check_stopped()?;
            let wanted = window.map(|window| chunk_blobs(window).collect::<Vec<_>>());
            Ok(wanted.map(|wanted| work.what.volume.blobs.fetch_blobs(&wanted)).transpose()?)
        };
        let mut windows = self.pieces.chunks(WINDOW).peekable();
        let mut ready = fetch(windows.peek().copied())?;
        while let (Some(window), Some(fetched)) = (windows.next(), ready.take()) {
            // At most two windows are in memory at a time.
            let following = windows.peek().copied();
            let (filled, next) =
                rayon::join(|| self.fill_window(file, &fetched, window), || fetch(following));
            filled?;
            ready = next?;
        }
        Ok(())
    }

    /// Writes one window of a large file with all threads.
    fn fill_window(&self, file: &File, fetched: &FetchedBlobs, window: &[FilePiece]) -> Result<()> {
        let chunks: Vec<_> = window.iter().filter(|piece| piece.chunk.is_some()).collect();
        chunks
            .par_iter()
            .enumerate()
            .try_for_each(|(number, piece)| self.write_piece(file, fetched, number, piece))
    }
}

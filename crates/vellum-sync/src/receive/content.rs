//! Filling a new file: from a file of this host as is fastest, or with pieces that arrive.
//!
//! Invariant: when a fill returns Ok the file has exactly the source's bytes, and the source stayed the same meanwhile.

use std::cell::RefCell;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{copy_file_range, ftruncate, ioctl_ficlone};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use vellum_checkout::beneath::{OpenedFile, stat_file};
use vellum_checkout::clone::{DataSegment, data_segments};
use vellum_volume::ProgressMeter;

use super::filling::FileFill;
use super::ranges::{ContentRange, IdleWorkers, cut};
use crate::error::{Result, SyncError};
use crate::listing::{ContentDigest, EntryFlags, ListingEntry};
use crate::source::{ContentPieces, FilePart, TransferPiece};

/// Files up to this many bytes are read and written in one piece each: fewer calls than any other way.
pub(crate) const SMALL: u64 = 128 << 10;
/// Bytes between two looks at whether to go on.
const STEP: u64 = 8 << 20;
/// Bytes that are compared, or looked at for zeros, at a time.
pub(super) const BLOCK: usize = 64 << 10;
/// Shortest run of zeros that becomes a hole, bytes: a block of most filesystems.
const HOLE: usize = 4096;

thread_local! {
    /// Of each worker, for files that go in one piece.
    pub(super) static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What all files of a run share: how fast it may go, what was counted, when to stop.
pub(crate) struct TransferControl<'a> {
    pub meter: &'a ProgressMeter,
    pub written: AtomicU64,
    pub spared: AtomicU64,
    /// Sharing the source's blocks was refused once, or those of old versions: it is not tried again.
    no_clone: AtomicBool,
    no_share: AtomicBool,
    /// Runs of zeros become holes.
    pub(super) sparse: bool,
    /// Bytes a second, and since when they are counted.
    limit: Option<(u64, Instant)>,
    taken: AtomicU64,
    /// Who helps with large files.
    pub hands: IdleWorkers,
}

impl<'a> TransferControl<'a> {
    pub fn new(meter: &'a ProgressMeter, sparse: bool, bandwidth: Option<u64>) -> Self {
        Self {
            meter,
            written: AtomicU64::new(0),
            spared: AtomicU64::new(0),
            no_clone: AtomicBool::new(false),
            no_share: AtomicBool::new(false),
            sparse,
            limit: bandwidth.filter(|limit| *limit > 0).map(|limit| (limit, Instant::now())),
            taken: AtomicU64::new(0),
            hands: IdleWorkers::default(),
        }
    }

    /// Counts bytes that went by, waits if that was too fast, and says when to stop.
    pub fn passed(&self, bytes: u64) -> Result<()> {
        self.meter.add(0, bytes);
        if let Some((limit, since)) = self.limit {
            let taken = self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
            let due = Duration::from_secs_f64(taken as f64 / limit as f64);
            while let Some(early) = due.checked_sub(since.elapsed()).filter(|early| !early.is_zero()) {
                if self.meter.stopped() {
                    break;
                }
                std::thread::sleep(early.min(Duration::from_millis(100)));
            }
        }
        if self.meter.stopped() { Err(SyncError::Stopped) } else { Ok(()) }
    }

    /// Counts bytes that needed not be written.
    pub fn spare(&self, bytes: u64) {
        self.spared.fetch_add(bytes, Ordering::Relaxed);
    }

    fn step(&self) -> u64 {
        self.limit.map_or(STEP, |(limit, _)| (limit / 8).clamp(4096, STEP))
    }

    fn count(&self, written: u64) {
        self.written.fetch_add(written, Ordering::Relaxed);
    }

    /// Whether a file, as it was listed, goes in one piece.
    pub(super) fn takes_at_once(&self, entry: &ListingEntry<'_>) -> bool {
        entry.is_file()
            && entry.size() <= SMALL.min(self.step())
            && !self.sparse
            && !entry.flags().has(EntryFlags::SPARSE)
    }

    /// Fills `to`, which is empty, from a file of this host.
    pub(super) fn fill(&self, filling: &FileFill<'_>, from: &OpenedFile) -> Result<()> {
        let (size, to) = (from.stat.size, filling.file);
        let plain = !self.sparse && !from.stat.may_have_holes;
        if size <= SMALL.min(self.step()) && plain {
            self.small(to, from)?;
        } else if self.limit.is_none() && cloned(to, from, &self.no_clone)? {
            self.spared.fetch_add(size, Ordering::Relaxed);
            self.passed(size)?;
        } else if self.sparse {
            set_len(to, size)?;
            let whole = std::iter::once(Ok(ContentRange { start: 0, end: size }));
            self.hands.share(cut(whole), |range| self.by_hand(filling, from, range, true))?;
        } else {
            self.data(filling, from)?;
        }
        unchanged(from)
    }

    fn small(&self, to: &File, from: &OpenedFile) -> Result<()> {
        let size = from.stat.size as usize;
        if size == 0 {
            return Ok(());
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size.max(BLOCK), 0);
            }
            let window = buffer.get_mut(..size).unwrap_or_default();
            from.file.read_exact_at(window, 0).map_err(shrunk)?;
            to.write_all_at(window, 0).map_err(SyncError::io("write"))
        })?;
        self.count(size as u64);
        self.passed(size as u64)
    }

    /// Shares the blocks of the version that was there, if its filesystem can.
    pub(super) fn shared(&self, to: &File, old: &OpenedFile) -> Result<bool> {
        cloned(to, old, &self.no_share)
    }

    /// Copies data alone.
    fn data(&self, filling: &FileFill<'_>, from: &OpenedFile) -> Result<()> {
        if from.stat.may_have_holes {
            set_len(filling.file, from.stat.size)?;
        }
        let segments = data_segments(&from.file, &from.stat).map(|segment| match segment {
            Ok(DataSegment { offset, len }) => Ok(ContentRange { start: offset, end: offset + len }),
            Err(error) => Err(SyncError::io("read")(error)),
        });
        self.hands.share(cut(segments), |range| self.in_kernel(filling, from, range))
    }

    /// Copies within the kernel, if it can.
    fn in_kernel(&self, filling: &FileFill<'_>, from: &OpenedFile, range: ContentRange) -> Result<()> {
        let mut position = range.start;
        while position < range.end {
            let step = (range.end - position).min(self.step()) as usize;
            let (mut read_at, mut write_at) = (position, position);
            // Where the disk has to be waited for, others may write meanwhile.
            let pen = in_memory(&from.file, position + step as u64 - 1).then(|| filling.pen());
            let copied =
                copy_file_range(&from.file, Some(&mut read_at), filling.file, Some(&mut write_at), step);
            drop(pen);
            match copied {
                Ok(count) if count > 0 => {
                    position += count as u64;
                    self.count(count as u64);
                    filling.grew(count as u64);
                    self.passed(count as u64)?;
                }
                Err(Errno::INTR) => {}
                Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                    return Err(SyncError::io("write")(errno.into()));
                }
                // Some pairs of files cannot be copied so; and the end of a file that became shorter: reading tells.
                Ok(_) | Err(_) => {
                    return self.by_hand(filling, from, ContentRange { start: position, ..range }, false);
                }
            }
        }
        Ok(())
    }

    pub(super) fn by_hand(
        &self,
        filling: &FileFill<'_>,
        from: &OpenedFile,
        range: ContentRange,
        sparse: bool,
    ) -> Result<()> {
        let mut buffer = vec![0; BLOCK.min(self.step() as usize)];
        let mut position = range.start;
        while position < range.end {
            let step = (range.end - position).min(buffer.len() as u64) as usize;
            let window = buffer.get_mut(..step).unwrap_or_default();
            from.file.read_exact_at(window, position).map_err(shrunk)?;
            if sparse {
                self.put_sparse(filling, window, position)?
            } else {
                self.put(filling, window, position)?
            }
            position += step as u64;
            filling.grew(step as u64);
            self.passed(step as u64)?;
        }
        Ok(())
    }

    pub(super) fn put(&self, to: &FileFill<'_>, bytes: &[u8], position: u64) -> Result<()> {
        let _pen = to.pen();
        to.file.write_all_at(bytes, position).map_err(SyncError::io("write"))?;
        self.count(bytes.len() as u64);
        Ok(())
    }

    /// Writes where nothing was before.
    pub(super) fn put_new(&self, to: &FileFill<'_>, bytes: &[u8], position: u64) -> Result<()> {
        if self.sparse { self.put_sparse(to, bytes, position) } else { self.put(to, bytes, position) }
    }

    /// Writes what is not zero, into a file that has holes there.
    fn put_sparse(&self, to: &FileFill<'_>, bytes: &[u8], mut position: u64) -> Result<()> {
        for piece in bytes.chunks(HOLE) {
            if piece.iter().any(|byte| *byte != 0) {
                self.put(to, piece, position)?;
            }
            position += piece.len() as u64;
        }
        Ok(())
    }

    /// Fills a file, which is empty, with pieces; `old` is the file that some of them are taken from. Gives the hash of
    /// what arrived.
    pub(super) fn assemble(
        &self,
        filling: &FileFill<'_>,
        pieces: &mut dyn ContentPieces,
        old: Option<&File>,
    ) -> Result<ContentDigest> {
        let mut hasher = blake3::Hasher::new();
        let mut position = 0;
        let mut buffer = Vec::new();
        while let Some(piece) = pieces.next()? {
            let len = match piece {
                TransferPiece::Data(bytes) => {
                    hasher.update(bytes);
                    self.put_new(filling, bytes, position)?;
                    bytes.len() as u64
                }
                TransferPiece::Hole(len) => {
                    hash_zeros(&mut hasher, len);
                    len
                }
                TransferPiece::Old { offset, len } => {
                    let old = old.ok_or(SyncError::Unequal)?;
                    self.take_old(filling, old, offset, position, len, &mut hasher, &mut buffer)?;
                    len
                }
            };
            position = position.checked_add(len).ok_or(SyncError::Unequal)?;
            filling.grew(len);
            self.passed(len)?;
        }
        set_len(filling.file, position)?;
        as_told(&hasher, pieces)
    }

    #[expect(clippy::too_many_arguments, reason = "two places, a length, and what is kept between calls")]
    fn take_old(
        &self,
        to: &FileFill<'_>,
        old: &File,
        offset: u64,
        position: u64,
        len: u64,
        hasher: &mut blake3::Hasher,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        buffer.resize(BLOCK, 0);
        let mut done = 0;
        while done < len {
            let step = (len - done).min(BLOCK as u64) as usize;
            let window = buffer.get_mut(..step).unwrap_or_default();
            old.read_exact_at(window, offset + done).map_err(shrunk)?;
            hasher.update(window);
            self.put(to, window, position + done)?;
            done += step as u64;
        }
        self.spared.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    /// Fills a file with parts that can be had at the same time.
    pub(super) fn assemble_parts(&self, filling: &FileFill<'_>, parts: Vec<FilePart>) -> Result<()> {
        let size = parts.last().map_or(0, |part| part.end);
        self.hands.share(parts.into_iter().map(Ok), |part| self.assemble_part(filling, part))?;
        set_len(filling.file, size)
    }

    fn assemble_part(&self, filling: &FileFill<'_>, mut part: FilePart) -> Result<()> {
        let mut position = part.start;
        while let Some(piece) = part.pieces.next()? {
            let len = match piece {
                TransferPiece::Data(bytes) => {
                    self.put_new(filling, bytes, position)?;
                    bytes.len() as u64
                }
                TransferPiece::Hole(len) => len,
                TransferPiece::Old { .. } => return Err(SyncError::Unequal),
            };
            position = position.checked_add(len).ok_or(SyncError::Unequal)?;
            filling.grew(len);
            self.passed(len)?;
        }
        if position == part.end { Ok(()) } else { Err(SyncError::Unequal) }
    }

    /// Makes `to`, which has other content, equal to the source: only blocks that differ are written. What lies beyond
    /// its end is written in order: if that is cut off, its length tells how far it came, and it has no holes.
    pub fn patch(&self, to: &File, from: &OpenedFile, start: u64) -> Result<()> {
        let (filling, end) = (FileFill::over(to), from.stat.size);
        let there = stat_file(to)?.size.min(end).max(start);
        let there = ContentRange { start, end: there };
        self.hands.share(cut(std::iter::once(Ok(there))), |range| self.patch_range(&filling, from, range))?;
        self.patch_range(&filling, from, ContentRange { start: there.end, end })?;
        set_len(to, from.stat.size)?;
        unchanged(from)
    }

    pub(super) fn patch_range(
        &self,
        to: &FileFill<'_>,
        from: &OpenedFile,
        range: ContentRange,
    ) -> Result<()> {
        let (mut theirs, mut ours) = (vec![0; BLOCK], vec![0; BLOCK]);
        let mut position = range.start;
        while position < range.end {
            let step = (range.end - position).min(BLOCK as u64) as usize;
            let window = theirs.get_mut(..step).unwrap_or_default();
            from.file.read_exact_at(window, position).map_err(shrunk)?;
            let old = ours.get_mut(..step).unwrap_or_default();
            match to.file.read_exact_at(old, position) {
                Ok(()) if old == window => {
                    self.spared.fetch_add(step as u64, Ordering::Relaxed);
                }
                _ => self.put(to, window, position)?,
            }
            position += step as u64;
            self.passed(step as u64)?;
        }
        Ok(())
    }
}

/// Shares all blocks of another file, unless that was refused before.
fn cloned(to: &File, from: &OpenedFile, refused: &AtomicBool) -> Result<bool> {
    if refused.load(Ordering::Relaxed) {
        return Ok(false);
    }
    match ioctl_ficlone(to, &from.file) {
        Ok(()) => set_len(to, from.stat.size).map(|()| true),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(SyncError::io("write")(Errno::NOSPC.into())),
        Err(_) => {
            refused.store(true, Ordering::Relaxed);
            Ok(false)
        }
    }
}

/// The hash of what arrived, which is the one that the source tells, if it tells one.
pub(super) fn as_told(hasher: &blake3::Hasher, pieces: &dyn ContentPieces) -> Result<ContentDigest> {
    let arrived = *hasher.finalize().as_bytes();
    match pieces.digest() {
        Some(told) if told != arrived => Err(SyncError::Unequal),
        _ => Ok(arrived),
    }
}

/// Whether a byte of a file can be had without waiting for a disk.
fn in_memory(file: &File, position: u64) -> bool {
    let mut byte = [0];
    preadv2(file, &mut [IoSliceMut::new(&mut byte)], position, ReadWriteFlags::NOWAIT).is_ok()
}

/// Gives a file its length.
pub(super) fn set_len(file: &File, len: u64) -> Result<()> {
    ftruncate(file, len).map_err(|errno| SyncError::io("write")(errno.into()))
}

/// The source's file is as it was when it was opened.
pub(super) fn unchanged(from: &OpenedFile) -> Result<()> {
    let now = stat_file(&from.file)?;
    // Its last name may go meanwhile; content and attributes say whether it is what it was.
    let same = (now.size, now.mtime) == (from.stat.size, from.stat.mtime)
        && (now.ctime == from.stat.ctime || now.nlink != from.stat.nlink);
    if same { Ok(()) } else { Err(SyncError::Changed) }
}

pub(super) fn shrunk(error: std::io::Error) -> SyncError {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => SyncError::Changed,
        _ => SyncError::io("read")(error),
    }
}

/// Hashes so many zeros.
pub(crate) fn hash_zeros(hasher: &mut blake3::Hasher, mut len: u64) {
    const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    while len > 0 {
        let step = len.min(ZEROS.len() as u64);
        hasher.update(ZEROS.get(..step as usize).unwrap_or_default());
        len -= step;
    }
}

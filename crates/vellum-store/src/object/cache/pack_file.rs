//! The pieces of one pack: a sparse file with the bytes of the pack at their own places, and beside it a map that says
//! which are there.
//!
//! Layout of the map: magic (7) ‖ uses, and in the highest bit the queue (u8) ‖ for each piece its length (u32, little
//! endian; 0: not there) and the first 12 bytes of the XXH3 hash (128 bits, little endian) of its number (u64, little
//! endian), the pack's name and its bytes.
//! Invariant: a piece counts if its bytes have the hash that the map has; so neither the order in which a crash keeps
//! the two files, nor several processes that write at once, can make it wrong.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use vellum_types::FieldReader;
use xxhash_rust::xxh3::Xxh3;

use super::disk::note_progress;
use super::{PIECE, PIECES_MAX};

const MAGIC: &[u8; 7] = b"VLMMAP\x02";
/// Magic and uses.
const HEADER_LEN: usize = 8;
// Short, and of a hash that is fast and keeps nobody from making a piece that fits, since it only has to notice accidents:
// blobs are checked when they are opened.
const HASH_LEN: usize = 12;
/// Length and hash.
const RECORD_LEN: usize = 4 + HASH_LEN;
/// Where the uses stand.
const USES_AT: u64 = 7;
/// Rounds for which a pack that is used stays.
const USES_MAX: u8 = 3;
/// The bit beside the uses: the pack is in the main queue.
const IN_MAIN: u8 = 0x80;
/// Bytes of a block of the disk.
const BLOCK: u64 = 4096;
/// Bytes of a map on the disk, at most.
// All records take 4 blocks, and the header needs a fifth.
pub(super) const MAP_SIZE: u64 = 5 * BLOCK;
/// How the name of a map ends.
const MAP_SUFFIX: &str = ".map";

/// Bytes on the disk of a piece.
pub(super) fn disk_size(len: u64) -> u64 {
    len.div_ceil(BLOCK) * BLOCK
}

/// Bytes on the disk of the map of a pack, unless it is there already.
pub(super) fn new_map_size(path: &Path) -> u64 {
    if map_path(path).exists() { 0 } else { MAP_SIZE }
}

/// The pieces of one pack.
pub(super) struct CachedPack {
    name: OsString,
    data: File,
    map_file: File,
    map: Vec<u8>,
}

struct PieceRecord {
    len: u32,
    hash: [u8; HASH_LEN],
}

/// The map of a data file.
pub(super) fn map_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(MAP_SUFFIX);
    name.into()
}

/// The data file of a map, if the path is that of a map.
pub(super) fn data_path(map: &Path) -> Option<PathBuf> {
    Some(PathBuf::from(map.to_str()?.strip_suffix(MAP_SUFFIX)?))
}

/// Removes both files. The map goes first: a reader that finds none looks no further.
pub(super) fn remove_pack(path: &Path) {
    note_progress();
    // A file that stays is found by the next count: a map as a pack, and data without a map as an orphan.
    let _ = fs::remove_file(map_path(path));
    let _ = fs::remove_file(path);
}

/// The hash of a piece of this file: what was put in the place of another is no such piece.
fn hash_piece(name: &OsStr, number: u64, bytes: &[u8]) -> [u8; HASH_LEN] {
    let mut hasher = Xxh3::new();
    for part in [&number.to_le_bytes()[..], name.as_bytes(), bytes] {
        hasher.update(part);
    }
    let hash = hasher.digest128().to_le_bytes();
    let mut short = [0; HASH_LEN];
    short.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
    short
}

fn record_offset(number: u64) -> Option<usize> {
    let number = usize::try_from(number).ok().filter(|number| (*number as u64) < PIECES_MAX)?;
    Some(HEADER_LEN + number * RECORD_LEN)
}

/// The record of a piece in a map, if the piece is present.
fn find_record(map: &[u8], number: u64) -> Option<PieceRecord> {
    let offset = record_offset(number)?;
    // A map of another version, or one that was cut off.
    if !map.starts_with(MAGIC) {
        return None;
    }
    let mut reader = FieldReader::new(map.get(offset..)?);
    let len = reader.read_u32().ok()?;
    let hash = reader.read_array().ok()?;
    (len > 0 && u64::from(len) <= PIECE).then_some(PieceRecord { len, hash })
}

/// The decoder of maps on any bytes; see [`crate::fuzzing`].
pub(super) fn fuzz_map(bytes: &[u8]) {
    for number in [0, 1, PIECES_MAX - 1, PIECES_MAX, u64::MAX] {
        if let Some(record) = find_record(bytes, number) {
            assert!(record.len > 0 && u64::from(record.len) <= PIECE, "no piece is longer than a piece");
        }
    }
}

impl CachedPack {
    /// The pieces that are there.
    pub fn open(path: &Path) -> io::Result<Self> {
        // For writing, too: reading counts uses, and takes damaged pieces out of the map.
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        Self::from_files(path, open(path)?, open(&map_path(path))?)
    }

    /// The pieces that are there, if any.
    pub fn create(path: &Path) -> io::Result<Self> {
        let open = |path: &Path| {
            // Another process may have begun it already.
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
        };
        let pack = Self::from_files(path, open(path)?, open(&map_path(path))?)?;
        if !pack.map.starts_with(MAGIC) {
            // A new one, or a file of another kind, whose records count for nothing.
            pack.map_file.set_len(0)?;
            let [m0, m1, m2, m3, m4, m5, m6] = *MAGIC;
            pack.map_file.write_all_at(&[m0, m1, m2, m3, m4, m5, m6, 0], 0)?;
        }
        Ok(pack)
    }

    fn from_files(path: &Path, data: File, map_file: File) -> io::Result<Self> {
        note_progress();
        // A map that is too long is read as far as it can mean something.
        let len = map_file.metadata()?.len().min(HEADER_LEN as u64 + PIECES_MAX * RECORD_LEN as u64);
        let mut map = vec![0; usize::try_from(len).unwrap_or_default()];
        let mut filled = 0;
        while let Some(rest) = map.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match map_file.read_at(rest, filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        map.truncate(filled);
        let name = path.file_name().unwrap_or_default().to_owned();
        Ok(Self { name, data, map_file, map })
    }

    fn find_record(&self, number: u64) -> Option<PieceRecord> {
        find_record(&self.map, number)
    }

    /// Whether the map has a piece.
    pub fn contains_piece(&self, number: u64) -> bool {
        self.find_record(number).is_some()
    }

    /// The pieces that the map has.
    pub fn piece_numbers(&self) -> Vec<u64> {
        (0..PIECES_MAX).filter(|number| self.contains_piece(*number)).collect()
    }

    /// A piece, if it is there with its hash. One that is wrong is taken out of the map.
    pub fn read_piece(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(record) = self.find_record(number) else { return Ok(None) };
        note_progress();
        let mut bytes = vec![0; record.len as usize];
        // A read that is too short is damage as well: the data file was cut off.
        let is_whole = self.data.read_exact_at(&mut bytes, number * PIECE).is_ok();
        if is_whole && hash_piece(&self.name, number, &bytes) == record.hash {
            return Ok(Some(bytes));
        }
        tracing::debug!(number, "a damaged piece of the cache is fetched again");
        // Another process may have written the piece anew since the map was read. Then its record is cleared, and the
        // piece is fetched once more.
        if let Some(offset) = record_offset(number) {
            self.map_file.write_all_at(&[0; RECORD_LEN], offset as u64)?;
        }
        Ok(None)
    }

    /// Notes that it was read.
    pub fn count_use(&self) -> io::Result<()> {
        // Two processes that count at once may lose a use. It only decides for how long the pack stays.
        match self.uses() {
            uses if uses < USES_MAX => self.write_queue(self.is_in_main(), uses + 1),
            _ => Ok(()),
        }
    }

    /// Notes that it was asked for, and not only come along: it stays as long as one that is often read.
    pub fn note_wanted(&self) -> io::Result<()> {
        self.write_queue(true, USES_MAX)
    }

    /// Removes a piece. A process that reads it at this moment finds it damaged, and fetches it.
    pub fn remove_piece(&self, number: u64) -> io::Result<()> {
        let Some((record, offset)) = self.find_record(number).zip(record_offset(number)) else {
            return Ok(());
        };
        note_progress();
        // The record goes first. If the process is killed before the hole is punched, the bytes take space until the
        // pack goes, but no reader finds them.
        self.map_file.write_all_at(&[0; RECORD_LEN], offset as u64)?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.data, hole, number * PIECE, disk_size(record.len.into())) {
            // A filesystem without holes keeps the bytes until the pack goes.
            Err(Errno::OPNOTSUPP) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes on the disk of a piece that the map has.
    pub fn piece_size(&self, number: u64) -> Option<u64> {
        self.find_record(number).map(|record| disk_size(record.len.into()))
    }

    /// How often it was read, as far as that counts.
    pub fn uses(&self) -> u8 {
        (self.queue_byte() & !IN_MAIN).min(USES_MAX)
    }

    /// Whether it is in the main queue; see `evict`.
    pub fn is_in_main(&self) -> bool {
        self.queue_byte() & IN_MAIN != 0
    }

    fn queue_byte(&self) -> u8 {
        self.map.get(HEADER_LEN - 1).copied().unwrap_or_default()
    }

    fn write_queue(&self, is_in_main: bool, uses: u8) -> io::Result<()> {
        self.map_file.write_all_at(&[uses | if is_in_main { IN_MAIN } else { 0 }], USES_AT)
    }

    /// Puts it at the end of the main queue, as one that was not read since.
    pub fn promote(&self) -> io::Result<()> {
        self.move_to_end(0)
    }

    /// Takes one use away, for which the pack stays another round: it goes to the end of the main queue.
    pub fn spend_use(&self) -> io::Result<()> {
        self.move_to_end(self.uses().saturating_sub(1))
    }

    fn move_to_end(&self, uses: u8) -> io::Result<()> {
        // The modification time is the pack's place in the queue; see `evict`.
        self.data.set_modified(SystemTime::now())?;
        self.write_queue(true, uses)
    }

    /// Adds a piece.
    pub fn write_piece(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(offset) = record_offset(number) else { return Ok(()) };
        let Ok(len) = u32::try_from(bytes.len()) else { return Ok(()) };
        note_progress();
        // Neither file is synced, so a crash may keep the one without the other. The hash in the record shows it.
        self.data.write_all_at(bytes, number * PIECE)?;
        let mut record = len.to_le_bytes().to_vec();
        record.extend_from_slice(&hash_piece(&self.name, number, bytes));
        // The record last: until then readers find no such piece.
        self.map_file.write_all_at(&record, offset as u64)
    }
}

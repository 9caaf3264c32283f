//! Room that is reserved and not in use yet, of each process: what a count of the packs cannot see.
//!
//! A file for each cache that a process has open, with the reserved bytes of content and of nodes (u64 each, little endian),
//! locked as long as the process lives. Invariant: the sum of the files that are locked is never too low. A process that is killed loses its
//! lock, and with it what it had reserved; the next count removes its file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vellum_host::private_dir::create_private_dir;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

use super::parts::{CachePart, PerPart};

/// The folder of these files within the cache.
const RESERVED_FOLDER: &str = "reserved";
/// More than any process reserves, bytes: a larger number is damage, and must not make the cache look full for ever.
const RESERVED_MAX: u64 = 1 << 40;
/// Two numbers.
const LEN: usize = 16;

/// What this process has reserved in one cache.
#[derive(Default)]
pub(super) struct OwnReservations {
    state: Mutex<ReservationState>,
}

#[derive(Default)]
struct ReservationState {
    file: Option<ReservationFile>,
    bytes: PerPart<u64>,
}

/// The file with a process's reservations. Its removal when it is dropped uses the disk.
pub(super) struct ReservationFile {
    file: File,
    path: PathBuf,
}

/// Some reserved room. It must be in use when this is dropped, or not be needed any more.
pub(super) struct ReservedRoom<'a> {
    owner: &'a OwnReservations,
    part: CachePart,
    bytes: u64,
}

impl OwnReservations {
    /// Reserves room. Called with the lock of the cache, so that no count is under way.
    pub fn reserve(&self, cache: &Path, part: CachePart, bytes: u64) -> io::Result<ReservedRoom<'_>> {
        let mut state = self.state.lock();
        // The folder may be removed at any moment. Then a file without a name says nothing to others.
        if state.file.as_ref().is_none_or(|file| !file.has_name()) {
            state.file = Some(ReservationFile::create(cache)?);
        }
        let mut total = state.bytes;
        // In a copy, which counts only once it is written: if that fails, nothing is reserved.
        *total.get_mut(part) += bytes;
        if let Some(file) = &state.file {
            file.write(total)?;
        }
        state.bytes = total;
        Ok(ReservedRoom { owner: self, part, bytes })
    }

    /// Takes the file away, with which all reservations end.
    pub fn take_file(&self) -> Option<ReservationFile> {
        self.state.lock().file.take()
    }
}

impl Drop for ReservedRoom<'_> {
    fn drop(&mut self) {
        let mut state = self.owner.state.lock();
        let reserved = state.bytes.get_mut(self.part);
        *reserved = reserved.saturating_sub(self.bytes);
        if let Some(file) = &state.file {
            // If that fails, the number stays too high until the next one is written.
            let _ = file.write(state.bytes);
        }
    }
}

impl ReservationFile {
    fn create(cache: &Path) -> io::Result<Self> {
        let folder = cache.join(RESERVED_FOLDER);
        create_private_dir(&folder)?;
        let path = folder.join(format!("{:016x}", getrandom::u64().map_err(io::Error::other)?));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        // At once, since nobody knows the name, and who counts has the lock of the cache.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { file, path })
    }

    fn has_name(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    fn write(&self, bytes: PerPart<u64>) -> io::Result<()> {
        let mut numbers = [0; LEN];
        let fields = [bytes.content, bytes.nodes].map(u64::to_le_bytes);
        numbers.iter_mut().zip(fields.iter().flatten()).for_each(|(to, from)| *to = *from);
        self.file.write_all_at(&numbers, 0)
    }
}

impl Drop for ReservationFile {
    fn drop(&mut self) {
        // Otherwise the next count finds it without its lock, and removes it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Bytes that living processes have reserved and may not have in use yet. Called with the lock of the cache.
pub(super) fn count_reserved(cache: &Path) -> PerPart<u64> {
    let mut reserved = PerPart::default();
    for entry in fs::read_dir(cache.join(RESERVED_FOLDER)).into_iter().flatten().flatten() {
        if let Some(PerPart { content, nodes }) = read_reserved(&entry.path()) {
            reserved.content += content;
            reserved.nodes += nodes;
        }
    }
    reserved
}

/// What a process has reserved; none if it has ended.
fn read_reserved(path: &Path) -> Option<PerPart<u64>> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // Its process lives, or that cannot be known.
        Err(_) => {}
        // What it wrote before it ended is counted with the packs.
        Ok(()) => {
            let _ = fs::remove_file(path);
            return None;
        }
    }
    let mut bytes = [0; LEN];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let mut reader = vellum_types::FieldReader::new(&bytes);
    let mut read_number = || {
        let number = u64::from_le_bytes(reader.read_array().ok()?);
        (number <= RESERVED_MAX).then_some(number)
    };
    Some(PerPart { content: read_number()?, nodes: read_number()? })
}

//! Packs of remote stores on the local disk, in pieces: what was fetched once need not be fetched again.
//!
//! Invariant: nothing in it is trusted or missed. Each piece has a hash, and one that does not match is fetched again;
//! the folder may be removed, damaged or full at any moment. It holds what the store holds, sealed. Room is reserved in
//! a number that all processes share before a piece is written, so that the limit is never exceeded, and opening it
//! looks at no folder. Deliberately absent: anything that is not in the store.
//!
//! What is removed when room is needed is decided by whole packs, in the order in which they came (FIFO). A pack that
//! was read from the cache since stays for up to three more rounds: this is the main queue of S3-FIFO. Of single pieces
//! each process would have to know the whole queue.

mod evict;
mod keeping;
mod pack_file;
mod pins;
mod reservation;
mod usage;

use std::collections::HashSet;
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use vellum_host::MetricsExposition;

pub use self::keeping::{CacheRoom, EvictedBytes};
use self::pack_file::CachedPack;
pub use self::pins::{CachePin, PinListing};
use self::reservation::{OwnReservations, ReservedRoom, count_reserved};
use self::usage::CacheUsage;
use super::{ObjectKey, PieceSet};

/// Bytes of a piece.
pub(super) const PIECE: u64 = 256 << 10;
/// Most pieces of a pack: packs have 256 MiB at most.
pub(super) const PIECES_MAX: u64 = 1024;
/// Permissions of folders: the content of the cache is sealed, but its names reveal which packs are read.
const FOLDER_MODE: u32 = 0o700;
/// The folder of packs within the cache.
const PACKS_FOLDER: &str = "packs";

/// The pieces of one store's packs on the local disk. Shared by all processes of a user.
pub struct PackCache {
    folder: PathBuf,
    reservations: OwnReservations,
    /// Whether it was said already that it cannot be used.
    has_warned: AtomicBool,
}

/// What a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSummary {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Bytes that it may take.
    pub limit: u64,
    /// Bytes that are pinned, at most.
    pub pinned: u64,
    /// Packs of which it has pieces.
    pub packs: u64,
    /// When something was fetched last into the pack that will be removed first; none if there is no pack.
    pub oldest: Option<SystemTime>,
}

/// The result of checking a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCheck {
    /// Pieces that are right.
    pub sound: u64,
    /// Pieces that were not, and were removed.
    pub removed: u64,
}

impl PackCache {
    /// The cache in a folder, which need not exist.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, reservations: OwnReservations::default(), has_warned: AtomicBool::new(false) }
    }

    /// The cache of the store at this address; none if the user has no folder for caches.
    #[must_use]
    pub fn for_address(address: &impl Display) -> Option<Self> {
        // The hash makes a file name of any address, and does not show it.
        let name = blake3::hash(address.to_string().as_bytes()).to_hex();
        Some(Self::new(cache_home()?.join("vellum").join(name.get(..32)?)))
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A piece of a pack, if it is here and whole.
    pub(super) fn read_piece(&self, key: &ObjectKey, number: u64) -> Option<Vec<u8>> {
        let pack = CachedPack::open(&self.pack_path(key)?).ok()?;
        let read = pack.read_piece(number).and_then(|piece| {
            // Only a read that found the piece keeps the pack in the cache for longer.
            if piece.is_some() {
                pack.count_use()?;
            }
            Ok(piece)
        });
        read.unwrap_or_else(|error| {
            self.warn_once(&error);
            None
        })
    }

    /// Those of some pieces that seem to be here.
    pub(super) fn find_pieces(&self, key: &ObjectKey, numbers: Range<u64>) -> HashSet<u64> {
        let pack = self.pack_path(key).and_then(|path| CachedPack::open(&path).ok());
        let is_here = |number: &u64| pack.as_ref().is_some_and(|pack| pack.contains_piece(*number));
        numbers.filter(is_here).collect()
    }

    /// Keeps pieces of a pack, from the piece `first` on, as far as there is room. All but the last of a pack have
    /// [`PIECE`] bytes.
    pub(super) fn store_pieces(&self, key: &ObjectKey, first: u64, bytes: &[u8]) {
        let Some(path) = self.pack_path(key) else { return };
        if let Err(error) = self.try_store_pieces(&path, first, bytes) {
            self.warn_once(&error);
        }
    }

    /// Keeps pieces as [`Self::store_pieces`] does. False if there is no room.
    fn try_store_pieces(&self, path: &Path, first: u64, bytes: &[u8]) -> io::Result<bool> {
        let piece_len = usize::try_from(PIECE).unwrap_or(usize::MAX);
        let pieces: Vec<_> = (first..).zip(bytes.chunks(piece_len)).collect();
        // Some of the pieces may be here already. The number in use is then too high until packs are counted again,
        // which is the safe side.
        let room = pieces.iter().map(|(_, piece)| pack_file::disk_size(piece.len() as u64)).sum::<u64>();
        let Some(_reserved) = self.reserve_room(room + pack_file::new_map_size(path))? else {
            return Ok(false);
        };
        let folder = path.parent().unwrap_or(&self.folder);
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        // Another process may remove the pack at any moment from here on. Then the pieces go into files without
        // names, or a new map lies beside no data. Readers find no piece in either case.
        let pack = CachedPack::create(path)?;
        pieces.into_iter().try_for_each(|(number, piece)| pack.write_piece(number, piece))?;
        Ok(true)
    }

    /// Reserves room until what is returned is dropped, when it must be in use. Removes packs that came earlier if there is
    /// too little. Returns none if there is still too little.
    fn reserve_room(&self, room: u64) -> io::Result<Option<ReservedRoom<'_>>> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
        let mut usage = CacheUsage::lock(&self.folder)?;
        let allowed = usage.allowed_bytes(&self.folder)?;
        // What can never fit must not empty the cache.
        if room > allowed {
            return Ok(None);
        }
        // Under the lock, so that one process at a time counts and removes.
        if usage.used() + room > allowed {
            self.evict_packs(&mut usage, room, allowed)?;
            if usage.used() + room > allowed {
                return Ok(None);
            }
        }
        // Reserved first: if the process is killed before the number is written, the reservation ends with it.
        let reserved = self.reservations.reserve(&self.folder, room)?;
        let used = usage.used() + room;
        usage.set_used(used)?;
        Ok(Some(reserved))
    }

    /// Removes packs until `room` fits within `allowed`, if possible, and counts what is left and what is reserved.
    fn evict_packs(&self, usage: &mut CacheUsage, room: u64, allowed: u64) -> io::Result<()> {
        // Counted before the packs: what is written meanwhile then counts twice, and not at all in the other order.
        let reserved = count_reserved(&self.folder);
        let wanted = room.saturating_add(reserved);
        let left = evict::evict_packs(&self.packs_folder(), &self.pinned_pieces(), wanted, allowed);
        usage.set_used(left + reserved)
    }

    /// Removes some pieces of a pack. The room that they took is free when packs are counted the next time.
    pub(super) fn forget_pieces(&self, key: &ObjectKey, mut numbers: Range<u64>) {
        let Some(pack) = self.pack_path(key).and_then(|path| CachedPack::open(&path).ok()) else { return };
        if let Err(error) = numbers.try_for_each(|number| pack.remove_piece(number)) {
            self.warn_once(&error);
        }
    }

    /// Removes all pieces of a pack.
    pub(super) fn forget_pack(&self, key: &ObjectKey) {
        if let Some(path) = self.pack_path(key) {
            pack_file::remove_pack(&path);
        }
    }

    /// Summarizes what the cache holds. Looks at every pack.
    pub fn summarize(&self) -> io::Result<CacheSummary> {
        let packs = evict::list_packs(&self.packs_folder());
        let limit = CacheUsage::read_limit(&self.folder)?;
        Ok(CacheSummary {
            bytes: packs.iter().map(|pack| pack.bytes).sum(),
            limit,
            pinned: pins::list_pins(&self.folder).pieces().piece_bytes(),
            packs: packs.len() as u64,
            oldest: packs.iter().map(|pack| pack.fetched).min(),
        })
    }

    /// Writes how much it holds, may hold, and has to keep. Looks at no pack.
    pub fn expose_metrics(&self, out: &mut MetricsExposition) {
        // A figure that cannot be read is left out. The others may show the reason.
        if let Ok(Some(used)) = CacheUsage::read_used(&self.folder) {
            out.write_gauge("vellum_disk_cache_bytes", "", used);
        }
        if let Ok(limit) = CacheUsage::read_limit(&self.folder) {
            out.write_gauge("vellum_disk_cache_limit_bytes", "", limit);
        }
        let pinned = pins::list_pins(&self.folder).pieces().piece_bytes();
        out.write_gauge("vellum_disk_cache_pinned_bytes", "", pinned);
    }

    /// Sets how many bytes it may take, for all processes; 0 switches it off. What is too much is removed at once, but for
    /// what is pinned: a limit below that is for the caller to refuse.
    pub fn set_limit(&self, limit: u64) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
        let mut usage = CacheUsage::lock(&self.folder)?;
        usage.set_limit(limit)?;
        // A lower limit applies at once, not only when something is written the next time.
        let allowed = usage.allowed_bytes(&self.folder)?;
        self.evict_packs(&mut usage, 0, allowed)
    }

    /// Removes everything but what is pinned, and keeps the limit.
    pub fn clear(&self) -> io::Result<()> {
        if !self.folder.exists() {
            return Ok(());
        }
        let mut usage = CacheUsage::lock(&self.folder)?;
        let pinned = self.pinned_pieces();
        let reserved = count_reserved(&self.folder);
        let packs = evict::list_packs(&self.packs_folder());
        let left: u64 = packs.iter().map(|pack| pack.bytes - pack.remove_unpinned(&pinned)).sum();
        // The folder contains nothing but packs, so whatever else was left in it goes, too.
        if pinned.is_empty() {
            match fs::remove_dir_all(self.packs_folder()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        usage.set_used(left + reserved)
    }

    /// Checks every piece against its hash, and removes those that are wrong.
    pub fn verify(&self) -> io::Result<CacheCheck> {
        let mut check = CacheCheck::default();
        for entry in evict::list_packs(&self.packs_folder()) {
            let Ok(pack) = CachedPack::open(&entry.path) else { continue };
            for number in pack.piece_numbers() {
                match pack.read_piece(number)? {
                    Some(_) => check.sound += 1,
                    None => check.removed += 1,
                }
            }
        }
        Ok(check)
    }

    fn packs_folder(&self) -> PathBuf {
        self.folder.join(PACKS_FOLDER)
    }

    fn pinned_pieces(&self) -> PieceSet {
        pins::list_pins(&self.folder).pieces()
    }

    fn pack_path(&self, key: &ObjectKey) -> Option<PathBuf> {
        // Keys have no components that lead elsewhere.
        key.as_str().starts_with("packs/").then(|| self.folder.join(key.as_str()))
    }

    fn warn_once(&self, error: &io::Error) {
        // A cache that cannot be used costs time, but no correctness. One warning per process is enough.
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(folder = %self.folder.display(), %error, "the cache cannot be used as it should");
        }
    }
}

/// The decoders of the files of a cache on any bytes; see [`crate::fuzzing`].
pub(crate) fn fuzz_decoders(bytes: &[u8]) {
    pack_file::fuzz_map(bytes);
    pins::fuzz_pin(bytes);
    usage::fuzz_usage(bytes);
}

fn cache_home() -> Option<PathBuf> {
    // The XDG Base Directory Specification requires relative paths to be ignored.
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))
}

#[cfg(test)]
mod tests;

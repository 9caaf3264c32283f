//! What the user decides about the cache: which pieces are here, which stay, which go.
//!
//! Invariant: what is pinned fits within the limit when it is pinned, and nothing here removes it.

use std::io;
use std::time::SystemTime;

use vellum_types::PackId;

use super::pack_file::{self, CachedPack};
use super::reservation::count_reserved;
use super::usage::CacheUsage;
use super::{CacheFiles, CachePin, FOLDER_MODE, PieceSet, PinListing, evict, pins};
use crate::pack::pack_key;

/// Part of the limit that content may take that is fetched at once, percent: when room is needed, the cache is emptied
/// down to that.
const FETCHED_PERCENT: u64 = 90;

/// Whether pieces would fit into the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRoom {
    /// Bytes that they and what is pinned already would take, at most.
    pub wanted: u64,
    /// Of these, what is pinned already.
    pub pinned: u64,
    /// Bytes that may be taken.
    pub allowed: u64,
}

impl CacheRoom {
    /// Whether they fit.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.wanted <= self.allowed
    }
}

/// What an eviction did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EvictedBytes {
    /// Bytes that were there before.
    pub before: u64,
    /// Bytes that are left.
    pub left: u64,
}

impl CacheFiles {
    /// Those of the pieces that are not here.
    pub fn missing_pieces(&self, wanted: &PieceSet) -> PieceSet {
        self.select_pieces(wanted, |_, _, is_here| !is_here)
    }

    /// Those of the pieces that are not pinned by anything.
    pub fn unpinned_pieces(&self, wanted: &PieceSet) -> PieceSet {
        let pinned = self.pinned_pieces();
        self.select_pieces(wanted, |pack, number, _| !pinned.contains_piece(pack, number))
    }

    fn select_pieces(&self, wanted: &PieceSet, selects: impl Fn(&PackId, u64, bool) -> bool) -> PieceSet {
        let mut selected = PieceSet::default();
        for (pack, pieces) in wanted.iter_packs() {
            // Opened once for all pieces of the pack: its map is one small file.
            let cached = self.pack_path(&pack_key(pack)).and_then(|path| CachedPack::open(&path).ok());
            for (number, bytes) in pieces {
                let number = u64::from(*number);
                let is_here = cached.as_ref().is_some_and(|cached| cached.contains_piece(number));
                if selects(pack, number, is_here) {
                    selected.add_piece(pack, number, (*bytes).into());
                }
            }
        }
        selected
    }

    /// Keeps pieces that the user requested by name, as [`Self::store_pieces`] does. False if there is no room.
    pub fn store_wanted_pieces(&self, pack: &PackId, first: u64, bytes: &[u8]) -> io::Result<bool> {
        let Some(path) = self.pack_path(&pack_key(pack)) else { return Ok(false) };
        let is_stored = self.try_store_pieces(&path, first, bytes)?;
        // Nothing has read these pieces yet, so they would otherwise stay for one round only.
        if is_stored {
            // Where it was removed meanwhile, it is missing, which is noticed.
            let _ = CachedPack::open(&path).and_then(|pack| pack.note_wanted());
        }
        Ok(is_stored)
    }

    /// Whether pieces can be fetched into the cache and stay there for now, beside what is pinned.
    pub fn find_room(&self, pieces: &PieceSet) -> io::Result<CacheRoom> {
        let usage = self.lock_usage()?;
        let room = self.compute_room(&usage, pieces, &self.pinned_pieces())?;
        Ok(CacheRoom { allowed: room.allowed / 100 * FETCHED_PERCENT, ..room })
    }

    fn compute_room(&self, usage: &CacheUsage, new: &PieceSet, pinned: &PieceSet) -> io::Result<CacheRoom> {
        let size = |pieces: &PieceSet| {
            pieces.piece_bytes() + pieces.iter_packs().count() as u64 * pack_file::MAP_SIZE
        };
        let mut all = new.clone();
        all.add_all(pinned);
        Ok(CacheRoom {
            wanted: size(&all),
            pinned: size(pinned),
            allowed: usage.allowed_bytes(self.folder())?,
        })
    }

    /// The pins.
    pub fn list_pins(&self) -> PinListing {
        pins::list_pins(self.folder())
    }

    /// Pins pieces, in the place of a pin with the same name, if they fit within the limit beside all other pins. They need
    /// not be here yet.
    pub fn add_pin(&self, pin: &CachePin) -> io::Result<CacheRoom> {
        // Locked until the pin is written: two pins that fit one by one may not fit together.
        let usage = self.lock_usage()?;
        let mut others = PieceSet::default();
        let listing = self.list_pins();
        // The pin of this name is replaced, so it does not count.
        for other in listing.pins.iter().filter(|other| other.name != pin.name) {
            others.add_all(&other.pieces);
        }
        let room = self.compute_room(&usage, &pin.pieces, &others)?;
        if room.is_enough() {
            pins::write_pin(self.folder(), pin)?;
        }
        Ok(room)
    }

    /// Removes a pin; false if there is none with this name. What it pinned stays until room is needed.
    pub fn remove_pin(&self, name: &str) -> io::Result<bool> {
        // Nothing is created for a store that has no cache.
        if !self.folder().exists() {
            return Ok(false);
        }
        let _lock = CacheUsage::lock(self.folder())?;
        pins::remove_pin(self.folder(), name)
    }

    /// Bytes that all pins take, at most.
    pub fn pinned_bytes(&self) -> io::Result<u64> {
        let usage = self.lock_usage()?;
        Ok(self.compute_room(&usage, &PieceSet::default(), &self.pinned_pieces())?.pinned)
    }

    /// Removes pieces, but for those that are pinned.
    pub fn evict_pieces(&self, pieces: &PieceSet) -> io::Result<EvictedBytes> {
        self.evict_with(|| {
            // Read under the lock: a pin that was set while this waited counts.
            let pinned = self.pinned_pieces();
            for (pack, numbers) in pieces.iter_packs() {
                let path = self.pack_path(&pack_key(pack));
                let Some(cached) = path.and_then(|path| CachedPack::open(&path).ok()) else { continue };
                for number in numbers.keys().map(|number| u64::from(*number)) {
                    if !pinned.contains_piece(pack, number) {
                        cached.remove_piece(number)?;
                    }
                }
            }
            Ok(self.count_bytes())
        })
    }

    /// Removes packs until no more than `target` bytes are left, or only what is pinned.
    pub fn evict_down_to(&self, target: u64) -> io::Result<EvictedBytes> {
        self.evict_with(|| Ok(evict::evict_down_to(&self.packs_folder(), &self.pinned_pieces(), target)))
    }

    /// Removes packs into which nothing was fetched since a time, but for what is pinned.
    pub fn evict_older(&self, since: SystemTime) -> io::Result<EvictedBytes> {
        self.evict_with(|| Ok(evict::evict_older(&self.packs_folder(), &self.pinned_pieces(), since)))
    }

    fn evict_with(&self, evict: impl FnOnce() -> io::Result<u64>) -> io::Result<EvictedBytes> {
        if !self.folder().exists() {
            return Ok(EvictedBytes::default());
        }
        let mut usage = CacheUsage::lock(self.folder())?;
        let reserved = count_reserved(self.folder());
        let before = self.count_bytes();
        let left = evict()?;
        // Counted anew under the lock: the number in use is never too low, but may have been too high.
        usage.set_used(left + reserved)?;
        Ok(EvictedBytes { before, left })
    }

    fn count_bytes(&self) -> u64 {
        evict::list_packs(&self.packs_folder()).iter().map(|pack| pack.bytes).sum()
    }

    fn lock_usage(&self) -> io::Result<CacheUsage> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(self.folder())?;
        CacheUsage::lock(self.folder())
    }
}

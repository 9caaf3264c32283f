//! What the user decides about the cache: which pieces are here, which stay, which go.
//!
//! Invariant: what is pinned fits within the limits when it is pinned, and nothing here removes it.

use std::io;
use std::time::SystemTime;

use vellum_host::private_dir::create_private_dir;
use vellum_types::PackId;

use super::files::sum_bytes;
use super::pack_file;
use super::parts::{CachePart, PerPart};
use super::reservation::count_reserved;
use super::usage::CacheUsage;
use super::{CacheFiles, CachePin, PIECE, PieceSet, PinListing, evict, pins};
use crate::pack::pack_key;

/// Part of the limit that content may take that is fetched at once, percent: when room is needed, the cache is emptied
/// down to that.
const FETCHED_PERCENT: u64 = 90;

/// Whether pieces would fit into the cache: the numbers of the part that has too little room, or else of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRoom {
    /// The part.
    pub part: CachePart,
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
            let cached = self.open_pack(&pack_key(pack));
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
        let key = pack_key(pack);
        let is_stored = self.try_store_pieces(&key, first, bytes, true)?;
        // Nothing has read these pieces yet, so they would otherwise stay for one round only.
        if is_stored && let Some(pack) = self.open_pack(&key) {
            // Where it was removed meanwhile, it is missing, which is noticed.
            let _ = pack.note_wanted();
        }
        Ok(is_stored)
    }

    /// Whether pieces can be fetched into the cache and stay there for now, beside what is pinned.
    pub fn find_room(&self, pieces: &PieceSet) -> io::Result<CacheRoom> {
        let usage = self.lock_usage()?;
        self.compute_room(&usage, pieces, &self.pinned_pieces(), FETCHED_PERCENT)
    }

    /// Whether pieces fit beside those that are pinned, within a percentage of what is allowed.
    fn compute_room(
        &self,
        usage: &CacheUsage,
        new: &PieceSet,
        pinned: &PieceSet,
        percent: u64,
    ) -> io::Result<CacheRoom> {
        let mut all = new.clone();
        all.add_all(pinned);
        let wanted = self.measure_pieces(&all);
        let pinned = self.measure_pieces(pinned);
        let room = |part| -> io::Result<CacheRoom> {
            let allowed = usage.allowed_bytes(self.folder(), part)?;
            Ok(CacheRoom {
                part,
                wanted: *wanted.get(part),
                pinned: *pinned.get(part),
                // Divided first, so that the product cannot overflow.
                allowed: if percent == 100 { allowed } else { allowed / 100 * percent },
            })
        };
        let content = room(CachePart::Content)?;
        let nodes = room(CachePart::Nodes)?;
        Ok(if content.is_enough() && !nodes.is_enough() { nodes } else { content })
    }

    /// Bytes that pieces take on the disk, at most, with the maps of their packs.
    fn measure_pieces(&self, pieces: &PieceSet) -> PerPart<u64> {
        let mut bytes = PerPart::default();
        for (pack, pieces) in pieces.iter_packs() {
            *bytes.get_mut(self.find_part(pack)) += pieces.len() as u64 * PIECE + pack_file::MAP_SIZE;
        }
        bytes
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
        let room = self.compute_room(&usage, &pin.pieces, &others, 100)?;
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
    pub fn pinned_bytes(&self) -> PerPart<u64> {
        self.measure_pieces(&self.pinned_pieces())
    }

    /// Removes pieces, but for those that are pinned.
    pub fn evict_pieces(&self, pieces: &PieceSet) -> io::Result<EvictedBytes> {
        self.evict_with(|| {
            // Read under the lock: a pin that was set while this waited counts.
            let pinned = self.pinned_pieces();
            for (pack, numbers) in pieces.iter_packs() {
                let Some(cached) = self.open_pack(&pack_key(pack)) else { continue };
                for number in numbers.keys().map(|number| u64::from(*number)) {
                    if !pinned.contains_piece(pack, number) {
                        cached.remove_piece(number)?;
                    }
                }
            }
            Ok(self.count_bytes())
        })
    }

    /// Removes packs until no more than `target` bytes are left in both parts, or only what is pinned. Content goes first.
    pub fn evict_down_to(&self, target: u64) -> io::Result<EvictedBytes> {
        self.evict_with(|| {
            let pinned = self.pinned_pieces();
            let evict = |part, target| evict::evict_down_to(&self.packs_folder(part), &pinned, target);
            let nodes = sum_bytes(&self.list_packs().nodes);
            let content = evict(CachePart::Content, target.saturating_sub(nodes));
            if content.saturating_add(nodes) <= target {
                return Ok(PerPart { content, nodes });
            }
            let nodes = evict(CachePart::Nodes, target.saturating_sub(content));
            Ok(PerPart { content, nodes })
        })
    }

    /// Removes packs into which nothing was fetched since a time, but for what is pinned.
    pub fn evict_older(&self, since: SystemTime) -> io::Result<EvictedBytes> {
        self.evict_with(|| {
            let pinned = self.pinned_pieces();
            Ok(PerPart::both(()).map(|part, ()| evict::evict_older(&self.packs_folder(part), &pinned, since)))
        })
    }

    fn evict_with(&self, evict: impl FnOnce() -> io::Result<PerPart<u64>>) -> io::Result<EvictedBytes> {
        if !self.folder().exists() {
            return Ok(EvictedBytes::default());
        }
        let mut usage = CacheUsage::lock(self.folder())?;
        let reserved = count_reserved(self.folder());
        let before = self.count_bytes().total();
        let left = evict()?;
        // Counted anew under the lock: the numbers in use are never too low, but may have been too high.
        for part in CachePart::ALL {
            usage.set_used(part, left.get(part) + reserved.get(part))?;
        }
        Ok(EvictedBytes { before, left: left.total() })
    }

    fn count_bytes(&self) -> PerPart<u64> {
        self.list_packs().map(|_, packs| sum_bytes(&packs))
    }

    fn lock_usage(&self) -> io::Result<CacheUsage> {
        create_private_dir(self.folder())?;
        CacheUsage::lock(self.folder())
    }
}

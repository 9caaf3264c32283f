//! The files of a cache.
//!
//! Invariant: room is reserved in a number that all processes share before a piece is written, so that no limit is ever
//! exceeded. Calls block for as long as the disk does; [`super::PackCache`] bounds that.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use vellum_host::private_dir::create_private_dir;
use vellum_types::{BlobKind, LookupResult, PackId};

use super::evict::EvictionCandidate;
use super::pack_file::{self, CachedPack};
use super::parts::{CachePart, PerPart};
use super::process_limit::{OwnLimit, ProcessLimitFile};
use super::reservation::{OwnReservations, ReservationFile, ReservedRoom, count_reserved};
use super::usage::CacheUsage;
use super::{CacheCheck, CacheFigures, CachePartSummary, CacheSummary, PIECE, evict, pins};
use crate::object::{ObjectKey, PieceSet};
use crate::pack::{pack_key, read_pack_kind};

/// How the keys of packs begin.
const PACK_KEYS: &str = "packs/";

/// The pieces of one store's packs in a folder. Shared by all processes of a user.
pub(super) struct CacheFiles {
    folder: PathBuf,
    reservations: OwnReservations,
    own_limit: OwnLimit,
    /// The packs that hold nodes, as far as the index knows.
    node_packs: RwLock<HashSet<PackId>>,
    /// Whether it was said already that it cannot be used.
    has_warned: AtomicBool,
}

impl CacheFiles {
    /// The cache in a folder, which need not exist.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            reservations: OwnReservations::default(),
            own_limit: OwnLimit::default(),
            node_packs: RwLock::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Remembers which packs hold nodes, instead of those that were known before.
    pub fn set_node_packs(&self, packs: HashSet<PackId>) {
        *self.node_packs.write() = packs;
    }

    /// What holds this process's reservations on the disk. Dropping it uses the disk.
    pub fn take_reservations(&self) -> Option<ReservationFile> {
        self.reservations.take_file()
    }

    /// What holds this process's limit on the disk. Dropping it uses the disk.
    pub fn take_own_limit(&self) -> Option<ProcessLimitFile> {
        self.own_limit.take_file()
    }

    /// A range from pieces that are here; none if one of them is not right.
    pub fn read_range(&self, key: &ObjectKey, range: Range<u64>, use_counts: bool) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(range.end - range.start).ok()?);
        for number in range.start / PIECE..=(range.end - 1) / PIECE {
            let piece = self.read_piece(key, number, use_counts)?;
            let start = usize::try_from(range.start.saturating_sub(number * PIECE)).ok()?;
            let stop = usize::try_from(range.end - number * PIECE).ok()?.min(piece.len());
            bytes.extend_from_slice(piece.get(start..stop)?);
        }
        (bytes.len() as u64 == range.end - range.start).then_some(bytes)
    }

    /// A piece of a pack, if it is here and whole.
    pub fn read_piece(&self, key: &ObjectKey, number: u64, use_counts: bool) -> Option<Vec<u8>> {
        let pack = self.open_pack(key)?;
        let read = pack.read_piece(number).and_then(|piece| {
            // Only a read that found the piece keeps the pack in the cache for longer.
            if piece.is_some() && use_counts {
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
    pub fn find_pieces(&self, key: &ObjectKey, numbers: Range<u64>) -> HashSet<u64> {
        let pack = self.open_pack(key);
        let is_here = |number: &u64| pack.as_ref().is_some_and(|pack| pack.contains_piece(*number));
        numbers.filter(is_here).collect()
    }

    /// Keeps pieces of a pack, from the piece `first` on, as far as there is room. All but the last of a pack have
    /// [`PIECE`] bytes.
    pub fn store_pieces(&self, key: &ObjectKey, first: u64, bytes: &[u8], may_promote: bool) {
        if let Err(error) = self.try_store_pieces(key, first, bytes, may_promote) {
            self.warn_once(&error);
        }
    }

    /// Keeps pieces as [`Self::store_pieces`] does. False if there is no room.
    pub(super) fn try_store_pieces(
        &self,
        key: &ObjectKey,
        first: u64,
        bytes: &[u8],
        may_promote: bool,
    ) -> io::Result<bool> {
        let kind = if first == 0 { read_pack_kind(bytes) } else { None };
        let Some(part) = self.choose_part(key, kind) else { return Ok(false) };
        let path = self.pack_path(part, key);
        let piece_len = usize::try_from(PIECE).unwrap_or(usize::MAX);
        let pieces: Vec<_> = (first..).zip(bytes.chunks(piece_len)).collect();
        // Some of the pieces may be here already. The number in use is then too high until packs are counted again,
        // which is the safe side.
        let room = pieces.iter().map(|(_, piece)| pack_file::disk_size(piece.len() as u64)).sum::<u64>();
        let map_room = pack_file::new_map_size(&path);
        // Held until the pieces are written: a count of the packs by another process does not see them before that.
        let Some(_reserved) = self.reserve_room(part, room + map_room)? else { return Ok(false) };
        // Making room may have removed this very pack, and its map needs room again.
        let lost_map = pack_file::new_map_size(&path).saturating_sub(map_room);
        let reserved_map = if lost_map > 0 { self.reserve_room(part, lost_map)? } else { None };
        if lost_map > 0 && reserved_map.is_none() {
            return Ok(false);
        }
        let folder = path.parent().unwrap_or(&self.folder);
        // Private although the packs are sealed: their names reveal which are read.
        create_private_dir(folder)?;
        // Another process may remove the pack at any moment from here on. Then the pieces go into files without
        // names, or a new map lies beside no data. Readers find no piece in either case.
        let is_new = pack_file::new_map_size(&path) > 0;
        let pack = CachedPack::create(&path)?;
        if may_promote && is_new && evict::was_evicted(&self.packs_folder(part), &path) {
            pack.promote()?;
        }
        pieces.into_iter().try_for_each(|(number, piece)| pack.write_piece(number, piece))?;
        Ok(true)
    }

    /// Reserves room until what is returned is dropped, when it must be in use. Removes packs that came earlier if there is
    /// too little. Returns none if there is still too little.
    pub(super) fn reserve_room(&self, part: CachePart, room: u64) -> io::Result<Option<ReservedRoom<'_>>> {
        create_private_dir(&self.folder)?;
        let mut usage = CacheUsage::lock(&self.folder)?;
        self.own_limit.renew(&self.folder)?;
        let allowed = usage.allowed_bytes(&self.folder, part)?;
        // What can never fit must not empty the cache.
        if room > allowed {
            return Ok(None);
        }
        // Under the lock, so that one process at a time counts and removes.
        if usage.used(part) + room > allowed {
            self.evict_packs(&mut usage, part, room)?;
            if usage.used(part) + room > allowed {
                return Ok(None);
            }
        }
        // Reserved first: if the process is killed before the number is written, the reservation ends with it.
        let reserved = self.reservations.reserve(&self.folder, part, room)?;
        let used = usage.used(part) + room;
        usage.set_used(part, used)?;
        Ok(Some(reserved))
    }

    /// Removes packs of a part until `room` fits within what is allowed, if possible, and counts what is left and what is
    /// reserved.
    fn evict_packs(&self, usage: &mut CacheUsage, part: CachePart, room: u64) -> io::Result<()> {
        let allowed = usage.allowed_bytes(&self.folder, part)?;
        // Counted before the packs: what is written meanwhile then counts twice, and not at all in the other order.
        let reserved = *count_reserved(&self.folder).get(part);
        let wanted = room.saturating_add(reserved);
        let left = evict::evict_packs(&self.packs_folder(part), &self.pinned_pieces(), wanted, allowed);
        usage.set_used(part, left + reserved)
    }

    /// Removes some pieces of a pack. The room that they took is free when packs are counted the next time.
    pub fn forget_pieces(&self, key: &ObjectKey, mut numbers: Range<u64>) {
        let Some(pack) = self.open_pack(key) else { return };
        if let Err(error) = numbers.try_for_each(|number| pack.remove_piece(number)) {
            self.warn_once(&error);
        }
    }

    /// Removes all pieces of a pack.
    pub fn forget_pack(&self, key: &ObjectKey) {
        if is_pack_key(key) {
            CachePart::ALL.iter().for_each(|part| pack_file::remove_pack(&self.pack_path(*part, key)));
        }
    }

    /// Summarizes what the cache holds. Looks at every pack.
    pub fn summarize(&self) -> io::Result<CacheSummary> {
        let packs = self.list_packs();
        let oldest = |packs: &[EvictionCandidate]| packs.iter().map(|pack| pack.fetched).min();
        let oldest = [oldest(&packs.content), oldest(&packs.nodes)].into_iter().flatten().min();
        let limits = CacheUsage::read_limits(&self.folder)?;
        let summarize_part = |part, packs: Vec<EvictionCandidate>| CachePartSummary {
            bytes: sum_bytes(&packs),
            limit: *limits.get(part),
            packs: packs.len() as u64,
        };
        let PerPart { content, nodes } = packs.map(summarize_part);
        Ok(CacheSummary { content, nodes, pinned: self.pinned_pieces().piece_bytes(), oldest })
    }

    /// How much it holds, may hold, and has to keep. Looks at no pack. A figure that cannot be read is left out: the others
    /// may show the reason.
    pub fn read_figures(&self) -> CacheFigures {
        CacheFigures {
            used: CacheUsage::read_used(&self.folder).unwrap_or_default(),
            limits: CacheUsage::read_limits(&self.folder).ok(),
            pinned: self.pinned_pieces().piece_bytes(),
        }
    }

    /// Sets how many bytes a part may take, for all processes; 0 switches it off. What is too much is removed at once, but
    /// for what is pinned: a limit below that is for the caller to refuse.
    pub fn set_limit(&self, part: CachePart, limit: u64) -> io::Result<()> {
        create_private_dir(&self.folder)?;
        let mut usage = CacheUsage::lock(&self.folder)?;
        usage.set_limit(part, limit)?;
        // A lower limit applies at once, not only when something is written the next time.
        self.evict_packs(&mut usage, part, 0)
    }

    /// Sets how many bytes content may take as long as this process has the cache open. What is too much is removed at once,
    /// but for what is pinned.
    pub fn limit_while_open(&self, limit: u64) -> io::Result<()> {
        create_private_dir(&self.folder)?;
        let mut usage = CacheUsage::lock(&self.folder)?;
        self.own_limit.set(&self.folder, limit)?;
        self.evict_packs(&mut usage, CachePart::Content, 0)
    }

    /// Removes everything but what is pinned, and keeps the limits.
    pub fn clear(&self) -> io::Result<()> {
        if !self.folder.exists() {
            return Ok(());
        }
        let mut usage = CacheUsage::lock(&self.folder)?;
        let pinned = self.pinned_pieces();
        for part in CachePart::ALL {
            let reserved = *count_reserved(&self.folder).get(part);
            let packs = evict::list_packs(&self.packs_folder(part));
            let left: u64 = packs.iter().map(|pack| pack.bytes - pack.remove_unpinned(&pinned)).sum();
            // The folder contains nothing but packs, so whatever else was left in it goes, too.
            if pinned.is_empty() {
                fs::remove_dir_all(self.packs_folder(part)).ignore_missing()?;
            }
            usage.set_used(part, left + reserved)?;
        }
        Ok(())
    }

    /// Checks every piece against its hash, and removes those that are wrong.
    pub fn verify(&self) -> io::Result<CacheCheck> {
        let mut check = CacheCheck::default();
        let PerPart { content, nodes } = self.list_packs();
        for entry in content.iter().chain(&nodes) {
            let Ok(pack) = CachedPack::open(&entry.path) else { continue };
            for number in pack.piece_numbers() {
                match pack.read_piece(number)? {
                    Some(_) => check.sound += 1,
                    // Reading it has taken it out of the map.
                    None => check.removed += 1,
                }
            }
        }
        Ok(check)
    }

    /// The packs of which something is here.
    pub(super) fn list_packs(&self) -> PerPart<Vec<EvictionCandidate>> {
        PerPart::both(()).map(|part, ()| evict::list_packs(&self.packs_folder(part)))
    }

    pub(super) fn packs_folder(&self, part: CachePart) -> PathBuf {
        self.folder.join(part.folder_name())
    }

    pub(super) fn pinned_pieces(&self) -> PieceSet {
        pins::list_pins(&self.folder).pieces()
    }

    /// The data file of a pack in a part.
    pub(super) fn pack_path(&self, part: CachePart, key: &ObjectKey) -> PathBuf {
        // Keys have no components that lead elsewhere.
        let name = key.as_str().strip_prefix(PACK_KEYS).unwrap_or(key.as_str());
        self.packs_folder(part).join(name)
    }

    /// The pieces of a pack that are here. None if there are none.
    pub(super) fn open_pack(&self, key: &ObjectKey) -> Option<CachedPack> {
        if !is_pack_key(key) {
            return None;
        }
        // Whoever stored it may have known more of it than this process, or less.
        let likely = self.guess_part(key);
        let open = |part| CachedPack::open(&self.pack_path(part, key)).ok();
        open(likely).or_else(|| open(likely.other()))
    }

    /// The part that pieces of a pack go to: where others are already, or where the pack belongs. None for what is no pack.
    fn choose_part(&self, key: &ObjectKey, kind: Option<BlobKind>) -> Option<CachePart> {
        if !is_pack_key(key) {
            return None;
        }
        let part = match kind {
            Some(BlobKind::Node) => CachePart::Nodes,
            Some(BlobKind::Chunk) => CachePart::Content,
            None => self.guess_part(key),
        };
        let is_elsewhere = !self.holds_pack(part, key) && self.holds_pack(part.other(), key);
        Some(if is_elsewhere { part.other() } else { part })
    }

    /// The part that a pack counts towards: that in which it is, or will be.
    pub(super) fn find_part(&self, pack: &PackId) -> CachePart {
        self.choose_part(&pack_key(pack), None).unwrap_or(CachePart::Content)
    }

    fn holds_pack(&self, part: CachePart, key: &ObjectKey) -> bool {
        pack_file::new_map_size(&self.pack_path(part, key)) == 0
    }

    fn guess_part(&self, key: &ObjectKey) -> CachePart {
        let pack = key.as_str().rsplit('/').next().and_then(|name| name.parse().ok());
        match pack.is_some_and(|pack| self.node_packs.read().contains(&pack)) {
            true => CachePart::Nodes,
            false => CachePart::Content,
        }
    }

    fn warn_once(&self, error: &io::Error) {
        // A cache that cannot be used costs time, but no correctness. One warning per process is enough.
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(folder = %self.folder.display(), %error, "the cache cannot be used as it should");
        }
    }
}

fn is_pack_key(key: &ObjectKey) -> bool {
    key.as_str().starts_with(PACK_KEYS)
}

/// Bytes of packs on the disk.
pub(super) fn sum_bytes(packs: &[EvictionCandidate]) -> u64 {
    packs.iter().map(|pack| pack.bytes).sum()
}

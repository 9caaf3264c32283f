//! Which packs go when room is needed.
//!
//! Invariant: what is pinned stays. Called with the lock of the cache. If a pack is removed while another process
//! reads it, that process reads the open file to its end, or fetches the piece.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vellum_types::PackId;

use super::disk::note_progress;
use super::pack_file::{CachedPack, data_path, map_path, remove_pack};
use crate::object::PieceSet;

/// Part of the limit that stays when packs are removed, percent: the next look is then some time away.
const KEPT_PERCENT: u64 = 90;
/// Bytes of a block as `stat` counts them.
const STAT_BLOCK: u64 = 512;

/// A pack in the cache.
pub(super) struct EvictionCandidate {
    /// Its data file.
    pub path: PathBuf,
    /// Bytes on the disk.
    pub bytes: u64,
    /// When something was fetched last.
    pub fetched: SystemTime,
}

/// All packs of which something is there.
pub(super) fn list_packs(folder: &Path) -> Vec<EvictionCandidate> {
    let mut found = Vec::new();
    // Other processes remove packs at the same time: what cannot be read is not there any more.
    for folder in fs::read_dir(folder).into_iter().flatten().flatten() {
        for entry in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            note_progress();
            let map = entry.path();
            let Some(path) = data_path(&map) else {
                found.extend(find_orphan(&entry));
                continue;
            };
            let Ok(map) = map.symlink_metadata() else { continue };
            let data = path.symlink_metadata().ok();
            // Blocks, not lengths: the data file is sparse.
            let blocks = map.blocks() + data.as_ref().map_or(0, MetadataExt::blocks);
            let fetched = data.as_ref().unwrap_or(&map).modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(EvictionCandidate { path, bytes: blocks * STAT_BLOCK, fetched });
        }
    }
    found
}

/// A data file without a map: the process that removed the pack, or began it, was killed in between. It takes space, and
/// no reader finds it.
fn find_orphan(entry: &fs::DirEntry) -> Option<EvictionCandidate> {
    let path = entry.path();
    let data = path.symlink_metadata().ok().filter(|data| data.is_file())?;
    let fetched = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let has_map = map_path(&path).exists();
    (!has_map).then_some(EvictionCandidate { path, bytes: data.blocks() * STAT_BLOCK, fetched })
}

impl EvictionCandidate {
    /// The pack, if the file is named after one.
    pub(super) fn pack_id(&self) -> Option<PackId> {
        self.path.file_name()?.to_str()?.parse().ok()
    }

    /// Removes what is not pinned of it. Returns the bytes that are free then.
    pub(super) fn remove_unpinned(&self, pinned: &PieceSet) -> u64 {
        let Some(id) = self.pack_id().filter(|id| pinned.contains_pack(id)) else {
            remove_pack(&self.path);
            return self.bytes;
        };
        let Ok(pack) = CachedPack::open(&self.path) else {
            // Without its map nothing of it can be read, pinned or not.
            if !map_path(&self.path).exists() {
                remove_pack(&self.path);
                return self.bytes;
            }
            return 0;
        };
        let mut removed = 0;
        for number in pack.piece_numbers() {
            let size = pack.piece_size(number).unwrap_or_default();
            if !pinned.contains_piece(&id, number) && pack.remove_piece(number).is_ok() {
                removed += size;
            }
        }
        removed.min(self.bytes)
    }
}

/// Removes packs until `room` fits within `allowed`, and some more. Returns the bytes that are left.
pub(super) fn evict_packs(folder: &Path, pinned: &PieceSet, room: u64, allowed: u64) -> u64 {
    // Divided first, so that the product cannot overflow.
    let target = (allowed / 100 * KEPT_PERCENT).saturating_sub(room).min(allowed.saturating_sub(room));
    evict_down_to(folder, pinned, target)
}

/// Removes packs until no more than `target` bytes are left, or only what is pinned. Returns the bytes that are left.
pub(super) fn evict_down_to(folder: &Path, pinned: &PieceSet, target: u64) -> u64 {
    let mut packs = list_packs(folder);
    packs.sort_by_key(|pack| pack.fetched);
    let mut left: u64 = packs.iter().map(|pack| pack.bytes).sum();
    let mut removed = 0;
    while left > target && !packs.is_empty() {
        packs.retain(|pack| {
            if left <= target {
                return true;
            }
            // A pack that was read stays for another round, and pays for it with one use.
            let used = CachedPack::open(&pack.path).ok().filter(|cached| cached.uses() > 0);
            // If that cannot be written, the pack goes. Otherwise this loop might not end.
            if used.is_some_and(|cached| cached.spend_use().is_ok()) {
                return true;
            }
            // Of this pack only pinned pieces are left, so it is not looked at again.
            left -= pack.remove_unpinned(pinned);
            removed += 1;
            false
        });
    }
    tracing::debug!(removed, left, "packs are removed from the cache");
    left
}

/// Removes what is not pinned of packs into which nothing was fetched since a time. Returns the bytes that are left.
pub(super) fn evict_older(folder: &Path, pinned: &PieceSet, since: SystemTime) -> u64 {
    let left = |pack: &EvictionCandidate| match pack.fetched < since {
        true => pack.bytes - pack.remove_unpinned(pinned),
        false => pack.bytes,
    };
    list_packs(folder).iter().map(left).sum()
}

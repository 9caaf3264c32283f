//! Which packs go when room is needed: two queues, as in S3-FIFO, so that a scan does not push out what is read often.
//!
//! What comes goes into the small queue. If it was read from the cache when its turn comes, it moves to the main queue, in
//! which a pack stays for another round for each use; otherwise it goes. The small queue gives first as long as it has
//! more than a tenth. Each part of the cache has queues of its own, and a file that has the hashes (8 bytes each, the last at the end) of the names of packs that went from the small
//! queue: one that comes back soon enters the main queue.
//!
//! Invariant: what is pinned stays. Called with the lock of the cache. If a pack is removed while another process
//! reads it, that process reads the open file to its end, or fetches the piece.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vellum_types::PackId;

use super::disk::note_progress;
use super::pack_file::{CachedPack, data_path, map_path, remove_pack};
use crate::object::PieceSet;

/// Part of the limit that stays when packs are removed, percent: the next look is then some time away.
const KEPT_PERCENT: u64 = 90;
/// Part of what stays that the small queue may keep, a divisor.
const SMALL_PART: u64 = 10;
/// How the name of the file with the names of packs that went ends, beside the folder of packs.
const EVICTED_SUFFIX: &str = "evicted";
/// Names in it, at most. Otherwise it has as many as there are packs.
const EVICTED_MAX: usize = 4096;
const NAME_LEN: usize = 8;
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
        // Pieces may have more bytes than the blocks that were counted, from which callers subtract this.
        removed.min(self.bytes)
    }
}

/// Removes packs until `room` fits within `allowed`, and some more. Returns the bytes that are left.
pub(super) fn evict_packs(folder: &Path, pinned: &PieceSet, room: u64, allowed: u64) -> u64 {
    // Divided first, so that the product cannot overflow.
    let target = (allowed / 100 * KEPT_PERCENT).saturating_sub(room).min(allowed.saturating_sub(room));
    evict_down_to(folder, pinned, target)
}

/// Packs in the order in which they go.
#[derive(Default)]
struct EvictionQueues {
    small: VecDeque<EvictionCandidate>,
    small_bytes: u64,
    main: VecDeque<EvictionCandidate>,
    /// Hashes of the names of packs that went from the small queue.
    evicted: Vec<u8>,
}

impl EvictionQueues {
    fn sort_packs(mut packs: Vec<EvictionCandidate>) -> Self {
        // The time of the last fetch is the place in a queue: a pack that moves to the end gets the present time.
        packs.sort_by_key(|pack| pack.fetched);
        let mut queues = Self::default();
        for pack in packs {
            if CachedPack::open(&pack.path).is_ok_and(|cached| cached.is_in_main()) {
                queues.main.push_back(pack);
            } else {
                queues.small_bytes += pack.bytes;
                queues.small.push_back(pack);
            }
        }
        queues
    }

    /// Takes out the pack that goes next, if the small queue may keep so many bytes.
    fn take_next(&mut self, small_max: u64) -> Option<EvictionCandidate> {
        loop {
            let is_small = self.small_bytes > small_max || self.main.is_empty();
            let pack = if is_small { self.small.pop_front()? } else { self.main.pop_front()? };
            if is_small {
                self.small_bytes -= pack.bytes;
            }
            let used = CachedPack::open(&pack.path).ok().filter(|cached| cached.uses() > 0);
            let moved = used.map(|cached| if is_small { cached.promote() } else { cached.spend_use() });
            // If that cannot be written, the pack goes. Otherwise this loop might not end.
            if !matches!(moved, Some(Ok(()))) {
                if is_small {
                    self.evicted.extend(hash_name(&pack.path));
                }
                return Some(pack);
            }
            self.main.push_back(pack);
        }
    }
}

/// Removes packs until no more than `target` bytes are left, or only what is pinned. Returns the bytes that are left.
pub(super) fn evict_down_to(folder: &Path, pinned: &PieceSet, target: u64) -> u64 {
    let packs = list_packs(folder);
    let mut left: u64 = packs.iter().map(|pack| pack.bytes).sum();
    let mut removed = 0;
    let pack_count = packs.len();
    let mut queues = EvictionQueues::sort_packs(packs);
    while left > target
        && let Some(pack) = queues.take_next(target / SMALL_PART)
    {
        // Of this pack only pinned pieces are left, so it is not looked at again.
        left -= pack.remove_unpinned(pinned);
        removed += 1;
    }
    note_evicted(folder, &queues.evicted, pack_count);
    tracing::debug!(removed, left, "packs are removed from the cache");
    left
}

/// Whether a pack went from the small queue not long ago.
pub(super) fn was_evicted(folder: &Path, path: &Path) -> bool {
    let name = hash_name(path);
    read_evicted(folder).chunks_exact(NAME_LEN).any(|evicted| evicted == name)
}

fn hash_name(path: &Path) -> [u8; NAME_LEN] {
    let name = path.file_name().unwrap_or_default();
    let hash = blake3::hash(name.as_encoded_bytes());
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

fn read_evicted(folder: &Path) -> Vec<u8> {
    let mut names = Vec::new();
    // Without the file, packs that come back are new ones.
    let file = File::open(folder.with_extension(EVICTED_SUFFIX));
    let _ = file.and_then(|file| file.take((EVICTED_MAX * NAME_LEN) as u64).read_to_end(&mut names));
    names
}

fn note_evicted(folder: &Path, evicted: &[u8], most: usize) {
    if evicted.is_empty() {
        return;
    }
    let names = [&read_evicted(folder), evicted].concat();
    let kept = names.len().min(most.min(EVICTED_MAX) * NAME_LEN);
    // In place: whoever reads half of it takes a pack for a new one, or the other way round.
    let written = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(folder.with_extension(EVICTED_SUFFIX))
        .and_then(|mut file| file.write_all(names.get(names.len() - kept..).unwrap_or_default()));
    if let Err(error) = written {
        tracing::debug!(%error, "which packs went is not noted");
    }
}

/// Removes what is not pinned of packs into which nothing was fetched since a time. Returns the bytes that are left.
pub(super) fn evict_older(folder: &Path, pinned: &PieceSet, since: SystemTime) -> u64 {
    let left = |pack: &EvictionCandidate| match pack.fetched < since {
        true => pack.bytes - pack.remove_unpinned(pinned),
        false => pack.bytes,
    };
    list_packs(folder).iter().map(left).sum()
}

//! Packs of remote stores on the local disk, in pieces: what was fetched once need not be fetched again.
//!
//! Invariant: nothing in it is trusted or missed. Each piece has a hash, and one that does not match is fetched again;
//! the folder may be removed, damaged or full at any moment. It holds what the store holds, sealed. If its disk does not
//! answer, it is bypassed, as if nothing were in it, and nobody waits for long. Opening it looks at no folder. Deliberately
//! absent: anything that is not in the store.
//!
//! Content and nodes have limits of their own. What is removed when room is needed is decided by whole packs; see `evict`. Of single pieces each process would have to
//! know the whole queue.

mod disk;
mod evict;
mod files;
mod keeping;
mod pack_file;
mod parts;
mod pins;
mod process_limit;
mod reservation;
mod usage;

use std::collections::HashSet;
use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use vellum_host::MetricsExposition;
use vellum_types::PackId;

pub(super) use self::disk::CacheDisk;
pub use self::disk::{CacheDiskProbe, set_cache_disk_probe};
use self::files::CacheFiles;
pub use self::keeping::{CacheRoom, EvictedBytes};
pub use self::parts::{CachePart, PerPart};
pub use self::pins::{CachePin, PinListing};
use super::{BandwidthLimits, FetchPolicy, ObjectKey, PieceSet, service};

/// Bytes of a piece.
pub(super) const PIECE: u64 = 256 << 10;
/// Most pieces of a pack: packs have 256 MiB at most.
pub(super) const PIECES_MAX: u64 = 1024;

/// The pieces of one store's packs on the local disk. Shared by all processes of a user.
pub struct PackCache {
    disk: Arc<CacheDisk>,
    files: Arc<CacheFiles>,
    /// What the metrics showed last.
    figures: Mutex<CacheFigures>,
}

/// What the metrics show of a cache.
#[derive(Debug, Clone, Copy, Default)]
struct CacheFigures {
    used: PerPart<Option<u64>>,
    limits: Option<PerPart<u64>>,
    pinned: u64,
}

/// What a part of a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePartSummary {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Bytes that it may take.
    pub limit: u64,
    /// Packs of which it has pieces.
    pub packs: u64,
}

/// What a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSummary {
    /// Of content.
    pub content: CachePartSummary,
    /// Of nodes.
    pub nodes: CachePartSummary,
    /// Bytes that are pinned, at most.
    pub pinned: u64,
    /// When something was fetched last into the pack that was not touched for the longest time; none if there is no pack.
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
    pub fn new(folder: &Path) -> Self {
        Self::on_disk(CacheDisk::for_folder(folder))
    }

    fn on_disk(disk: Arc<CacheDisk>) -> Self {
        Self { files: Arc::new(CacheFiles::new(disk.folder())), disk, figures: Mutex::default() }
    }

    /// The cache of the store at this address; none if the user has no folder for caches.
    #[must_use]
    pub fn for_address(address: &impl Display) -> Option<Self> {
        // The hash makes a file name of any address, and does not show it.
        let name = blake3::hash(address.to_string().as_bytes()).to_hex();
        Some(Self::new(&cache_home()?.join("vellum").join(name.get(..32)?)))
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.disk.folder()
    }

    /// Does something with the files. Fails with `TimedOut` if their disk does not answer.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CacheFiles) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let files = Arc::clone(&self.files);
        self.disk.run(move |_| work(&files))
    }

    /// A piece of a pack, if it is here and whole.
    pub(super) fn read_piece(&self, key: &ObjectKey, number: u64) -> Option<Vec<u8>> {
        let key = key.clone();
        // Asked for here: the policy is one of this thread, and another thread does the work.
        let use_counts = does_use_count();
        self.run(move |files| Ok(files.read_piece(&key, number, use_counts))).ok()?
    }

    /// A range of a pack, which must not be empty, if all of it is here and whole.
    pub(super) fn read_range(&self, key: &ObjectKey, range: Range<u64>) -> Option<Vec<u8>> {
        let key = key.clone();
        let use_counts = does_use_count();
        self.run(move |files| Ok(files.read_range(&key, range, use_counts))).ok()?
    }

    /// Those of some pieces that seem to be here.
    pub(super) fn find_pieces(&self, key: &ObjectKey, numbers: Range<u64>) -> HashSet<u64> {
        let key = key.clone();
        self.run(move |files| Ok(files.find_pieces(&key, numbers))).unwrap_or_default()
    }

    /// Keeps pieces of a pack, from the piece `first` on, as far as there is room. All but the last of a pack have
    /// [`PIECE`] bytes.
    pub(super) fn store_pieces(&self, key: &ObjectKey, first: u64, bytes: &[u8]) {
        // Nothing is copied for nobody.
        if !self.disk.is_bypassed() {
            self.store_fetched_pieces(key, first, bytes.to_vec(), 0..bytes.len());
        }
    }

    /// Keeps pieces as [`Self::store_pieces`] does, of a part of what was fetched, and returns all that was fetched. It is
    /// not copied, unless the disk does not answer.
    pub(super) fn store_fetched_pieces(
        &self,
        key: &ObjectKey,
        first: u64,
        fetched: Vec<u8>,
        part: Range<usize>,
    ) -> Vec<u8> {
        let fetched = Arc::new(fetched);
        let key = key.clone();
        let use_counts = does_use_count();
        let shared = Arc::clone(&fetched);
        // What is not kept is fetched again, so that a failure needs no answer.
        let _ = self.run(move |files| {
            files.store_pieces(&key, first, shared.get(part).unwrap_or_default(), use_counts);
            Ok(())
        });
        // A thread that the disk holds may keep its share for ever.
        Arc::try_unwrap(fetched).unwrap_or_else(|shared| shared.to_vec())
    }

    /// Keeps pieces that the user requested by name, as [`Self::store_pieces`] does. False if there is no room.
    pub(super) fn store_wanted_pieces(&self, pack: &PackId, first: u64, bytes: Vec<u8>) -> io::Result<bool> {
        let pack = *pack;
        self.run(move |files| files.store_wanted_pieces(&pack, first, &bytes))
    }

    /// Removes some pieces of a pack. The room that they took is free when packs are counted the next time.
    pub(super) fn forget_pieces(&self, key: &ObjectKey, numbers: Range<u64>) {
        let key = key.clone();
        // If the disk does not answer, nothing is read from it either.
        let _ = self.run(move |files| {
            files.forget_pieces(&key, numbers);
            Ok(())
        });
    }

    /// Removes all pieces of a pack.
    pub(super) fn forget_pack(&self, key: &ObjectKey) {
        let key = key.clone();
        // Pieces that stay are of a pack that nobody asks for any more: they go when room is needed.
        let _ = self.run(move |files| {
            files.forget_pack(&key);
            Ok(())
        });
    }

    /// Summarizes what the cache holds. Looks at every pack.
    pub fn summarize(&self) -> io::Result<CacheSummary> {
        self.run(CacheFiles::summarize)
    }

    /// Writes how much it holds, may hold, and has to keep. Looks at no pack.
    pub fn expose_metrics(&self, out: &mut MetricsExposition) {
        // The last figures are as good as any while the disk does not answer.
        let figures = match self.run(|files| Ok(files.read_figures())) {
            Ok(figures) => {
                *self.figures.lock() = figures;
                figures
            }
            Err(_) => *self.figures.lock(),
        };
        if let Some(used) = figures.used.content {
            out.write_gauge("vellum_disk_cache_bytes", "", used);
        }
        if let Some(used) = figures.used.nodes {
            out.write_gauge("vellum_disk_cache_node_bytes", "", used);
        }
        if let Some(PerPart { content, nodes }) = figures.limits {
            out.write_gauge("vellum_disk_cache_limit_bytes", "", content);
            out.write_gauge("vellum_disk_cache_node_limit_bytes", "", nodes);
        }
        out.write_gauge("vellum_disk_cache_pinned_bytes", "", figures.pinned);
        out.write_gauge("vellum_disk_cache_bypassed", "", u64::from(self.disk.is_bypassed()));
    }

    /// Sets how many bytes a part may take, for all processes; 0 switches it off. What is too much is removed at once, but for
    /// what is pinned: a limit below that is for the caller to refuse.
    pub fn set_limit(&self, part: CachePart, limit: u64) -> io::Result<()> {
        self.run(move |files| files.set_limit(part, limit))
    }

    /// Sets how many bytes content may take as long as this process has the cache open: of the limits of all processes, and of
    /// the one of [`Self::set_limit`], the smallest counts. What is too much is removed at once, but for what is pinned.
    pub fn limit_while_open(&self, limit: u64) -> io::Result<()> {
        self.run(move |files| files.limit_while_open(limit))
    }

    /// Remembers which packs hold nodes, instead of those that were known before: what comes of them counts as nodes.
    pub(super) fn set_node_packs(&self, packs: HashSet<PackId>) {
        self.files.set_node_packs(packs);
    }

    /// Removes everything but what is pinned, and keeps the limits.
    pub fn clear(&self) -> io::Result<()> {
        self.run(CacheFiles::clear)
    }

    /// Checks every piece against its hash, and removes those that are wrong.
    pub fn verify(&self) -> io::Result<CacheCheck> {
        self.run(CacheFiles::verify)
    }

    /// Whether its disk does not answer, so that everything is fetched.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.disk.is_bypassed()
    }

    /// Whether requests to the store are switched off.
    pub fn is_offline(&self) -> io::Result<bool> {
        self.run(|files| service::is_offline(files.folder()))
    }

    /// Switches requests to the store off or on, for all processes of the user. True if that changed anything.
    pub fn set_offline(&self, is_offline: bool) -> io::Result<bool> {
        self.run(move |files| service::set_offline(files.folder(), is_offline))
    }

    /// How many bytes a second may go to the store and come from it.
    pub fn read_bandwidth_limits(&self) -> io::Result<BandwidthLimits> {
        self.run(|files| Ok(BandwidthLimits::read_from(files.folder())))
    }

    /// Limits the bytes a second, for all processes of the user.
    pub fn set_bandwidth_limits(&self, limits: BandwidthLimits) -> io::Result<()> {
        self.run(move |files| limits.write_to(files.folder()))
    }

    /// Those of the pieces that are not here.
    #[must_use]
    pub fn missing_pieces(&self, wanted: &PieceSet) -> PieceSet {
        let pieces = wanted.clone();
        // Of a disk that does not answer, nothing is here.
        self.run(move |files| Ok(files.missing_pieces(&pieces))).unwrap_or_else(|_| wanted.clone())
    }

    /// Those of the pieces that are not pinned by anything.
    #[must_use]
    pub fn unpinned_pieces(&self, wanted: &PieceSet) -> PieceSet {
        let pieces = wanted.clone();
        // What cannot be looked at does not count as pinned.
        self.run(move |files| Ok(files.unpinned_pieces(&pieces))).unwrap_or_else(|_| wanted.clone())
    }

    /// Whether pieces can be fetched into the cache and stay there for now, beside what is pinned.
    pub fn find_room(&self, pieces: &PieceSet) -> io::Result<CacheRoom> {
        let pieces = pieces.clone();
        self.run(move |files| files.find_room(&pieces))
    }

    /// The pins.
    pub fn list_pins(&self) -> io::Result<PinListing> {
        self.run(|files| Ok(files.list_pins()))
    }

    /// Pins pieces, in the place of a pin with the same name, if they fit within the limits beside all other pins. They need
    /// not be here yet.
    pub fn add_pin(&self, pin: &CachePin) -> io::Result<CacheRoom> {
        let pin = pin.clone();
        self.run(move |files| files.add_pin(&pin))
    }

    /// Removes a pin; false if there is none with this name. What it pinned stays until room is needed.
    pub fn remove_pin(&self, name: &str) -> io::Result<bool> {
        let name = name.to_owned();
        self.run(move |files| files.remove_pin(&name))
    }

    /// Bytes that all pins take, at most.
    pub fn pinned_bytes(&self) -> io::Result<PerPart<u64>> {
        self.run(|files| Ok(files.pinned_bytes()))
    }

    /// Removes pieces, but for those that are pinned.
    pub fn evict_pieces(&self, pieces: &PieceSet) -> io::Result<EvictedBytes> {
        let pieces = pieces.clone();
        self.run(move |files| files.evict_pieces(&pieces))
    }

    /// Removes packs until no more than `target` bytes are left, or only what is pinned.
    pub fn evict_down_to(&self, target: u64) -> io::Result<EvictedBytes> {
        self.run(move |files| files.evict_down_to(target))
    }

    /// Removes packs into which nothing was fetched since a time, but for what is pinned.
    pub fn evict_older(&self, since: SystemTime) -> io::Result<EvictedBytes> {
        self.run(move |files| files.evict_older(since))
    }
}

/// Whether what this thread reads stays longer for it.
fn does_use_count() -> bool {
    FetchPolicy::current() != FetchPolicy::Scan
}

impl Drop for PackCache {
    fn drop(&mut self) {
        // Closing a file may wait for a disk that does not answer, and whoever drops the cache must not.
        if let Some(file) = self.files.take_reservations() {
            self.disk.discard(file);
        }
        if let Some(file) = self.files.take_own_limit() {
            self.disk.discard(file);
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

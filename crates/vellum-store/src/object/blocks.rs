//! Reads of packs in large aligned pieces, which are kept in memory and on the local disk: what lies beside a blob is
//! usually wanted next.
//!
//! Invariant: it changes no answer, since packs are immutable. A piece is requested once, however many threads want it.
//! Of what is fetched from a pack, at least a quarter is used before larger spans are fetched; otherwise they become
//! small again; of scattered reads, one that lies across two pieces is fetched alone. Deliberately absent: trust; blobs are
//! authenticated above.

mod local_copies;
mod piece_bytes;
mod read_credit;
mod windows;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use vellum_host::fork_safe::{Condvar, Mutex};

use self::piece_bytes::PieceBytes;
use self::windows::FetchWindows;
use super::cache::PIECE;
use super::{
    FetchPolicy, KeyFilter, ObjectInfo, ObjectKey, ObjectSelection, ObjectStore, ObjectVersion, PackCache,
    VersionedObject, check_read_length,
};
use crate::error::StoreError;

/// Pieces that are kept, bytes. Decoded nodes and chunks are kept above.
const KEPT: u64 = 64 << 20;
/// Largest request that goes through pieces, bytes. Larger ones come from readers of whole packs.
const SPAN_MAX: u64 = 4 << 20;

/// A piece of a pack, by its number.
type PieceId = (ObjectKey, u64);

#[derive(Debug, Clone)]
struct PieceWeighter;

impl Weighter<PieceId, PieceBytes> for PieceWeighter {
    fn weight(&self, _: &PieceId, piece: &PieceBytes) -> u64 {
        // The key, and the entry in the cache, take some 64 bytes more.
        piece.as_slice().len() as u64 + 64
    }
}

/// A store whose packs are read in pieces.
pub struct BlockStore {
    inner: Arc<dyn ObjectStore>,
    /// Pieces on the local disk.
    cache: Option<PackCache>,
    ignores_cache: AtomicBool,
    pieces: Cache<PieceId, PieceBytes, PieceWeighter>,
    windows: Mutex<FetchWindows>,
    /// Pieces that are being fetched.
    fetching: Mutex<HashSet<PieceId>>,
    fetched: Condvar,
}

/// The right to fetch some pieces of a pack. It is given back however the fetch ends.
struct FetchClaim<'a> {
    store: &'a BlockStore,
    key: &'a ObjectKey,
    pieces: Range<u64>,
}

impl Drop for FetchClaim<'_> {
    fn drop(&mut self) {
        // Also after a failed fetch: threads that wait for these pieces must wake up and fetch them themselves.
        let mut fetching = self.store.fetching.lock();
        for piece in self.pieces.clone() {
            fetching.remove(&(self.key.clone(), piece));
        }
        drop(fetching);
        self.store.fetched.notify_all();
    }
}

impl BlockStore {
    /// Reads packs of `inner` in pieces, and keeps them in `cache`.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, cache: Option<PackCache>) -> Self {
        let expected = usize::try_from(KEPT / PIECE).unwrap_or(usize::MAX);
        Self {
            inner,
            cache,
            ignores_cache: AtomicBool::new(false),
            pieces: Cache::with_weighter(expected, KEPT, PieceWeighter),
            windows: Mutex::default(),
            fetching: Mutex::default(),
            fetched: Condvar::new(),
        }
    }

    /// The pieces on the local disk, unless they are not to be believed.
    fn readable_cache(&self) -> Option<&PackCache> {
        self.cache.as_ref().filter(|_| !self.ignores_cache.load(Ordering::Relaxed))
    }

    /// A piece, kept or fetched together with those that are wanted with it, up to `last`, which are returned, too. Nothing if the
    /// object ends before it.
    fn get_piece(&self, key: &ObjectKey, number: u64, last: u64) -> Result<Vec<PieceBytes>, StoreError> {
        let id = (key.clone(), number);
        // After the wait for another thread's fetch, memory and disk are looked at again, because that fetch may have
        // failed.
        loop {
            if let Some(piece) = self.get_kept_piece(&id) {
                return Ok(vec![piece]);
            }
            if let Some(piece) = self.readable_cache().and_then(|cache| cache.read_piece(key, number)) {
                let piece = PieceBytes::alone(piece);
                self.pieces.insert(id, piece.clone());
                return Ok(vec![piece]);
            }
            self.check_fetch(key)?;
            match self.claim_pieces(key, number, last) {
                Some(claim) => return self.fetch_pieces(&claim, number..last + 1),
                // Another thread fetches it: wait, and look again.
                None => {
                    let mut fetching = self.fetching.lock();
                    while fetching.contains(&id) {
                        self.fetched.wait(&mut fetching);
                    }
                }
            }
        }
    }

    /// A piece from memory. One that is wanted again gets bytes of its own, since it may stay for long.
    fn get_kept_piece(&self, id: &PieceId) -> Option<PieceBytes> {
        let piece = self.pieces.get(id)?;
        if !piece.is_part() {
            return Some(piece);
        }
        let alone = PieceBytes::alone(piece.as_slice().to_vec());
        self.pieces.insert(id.clone(), alone.clone());
        Some(alone)
    }

    /// Some pieces; fewer if the object ends before the last one.
    fn get_pieces(&self, key: &ObjectKey, numbers: Range<u64>) -> Result<Vec<PieceBytes>, StoreError> {
        let last = numbers.end.saturating_sub(1);
        let mut early = HashMap::new();
        // Threads that read ahead share the pieces in which their ranges meet. What nobody fetches is requested before
        // such a piece is waited for: otherwise each thread sends its request only when the one before it has an answer.
        if last > numbers.start && numbers.clone().any(|number| self.is_being_fetched(key, number)) {
            for number in numbers.clone() {
                if early.contains_key(&number) || self.is_being_fetched(key, number) {
                    continue;
                }
                let found = self.get_piece(key, number, last)?;
                if found.is_empty() {
                    break;
                }
                early.extend((number..).zip(found));
            }
        }
        let mut pieces = Vec::new();
        let mut number = numbers.start;
        while number < numbers.end {
            let found = match early.remove(&number) {
                Some(piece) => vec![piece],
                None => self.get_piece(key, number, last)?,
            };
            if found.is_empty() {
                // The pack ends before this piece. The caller's check of the length reports that.
                break;
            }
            number += found.len() as u64;
            pieces.extend(found);
        }
        Ok(pieces)
    }

    fn is_being_fetched(&self, key: &ObjectKey, number: u64) -> bool {
        self.fetching.lock().contains(&(key.clone(), number))
    }

    /// Whether this thread may fetch something.
    fn check_fetch(&self, key: &ObjectKey) -> Result<(), StoreError> {
        match FetchPolicy::current() {
            FetchPolicy::Ordinary | FetchPolicy::Scan => Ok(()),
            FetchPolicy::Refuse => {
                Err(StoreError::FetchRefused { place: self.describe_location(), key: key.to_string() })
            }
        }
    }

    /// Claims a piece and those beside it that are worth fetching with it. `None` if another thread fetches it already.
    fn claim_pieces<'a>(&'a self, key: &'a ObjectKey, number: u64, last: u64) -> Option<FetchClaim<'a>> {
        let mut span = self.windows.lock().choose_span(key, number);
        // The range of the caller goes into one request, even if the window is smaller.
        span.end = span.end.max(last + 1);
        // Files are opened before the lock is taken, since all threads of all packs wait for it. A piece that comes to
        // the disk in between is fetched once more, which does no harm.
        let cached = self.readable_cache().map(|cache| cache.find_pieces(key, span.clone()));
        // Locked for the whole choice, so that two threads cannot claim one piece.
        let mut fetching = self.fetching.lock();
        if fetching.contains(&(key.clone(), number)) {
            return None;
        }
        let is_wanted = |piece: &u64| {
            let id = (key.clone(), *piece);
            let is_cached = cached.as_ref().is_some_and(|cached| cached.contains(piece));
            !fetching.contains(&id) && !self.pieces.contains_key(&id) && !is_cached
        };
        // The claim ends at pieces that are here already, since a request cannot leave out its middle.
        let start = (span.start..number).rev().take_while(is_wanted).last().unwrap_or(number);
        let end = (number + 1..span.end).find(|piece| !is_wanted(piece)).unwrap_or(span.end);
        fetching.extend((start..end).map(|piece| (key.clone(), piece)));
        Some(FetchClaim { store: self, key, pieces: start..end })
    }

    /// Whether a range across two pieces is to be fetched by itself: neither is here, and a reader that jumps wants nothing
    /// else of them.
    fn is_lone_range(&self, key: &ObjectKey, first: u64) -> bool {
        let pieces = first..first + 2;
        let is_here = |number| {
            let id = (key.clone(), number);
            self.pieces.contains_key(&id) || self.is_being_fetched(key, number)
        };
        if pieces.clone().any(is_here) {
            return false;
        }
        // The disk is asked last, since that takes longest.
        self.windows.lock().begin_lone_range(key, first)
            && self.readable_cache().is_none_or(|cache| cache.find_pieces(key, pieces).is_empty())
    }

    /// Fetches what was claimed, and returns what of it is wanted.
    fn fetch_pieces(
        &self,
        claim: &FetchClaim<'_>,
        wanted: Range<u64>,
    ) -> Result<Vec<PieceBytes>, StoreError> {
        // It may have come between the look and the claim.
        if let Some(piece) = self.get_kept_piece(&(claim.key.clone(), wanted.start)) {
            return Ok(vec![piece]);
        }
        let most = (claim.pieces.end - claim.pieces.start) * PIECE;
        let mut bytes = self.inner.get_range_up_to(claim.key, claim.pieces.start * PIECE, most)?;
        self.windows.lock().note_fetched(claim.key, &claim.pieces, bytes.len() as u64);
        if let Some(cache) = &self.cache {
            let all = 0..bytes.len();
            bytes = cache.store_fetched_pieces(claim.key, claim.pieces.start, bytes, all);
        }
        let mut found = Vec::new();
        for (number, piece) in claim.pieces.clone().zip(PieceBytes::parts_of(bytes)) {
            // Within a long range, its reader wants all of a piece, and nobody else is likely to: it is not copied. What is at
            // its ends, or came along, may stay here for others.
            let is_inner = wanted.start < number && number + 1 < wanted.end;
            let piece = if is_inner { piece } else { PieceBytes::alone(piece.as_slice().to_vec()) };
            if wanted.contains(&number) {
                found.push(piece.clone());
            }
            self.pieces.insert((claim.key.clone(), number), piece);
        }
        Ok(found)
    }

    fn forget_pieces(&self, key: &ObjectKey) {
        self.pieces.retain(|(known, _), _| known != key);
        if let Some(cache) = &self.cache {
            cache.forget_pack(key);
        }
    }

    /// What was written here need not be fetched here.
    fn keep_written(&self, key: &ObjectKey, bytes: &[u8]) {
        if let Some(cache) = self.cache.as_ref().filter(|_| key.as_str().starts_with("packs/")) {
            cache.store_pieces(key, 0, bytes);
        }
    }

    /// Whether a range goes through pieces. One that is too large for that does if its pieces are here, or are going to be
    /// read anyway.
    fn is_read_in_pieces(&self, key: &ObjectKey, offset: u64, len: u64) -> bool {
        // Only packs are read in pieces: other objects are small, or change.
        let is_pack = key.as_str().starts_with("packs/") && len > 0;
        let first = offset / PIECE;
        let is_kept = || self.pieces.contains_key(&(key.clone(), first));
        is_pack && (len <= SPAN_MAX || self.windows.lock().is_announced(key, first) || is_kept())
    }

    /// A range that is too large for memory: from the disk if all of it is there, else in one request.
    fn get_large_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let is_pack = key.as_str().starts_with("packs/") && len > 0;
        let Some(cache) = self.readable_cache().filter(|_| is_pack) else {
            return self.inner.get_range(key, offset, len);
        };
        let end = offset.saturating_add(len);
        let pieces = offset / PIECE..end.div_ceil(PIECE);
        // All or nothing: a request for the rest costs as much as one for the whole range.
        if cache.find_pieces(key, pieces.clone()).len() as u64 == pieces.end - pieces.start
            && let Some(bytes) = cache.read_range(key, offset..end)
        {
            return Ok(bytes);
        }
        self.check_fetch(key)?;
        let bytes = self.inner.get_range(key, offset, len)?;
        // Whole pieces only: where the pack ends is not known here.
        let first = offset.div_ceil(PIECE);
        let skipped = usize::try_from(first * PIECE - offset).unwrap_or(usize::MAX);
        let whole = (end / PIECE).saturating_sub(first) * PIECE;
        let whole = usize::try_from(whole).unwrap_or_default();
        if whole == 0 {
            return Ok(bytes);
        }
        Ok(cache.store_fetched_pieces(key, first, bytes, skipped..skipped.saturating_add(whole)))
    }
}

impl ObjectStore for BlockStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&*self.inner)
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        if !self.is_read_in_pieces(key, offset, len) {
            return self.get_large_range(key, offset, len);
        }
        let Some(end) = offset.checked_add(len) else {
            // No pack is that long, so that it ends before the range does.
            return check_read_length(self, key, Vec::new(), len);
        };
        let first = offset / PIECE;
        let last = (end - 1) / PIECE;
        if last == first + 1 && len <= PIECE && self.is_lone_range(key, first) {
            self.check_fetch(key)?;
            let bytes = self.inner.get_range(key, offset, len)?;
            let mut windows = self.windows.lock();
            // No piece is whole.
            windows.note_fetched(key, &(first..first), len);
            windows.note_used(key, len);
            return Ok(bytes);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        for (number, piece) in (first..).zip(self.get_pieces(key, first..last + 1)?) {
            let piece = piece.as_slice();
            let start = offset.saturating_sub(number * PIECE).min(piece.len() as u64);
            let stop = (end - number * PIECE).min(piece.len() as u64);
            let range = usize::try_from(start).ok().zip(usize::try_from(stop).ok());
            bytes.extend_from_slice(
                range.and_then(|(start, stop)| piece.get(start..stop)).unwrap_or_default(),
            );
        }
        self.windows.lock().note_used(key, bytes.len() as u64);
        check_read_length(self, key, bytes, len)
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range_up_to(key, offset, max)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        self.inner.put_object(key, bytes)?;
        // After the store has acknowledged it: the cache must not hold what the store does not have.
        self.keep_written(key, bytes);
        Ok(())
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        self.inner.put_objects(objects)?;
        objects.iter().for_each(|(key, bytes)| self.keep_written(key, bytes));
        Ok(())
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.inner.swap_ref(key, expected, new)
    }

    fn get_object_if_changed(
        &self,
        key: &ObjectKey,
        max: u64,
        known: Option<&ObjectVersion>,
    ) -> Result<Option<VersionedObject>, StoreError> {
        self.inner.get_object_if_changed(key, max, known)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.inner.list_objects(folder)
    }

    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        self.inner.list_keys(folder)
    }

    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        self.inner.select_objects(folder, is_wanted)
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        self.inner.holds_objects()
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        // The pieces go first. If the deletion fails, they are fetched again. In the other order, a process that is
        // killed in between would leave pieces of a deleted pack until room is needed.
        self.forget_pieces(key);
        self.inner.delete_object(key)
    }

    fn ignore_local_copies(&self) {
        self.ignores_cache.store(true, Ordering::Relaxed);
    }

    fn drop_local_copies(&self, key: &ObjectKey, offset: u64, len: u64) {
        let pieces = offset / PIECE..offset.saturating_add(len).div_ceil(PIECE);
        for number in pieces.clone() {
            self.pieces.remove(&(key.clone(), number));
        }
        if let Some(cache) = &self.cache {
            cache.forget_pieces(key, pieces);
        }
    }

    fn as_block_store(&self) -> Option<&BlockStore> {
        Some(self)
    }
}

#[cfg(test)]
mod tests;

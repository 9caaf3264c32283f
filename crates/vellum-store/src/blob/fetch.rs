//! Many blobs at once: neighbours in a pack come in one request.
//!
//! Invariant: blobs that could not be fetched together are read one by one when they are opened, with all the retries
//! of `BlobStore::read_blob`: a stale hint costs time, never an error.

use std::collections::HashMap;
use std::ops::Range;

use vellum_types::{BlobId, BlobKind, PackId};

use super::body::{BasePlace, BlobBodyFault};
use super::{BlobError, BlobStore, body, exempt_nodes};
use crate::index::BlobLocation;
use crate::object::map_requests;
use crate::pack::pack_key;

/// Bytes between two blobs that are read along rather than asking twice: what a disk or a network reads in the
/// time of a request.
const GAP_MAX: u32 = 64 << 10;
/// Longest single request, bytes: so that several can be under way.
const SPAN_MAX: u32 = 8 << 20;

/// Sealed blobs in memory; opened one by one, from any thread.
pub struct FetchedBlobs {
    store: BlobStore,
    wanted: Vec<(BlobKind, BlobId)>,
    /// For each blob its span and its place in it.
    places: Vec<Option<(usize, Range<usize>)>>,
    spans: Vec<Option<Vec<u8>>>,
    /// For each span its pack and where in it it begins.
    origins: Vec<(PackId, u32)>,
    /// What the source has and the store has not.
    from_source: Option<SourceBlobs>,
}

/// Blobs that were fetched from the source of a store.
struct SourceBlobs {
    fetched: Box<FetchedBlobs>,
    /// Their positions in `fetched`, by their positions in the whole request.
    positions: HashMap<usize, usize>,
}

/// One ranged get, and the blobs that it serves.
pub(super) struct FetchSpan {
    pub(super) pack: PackId,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) blobs: Vec<(usize, BlobLocation)>,
}

impl BlobStore {
    /// Fetches the sealed bytes of many blobs. The caller bounds their number; gaps add at most as much again
    /// as the blobs have. Blobs that are not known or cannot be fetched fail when they are opened.
    pub fn fetch_blobs(&self, wanted: &[(BlobKind, BlobId)]) -> Result<FetchedBlobs, BlobError> {
        // Callers fetch blobs of one kind.
        let _policy = wanted.first().and_then(|(kind, _)| exempt_nodes(*kind));
        let view = self.inner.index.current_view();
        let mut located: Vec<_> = wanted
            .iter()
            .enumerate()
            .filter_map(|(position, (kind, id))| {
                // A condemned pack can still be read.
                let place = view.find_live_copy(id).or_else(|| view.find_all_copies(id).first().copied())?;
                (place.kind == *kind).then_some((position, place))
            })
            .collect();
        // Neighbours next to each other, which joining them relies on.
        located.sort_by_key(|(_, place)| (place.pack, place.offset));
        let spans = coalesce_spans(&located);
        let bytes = self.fetch_spans(&spans);
        let mut places = vec![None; wanted.len()];
        for (number, span) in spans.iter().enumerate() {
            for (position, place) in &span.blobs {
                let start = (place.offset - span.start) as usize;
                if let Some(slot) = places.get_mut(*position) {
                    *slot = Some((number, start..start + place.len as usize));
                }
            }
        }
        let origins = spans.iter().map(|span| (span.pack, span.start)).collect();
        let missing = places.iter().enumerate().filter(|(_, place)| place.is_none());
        let missing: Vec<_> = missing.map(|(position, _)| position).collect();
        let from_source = self.fetch_from_source(wanted, &missing);
        Ok(FetchedBlobs {
            store: self.clone(),
            wanted: wanted.to_vec(),
            places,
            spans: bytes,
            origins,
            from_source,
        })
    }

    /// Fetches blobs of a request that are not in this store; none if there is no source, or it cannot be opened.
    fn fetch_from_source(&self, wanted: &[(BlobKind, BlobId)], missing: &[usize]) -> Option<SourceBlobs> {
        if missing.is_empty() {
            return None;
        }
        // Why it cannot be opened is learnt by `FetchedBlobs::open_blob`.
        let source = self.open_source().ok().flatten()?;
        let there: Vec<_> = missing.iter().filter_map(|position| wanted.get(*position)).copied().collect();
        let fetched = Box::new(source.fetch_blobs(&there).ok()?);
        let positions = missing.iter().enumerate().map(|(there, position)| (*position, there)).collect();
        Some(SourceBlobs { fetched, positions })
    }

    /// The bytes of each span; `None` where the store failed: `FetchedBlobs::open_blob` then learns why.
    fn fetch_spans(&self, spans: &[FetchSpan]) -> Vec<Option<Vec<u8>>> {
        let get = |span: &FetchSpan| {
            let len = u64::from(span.end - span.start);
            self.inner.objects.get_range(&pack_key(&span.pack), span.start.into(), len).ok()
        };
        map_requests(&*self.inner.objects, spans, get)
    }
}

/// Joins neighbours into spans. Takes blobs sorted by pack and offset.
pub(super) fn coalesce_spans(located: &[(usize, BlobLocation)]) -> Vec<FetchSpan> {
    let mut spans: Vec<FetchSpan> = Vec::new();
    for (position, place) in located {
        // Both come from the index, whose records keep them within a pack.
        let end = place.offset.saturating_add(place.len);
        match spans.last_mut() {
            Some(span)
                if span.pack == place.pack
                    && place.offset <= span.end.saturating_add(GAP_MAX)
                    && end.max(span.end) - span.start <= SPAN_MAX =>
            {
                span.end = span.end.max(end);
                span.blobs.push((*position, *place));
            }
            _ => spans.push(FetchSpan {
                pack: place.pack,
                start: place.offset,
                end,
                blobs: vec![(*position, *place)],
            }),
        }
    }
    spans
}

impl FetchedBlobs {
    /// How many blobs were asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Whether none was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// The content of the blob at this position of the request, checked.
    ///
    /// # Panics
    /// When the request had no such position.
    pub fn open_blob(&self, position: usize) -> Result<Vec<u8>, BlobError> {
        let (kind, id) = self.wanted[position];
        if let Some(sealed) = self.sealed_bytes(position)
            && let Ok(plaintext) = self.open_fetched_blob(position, kind, &id, sealed)
        {
            return Ok(plaintext);
        }
        if let Some(SourceBlobs { fetched, positions }) = &self.from_source
            && let Some(there) = positions.get(&position)
            && let Ok(plaintext) = fetched.open_blob(*there)
        {
            return Ok(plaintext);
        }
        // Its pack may have been deleted or repacked since the blob was located: this looks again.
        self.store.read_blob(kind, &id)
    }

    /// Opens a blob that was fetched. The base of a difference is taken from the same span, if it came along.
    fn open_fetched_blob(
        &self,
        position: usize,
        kind: BlobKind,
        id: &BlobId,
        sealed: &[u8],
    ) -> Result<Vec<u8>, BlobBodyFault> {
        let keys = &self.store.inner.keys;
        let opened = body::open_blob(keys, kind, id, sealed)?;
        opened.resolve_plaintext(keys, kind, id, |base| {
            let (number, _) =
                self.places.get(position).and_then(Option::as_ref).ok_or(BlobBodyFault::Base)?;
            let (pack, start) = self.origins.get(*number).ok_or(BlobBodyFault::Base)?;
            let bytes = self.spans.get(*number).and_then(Option::as_ref);
            let within = base.offset.checked_sub(*start).map(|offset| BasePlace { offset, ..*base });
            if let Some(found) = bytes.zip(within).and_then(|(bytes, place)| place.slice_base(bytes)) {
                return Ok(found.to_vec());
            }
            let objects = &self.store.inner.objects;
            // `read_blob`, which follows, finds out why it failed.
            objects
                .get_range(&pack_key(pack), base.offset.into(), base.len.into())
                .map_err(|_| BlobBodyFault::Base)
        })
    }

    fn sealed_bytes(&self, position: usize) -> Option<&[u8]> {
        let (span, range) = self.places.get(position)?.as_ref()?;
        self.spans.get(*span)?.as_ref()?.get(range.clone())
    }
}

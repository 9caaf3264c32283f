//! Amendments: the extents of files as newer layers require them, kept above a new base. Invariant: a file that is
//! inline in a state has no extents there.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

use vellum_live::{LiveError, LiveStore, StoreTransaction, VisitScan};
use vellum_map::{KeySpan, MapRoot, read_range};
use vellum_types::limits::INLINE_MAX;
use vellum_types::{BlobId, Extent, ExtentSource, Ino, MapKey, MapKeyTag};

use super::PublishedState;
use super::content::extent_chunk;
use super::run::inode_tree_span;
use crate::error::Result;
use crate::tree::head::{LayerId, LayeredState, layer_prefix, orphan_key, parse_map_key};
use crate::tree::{LiveMap, decode_change, encode_change, encode_layer_key, wrap_decode_error};

impl LiveMap {
    /// Adds an amendment for files whose extents changed and that newer layers touch. Returns these files.
    pub(super) fn add_amendment(
        &self,
        done: &LayeredState,
        published: &PublishedState,
        newer: &BTreeSet<LayerId>,
        layer: LayerId,
        txn: &mut dyn StoreTransaction,
    ) -> Result<BTreeSet<Ino>> {
        let mut amended = BTreeSet::new();
        for ino in &published.recut {
            if has_changes_of(txn, newer, *ino)? {
                self.copy_span_to_layer(done, &published.root, extent_span(*ino), layer, txn)?;
                if self.can_be_inlined(done, *ino)? {
                    self.copy_span_to_layer(done, &published.root, inode_attr_span(*ino), layer, txn)?;
                }
                amended.insert(*ino);
            }
        }
        // The new tree has no inode without a name. A newer layer may have given one a name again, or
        // somebody has it open.
        for ino in &published.nameless {
            if is_inode_needed(txn, newer, *ino)? {
                self.copy_span_to_layer(done, &published.root, inode_tree_span(*ino), layer, txn)?;
                amended.insert(*ino);
            }
        }
        Ok(amended)
    }

    /// Whether the new tree may have a file's content beside its attributes. A newer layer may have neither, as that of a
    /// snapshot that waits: with the new attributes its extents would lie hidden, until the file grows out of them.
    fn can_be_inlined(&self, done: &LayeredState, ino: Ino) -> Result<bool> {
        let attr = self.read_sealed_state(done, |view| view.inode_attr(ino))?;
        Ok(attr.is_some_and(|attr| attr.size <= INLINE_MAX as u64))
    }

    /// Makes a layer say of a span over the new tree what the old state says.
    fn copy_span_to_layer(
        &self,
        done: &LayeredState,
        root: &MapRoot,
        span: KeySpan,
        layer: LayerId,
        txn: &mut dyn StoreTransaction,
    ) -> Result<()> {
        let mut entries = Vec::new();
        self.read_sealed_state(done, |view| {
            view.scan(span.clone(), &mut |key, value| {
                entries.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
        })?;
        // First all of the new tree is hidden, then the old entries are put over that: extents of the two need not
        // begin at the same offsets.
        for entry in read_range(&**self.node_provider(), root, span)? {
            let key = entry?.key;
            txn.set_key(&encode_layer_key(layer, &key), encode_change(&key, None));
        }
        for (key, value) in entries {
            txn.set_key(&encode_layer_key(layer, &key), encode_change(&key, Some(&value)));
        }
        Ok(())
    }
}

/// Whether an inode that has no name is there still in a newer state: with a name again, or because it is open. A
/// restore may have brought back one that was open when the snapshot was made, and is no more.
fn is_inode_needed(txn: &dyn StoreTransaction, layers: &BTreeSet<LayerId>, ino: Ino) -> Result<bool> {
    let key = MapKey::for_attr(ino).into_bytes();
    let mut removed = false;
    for layer in layers {
        match txn.get(&encode_layer_key(*layer, &key))?.map(|change| decode_change(&key, &change)) {
            // One of the states may have it though a later one has not.
            Some(Some(_)) => return Ok(true),
            Some(None) => removed = true,
            None => {}
        }
    }
    Ok(!removed && txn.get(&orphan_key(ino))?.is_some())
}

/// Whether a layer says anything of the attributes or extents of a file.
fn has_changes_of(txn: &dyn StoreTransaction, layers: &BTreeSet<LayerId>, ino: Ino) -> Result<bool> {
    for layer in layers {
        // First what costs no scan: a change of content nearly always comes with one of the attributes.
        if txn.get(&encode_layer_key(*layer, MapKey::for_attr(ino).as_bytes()))?.is_some() {
            return Ok(true);
        }
        let within = layer_extent_span(*layer, ino);
        let mut found = false;
        txn.scan(&within, &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The span of an inode's attributes.
fn inode_attr_span(ino: Ino) -> KeySpan {
    KeySpan::from_prefix(MapKey::for_attr(ino).as_bytes())
}

/// The span of a file's extents.
pub(crate) fn extent_span(ino: Ino) -> KeySpan {
    KeySpan::from_prefix(MapKey::first_for_tag(ino, MapKeyTag::Extent).as_bytes())
}

/// Returns the chunks, by the inode that had them, that layers over a new tree use and that the tree does not have
/// under that inode: those of amended files, and those of which a newer layer made another file.
pub(super) fn collect_replaced_chunks(
    published: &PublishedState,
    amended: &BTreeSet<Ino>,
    newer: &BTreeSet<LayerId>,
    txn: &dyn StoreTransaction,
) -> Result<BTreeMap<Ino, BTreeSet<BlobId>>> {
    let mut chunks = BTreeMap::new();
    // Nearly always: files were made, or rewritten from their beginning to their end.
    if published.replaced_chunks.is_empty() {
        return Ok(chunks);
    }
    let mut newly_named = HashSet::new();
    for layer in newer {
        let within = KeySpan::from_prefix(layer_prefix(*layer));
        visit_layer_extents(&mut |span, visit| txn.scan(span, visit), &within, &mut |extent| {
            newly_named.extend(extent_chunk(&extent));
        })?;
    }
    for (ino, replaced) in &published.replaced_chunks {
        let mut used = replaced.clone();
        if !amended.contains(ino) {
            used.retain(|id| newly_named.contains(id));
        }
        if !used.is_empty() {
            chunks.insert(*ino, used);
        }
    }
    Ok(chunks)
}

/// The span of a file's extents in a layer.
fn layer_extent_span(layer: LayerId, ino: Ino) -> KeySpan {
    let span = extent_span(ino);
    // It has an end, since its prefix does not consist of the highest byte alone.
    let end = span.end.as_deref().unwrap_or_default();
    KeySpan::from_bounds(encode_layer_key(layer, &span.start), encode_layer_key(layer, end))
}

/// Whether a layer names all of the chunks as content of an inode.
pub(crate) fn is_named_in_layer(
    txn: &dyn StoreTransaction,
    layer: LayerId,
    ino: Ino,
    chunks: &BTreeSet<BlobId>,
) -> Result<bool> {
    let within = layer_extent_span(layer, ino);
    let mut named = BTreeSet::new();
    visit_layer_extents(&mut |span, visit| txn.scan(span, visit), &within, &mut |extent| {
        named.extend(extent_chunk(&extent));
    })?;
    Ok(chunks.is_subset(&named))
}

/// Visits the segments of the write log that a layer's extents name.
pub(super) fn visit_log_segments(
    live: &dyn LiveStore,
    layer: LayerId,
    visit: &mut dyn FnMut(u64),
) -> Result<()> {
    let within = KeySpan::from_prefix(layer_prefix(layer));
    visit_layer_extents(&mut |span, found| live.scan(span, found), &within, &mut |extent| {
        if let ExtentSource::WriteLog { segment, .. } = extent.source {
            visit(segment);
        }
    })
}

/// Visits the extents within a span of layers' keys. `scan` is that of a store or of a transaction.
fn visit_layer_extents(
    scan: &mut dyn FnMut(&KeySpan, &mut VisitScan<'_>) -> Result<(), LiveError>,
    within: &KeySpan,
    visit: &mut dyn FnMut(Extent),
) -> Result<()> {
    // The visitor of a scan cannot fail, so that the error is kept until the scan has ended.
    let mut failed = None;
    scan(within, &mut |key, value| {
        let key = parse_map_key(key).unwrap_or_default();
        // The tag stands behind the eight bytes of the inode. Entries with another one name no data.
        if key.get(8) != Some(&MapKeyTag::Extent.as_byte()) {
            return ControlFlow::Continue(());
        }
        match decode_change(key, value).map(|value| Extent::decode(&value)) {
            Some(Ok(extent)) => visit(extent),
            Some(Err(error)) => {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            None => {}
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(()), |error| Err(wrap_decode_error("an extent")(error)))
}

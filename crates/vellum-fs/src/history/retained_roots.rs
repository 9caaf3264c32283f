//! Retained roots: trees whose content is used by unpublished layers, although the tree is not the worktree's
//! base. What is copied from a snapshot shares its chunks, and until that is published only the snapshot refers to
//! them in the store. Likewise a file that is open and has no name, or that was cut anew while a newer layer touched
//! it, has chunks that only an earlier base refers to.
//!
//! Invariant: a retained root is recorded before a layer refers to content of its tree, and removed when no layer is
//! left that may. While it exists, the worktree's ref names the tree, so the collector keeps it even if the snapshot
//! is forgotten. Deliberately absent: which chunks, and of which files.

use std::collections::{BTreeMap, BTreeSet};

use vellum_live::{LiveError, StoreTransaction, VisitScan};
use vellum_map::{KeySpan, MapRoot, read_range};
use vellum_types::{BlobId, DecodeError, Extent, FieldReader, FieldWriter, Ino};
use vellum_volume::VolumeError;

use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::history::view::LiveView;
use crate::publish::{extent_chunk, extent_span, is_named_in_layer};
use crate::tree::head::{LOANS, LayerId, LayeredState, retained_root_key};
use crate::tree::{LiveMap, is_layer_empty, read_numbered_records};

/// A tree, and the layers that may refer to its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RetainedRoot {
    root: MapRoot,
    first: LayerId,
    /// The maximum while content is being copied.
    last: LayerId,
}

/// While this exists, content may be copied from the tree.
pub(crate) struct RetainedContent<'f> {
    fs: &'f LiveFilesystem,
    numbers: Vec<u64>,
}

// Above all layers that there may be: how many will be made while the copy goes on, nobody knows.
const OPEN: LayerId = LayerId(u64::MAX);

impl RetainedRoot {
    fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_raw(self.root.0.as_bytes()).write_varint(self.first.0).write_varint(self.last.0);
        writer.into_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let root = MapRoot(BlobId(reader.read_array()?));
        let first = LayerId(reader.read_varint()?);
        let last = LayerId(reader.read_varint()?);
        reader.expect_end()?;
        Ok(Self { root, first, last })
    }

    fn is_needed_by(&self, layers: &BTreeSet<LayerId>) -> bool {
        layers.range(self.first..=self.last).next().is_some()
    }
}

/// Returns all retained roots with their numbers. `scan` is that of a store or of a transaction.
fn read_retained_roots(
    scan: impl FnOnce(&KeySpan, &mut VisitScan<'_>) -> Result<(), LiveError>,
) -> Result<Vec<(u64, RetainedRoot)>> {
    read_numbered_records(LOANS, "a retained root", RetainedRoot::decode, scan)
}

fn store_retained_root(txn: &mut dyn StoreTransaction, number: u64, root: &RetainedRoot) {
    txn.set_key(&retained_root_key(number), root.encode().into());
}

impl LiveFilesystem {
    /// Retains the tree of a view while content is copied from it by reference: until the copy is published, the
    /// worktree's ref names the tree. Fails if the view is of a snapshot that was forgotten meanwhile.
    pub(crate) fn retain_content(&self, view: &LiveView) -> Result<RetainedContent<'_>> {
        let state = view.layered_state();
        let random =
            getrandom::u64().map_err(|error| VolumeError::wrap_local_error("/dev/urandom")(error.into()))?;
        let (numbers, _) = self.live_map().change_head(|head, txn| {
            let mut numbers = Vec::new();
            for root in
                retained_trees_of_state(state, &read_retained_roots(|span, visit| txn.scan(span, visit))?)
            {
                // Chosen at random, since records of other copies may exist, whose numbers must not be used
                // again.
                let number = random.wrapping_add(numbers.len() as u64);
                // Before anything is copied, and without an end: layers may be sealed while the copy goes on.
                store_retained_root(txn, number, &RetainedRoot { root, first: head.top_layer(), last: OPEN });
                numbers.push(number);
            }
            Ok(numbers)
        })?;
        let borrowing = RetainedContent { fs: self, numbers };
        // After the record was made: the ref that this writes names the recorded trees, too.
        if let Some(id) = view.snapshot_id() {
            self.publish_read_snapshot(id)?;
        }
        Ok(borrowing)
    }

    /// Ends copies of an earlier process: they ended with it.
    pub(crate) fn release_all_retained(&self) -> Result<()> {
        let live = self.live_map().live_store();
        let retained = read_retained_roots(|span, visit| live.scan(span, visit))?;
        // Records that have an end are needed by layers that are not published yet. They go with these.
        let open =
            retained.into_iter().filter(|(_, root)| root.last == OPEN).map(|(number, _)| number).collect();
        drop(RetainedContent { fs: self, numbers: open });
        Ok(())
    }
}

impl LiveMap {
    /// Returns the trees whose content layers may use.
    pub(crate) fn retained_trees(&self) -> Result<Vec<MapRoot>> {
        let live = self.live_store();
        Ok(read_retained_roots(|span, visit| live.scan(span, visit))?
            .into_iter()
            .map(|(_, root)| root.root)
            .collect())
    }

    /// Retains what `using`, the layers over a new tree, need of the published state `done` and the tree does not have:
    /// `chunks`, by the inode that had them. Roots that the layers of `done` had retained and that are not needed
    /// end with these layers, so that a file that is changed for ever does not retain all trees that it was in.
    pub(crate) fn retain_replaced_chunks(
        &self,
        txn: &mut dyn StoreTransaction,
        done: &LayeredState,
        mut chunks: BTreeMap<Ino, BTreeSet<BlobId>>,
        using: &BTreeSet<LayerId>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (using.first(), using.last()) else { return Ok(()) };
        if chunks.is_empty() {
            return Ok(());
        }
        let layers: BTreeSet<LayerId> = done.layers.iter().copied().collect();
        let mut retained = read_retained_roots(|span, visit| txn.scan(span, visit))?;
        retained.retain(|(_, root)| root.is_needed_by(&layers));
        let lowest_is_retained = retained.iter().any(|(_, root)| {
            done.layers.last().is_some_and(|lowest| (root.first..=root.last).contains(lowest))
        });
        // Each tree takes what it has out of `chunks`, so that no second one is retained for the same chunk.
        let mut needed: Vec<bool> =
            retained.iter().map(|(_, root)| self.take_chunks_of_tree(&root.root, &mut chunks)).collect();
        let mut needs_base = self.take_chunks_of_tree(&done.base, &mut chunks);
        if !chunks.is_empty() {
            // Copied by reference from an inode of another number: any of the trees may have them.
            needed.fill(true);
            // What an amendment below has was retained when that was made.
            let lowest = done.layers.last().filter(|_| lowest_is_retained);
            for (ino, chunks) in &chunks {
                let carried = lowest.map(|layer| is_named_in_layer(txn, *layer, *ino, chunks)).transpose()?;
                needs_base |= !carried.unwrap_or(false);
            }
        }
        for ((number, root), _) in retained.into_iter().zip(needed).filter(|(_, needed)| *needed) {
            store_retained_root(txn, number, &RetainedRoot { last: root.last.max(*last), ..root });
        }
        if needs_base {
            let number = getrandom::u64()
                .map_err(|error| VolumeError::wrap_local_error("/dev/urandom")(error.into()))?;
            store_retained_root(txn, number, &RetainedRoot { root: done.base, first: *first, last: *last });
        }
        Ok(())
    }

    /// Removes from `chunks` what the inodes of a tree name. Returns whether there was any.
    fn take_chunks_of_tree(&self, root: &MapRoot, chunks: &mut BTreeMap<Ino, BTreeSet<BlobId>>) -> bool {
        let before: usize = chunks.values().map(BTreeSet::len).sum();
        chunks.retain(|ino, chunks| {
            // A tree that cannot be read now may have all of them. They stay, so that the caller retains it.
            let Ok(entries) = read_range(&**self.node_provider(), root, extent_span(*ino)) else {
                return true;
            };
            for extent in entries.flatten().flat_map(|entry| Extent::decode(&entry.value)) {
                if let Some(id) = extent_chunk(&extent) {
                    chunks.remove(&id);
                }
            }
            !chunks.is_empty()
        });
        chunks.values().map(BTreeSet::len).sum::<usize>() < before
    }
}

/// Returns the base of a state, and the retained roots of its layers.
fn retained_trees_of_state(state: &LayeredState, retained: &[(u64, RetainedRoot)]) -> BTreeSet<MapRoot> {
    let layers = state.layers.iter().copied().collect();
    let above = retained.iter().filter(|(_, root)| root.is_needed_by(&layers)).map(|(_, root)| root.root);
    above.chain([state.base]).collect()
}

/// Keeps the trees to whose content layers of the trash may refer when the worktree leaves a state: its base, and the
/// roots that its layers had retained.
pub(crate) fn retain_for_trash(
    txn: &mut dyn StoreTransaction,
    left: &LayeredState,
    trash: &[LayerId],
) -> Result<()> {
    let mut used = BTreeSet::new();
    for layer in trash {
        // The usual case: nothing was removed, or all of it is published.
        if !is_layer_empty(&&*txn, *layer)? {
            used.insert(*layer);
        }
    }
    let (Some(first), Some(last)) = (used.first().copied(), used.last().copied()) else { return Ok(()) };
    let retained = read_retained_roots(|span, visit| txn.scan(span, visit))?;
    // Records come in the order of their numbers: those after the last one are free.
    let number = retained.last().map_or(0, |(number, _)| number.wrapping_add(1));
    for (at, root) in (0..).zip(retained_trees_of_state(left, &retained)) {
        store_retained_root(txn, number.wrapping_add(at), &RetainedRoot { root, first, last });
    }
    Ok(())
}

/// Removes the retained roots that no layer needs.
pub(crate) fn release_unneeded_roots(
    txn: &mut dyn StoreTransaction,
    needed: &BTreeSet<LayerId>,
) -> Result<()> {
    for (number, root) in read_retained_roots(|span, visit| txn.scan(span, visit))? {
        if !root.is_needed_by(needed) {
            txn.delete_key(&retained_root_key(number));
        }
    }
    Ok(())
}

impl Drop for RetainedContent<'_> {
    fn drop(&mut self) {
        if self.numbers.is_empty() {
            return;
        }
        // A root that is not ended here ends when the worktree is opened the next time.
        let _ = self.fs.live_map().change_head(|head, txn| {
            for (number, root) in read_retained_roots(|span, visit| txn.scan(span, visit))? {
                if self.numbers.contains(&number) {
                    store_retained_root(txn, number, &RetainedRoot { last: head.top_layer(), ..root });
                }
            }
            Ok(())
        });
    }
}

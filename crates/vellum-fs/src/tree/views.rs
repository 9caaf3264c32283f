//! States that are read while the worktree changes: their layers are kept and do not change any more, and neither do
//! the trees below, which the worktree's ref names.
//!
//! Invariant: while a view reads a layer, nothing is added to it, and it is not deleted. A writer holds
//! [`OpenViews::lock_for_change`] throughout; a new reader waits for it, so that a view never contains half of a
//! change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use vellum_map::MapRoot;

use crate::tree::head::{LayerId, LayeredState, LiveHead};

/// How many views read each layer, and each tree beneath layers.
#[derive(Debug, Default)]
struct ViewReaders {
    layers: BTreeMap<LayerId, usize>,
    bases: BTreeMap<MapRoot, usize>,
}

/// What views read.
#[derive(Debug)]
pub struct OpenViews {
    readers: RwLock<ViewReaders>,
    /// The top layer that was written to last: a newer one is empty, and no view needs it.
    written: AtomicU64,
    /// There may be layers that no state needs.
    has_unneeded_layers: AtomicBool,
}

/// Held during a change.
pub struct ChangeGuard<'v> {
    readers: RwLockReadGuard<'v, ViewReaders>,
    written: &'v AtomicU64,
}

impl OpenViews {
    /// No views, of a worktree of which the top layer may hold something.
    pub fn new(head: &LiveHead) -> Self {
        let written = AtomicU64::new(head.top_layer().0);
        // An earlier process may have left some.
        Self { readers: RwLock::default(), written, has_unneeded_layers: AtomicBool::new(true) }
    }

    /// Begins to read the state that a head has now. The head must be held still.
    pub fn begin_read(&self, head: &LiveHead) -> LayeredState {
        let mut readers = self.readers.write();
        // Writers are locked out by the write lock above: nobody is between putting something into the layer and
        // saying so.
        let empty = self.written.load(Ordering::Acquire) != head.top_layer().0;
        let state = if empty { head.sealed_state() } else { head.state.clone() };
        add_reader(&mut readers, &state);
        state
    }

    /// Begins to read a state of which all layers are sealed, and are needed by somebody until now.
    pub fn begin_sealed_read(&self, state: &LayeredState) {
        add_reader(&mut self.readers.write(), state);
    }

    /// Ends reading.
    pub fn end_read(&self, state: &LayeredState) {
        let mut readers = self.readers.write();
        state.layers.iter().for_each(|layer| decrement_count(&mut readers.layers, layer));
        decrement_count(&mut readers.bases, &state.base);
        // Where only a tree was read, no layer becomes free.
        if !state.layers.is_empty() {
            self.note_unneeded_layers();
        }
    }

    /// Notes that layers may not be needed any more: those of a state that nobody reads now.
    pub fn note_unneeded_layers(&self) {
        self.has_unneeded_layers.store(true, Ordering::Release);
    }

    /// Takes that note; false if there is none. Who takes it looks afterwards which layers are needed, so that what is
    /// noted meanwhile is looked at the next time.
    pub fn take_unneeded_layers_note(&self) -> bool {
        self.has_unneeded_layers.swap(false, Ordering::AcqRel)
    }

    /// The right to change what no view reads.
    pub fn lock_for_change(&self) -> ChangeGuard<'_> {
        let readers = self.readers.read();
        ChangeGuard { readers, written: &self.written }
    }

    /// The layers that views read.
    pub fn read_layers(&self) -> Vec<LayerId> {
        self.lock_for_change().readers.layers.keys().copied().collect()
    }

    /// The trees that views read.
    pub fn read_bases(&self) -> Vec<MapRoot> {
        self.lock_for_change().readers.bases.keys().copied().collect()
    }
}

impl ChangeGuard<'_> {
    /// Whether a view reads this layer.
    pub fn is_layer_read(&self, layer: LayerId) -> bool {
        self.readers.layers.contains_key(&layer)
    }

    /// Something is put into this top layer.
    pub fn mark_written(&self, layer: LayerId) {
        self.written.store(layer.0, Ordering::Release);
    }
}

fn add_reader(readers: &mut ViewReaders, state: &LayeredState) {
    for layer in &state.layers {
        *readers.layers.entry(*layer).or_default() += 1;
    }
    *readers.bases.entry(state.base).or_default() += 1;
}

fn decrement_count<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

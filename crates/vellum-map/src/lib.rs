//! The map: an ordered map from small keys to small values, kept as a Merkle search tree of blobs.
//!
//! Invariant: the root of a map is a function of its entries and its [`MapShape`] alone, whatever the order and
//! grouping of the changes that led to it. Nodes come from a [`NodeSource`] and go to a [`NodeSink`]; where blobs
//! live, what files are and what the keys mean is deliberately unknown here.
//!
//! Reading: [`get_value`], [`read_range()`], [`diff_maps()`], [`walk_nodes()`]. Writing: [`MapBuilder`] for a whole map, [`apply_changes()`] (or the
//! [`MapApplier`] under it) for sorted changes. [`ChangeLayer`] holds changes in memory, [`MapView`] merges layers with a root.

mod apply;
mod cache;
mod diff;
mod error;
mod key_run;
mod layer;
mod memory;
mod node;
mod packer;
mod path;
mod range;
mod read;
mod shape;
mod slice;
mod source;
mod view;
mod walk;

pub use apply::{MapApplier, MapBuilder, apply_changes};
pub use cache::{LoadBytes, NodeCache};
pub use diff::{MapChange, MapDiff, diff_maps, diff_maps_in_span};
pub use error::MapError;
pub use layer::{ChangeLayer, LayerChange, LayerKey};
pub use memory::MemoryNodeStore;
pub use node::{ChildDescription, LEVEL_MAX, MapNode, NODE_MAX, NodeError};
pub use range::{KeySpan, MapEntry, MapEntryRef, MapRange, read_range};
pub use read::{count_keys, get_value};
pub use shape::MapShape;
pub use slice::{MapValue, SharedSlice};
pub use source::{MapRoot, NodeSink, NodeSource};
pub use view::MapView;
pub use walk::walk_nodes;

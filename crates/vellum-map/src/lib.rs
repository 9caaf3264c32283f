//! The map: an ordered map from small keys to small values, kept as a Merkle search tree of blobs.
//!
//! Invariant: the root of a map is a function of its entries and its [`Shape`] alone, whatever the order and
//! grouping of the changes that led to it. Nodes come from a [`NodeSource`] and go to a [`NodeSink`]; where blobs
//! live, what files are and what the keys mean is deliberately unknown here.
//!
//! Reading: [`get`], [`range`], [`diff`], [`walk`]. Writing: [`Builder`] for a whole map, [`apply`] (or the
//! [`Applier`] under it) for sorted changes. [`Layer`] holds changes in memory, [`View`] merges layers with a root.

mod apply;
mod cache;
mod diff;
mod error;
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

pub use apply::{Applier, Builder, apply};
pub use cache::{LoadBytes, NodeCache};
pub use diff::{Change, Diff, diff, diff_span};
pub use error::MapError;
pub use layer::Layer;
pub use memory::MemoryNodes;
pub use node::{Child, LEVEL_MAX, NODE_MAX, Node, NodeError};
pub use range::{Entry, EntryRef, Range, Span, range};
pub use read::{get, len};
pub use shape::Shape;
pub use slice::{Slice, Value};
pub use source::{NodeSink, NodeSource, Root};
pub use view::View;
pub use walk::walk;

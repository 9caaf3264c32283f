//! Bytes held alive by what they stand in, so that reading copies nothing.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::node::MapNode;

/// A key or a value: a part of a node, or shared bytes of a layer.
#[derive(Clone)]
pub struct SharedSlice(SliceHolder);

/// What a map holds under a key.
pub type MapValue = SharedSlice;

#[derive(Clone)]
enum SliceHolder {
    Node { node: Arc<MapNode>, start: u32, end: u32 },
    Shared(Arc<[u8]>),
}

impl SharedSlice {
    pub(crate) fn from_node(node: Arc<MapNode>, range: Range<u32>) -> Self {
        Self(SliceHolder::Node { node, start: range.start, end: range.end })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            SliceHolder::Node { node, start, end } => node.byte_slice(*start..*end),
            SliceHolder::Shared(bytes) => bytes,
        }
    }
}

impl From<Arc<[u8]>> for SharedSlice {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(SliceHolder::Shared(bytes))
    }
}

impl Deref for SharedSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for SharedSlice {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for SharedSlice {
    fn eq(&self, other: &Self) -> bool {
        // Equal bytes are equal wherever they stand: the same value may be in a node and in a layer.
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for SharedSlice {}

impl fmt::Debug for SharedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().fmt(f)
    }
}

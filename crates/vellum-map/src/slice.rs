//! Bytes held alive by what they stand in, so that reading copies nothing.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::node::Node;

/// A key or a value: a part of a node, or shared bytes of a layer.
#[derive(Clone)]
pub struct Slice(Holder);

/// What a map holds under a key.
pub type Value = Slice;

#[derive(Clone)]
enum Holder {
    Node { node: Arc<Node>, start: u32, end: u32 },
    Shared(Arc<[u8]>),
}

impl Slice {
    pub(crate) fn in_node(node: Arc<Node>, (start, end): (u32, u32)) -> Self {
        Self(Holder::Node { node, start, end })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Holder::Node { node, start, end } => node.slice(*start, *end),
            Holder::Shared(bytes) => bytes,
        }
    }
}

impl From<Arc<[u8]>> for Slice {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(Holder::Shared(bytes))
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Slice {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Slice {}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().fmt(f)
    }
}

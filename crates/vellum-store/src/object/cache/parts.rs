//! The two parts of a cache, each with a room of its own: reading much content never removes nodes, which have the names.
//!
//! Invariant: each pack is in one part. Which one is known from the index, or from the first bytes of the pack; as long as
//! neither is known, it counts as content.

/// A part of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePart {
    /// Packs of chunks.
    Content,
    /// Packs of nodes.
    Nodes,
}

/// One value for each part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerPart<T> {
    /// Of [`CachePart::Content`].
    pub content: T,
    /// Of [`CachePart::Nodes`].
    pub nodes: T,
}

impl CachePart {
    /// All of them. What content holds goes before what nodes hold.
    pub const ALL: [Self; 2] = [Self::Content, Self::Nodes];

    /// The folder of its packs within the cache.
    pub(super) fn folder_name(self) -> &'static str {
        match self {
            Self::Content => "packs",
            Self::Nodes => "nodes",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Content => Self::Nodes,
            Self::Nodes => Self::Content,
        }
    }
}

impl<T> PerPart<T> {
    pub(super) fn both(value: T) -> Self
    where
        T: Copy,
    {
        Self { content: value, nodes: value }
    }

    /// The value of a part.
    pub const fn get(&self, part: CachePart) -> &T {
        match part {
            CachePart::Content => &self.content,
            CachePart::Nodes => &self.nodes,
        }
    }

    pub(super) fn get_mut(&mut self, part: CachePart) -> &mut T {
        match part {
            CachePart::Content => &mut self.content,
            CachePart::Nodes => &mut self.nodes,
        }
    }

    pub(super) fn map<U>(self, change: impl Fn(CachePart, T) -> U) -> PerPart<U> {
        PerPart {
            content: change(CachePart::Content, self.content),
            nodes: change(CachePart::Nodes, self.nodes),
        }
    }

    pub(super) fn try_map<U, E>(
        self,
        change: impl Fn(CachePart, T) -> Result<U, E>,
    ) -> Result<PerPart<U>, E> {
        Ok(PerPart {
            content: change(CachePart::Content, self.content)?,
            nodes: change(CachePart::Nodes, self.nodes)?,
        })
    }
}

impl PerPart<u64> {
    /// Both together.
    #[must_use]
    pub fn total(self) -> u64 {
        self.content.saturating_add(self.nodes)
    }
}

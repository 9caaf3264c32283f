//! The bytes of a piece, by themselves or within what was fetched with them.
//!
//! Invariant: a part keeps all of what it was fetched with in memory. Whoever keeps a piece for long keeps its bytes alone.

use std::ops::Range;
use std::sync::Arc;

use super::PIECE;

/// The bytes of a piece. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct PieceBytes {
    run: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl PieceBytes {
    /// A piece that has its bytes for itself.
    pub fn alone(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), run: Arc::new(bytes) }
    }

    /// The pieces of neighbouring bytes, of which nothing is copied. The last piece of a pack is shorter; there are none behind
    /// the end of it.
    pub fn parts_of(run: Vec<u8>) -> impl Iterator<Item = Self> {
        let piece_len = usize::try_from(PIECE).unwrap_or(usize::MAX);
        let run = Arc::new(run);
        (0..run.len()).step_by(piece_len).map(move |start| {
            let end = start.saturating_add(piece_len).min(run.len());
            Self { run: Arc::clone(&run), range: start..end }
        })
    }

    /// Whether it keeps more in memory than its own bytes.
    pub fn is_part(&self) -> bool {
        self.range.len() < self.run.len()
    }

    pub fn as_slice(&self) -> &[u8] {
        self.run.get(self.range.clone()).unwrap_or_default()
    }
}

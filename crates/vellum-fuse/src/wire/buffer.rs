//! Buffers into which answers are encoded, and the head of an answer.
//!
//! Invariant: an answer of a fixed size is encoded without an allocation.

/// Bytes of the head of an answer (`fuse_out_header`).
pub const HEAD_LEN: usize = 16;

/// Bytes of the largest answer of a fixed size: `fuse_statx_out`.
const SMALL_MAX: usize = 288;

/// The head of an answer or of a notification: `len` is its length without the head, `code` the negative errno (or the
/// number of the notification), and `unique` the number of the request that is answered.
#[must_use]
pub fn encode_answer_head(len: usize, code: i32, unique: u64) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    let len = u32::try_from(HEAD_LEN + len).unwrap_or(u32::MAX);
    let (first, last) = head.split_at_mut(HEAD_LEN / 2);
    first[..4].copy_from_slice(&len.to_ne_bytes());
    first[4..].copy_from_slice(&code.to_ne_bytes());
    last.copy_from_slice(&unique.to_ne_bytes());
    head
}

/// A buffer for parts of an answer.
pub(super) trait AnswerBuffer {
    fn append_bytes(&mut self, bytes: &[u8]);
}

impl AnswerBuffer for Vec<u8> {
    fn append_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// An answer of a fixed size, with room for the head in front of it, so that both are written in one piece.
#[derive(Debug, Clone, Copy)]
pub struct SmallAnswer {
    bytes: [u8; HEAD_LEN + SMALL_MAX],
    len: usize,
}

impl Default for SmallAnswer {
    fn default() -> Self {
        Self { bytes: [0; HEAD_LEN + SMALL_MAX], len: HEAD_LEN }
    }
}

impl AnswerBuffer for SmallAnswer {
    fn append_bytes(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        debug_assert!(end <= self.bytes.len(), "an answer of a fixed size is larger than any");
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
    }
}

impl SmallAnswer {
    pub(super) fn with_u16(mut self, value: u16) -> Self {
        self.append_bytes(&value.to_ne_bytes());
        self
    }

    pub(super) fn with_u32(mut self, value: u32) -> Self {
        self.append_bytes(&value.to_ne_bytes());
        self
    }

    pub(super) fn with_u64(mut self, value: u64) -> Self {
        self.append_bytes(&value.to_ne_bytes());
        self
    }

    pub(super) fn with_zeros(mut self, len: usize) -> Self {
        // The buffer is zeroed.
        self.len = (self.len + len).min(self.bytes.len());
        self
    }

    /// The whole answer to a request.
    pub fn finish_answer(&mut self, unique: u64) -> &[u8] {
        let head = encode_answer_head(self.len - HEAD_LEN, 0, unique);
        self.bytes[..HEAD_LEN].copy_from_slice(&head);
        &self.bytes[..self.len]
    }

    /// The answer without its head.
    #[must_use]
    pub fn answer_body(&self) -> &[u8] {
        &self.bytes[HEAD_LEN..self.len]
    }
}

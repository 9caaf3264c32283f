//! Where the next part of a list begins, as a text that clients hand back.
//!
//! It is bound to the list and to this process: one that was made up, or is of another list, is refused.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Bytes of the authentication.
const MAC_LEN: usize = 16;
/// Most characters of a cursor.
pub const CURSOR_MAX: usize = 512;

/// Makes and checks cursors.
pub struct CursorKey {
    key: [u8; 32],
}

impl CursorKey {
    /// Of this process.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// A cursor of the list that `list` describes.
    #[must_use]
    pub fn seal(&self, list: &str, position: &[u8]) -> String {
        // Not secret, only authentic: a cursor of another list would skip rows there without a word.
        let mut bytes = self.authenticate(list, position).to_vec();
        bytes.extend_from_slice(position);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The position in a cursor; None if it is not of this list and this process.
    #[must_use]
    pub fn open(&self, list: &str, cursor: &str) -> Option<Vec<u8>> {
        // The longest position that is given out is a name of 255 bytes. What is longer need not be decoded.
        if cursor.len() > CURSOR_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (mac, position) = bytes.split_at_checked(MAC_LEN)?;
        // Who could guess it by its time could ask for the position itself.
        (self.authenticate(list, position) == mac).then(|| position.to_vec())
    }

    fn authenticate(&self, list: &str, position: &[u8]) -> [u8; MAC_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // With the length: otherwise a list and a position that are divided elsewhere would have the same bytes.
        hasher.update(&(list.len() as u64).to_le_bytes()).update(list.as_bytes()).update(position);
        let mut mac = [0; MAC_LEN];
        hasher.finalize_xof().fill(&mut mac);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_and_foreign_cursors_are_refused() {
        let key = CursorKey::new([1; 32]);
        let cursor = key.seal("history", b"position");
        assert_eq!(key.open("history", &cursor).as_deref(), Some(b"position".as_slice()));
        assert_eq!(key.open("tree", &cursor), None);
        assert_eq!(CursorKey::new([2; 32]).open("history", &cursor), None);
        assert_eq!(key.open("history", &cursor[..cursor.len() - 2]), None);
        for forged in ["", "0", "zz", &"0".repeat(600), &"A".repeat(40)] {
            assert_eq!(key.open("history", forged), None, "{forged}");
        }
    }
}

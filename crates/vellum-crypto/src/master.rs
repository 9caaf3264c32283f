//! The master key of a volume: 32 random bytes from which every other key is derived.
//!
//! Invariant: its bytes live at one heap address, are wiped on drop, and never reach a `Debug` output.

use std::fmt;

use zeroize::{Zeroize, Zeroizing};

use crate::nonce::fill_random;

/// The secret that opens a volume. Kept in local state or wrapped in key slots, nowhere else.
pub struct MasterKey(Box<Zeroizing<[u8; MasterKey::LEN]>>);

impl MasterKey {
    /// Length in bytes: the key length of BLAKE3 and of XChaCha20.
    pub const LEN: usize = 32;

    /// A new key from the operating system's random source.
    ///
    /// # Panics
    /// When the operating system has no randomness to give: there is nothing safe to go on with.
    #[must_use]
    pub fn generate() -> Self {
        let mut key = Self::new_zeroed();
        fill_random(key.0.as_mut_slice());
        key
    }

    /// The key in these bytes.
    #[must_use]
    pub fn from_bytes(mut bytes: [u8; Self::LEN]) -> Self {
        let mut key = Self::new_zeroed();
        key.0.copy_from_slice(&bytes);
        // The argument is a copy. The bytes that it was copied from are the caller's to wipe.
        bytes.zeroize();
        key
    }

    /// The key in these bytes, if there are exactly as many as it has.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_bytes)
    }

    /// The raw bytes. The caller who stores them is responsible for the file's mode.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    // Filled in place, so that no copy of the key stays behind on the stack.
    fn new_zeroed() -> Self {
        Self(Box::new(Zeroizing::new([0; Self::LEN])))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", MasterKey::from_bytes([7; 32])), "MasterKey(..)");
    }

    #[test]
    fn random_keys_differ() {
        assert_ne!(MasterKey::generate().as_bytes(), MasterKey::generate().as_bytes());
    }

    #[test]
    fn other_lengths_are_refused() {
        assert!(MasterKey::from_slice(&[1; 31]).is_none());
        assert!(MasterKey::from_slice(&[1; 33]).is_none());
        assert_eq!(MasterKey::from_slice(&[1; 32]).map(|key| *key.as_bytes()), Some([1; 32]));
    }
}

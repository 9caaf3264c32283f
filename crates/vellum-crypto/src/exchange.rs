//! Master keys that are wrapped for a key slot by whoever does not have its secret: X25519 (RFC 7748) and the cipher of
//! sealed records.
//!
//! Invariant: only the slot's own secret unwraps, and only with the associated data that the key was wrapped with.
//! Deliberately absent: where public keys come from, and who vouches for them.

use std::fmt;

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::nonce::{NONCE_LEN, fill_random, generate_nonce};
use crate::{MasterKey, aead};

const WRAPPING_CONTEXT: &str = "vellum 2026-11-25 v1 slot exchange wrapping";
const SECRET_CONTEXT: &str = "vellum 2026-11-25 v1 slot exchange secret";
const KEY_LEN: usize = 32;

/// The public key of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExchangePublic(pub [u8; ExchangePublic::LEN]);

impl ExchangePublic {
    /// Length in bytes.
    pub const LEN: usize = KEY_LEN;

    /// Wraps a master key, so that the slot's secret unwraps it. None if this is no key that anybody has the secret of.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn wrap_master_key(&self, master: &MasterKey, aad: &[u8]) -> Option<WrappedMaster> {
        // One secret for each wrapping, dropped at the end: who wrapped a key cannot be made to unwrap it later.
        let ephemeral = ExchangeSecret::generate();
        let key = derive_wrapping_key(&ephemeral, self, &ephemeral.public_key(), self)?;
        let mut bytes = Vec::with_capacity(WrappedMaster::LEN);
        // The receiver computes the shared secret from it. It needs no authentication: with another one the key is
        // another.
        bytes.extend_from_slice(&ephemeral.public_key().0);
        aead::seal_plaintext(&key, &generate_nonce(), aad, master.as_bytes(), &mut bytes);
        bytes.try_into().ok().map(WrappedMaster)
    }
}

/// The secret that belongs to the public key of a slot. It is derived from what the slot's secret gives, and does not tell
/// it.
pub struct ExchangeSecret(StaticSecret);

impl ExchangeSecret {
    /// The secret in these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &Zeroizing<[u8; KEY_LEN]>) -> Self {
        Self(StaticSecret::from(**bytes))
    }

    /// The raw bytes. The caller who stores them is responsible for the file's mode.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        self.0.as_bytes()
    }

    /// What others wrap keys for.
    #[must_use]
    pub fn public_key(&self) -> ExchangePublic {
        ExchangePublic(PublicKey::from(&self.0).to_bytes())
    }

    /// The master key that was wrapped for this secret with the same associated data.
    #[must_use]
    pub fn unwrap_master_key(&self, wrapped: &WrappedMaster, aad: &[u8]) -> Option<MasterKey> {
        let (ephemeral, sealed) = wrapped.0.split_first_chunk::<KEY_LEN>()?;
        let ephemeral = ExchangePublic(*ephemeral);
        let key = derive_wrapping_key(self, &ephemeral, &ephemeral, &self.public_key())?;
        // Reserved whole: growing would leave copies of the key in freed memory.
        let mut opened = Zeroizing::new(Vec::with_capacity(MasterKey::LEN));
        aead::open_sealed(&key, aad, sealed, &mut opened).ok()?;
        MasterKey::from_slice(&opened)
    }

    /// The secret of the slot with this wrapping key.
    pub(crate) fn derive_from(wrapping_key: &[u8; 32]) -> Self {
        // Derived, not stored: slots that were made before keys could be changed have it too, and their stored form
        // stays the same.
        Self::from_bytes(&Zeroizing::new(blake3::derive_key(SECRET_CONTEXT, wrapping_key)))
    }

    fn generate() -> Self {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        fill_random(bytes.as_mut_slice());
        Self::from_bytes(&bytes)
    }
}

impl fmt::Debug for ExchangeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExchangeSecret(..)")
    }
}

/// A master key, wrapped for one slot: an ephemeral public key, nonce, ciphertext, tag.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedMaster(pub [u8; WrappedMaster::LEN]);

impl WrappedMaster {
    /// Length in bytes.
    pub const LEN: usize = KEY_LEN + NONCE_LEN + MasterKey::LEN + aead::TAG_LEN;
}

impl fmt::Debug for WrappedMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrappedMaster(..)")
    }
}

/// Both public keys go in, so that a key wrapped for one slot is nothing for another.
fn derive_wrapping_key(
    own: &ExchangeSecret,
    other: &ExchangePublic,
    ephemeral: &ExchangePublic,
    slot: &ExchangePublic,
) -> Option<Zeroizing<[u8; 32]>> {
    let shared = own.0.diffie_hellman(&PublicKey::from(other.0));
    // A point of small order gives a secret that everybody knows.
    if !shared.was_contributory() {
        return None;
    }
    // All parts have the same length, so that no two triples give the same bytes.
    let mut material = Zeroizing::new(Vec::with_capacity(3 * KEY_LEN));
    for part in [shared.as_bytes(), &ephemeral.0, &slot.0] {
        material.extend_from_slice(part);
    }
    Some(Zeroizing::new(blake3::derive_key(WRAPPING_CONTEXT, &material)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> ExchangeSecret {
        ExchangeSecret::derive_from(&[byte; 32])
    }

    #[test]
    fn only_the_slot_s_secret_and_the_same_data_unwrap() {
        let master = MasterKey::from_bytes([9; 32]);
        let wrapped = secret(1).public_key().wrap_master_key(&master, b"epoch 1").expect("it is a key");
        let unwrap =
            |byte, aad: &[u8]| secret(byte).unwrap_master_key(&wrapped, aad).map(|key| *key.as_bytes());
        assert_eq!(unwrap(1, b"epoch 1"), Some([9; 32]));
        assert_eq!(unwrap(2, b"epoch 1"), None);
        assert_eq!(unwrap(1, b"epoch 2"), None);
        for position in 0..WrappedMaster::LEN {
            let mut changed = wrapped.clone();
            // The highest bit of an X25519 key is not part of it, and changes the wrapping key all the same.
            changed.0[position] ^= 0x80;
            assert!(secret(1).unwrap_master_key(&changed, b"epoch 1").is_none(), "byte {position}");
        }
    }

    #[test]
    fn nothing_is_wrapped_for_a_key_whose_secret_everybody_knows() {
        let master = MasterKey::from_bytes([9; 32]);
        assert!(ExchangePublic([0; 32]).wrap_master_key(&master, b"").is_none());
        let mut wrapped = secret(1).public_key().wrap_master_key(&master, b"").expect("it is a key");
        wrapped.0[..32].fill(0);
        assert!(secret(1).unwrap_master_key(&wrapped, b"").is_none());
    }

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", secret(1)), "ExchangeSecret(..)");
    }
}

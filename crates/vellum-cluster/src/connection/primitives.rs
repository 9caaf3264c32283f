//! The primitives of the handshake and of records, from the crates that the rest of the program uses: X25519 (RFC 7748),
//! ChaCha20-Poly1305 (RFC 8439) and SHA-256.
//!
//! Invariant: a nonce is used once for a key. That is the duty of whoever numbers the records.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest;
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

const KEY_LEN: usize = 32;
const TAG_LEN: usize = 16;
const HASH_LEN: usize = 32;
/// Bytes that SHA-256 takes at once.
const HASH_BLOCK_LEN: usize = 64;

/// Gives the primitives of the one pattern that is used.
pub struct VolumeCryptoResolver;

impl CryptoResolver for VolumeCryptoResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SystemRandomness))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            // Of no use yet: `snow` sets or generates the key before it exchanges anything.
            DHChoice::Curve25519 => Some(Box::new(ExchangeKeys::from_secret([0; KEY_LEN]))),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        match choice {
            HashChoice::SHA256 => Some(Box::new(HandshakeHash(digest::Context::new(&digest::SHA256)))),
            _ => None,
        }
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        match choice {
            CipherChoice::ChaChaPoly => Some(Box::new(RecordCipher::new(&[0; KEY_LEN])?)),
            _ => None,
        }
    }
}

/// The randomness of the operating system.
struct SystemRandomness;

impl Random for SystemRandomness {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        vellum_crypto::fill_random(dest);
        Ok(())
    }
}

/// X25519.
struct ExchangeKeys {
    secret: StaticSecret,
    public: [u8; KEY_LEN],
}

impl ExchangeKeys {
    fn from_secret(bytes: [u8; KEY_LEN]) -> Self {
        let secret = StaticSecret::from(bytes);
        let public = PublicKey::from(&secret).to_bytes();
        Self { secret, public }
    }
}

impl Dh for ExchangeKeys {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_LEN
    }

    fn priv_len(&self) -> usize {
        KEY_LEN
    }

    fn set(&mut self, privkey: &[u8]) {
        if let Ok(bytes) = privkey.try_into() {
            *self = Self::from_secret(bytes);
        }
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        rng.try_fill_bytes(bytes.as_mut_slice())?;
        *self = Self::from_secret(*bytes);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.secret.as_bytes()
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = pubkey.first_chunk::<KEY_LEN>().ok_or(Error::Dh)?;
        let shared = self.secret.diffie_hellman(&PublicKey::from(*public));
        // A public key of small order would make the secret one that anybody knows.
        if !shared.was_contributory() {
            return Err(Error::Dh);
        }
        out.get_mut(..KEY_LEN).ok_or(Error::Dh)?.copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

/// SHA-256.
struct HandshakeHash(digest::Context);

impl Hash for HandshakeHash {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        HASH_BLOCK_LEN
    }

    fn hash_len(&self) -> usize {
        HASH_LEN
    }

    fn reset(&mut self) {
        self.0 = digest::Context::new(&digest::SHA256);
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        // In a copy, since finishing takes the state, and here it is only borrowed.
        let hash = self.0.clone().finish();
        out.iter_mut().zip(hash.as_ref()).for_each(|(place, byte)| *place = *byte);
    }
}

/// ChaCha20-Poly1305, with the number of a message as nonce.
struct RecordCipher(LessSafeKey);

impl RecordCipher {
    /// None cannot happen: the key has the length that the cipher wants.
    fn new(key: &[u8; KEY_LEN]) -> Option<Self> {
        UnboundKey::new(&CHACHA20_POLY1305, key).ok().map(|key| Self(LessSafeKey::new(key)))
    }

    fn nonce(number: u64) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        // As Noise has it for ChaChaPoly: 32 bits of zeros, then the number in little endian.
        bytes[NONCE_LEN - size_of::<u64>()..].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(bytes)
    }
}

impl Cipher for RecordCipher {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; KEY_LEN]) {
        if let Some(cipher) = Self::new(key) {
            *self = cipher;
        }
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let len = plaintext.len();
        let Some((text, rest)) = out.split_at_mut_checked(len) else { return 0 };
        text.copy_from_slice(plaintext);
        let tag = self.0.seal_in_place_separate_tag(Self::nonce(nonce), Aad::from(authtext), text);
        let (Ok(tag), Some(place)) = (tag, rest.first_chunk_mut::<TAG_LEN>()) else {
            // Nothing that was not encrypted may leave.
            text.fill(0);
            return 0;
        };
        place.copy_from_slice(tag.as_ref());
        len + TAG_LEN
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        // In a buffer of its own, since `out` has no room for the tag.
        let mut sealed = ciphertext.to_vec();
        let opened = self
            .0
            .open_in_place(Self::nonce(nonce), Aad::from(authtext), &mut sealed)
            .map_err(|_| Error::Decrypt)?;
        out.get_mut(..opened.len()).ok_or(Error::Decrypt)?.copy_from_slice(opened);
        Ok(opened.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_of_small_order_is_refused() {
        assert!(ExchangeKeys::from_secret([7; KEY_LEN]).dh(&[0; KEY_LEN], &mut [0; KEY_LEN]).is_err());
    }

    #[test]
    fn what_is_sealed_opens_under_its_number_alone() {
        let cipher = RecordCipher::new(&[1; KEY_LEN]).unwrap();
        let mut sealed = [0; 3 + TAG_LEN];
        assert_eq!(cipher.encrypt(5, b"", b"abc", &mut sealed), sealed.len());
        let mut opened = [0; 3];
        assert_eq!(cipher.decrypt(5, b"", &sealed, &mut opened).unwrap(), 3);
        assert_eq!(&opened, b"abc");
        assert!(cipher.decrypt(6, b"", &sealed, &mut opened).is_err());
        // RFC 8439, 2.8.2, has another nonce; that of the first record is zero.
        assert_eq!(RecordCipher::nonce(0x0102).as_ref()[4..6], [2, 1]);
    }
}

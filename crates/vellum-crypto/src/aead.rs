//! XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03): HChaCha20 for the subkey, ring's ChaCha20-Poly1305 for the rest.
//!
//! Invariant: a failed `open` leaves nothing of the unauthenticated plaintext in the output.

use chacha20::cipher::array::Array;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::Zeroizing;

use crate::nonce::NONCE_LEN;

/// Length of a Poly1305 tag, bytes.
pub(crate) const TAG_LEN: usize = 16;

/// The bytes did not authenticate.
#[derive(Debug)]
pub(crate) struct AuthenticationFailure;

/// Appends nonce ‖ ciphertext ‖ tag to `out`.
///
/// # Panics
/// Beyond 256 GiB of plaintext, which the cipher's counter cannot cover and no caller's limits allow.
pub(crate) fn seal_plaintext(
    key: &[u8; 32],
    nonce: &[u8; NONCE_LEN],
    ad: &[u8],
    plaintext: &[u8],
    out: &mut Vec<u8>,
) {
    // The nonce is stored in front of what it seals, so that a record can be opened without any other state than the
    // key.
    out.reserve(NONCE_LEN + plaintext.len() + TAG_LEN);
    out.extend_from_slice(nonce);
    let start = out.len();
    out.extend_from_slice(plaintext);
    let (cipher, short_nonce) = derive_subcipher(key, nonce);
    let tag = cipher
        .seal_in_place_separate_tag(short_nonce, Aad::from(ad), &mut out[start..])
        .expect("ChaCha20 takes 256 GiB, and the longest that is sealed, an index object, has 256 MiB");
    out.extend_from_slice(tag.as_ref());
}

/// Appends the plaintext of nonce ‖ ciphertext ‖ tag to `out`, or nothing.
pub(crate) fn open_sealed(
    key: &[u8; 32],
    ad: &[u8],
    sealed: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), AuthenticationFailure> {
    let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(AuthenticationFailure)?;
    let (ciphertext, tag) = rest.split_last_chunk::<TAG_LEN>().ok_or(AuthenticationFailure)?;
    let start = out.len();
    // The cipher works in place, and the sealed bytes are only borrowed.
    out.extend_from_slice(ciphertext);
    let (cipher, short_nonce) = derive_subcipher(key, nonce);
    let opened = cipher
        .open_in_place_separate_tag(short_nonce, Aad::from(ad), Tag::from(*tag), &mut out[start..], 0..)
        .is_ok();
    if !opened {
        // What was decrypted without being authentic is not handed out.
        out.truncate(start);
        return Err(AuthenticationFailure);
    }
    Ok(())
}

// The draft's section 2.3: the first 16 bytes of the nonce make the subkey, the last 8 follow four zero bytes.
fn derive_subcipher(key: &[u8; 32], nonce: &[u8; NONCE_LEN]) -> (LessSafeKey, Nonce) {
    let [head @ .., t0, t1, t2, t3, t4, t5, t6, t7] = nonce;
    let subkey = Zeroizing::new(chacha20::hchacha::<chacha20::R20>(&Array(*key), &Array(*head)).0);
    let unbound = UnboundKey::new(&CHACHA20_POLY1305, subkey.as_slice())
        .expect("ChaCha20-Poly1305 takes keys of 32 bytes, and HChaCha20 gives 32");
    let short = [0, 0, 0, 0, *t0, *t1, *t2, *t3, *t4, *t5, *t6, *t7];
    // The subkey depends on the random nonce, and so encrypts one record only: the short nonce cannot repeat under
    // it.
    (LessSafeKey::new(unbound), Nonce::assume_unique_for_key(short))
}

#[cfg(test)]
mod tests;

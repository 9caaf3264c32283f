//! Replaces sealing in a plain volume: the plaintext and a checksum bound to its place.
//!
//! Invariant: a changed bit, another domain, volume or name is detected as in a sealed volume, unless the checksum
//! was computed again: a plain volume has no secret, so it protects against accidents only.

/// Length of the checksum, bytes: as long as a Poly1305 tag, so that both kinds of volume end a record alike.
pub(crate) const CHECKSUM_LEN: usize = 16;

/// Appends plaintext ‖ checksum to `out`.
pub(crate) fn append_checksum(key: &[u8; 32], ad: &[u8], plaintext: &[u8], out: &mut Vec<u8>) {
    out.reserve(plaintext.len() + CHECKSUM_LEN);
    out.extend_from_slice(plaintext);
    out.extend_from_slice(&compute_checksum(key, ad, plaintext));
}

/// The plaintext of plaintext ‖ checksum, if they belong together.
pub(crate) fn verify_checksum<'a>(key: &[u8; 32], ad: &[u8], sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (plaintext, found) = sealed.split_last_chunk::<CHECKSUM_LEN>()?;
    // An ordinary comparison: the key of a plain volume is public, so that its timing gives nothing away.
    (compute_checksum(key, ad, plaintext) == *found).then_some(plaintext)
}

// The plaintext comes first, so that BLAKE3 gets it in whole aligned chunks; the length at the very end tells
// where the plaintext stops and the associated data start.
fn compute_checksum(key: &[u8; 32], ad: &[u8], plaintext: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(plaintext).update(ad).update(&(ad.len() as u64).to_le_bytes());
    let mut out = [0; CHECKSUM_LEN];
    hasher.finalize_xof().fill(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cannot_move_between_plaintext_and_associated_data() {
        assert_ne!(compute_checksum(&[0; 32], b"cd", b"ab"), compute_checksum(&[0; 32], b"bcd", b"a"));
        assert_ne!(compute_checksum(&[0; 32], b"", b"ab"), compute_checksum(&[0; 32], b"ab", b""));
    }
}

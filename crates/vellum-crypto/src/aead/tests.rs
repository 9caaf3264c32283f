//! The cipher against the draft's vectors and against an independent implementation.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use proptest::prelude::*;

use super::*;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).expect("two digits")).collect()
}

// draft-irtf-cfrg-xchacha-03, section 2.2.1.
#[test]
fn hchacha20_vector_of_the_draft() {
    let key: [u8; 32] = std::array::from_fn(|i| i as u8);
    let nonce: [u8; 16] = unhex("000000090000004a0000000031415927").try_into().expect("16 bytes");
    let expected = unhex("82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc");
    assert_eq!(chacha20::hchacha::<chacha20::R20>(&Array(key), &Array(nonce)).as_slice(), expected);
}

// draft-irtf-cfrg-xchacha-03, appendix A.3.1.
#[test]
fn aead_vector_of_the_draft() {
    let plaintext =
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
        sunscreen would be it.";
    let ad = unhex("50515253c0c1c2c3c4c5c6c7");
    let key: [u8; 32] = std::array::from_fn(|i| 0x80 + i as u8);
    let nonce: [u8; 24] = std::array::from_fn(|i| 0x40 + i as u8);
    let ciphertext = unhex(
        "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb\
         731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b452\
         2f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9\
         21f9664c97637da9768812f615c68b13b52e",
    );
    let tag = unhex("c0875924c1c7987947deafd8780acf49");
    let mut sealed = Vec::new();
    seal_plaintext(&key, &nonce, &ad, plaintext, &mut sealed);
    assert_eq!(sealed, [&nonce[..], &ciphertext, &tag].concat());
    let mut opened = Vec::new();
    assert!(open_sealed(&key, &ad, &sealed, &mut opened).is_ok());
    assert_eq!(opened, plaintext);
}

#[test]
fn a_failed_open_leaves_the_output_as_it_was() {
    let mut sealed = Vec::new();
    seal_plaintext(&[1; 32], &[2; 24], b"ad", b"plaintext", &mut sealed);
    let mut out = b"before".to_vec();
    assert!(open_sealed(&[1; 32], b"other", &sealed, &mut out).is_err());
    assert_eq!(out, b"before");
}

proptest! {
    #[test]
    fn agrees_with_an_independent_implementation(
        key: [u8; 32],
        nonce: [u8; 24],
        ad in proptest::collection::vec(any::<u8>(), 0..80),
        plaintext in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut ours = Vec::new();
        seal_plaintext(&key, &nonce, &ad, &plaintext, &mut ours);
        let reference = XChaCha20Poly1305::new(&key.into());
        let theirs = reference.encrypt(&XNonce::from(nonce), Payload { msg: &plaintext, aad: &ad });
        prop_assert_eq!(Ok(&ours[NONCE_LEN..]), theirs.as_deref());
        let mut opened = Vec::new();
        prop_assert!(open_sealed(&key, &ad, &ours, &mut opened).is_ok());
        prop_assert_eq!(opened, plaintext);
    }

    #[test]
    fn arbitrary_bytes_do_not_open(sealed in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut out = Vec::new();
        prop_assert!(open_sealed(&[3; 32], b"", &sealed, &mut out).is_err());
        prop_assert!(out.is_empty());
    }
}

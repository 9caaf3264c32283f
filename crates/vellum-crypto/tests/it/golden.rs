//! Bytes and ids that volumes in the world depend on. If one of these fails, the format has changed.
//! Each sort of record is also opened by hand, as docs/format.md tells it, with other implementations.

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use vellum_crypto::{KdfParams, KeySlot, KeySlotKind, RecordDomain, RecoveryCode, SlotSecret, VolumeKeys};
use vellum_types::BlobKind;

use crate::{VOLUME, both, hex, master, open, unhex};

const CHUNK: RecordDomain = RecordDomain::Blob(BlobKind::Chunk);

const SEALED: &str =
    "e8cd9d7996df8ee48d6b2f5224e0a13b5dced990426d974bb8e616a9e2954bc7e5a1f21b9dc14ffb54648f2d8e21";
const PLAIN: &str = "76656c6c756de6b123928749374381b73d231429e00b";
const CODE: &str = "01234-56789-ABCDE-FGHJK-MNPQR-STVWX-YZ01J";
const RECOVERY_SLOT: &str = "564c4d534c4f540a0100000011111111111111111111111111111111\
    16adc6c517d01c5f95b25df6a7e270be03000000000000000000000000\
    d4fc6ba3a1b082ae43ab62f16fd6ad27c89ff5f508f09dc94b00b9ed13755c49057061706572\
    abd9dbc3415177464487f25ea634017bcf78296188e4720c845b8c01ee4815fcf74070a8ec5e13e0\
    6f33698d0c2b4644d43a7a9dd69b7840b4385489d18c16b37570ac9711cae99d";
const PASSPHRASE_SLOT: &str = "564c4d534c4f540a0100000011111111111111111111111111111111\
    aeca56a2e11f1c53d17a49be2f394cdf01002000000200000002000000\
    1ca8c5b5d3babc0594e84a235d8b0a2ade118e0347c9bcca73ce7da40b43a8b3066c6170746f70\
    bd0b91c39aecc2010c4111c683e58ef54316a3d3817fa131738d78975d4a6ba23ffbac04612592c5\
    1f4191ea4b33d25409c98dfc06dcf76d2312aa0d27c85e69019a5cb9b10675ba";
const KEY_FILE_SLOT: &str = "564c4d534c4f540a0100000011111111111111111111111111111111\
    e109b4b9b71df0fb89ab1247c42f3689020020000001000000010000003d6f0bc06dc0d820bef2241b5205705a\
    8c5adb88c5c56104d7d4b0e0e19df3c200\
    07103b63033b4c3ca7f15ba8eab157abe0b882cd3c95ccc9c6c045c10f1d2f292d79b9e44672e984\
    8f6b4e898b20acaf460c73735abd9932998c68636b5592ba3f0612159b95f646";

fn ids(keys: &VolumeKeys) -> [String; 6] {
    [
        keys.compute_blob_id(BlobKind::Chunk, b"vellum").to_string(),
        keys.compute_blob_id(BlobKind::Node, b"vellum").to_string(),
        hex(&keys.compute_record_id(RecordDomain::Snapshot, b"vellum")),
        hex(&keys.compute_name_id(RecordDomain::Ref, b"main")),
        hex(&keys.chunker_key()),
        format!("{:016x}", keys.boundary_seed()),
    ]
}

#[test]
fn ids_and_seeds() {
    let [sealed, plain] = both();
    let expected = [
        "370cde32379343e6b280f6ed76b16f9c09f630c66d9d75af7e4446fac25bc8d7",
        "69b0fac953a87c81c2eb0df15013d2670e5ee0e716e1651b42adcc6a49330b72",
        "c6a5fe76bde32f3cc4aefa82c380ee801bfa159c4e1dd3480fac9723c2099344",
        "efebfc1501ecf2c2a1f82f7c16aaecb98bc607e33070b4f1921a5d42c9f15beb",
        "fe10e487470553d04262e1c85bd9fc597bc728226b143c281d99f308e7b5d9e7",
        "d0d558954b5f0585",
    ];
    assert_eq!(ids(&sealed), expected);
    let expected = [
        "ea74cc519450a808725cc02f83df252f6c4eb45550a4acd29b1affbc5ef0645b",
        "188cd1f3870ed83552574677f45d63ff86852c39131d2a7124abbc322911d1be",
        "22ab58d17d93545a285d87763a5cef546ee48c109a76b11c5a580caee578f5c8",
        "f070ddf2892dd8636d695c645fd78235f6bdbc9136cee05ed815db5ea71f4614",
        "b6dc09fa1ce866899052ebd74ce4eb2a99c5ca00b03a45eb6eed49a50f413835",
        "c475509604ba44ae",
    ];
    assert_eq!(ids(&plain), expected);
}

#[test]
fn records_of_the_first_release_open() {
    let [sealed, plain] = both();
    assert_eq!(open(&sealed, CHUNK, b"aad", &unhex(SEALED)).as_deref(), Some(&b"vellum"[..]));
    assert_eq!(open(&plain, CHUNK, b"aad", &unhex(PLAIN)).as_deref(), Some(&b"vellum"[..]));
}

#[test]
fn slots_of_the_first_release_open() {
    let code = RecoveryCode::parse(CODE).expect("it parses");
    let two_lanes = KdfParams { memory_kib: 8192, iterations: 2, lanes: 2 };
    let slots = [
        (RECOVERY_SLOT, SlotSecret::Recovery(&code), "paper", None),
        (PASSPHRASE_SLOT, SlotSecret::Passphrase(b"correct horse"), "laptop", Some(two_lanes)),
        (KEY_FILE_SLOT, SlotSecret::KeyFile(&[0xff, 0, 1]), "", Some(KdfParams::FLOOR)),
    ];
    for (text, secret, label, kdf) in slots {
        let slot = KeySlot::decode(&unhex(text)).expect("it decodes");
        assert_eq!((slot.kind(), slot.label(), slot.kdf_params()), (secret.kind(), label, kdf));
        let opened = slot.unlock_slot(secret, VOLUME).expect("it opens");
        assert_eq!(opened.master.as_bytes(), master().as_bytes());
        assert_eq!(hex(&slot.encode()), hex(&unhex(text)));
    }
}

#[test]
fn a_sealed_record_by_hand() {
    let key = blake3::derive_key("vellum 2026-11-21 v1 sealed chunk seal", master().as_bytes());
    let ad = [&[1][..], &[0x11; 16], &[1], b"aad"].concat();
    assert_eq!(open_by_hand(&key, &ad, &unhex(SEALED)), b"vellum");
    let id_key = blake3::derive_key("vellum 2026-11-21 v1 sealed chunk id", master().as_bytes());
    let [keys, _] = both();
    assert_eq!(
        keys.compute_blob_id(BlobKind::Chunk, b"vellum").0,
        *blake3::keyed_hash(&id_key, b"vellum").as_bytes()
    );
}

#[test]
fn a_plain_record_by_hand() {
    let key = blake3::derive_key("vellum 2026-11-21 v1 plain chunk seal", b"");
    let input = [&b"vellum"[..], &[1], &[0x11; 16], &[1], b"aad", &21_u64.to_le_bytes()].concat();
    let checksum = blake3::keyed_hash(&key, &input);
    assert_eq!(unhex(PLAIN), [b"vellum", &checksum.as_bytes()[..16]].concat());
}

#[test]
fn slots_by_hand() {
    let symbols: Vec<u8> = (0..34).map(|i| i % 32).collect();
    for (text, kind) in [(RECOVERY_SLOT, KeySlotKind::Recovery), (PASSPHRASE_SLOT, KeySlotKind::Passphrase)] {
        let bytes = unhex(text);
        let (header, wrapped) = bytes.split_at(bytes.len() - 72);
        let salt = &header[57..89];
        let (context, secret) = match kind {
            KeySlotKind::Passphrase => {
                let mut stretched = vec![0; 32];
                let params = Params::new(8192, 2, 2, Some(32)).expect("in range");
                Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                    .hash_password_into(b"correct horse", salt, &mut stretched)
                    .expect("it hashes");
                ("vellum 2026-11-21 v1 slot passphrase", stretched)
            }
            KeySlotKind::KeyFile | KeySlotKind::Recovery => {
                ("vellum 2026-11-21 v1 slot recovery", symbols.clone())
            }
        };
        let key = blake3::derive_key(context, &[salt, &secret].concat());
        assert_eq!(open_by_hand(&key, header, wrapped), master().as_bytes());
    }
}

fn open_by_hand(key: &[u8; 32], ad: &[u8], sealed: &[u8]) -> Vec<u8> {
    let (nonce, rest) = sealed.split_first_chunk::<24>().expect("it has a nonce");
    let payload = Payload { msg: rest, aad: ad };
    XChaCha20Poly1305::new(key.into()).decrypt(&XNonce::from(*nonce), payload).expect("it opens")
}

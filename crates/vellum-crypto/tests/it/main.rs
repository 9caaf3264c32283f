//! The crate from outside: what seals must open, in its own place only; and bytes of the first release still open.

mod epochs;
mod golden;
mod sealing;
mod slots;

use vellum_crypto::{MasterKey, RecordDomain, VolumeKeys};
use vellum_types::{BlobKind, VolumeId};

const VOLUME: VolumeId = VolumeId([0x11; 16]);

const DOMAINS: [RecordDomain; 10] = [
    RecordDomain::Blob(BlobKind::Chunk),
    RecordDomain::Blob(BlobKind::Node),
    RecordDomain::PackToc,
    RecordDomain::Index,
    RecordDomain::Snapshot,
    RecordDomain::Ref,
    RecordDomain::Session,
    RecordDomain::Config,
    RecordDomain::Condemned,
    RecordDomain::Local,
];

fn master() -> MasterKey {
    MasterKey::from_bytes(std::array::from_fn(|i| u8::try_from(i).expect("below 32")))
}

/// The keys of a sealed and of a plain volume.
fn both() -> [VolumeKeys; 2] {
    [VolumeKeys::for_encrypted(&master(), VOLUME), VolumeKeys::for_plain(VOLUME)]
}

fn seal(keys: &VolumeKeys, domain: RecordDomain, aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    keys.seal_record(domain, aad, plaintext, &mut sealed);
    sealed
}

fn open(keys: &VolumeKeys, domain: RecordDomain, aad: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let mut plaintext = Vec::new();
    keys.open_record(domain, aad, sealed, &mut plaintext).ok().map(|()| plaintext)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    assert!(rest.is_empty(), "an odd number of digits");
    pairs.iter().map(|[high, low]| u8::try_from(high << 4 | low).expect("two digits")).collect()
}

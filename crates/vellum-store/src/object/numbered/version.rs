//! The bytes of one version of a ref.
//!
//! Layout: 64 tags of 8 bytes, then nothing if the ref was removed, else a byte 1 and the content of the ref. The
//! first tag is random and the version's own; the others are those of the versions before it, the youngest first, and
//! zeros where there were none. Invariant: any bytes are a version. Bytes without this layout were written by another
//! program; the reader of the ref finds that they are not authentic.

use std::io;

use crate::object::ObjectKey;

/// Bytes of a tag.
const TAG_LEN: usize = 8;
/// Tags of a version, a count: as many changes may be made while one of several writers waits for its listing.
pub(super) const TAGS: usize = 64;
/// Bytes of all tags.
const TAGS_LEN: usize = TAG_LEN * TAGS;
/// The byte before the content of a ref.
const PRESENT: u8 = 1;
/// Bytes of a version beside the content of the ref.
pub(super) const OVERHEAD: u64 = TAGS_LEN as u64 + 1;
/// Bytes of a version that removes the ref.
pub(super) const REMOVED_LEN: u64 = TAGS_LEN as u64;
/// Digits of a number in a key.
const NUMBER_DIGITS: usize = 16;

/// One version of a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefVersion {
    /// Its number; the first is 1.
    pub number: u64,
    /// The object's bytes.
    pub bytes: Vec<u8>,
}

impl RefVersion {
    /// The version after another, or the first.
    pub fn following(current: Option<&Self>, payload: Option<&[u8]>) -> io::Result<Self> {
        let mut bytes = vec![0; TAG_LEN];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        // The oldest tag makes room for the new one. A current version that is too short to have tags, because
        // something else wrote it, hands on none.
        let older = current.and_then(|current| current.bytes.get(..TAGS_LEN - TAG_LEN)).unwrap_or_default();
        bytes.extend_from_slice(older);
        bytes.resize(TAGS_LEN, 0);
        if let Some(payload) = payload {
            bytes.push(PRESENT);
            bytes.extend_from_slice(payload);
        }
        let number = current.map_or(0, |current| current.number).checked_add(1);
        let number = number.ok_or_else(|| io::Error::other("no number is left"))?;
        Ok(Self { number, bytes })
    }

    /// The tag of the version that came `before` versions earlier; 0 is its own.
    pub fn tag(&self, before: usize) -> Option<&[u8]> {
        let start = before.checked_mul(TAG_LEN)?;
        self.bytes.get(..TAGS_LEN)?.get(start..start.checked_add(TAG_LEN)?)
    }

    /// The content of the ref; none if it was removed.
    pub fn payload(&self) -> Option<&[u8]> {
        match self.bytes.get(TAGS_LEN..) {
            Some([]) => None,
            Some([PRESENT, payload @ ..]) => Some(payload),
            // Not written by this program: all of it is returned, and opening it fails as not authentic. To return
            // nothing would present a damaged ref as a removed one.
            Some([_, ..]) | None => Some(&self.bytes),
        }
    }
}

/// The number at the end of a version's key.
pub(super) fn parse_number(key: &ObjectKey) -> Option<u64> {
    let name = key.name();
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if name.len() != NUMBER_DIGITS || !name.bytes().all(is_digit) {
        return None;
    }
    u64::from_str_radix(name, 16).ok().filter(|number| *number > 0)
}

/// Reads any bytes as a version.
///
/// # Panics
/// When the version after it does not name it.
pub(crate) fn fuzz_decoder(bytes: &[u8]) {
    let version = RefVersion { number: 1, bytes: bytes.to_vec() };
    let payload = version.payload();
    assert!(
        payload.is_some() || bytes.len() == TAGS_LEN,
        "only a version without anything else is a removal"
    );
    let Ok(next) = RefVersion::following(Some(&version), payload) else { return };
    assert_eq!(next.payload(), payload, "what a ref says is found again");
    if version.tag(0).is_some() {
        assert_eq!(next.tag(1), version.tag(0), "a version names the one before it");
    }
}

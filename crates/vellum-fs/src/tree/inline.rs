//! Inline content in layers, apart from the attributes: what changes these alone does not write the content again.
//!
//! A layer keeps a file's attributes as the map has them, or *bare*: the byte 0xFE, the content's length (u16, little
//! endian), and the attributes as the map has them up to the content. The content then stands in the same layer, under
//! the key of the attributes and a byte 1. Invariant: who reads a layer through this crate sees attributes that are
//! whole, and no key of content.

use vellum_live::ValueBytes;
use vellum_map::{MapValue, SharedSlice};
use vellum_types::{BareInodeAttr, DecodeError, Ino, InodeAttr, MapKey, MapKeyTag};

use super::merge::{LiveRead, encode_layer_key};
use crate::error::{FsError, Result};
use crate::tree::head::LayerId;

/// Begins bare attributes: no kind of a file is that byte, and a tombstone is another.
const BARE: u8 = 0xFE;
/// Ends the key of content.
const CONTENT: u8 = 1;
/// Bytes in front of bare attributes.
const HEAD: usize = 3;
/// Content of fewer bytes stands beside the attributes: a key of its own takes as much.
const APART_MIN: usize = 256;
/// How often attributes and content are read again because they changed in between.
const TRIES: usize = 1000;

/// The key in the live store of the content that belongs to the attributes under a key.
pub fn inline_content_key(layer: LayerId, attributes: &MapKey) -> Vec<u8> {
    let mut key = encode_layer_key(layer, attributes.as_bytes());
    key.push(CONTENT);
    key
}

/// Whether a key of a layer is one of content.
pub fn is_content_key(key: &[u8]) -> bool {
    matches!(key.split_last(), Some((&CONTENT, attributes)) if is_attributes_key(attributes))
}

/// Not that of the filesystem's own record, whose first byte may be any.
fn is_attributes_key(key: &[u8]) -> bool {
    let Some((tag, ino)) = key.split_last() else { return false };
    let is_inode = ino.len() == size_of::<u64>() && ino != Ino::SUPER.0.to_be_bytes();
    is_inode && *tag == MapKeyTag::Attr.as_byte()
}

/// Bare attributes and the content; None: they stand together.
pub fn split_inline_content(attr: &InodeAttr) -> Option<(ValueBytes, &[u8])> {
    let content = attr.inline.as_deref().filter(|content| content.len() >= APART_MIN)?;
    let len = u16::try_from(content.len()).ok()?.to_le_bytes();
    let whole = attr.encode();
    let attributes = whole.get(..whole.len().checked_sub(content.len())?)?;
    Some(([&[BARE], &len[..], attributes].concat().into(), content))
}

/// Attributes whose content, if it is inline, stands apart in the same layer and stays as it is.
pub fn encode_bare_attr(attr: &BareInodeAttr) -> Result<ValueBytes> {
    let len = u16::try_from(attr.attr.size)
        .map_err(|_| FsError::BadTree("a file has inline content of a size that is never inline".into()))?;
    Ok([&[BARE], &len.to_le_bytes()[..], &attr.encode()].concat().into())
}

/// The attributes that a layer keeps, without their content.
pub fn decode_bare_attr(stored: &[u8]) -> Result<BareInodeAttr, DecodeError> {
    match stored.split_at_checked(HEAD) {
        Some(([BARE, ..], attributes)) => BareInodeAttr::decode_bare(attributes),
        Some(_) | None => BareInodeAttr::decode(stored),
    }
}

/// Whether what a layer keeps under a key are bare attributes.
pub fn is_bare_value(key: &[u8], stored: &[u8]) -> bool {
    is_attributes_key(key) && stored.first() == Some(&BARE)
}

/// The attributes with their content; None if it is not theirs.
pub fn join_inline_content(bare: &[u8], content: &[u8]) -> Option<MapValue> {
    let (head, attributes) = bare.split_at_checked(HEAD)?;
    let len = usize::from(u16::from_le_bytes([*head.get(1)?, *head.get(2)?]));
    let join = || SharedSlice::from(ValueBytes::from([attributes, content].concat()));
    (len == content.len()).then(join)
}

/// The attributes under a key of the live store, whole; `bare` is what was read there. None: it is not there any more.
pub fn complete_attributes(live: &dyn LiveRead, full: &[u8], bare: ValueBytes) -> Result<Option<ValueBytes>> {
    let content_key = [full, &[CONTENT]].concat();
    let mut bare = bare;
    // Outside of a transaction both may change meanwhile; what is read between two equal looks belongs to them.
    for _ in 0..TRIES {
        let content = live.get(&content_key)?;
        let Some(again) = live.get(full)? else { return Ok(None) };
        // It was written anew, as a whole or as a tombstone, and needs no content from elsewhere.
        if again.first() != Some(&BARE) {
            return Ok(Some(again));
        }
        if again == bare
            && let Some(whole) = content.and_then(|content| join_inline_content(&bare, &content))
        {
            return Ok(Some(whole.as_bytes().into()));
        }
        bare = again;
    }
    Err(FsError::BadTree("a layer has a small file's attributes without its content".into()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use vellum_types::FileKind;
    use vellum_types::value::SuperBlock;

    use super::*;

    fn file(len: usize) -> InodeAttr {
        let mut attr = InodeAttr::new(FileKind::File, 0o644);
        (attr.size, attr.inline) = (len as u64, Some(vec![7; len]));
        attr.name = b"f".to_vec();
        attr
    }

    #[test]
    fn what_is_split_is_joined_to_what_the_map_has() {
        for len in [APART_MIN, 4096] {
            let attr = file(len);
            let (bare, content) = split_inline_content(&attr).unwrap();
            assert!(bare.len() < 100 && content.len() == len);
            assert_eq!(join_inline_content(&bare, content).unwrap().as_bytes(), attr.encode());
            assert!(join_inline_content(&bare, &content[1..]).is_none(), "that is another content");
        }
    }

    #[test]
    fn what_is_tiny_or_not_there_stays_beside_the_attributes() {
        assert!(split_inline_content(&file(APART_MIN - 1)).is_none());
        assert!(split_inline_content(&InodeAttr::new(FileKind::File, 0o644)).is_none());
    }

    #[test]
    fn keys_of_content_stand_right_behind_those_of_attributes() {
        let attributes = MapKey::for_attr(Ino(7));
        let layer = LayerId(3);
        let key = inline_content_key(layer, &attributes);
        assert!(key > encode_layer_key(layer, attributes.as_bytes()));
        assert!(key < encode_layer_key(layer, MapKey::for_dentry(Ino(7), b"\x01").as_bytes()));
        assert!(is_content_key(&key[9..]) && !is_content_key(attributes.as_bytes()));
        assert!(!is_content_key(MapKey::for_xattr(Ino(7), b"\x01").as_bytes()));
        let whole = file(APART_MIN);
        assert!(is_bare_value(attributes.as_bytes(), &split_inline_content(&whole).unwrap().0));
        assert!(!is_bare_value(attributes.as_bytes(), &whole.encode()));
    }

    #[test]
    fn the_record_of_the_filesystem_is_no_bare_attributes() {
        // Its varint begins with the byte that begins bare attributes.
        let record = SuperBlock { next_ino: Ino(254) }.encode();
        assert_eq!(record[0], BARE);
        assert!(!is_bare_value(MapKey::for_attr(Ino::SUPER).as_bytes(), &record));
    }
}

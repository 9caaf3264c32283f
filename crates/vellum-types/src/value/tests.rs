//! Values survive a round trip; bytes that decode encode to themselves; what is out of range is refused.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn times() -> impl Strategy<Value = UnixTime> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| UnixTime { secs, nanos })
}

prop_compose! {
    fn attrs()(
        mode in 0..=MODE_MASK, uid: u32, gid: u32, nlink in 1..=u32::MAX, rdev: u64, generation: u64,
        mtime in times(), atime in times(), same: bool,
        name in vec(1..=b'.' - 1, 1..=NAME_MAX), content in proptest::option::of(vec(any::<u8>(), 0..200)),
    ) -> InodeAttr {
        let mut attr = InodeAttr::new(FileKind::File, mode);
        attr.set_all_times(mtime);
        if !same { attr.atime = atime; }
        attr.size = content.as_ref().map_or(123_456, |bytes| bytes.len() as u64);
        InodeAttr { uid, gid, nlink, rdev, generation, parent: Ino(1), name, inline: content, ..attr }
    }
}

proptest! {
    #[test]
    fn attributes_round_trip(attr in attrs()) {
        prop_assert_eq!(InodeAttr::decode(&attr.encode()), Ok(attr));
    }

    #[test]
    fn a_damaged_attribute_never_panics_and_has_one_encoding(attr in attrs(), at: prop::sample::Index, flip in 1..=255u8) {
        let mut bytes = attr.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(decoded) = InodeAttr::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..64)) {
        let _ = InodeAttr::decode(&bytes);
        let _ = Dentry::decode(&bytes);
        let _ = SuperBlock::decode(&bytes);
        if let Ok(extent) = Extent::decode(&bytes) {
            prop_assert_eq!(extent.encode(), bytes);
        }
    }

    #[test]
    fn extents_round_trip(len in 1..=EXTENT_MAX, id: [u8; 32], skip: u32, segment: u64, offset: u64) {
        for source in [
            ExtentSource::Hole,
            ExtentSource::Chunk { id: BlobId(id), skip },
            ExtentSource::WriteLog { segment, offset },
        ] {
            let extent = Extent { len, source };
            prop_assert_eq!(Extent::decode(&extent.encode()), Ok(extent));
        }
    }
}

#[test]
fn times_out_of_range_are_refused() {
    let mut attr = InodeAttr::new(FileKind::Dir, 0o755);
    attr.set_all_times(UnixTime { secs: i64::MIN, nanos: 999_999_999 });
    assert_eq!(InodeAttr::decode(&attr.encode()), Ok(attr.clone()));
    attr.set_all_times(UnixTime { secs: 0, nanos: 1_000_000_000 });
    assert_eq!(InodeAttr::decode(&attr.encode()), Err(DecodeError::Invalid("nanoseconds")));
}

#[test]
fn sizes_that_lie_are_refused() {
    let mut attr = InodeAttr::new(FileKind::File, 0o644);
    attr.name = b"f".to_vec();
    attr.parent = Ino(1);
    attr.inline = Some(b"abc".to_vec());
    attr.size = 4;
    assert_eq!(InodeAttr::decode(&attr.encode()), Err(DecodeError::Invalid("size")));
}

#[test]
fn a_dentry_never_names_the_root() {
    assert!(Dentry::decode(&Dentry { ino: Ino::ROOT, kind: FileKind::Dir }.encode()).is_err());
    let good = Dentry { ino: Ino(2), kind: FileKind::Fifo };
    assert_eq!(Dentry::decode(&good.encode()), Ok(good));
}

#[test]
fn only_an_orphan_has_no_links_and_it_has_no_name() {
    let mut attr = InodeAttr::new(FileKind::File, 0o644);
    attr.nlink = 0;
    assert_eq!(InodeAttr::decode(&attr.encode()), Ok(attr.clone()));
    assert_eq!(InodeAttr::decode_published(&attr.encode()), Err(DecodeError::Invalid("link count")));
    (attr.parent, attr.name) = (Ino(1), b"f".to_vec());
    assert_eq!(InodeAttr::decode(&attr.encode()), Err(DecodeError::Invalid("link count")));
    (attr.parent, attr.name, attr.nlink) = (Ino::SUPER, Vec::new(), 1);
    assert_eq!(InodeAttr::decode(&attr.encode()), Err(DecodeError::Invalid("name")));
}

/// Who looks for what covers an offset looks back no further: a longer one would be read as zeros there.
#[test]
fn an_extent_covers_something_and_no_more_than_the_longest_chunk() {
    for (len, decoded) in
        [(0, false), (1, true), (EXTENT_MAX, true), (EXTENT_MAX + 1, false), (u64::MAX, false)]
    {
        let extent = Extent { len, source: ExtentSource::Hole };
        let expected = if decoded { Ok(extent) } else { Err(DecodeError::Invalid("extent length")) };
        assert_eq!(Extent::decode(&extent.encode()), expected, "{len} bytes");
    }
}

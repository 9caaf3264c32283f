use super::listing::ConvertedListing;
use super::*;
use crate::model::listing::{
    DirectoryBlock, EntryDetail, EntryFlags, ListingEntryId, NewListingEntry, TreeListing,
};
use vellum_types::FileKind;

fn charsets(spec: &str) -> NameCharsets {
    NameCharsets::parse_spec(spec, "UTF-8").unwrap()
}

#[test]
fn names_of_charsets_are_found_as_rsyncs_manual_writes_them() {
    for (typed, name) in [
        ("utf8", "UTF-8"),
        ("UTF-8", "UTF-8"),
        ("iso88591", "ISO-8859-1"),
        ("ISO-8859-1", "ISO-8859-1"),
        ("latin1", "ISO-8859-1"),
        ("ISO-8859-15", "ISO-8859-15"),
        ("CP1252", "windows-1252"),
        ("koi8-r", "KOI8-R"),
        ("SHIFT_JIS", "Shift_JIS"),
        ("euc-jp", "EUC-JP"),
        ("ASCII", "US-ASCII"),
    ] {
        assert_eq!(NameCharset::find(typed).map(NameCharset::name), Some(name), "{typed}");
    }
    // Names could hold slashes in their bytes, or mean different things by what stands before them.
    for typed in ["utf-16", "utf-16le", "iso-2022-jp", "utf-7", "klingon", "", "."] {
        assert_eq!(NameCharset::find(typed), None, "{typed}");
    }
}

#[test]
fn pairs_of_charsets_are_read_or_refused() {
    let utf8_latin1 = charsets("utf8,iso88591");
    assert_eq!(charsets(".,latin1"), utf8_latin1);
    let why = |spec| NameCharsets::parse_spec(spec, "UTF-8").unwrap_err();
    assert_eq!(why("utf8"), CharsetSpecError::NotTwo("utf8".into()));
    assert_eq!(why("utf8,utf-16"), CharsetSpecError::Unknown("utf-16".into()));
    assert_eq!(why("elvish,utf8"), CharsetSpecError::Unknown("elvish".into()));
    assert_eq!(why("utf8,."), CharsetSpecError::RemoteLocale);
}

#[test]
fn what_has_no_equivalent_is_not_converted() {
    let out = charsets("utf8,latin1").to_remote();
    assert_eq!(out.convert("für/ß".as_bytes()).unwrap(), b"f\xfcr/\xdf");
    assert_eq!(out.reversed().convert(b"f\xfcr").unwrap(), "für".as_bytes());
    // windows-1252 has a euro sign, ISO-8859-1 has not.
    assert_eq!(out.convert("10€".as_bytes()), Err(NameConversionError::NoCharacter("ISO-8859-1")));
    assert_eq!(charsets("utf8,cp1252").to_remote().convert("10€".as_bytes()).unwrap(), b"10\x80");
    assert_eq!(out.convert(b"f\xfcr"), Err(NameConversionError::Invalid("UTF-8")));
    // Of a path, what cannot be converted stays as it is.
    assert_eq!(out.convert_path("ü/日/ß".as_bytes()), [b"\xfc/", "日".as_bytes(), b"/\xdf"].concat());
    let japanese = charsets("utf8,sjis").to_remote();
    let name = japanese.convert("表示".as_bytes()).unwrap();
    // The second byte of the first character is that of a backslash.
    assert_eq!(name.get(1), Some(&0x5c));
    assert_eq!(japanese.reversed().convert(&name).unwrap(), "表示".as_bytes());
}

fn new_entry(kind: FileKind) -> NewListingEntry {
    NewListingEntry { kind, ..NewListingEntry::unknown_dir() }
}

#[test]
fn a_listing_is_sorted_anew_and_remembers_where_entries_were() {
    let mut original = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    block
        .push(
            b"a-link",
            &new_entry(FileKind::Symlink),
            Some(EntryDetail { target: (*b"\xc1").into(), ..EntryDetail::default() }),
        )
        .unwrap();
    block.push(b"dir", &new_entry(FileKind::Dir), None).unwrap();
    for name in [&b"\xc0"[..], b"\xc1", b"\xc2"] {
        block.push(name, &new_entry(FileKind::File), None).unwrap();
    }
    let first = original.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    let mut inner = DirectoryBlock::default();
    inner.push(b"\xc1", &new_entry(FileKind::File), None).unwrap();
    original.attach_block(first.offset_by(1), &mut inner).unwrap();

    let conversion = charsets("koi8-r,utf8").to_remote();
    let converted = ConvertedListing::convert_listing(&original, conversion, true).unwrap();
    let names: Vec<String> =
        converted.listing.iter().map(|entry| String::from_utf8(entry.path()).unwrap()).collect();
    // In KOI8-R 0xC0 is the last letter of the alphabet.
    assert_eq!(names, ["", "a-link", "dir", "а", "б", "ю", "dir/а"]);
    let origins: Vec<usize> = converted.origins.iter().map(|id| id.index()).collect();
    assert_eq!(origins, [0, 1, 2, 4, 5, 3, 6]);
    let link = converted.listing.find_path(b"a-link").unwrap();
    assert_eq!(link.symlink_target(), "а".as_bytes());
    assert!(converted.listing.is_complete());
}

#[test]
fn entries_keep_their_change_stamps() {
    let mut original = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    for name in [&b"\xc0"[..], b"\xc1"] {
        block.push(name, &new_entry(FileKind::File), None).unwrap();
    }
    let first = original.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    original.set_change_stamp(first, 7);
    original.set_change_stamp(first.offset_by(1), 8);

    let conversion = charsets("koi8-r,utf8").to_remote();
    let converted = ConvertedListing::convert_listing(&original, conversion, true).unwrap().listing;
    let stamp = |path: &str| converted.change_stamp(converted.find_path(path.as_bytes()).unwrap().id());
    // The converted names stand in the other order.
    assert_eq!([stamp("ю"), stamp("а")], [7, 8]);
}

#[test]
fn what_cannot_be_converted_is_unlisted_with_its_reason() {
    let mut original = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    let leads =
        |target: &str| Some(EntryDetail { target: target.as_bytes().into(), ..EntryDetail::default() });
    block.push("für".as_bytes(), &new_entry(FileKind::File), None).unwrap();
    block.push(b"link", &new_entry(FileKind::Symlink), leads("日本")).unwrap();
    block.push("日本".as_bytes(), &new_entry(FileKind::Dir), None).unwrap();
    let first = original.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    let mut inner = DirectoryBlock::default();
    inner.push(b"within", &new_entry(FileKind::File), None).unwrap();
    original.attach_block(first.offset_by(2), &mut inner).unwrap();

    let converted =
        ConvertedListing::convert_listing(&original, charsets("utf8,latin1").to_remote(), true).unwrap();
    let names: Vec<Vec<u8>> = converted.listing.iter().map(|entry| entry.path()).collect();
    assert_eq!(names, [&b""[..], b"f\xfcr"]);
    let unlisted: Vec<String> = converted
        .listing
        .unlisted
        .iter()
        .map(|entry| format!("{}: {}", String::from_utf8_lossy(&entry.path), entry.message))
        .collect();
    assert_eq!(
        unlisted,
        [
            "link: its target has a character that ISO-8859-1 does not have",
            "日本: its name has a character that ISO-8859-1 does not have"
        ]
    );
    assert!(!converted.listing.is_complete());
    assert!(converted.listing.root().flags().contains(EntryFlags::KEEPS));
}

#[test]
fn names_that_become_one_or_too_long_are_left_out() {
    let mut original = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    block.push(&[b'a'; 200], &new_entry(FileKind::File), None).unwrap();
    block.push(&[0xfc; 200], &new_entry(FileKind::File), None).unwrap();
    original.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    let converted =
        ConvertedListing::convert_listing(&original, charsets("latin1,utf8").to_remote(), true).unwrap();
    assert_eq!(converted.listing.len(), 2);
    assert_eq!(converted.listing.unlisted.first().unwrap().message, "its name is too long in UTF-8");

    // Shift_JIS has two codes for some characters.
    let mut original = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    for name in [&b"\xed\x40"[..], b"\xfa\x5c"] {
        block.push(name, &new_entry(FileKind::File), None).unwrap();
    }
    original.attach_block(ListingEntryId::ROOT, &mut block).unwrap();
    let converted =
        ConvertedListing::convert_listing(&original, charsets("sjis,utf8").to_remote(), true).unwrap();
    assert_eq!(converted.listing.len(), 2);
    let unlisted = converted.listing.unlisted.first().unwrap();
    assert_eq!(unlisted.message, "its name is that of another entry, in UTF-8");
    assert_eq!(unlisted.path, b"\xfa\x5c");
}

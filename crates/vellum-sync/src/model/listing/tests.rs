//! Building listings and finding in them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn file(size: u64) -> NewListingEntry {
    NewListingEntry { kind: FileKind::File, size, ..NewListingEntry::unknown_dir() }
}

fn block(names: &[(&str, NewListingEntry)]) -> DirectoryBlock {
    let mut block = DirectoryBlock::default();
    for (name, fresh) in names {
        block.push(name.as_bytes(), fresh, None).unwrap();
    }
    block
}

#[test]
fn entries_are_found_by_path_and_know_theirs() {
    let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let first = listing
        .attach_block(
            ListingEntryId::ROOT,
            &mut block(&[("a", file(1)), ("b", NewListingEntry::unknown_dir()), ("c", file(2))]),
        )
        .unwrap();
    let b = ListingEntryId::from_index(first.index() + 1);
    listing.attach_block(b, &mut block(&[("x", file(3))])).unwrap();
    assert_eq!(listing.len(), 5);
    assert_eq!(listing.find_path(b"b/x").unwrap().size(), 3);
    assert_eq!(listing.find_path(b"b/x").unwrap().path(), b"b/x");
    assert!(listing.find_path(b"b/y").is_none());
    assert!(listing.find_path(b"a/x").is_none());
    assert_eq!(listing.count_files(), (3, 6));
    assert_eq!(listing.root().children().len(), 3);
    assert_eq!(listing.root().path(), b"");
}

#[test]
fn what_cannot_be_a_listing_is_refused() {
    let mut one = DirectoryBlock::default();
    assert_eq!(one.push(b"../x", &file(0), None), Err(ListingError::Name));
    assert_eq!(one.push(b"..", &file(0), None), Err(ListingError::Name));
    assert_eq!(one.push(b"", &file(0), None), Err(ListingError::Name));
    one.push(b"b", &file(0), None).unwrap();
    assert_eq!(one.push(b"b", &file(0), None), Err(ListingError::Order));
    assert_eq!(one.push(b"a", &file(0), None), Err(ListingError::Order));
    let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    listing.attach_block(ListingEntryId::ROOT, &mut one).unwrap();
    assert_eq!(
        listing.attach_block(ListingEntryId::ROOT, &mut block(&[("z", file(0))])),
        Err(ListingError::Place)
    );
    assert_eq!(
        listing.attach_block(ListingEntryId::from_index(1), &mut block(&[("z", file(0))])),
        Err(ListingError::Place)
    );
    assert_eq!(
        listing.attach_block(ListingEntryId::from_index(9), &mut block(&[("z", file(0))])),
        Err(ListingError::Place)
    );
}

#[test]
fn a_record_is_small() {
    assert!(size_of::<entry::EntryRecord>() <= 48);
    assert_eq!(size_of::<Option<ListingEntryId>>(), 4);
}

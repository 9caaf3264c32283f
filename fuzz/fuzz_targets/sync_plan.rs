//! A plan from another host between two small listings, and a signature of a file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_sync::remote::delta::{FileSignature, SignatureMatcher};
use vellum_sync::model::listing::{DirectoryBlock, ListingEntryId, NewListingEntry, TreeListing};
use vellum_sync::remote::wire::PlanDecoder;

fn listing() -> TreeListing {
    let mut listing = TreeListing::new(&NewListingEntry::unknown_dir(), None);
    let mut block = DirectoryBlock::default();
    for name in [b"a", b"b", b"c"] {
        assert!(block.push(name, &NewListingEntry::unknown_dir(), None).is_ok());
    }
    assert!(listing.attach_block(ListingEntryId::ROOT, &mut block).is_ok());
    listing
}

fuzz_target!(|bytes: &[u8]| {
    let listing = listing();
    if let Ok(None) = PlanDecoder::default().decode_payload(bytes, &listing, &listing) {
        // More may follow; nothing is carried out before the end.
    }
    if let Ok(signature) = FileSignature::decode(bytes) {
        assert_eq!(signature.encode(), bytes);
        let mut len = 0;
        let new = [bytes, bytes].concat();
        let scanned = SignatureMatcher::new(signature).scan_file(&mut &*new, new.len() as u64, &mut |op| {
            len += match op {
                vellum_sync::remote::delta::DeltaOperation::Copy { len, .. } => len,
                vellum_sync::remote::delta::DeltaOperation::Data(bytes) => bytes.len() as u64,
            };
            Ok(())
        });
        assert!(scanned.is_ok() && len == new.len() as u64);
    }
});

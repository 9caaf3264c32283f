//! A listing from another host, in payloads that begin with their lengths: what decodes encodes to a listing that is the
//! same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_sync::model::listing::TreeListing;
use vellum_sync::remote::wire::{ListingDecoder, WireError, encode_listing};

fn decode<'p>(payloads: impl Iterator<Item = &'p [u8]>) -> Option<TreeListing> {
    let mut decoder = ListingDecoder::default();
    for payload in payloads {
        match decoder.decode_payload(payload) {
            Ok(None) => {}
            Ok(Some(listing)) => return Some(listing),
            Err(_) => return None,
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let payloads = std::iter::from_fn(|| {
        let (len, after) = rest.split_first()?;
        let (payload, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        Some(payload)
    });
    let Some(listing) = decode(payloads) else { return };
    let mut again = Vec::new();
    let sent = encode_listing(&listing, &mut |payload| {
        again.push(payload);
        Ok::<(), WireError>(())
    });
    assert!(sent.is_ok());
    let twice = decode(again.iter().map(Vec::as_slice));
    assert!(twice.is_some_and(|twice| {
        twice.iter().map(|entry| entry.path()).eq(listing.iter().map(|entry| entry.path()))
    }));
});

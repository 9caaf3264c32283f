//! Changes encoded answers that were made elsewhere, for a kernel that may cache more of them, or less.
//!
//! Invariant: bytes that are too short for what is to be changed stay as they are.

use std::time::Duration;

pub use super::listing::without_entries;
use super::listing::{ENTRY_LEN, visit_entry_places};

/// Where `fuse_entry_out` has the time for which the name may be cached: whole seconds, and the rest in nanoseconds.
const ENTRY_TIMEOUT: TimeoutPlace = TimeoutPlace { secs: 16, nanos: 32 };
/// Where `fuse_attr_out` and `fuse_statx_out` have the time for which the attributes may be cached.
const ATTRIBUTE_TIMEOUT: TimeoutPlace = TimeoutPlace { secs: 0, nanos: 8 };

/// Offsets in an answer, bytes.
#[derive(Clone, Copy)]
struct TimeoutPlace {
    secs: usize,
    nanos: usize,
}

impl TimeoutPlace {
    fn write(self, answer: &mut [u8], timeout: Duration) {
        write_at(answer, self.secs, &timeout.as_secs().to_ne_bytes());
        write_at(answer, self.nanos, &timeout.subsec_nanos().to_ne_bytes());
    }
}

/// Lets the kernel cache the name that was looked up, but not the attributes that come with it.
pub fn set_entry_timeout(answer: &mut [u8], timeout: Duration) {
    ENTRY_TIMEOUT.write(answer, timeout);
}

/// Lets the kernel cache the attributes that it has asked for (`GETATTR`, `STATX`).
pub fn set_attribute_timeout(answer: &mut [u8], timeout: Duration) {
    ATTRIBUTE_TIMEOUT.write(answer, timeout);
}

/// The answer to a lookup by which the kernel may cache that the name does not exist.
#[must_use]
pub fn encode_absent_name(timeout: Duration) -> Vec<u8> {
    // Node 0 says that there is none. An error would say the same, and could not be cached.
    let mut answer = vec![0; ENTRY_LEN];
    set_entry_timeout(&mut answer, timeout);
    answer
}

/// Leaves out, of a listing with entries, what its names stand for: the kernel keeps what it has cached of these.
pub fn clear_listed_nodes(listing: &mut [u8]) {
    let mut places = Vec::new();
    visit_entry_places(listing, |place, _, _| places.push(place));
    for place in places {
        write_at(listing, place, &0u64.to_ne_bytes());
    }
}

fn write_at(answer: &mut [u8], place: usize, bytes: &[u8]) {
    if let Some(field) = answer.get_mut(place..place + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vellum_types::{FileKind, InodeAttr};

    use super::*;
    use crate::adapter::convert::to_node_attributes;
    use crate::wire::{EntryAnswer, ListingAnswer, NameInAnswer, SmallAnswer};

    const TERM: Duration = Duration::from_millis(4_250);

    fn entry(node: u64, timeout: Duration) -> EntryAnswer {
        let attr = to_node_attributes(node, &InodeAttr::new(FileKind::File, 0o644), 0);
        EntryAnswer { attr, generation: 0, timeout }
    }

    #[test]
    fn timeouts_are_written_where_the_encoder_writes_them() {
        for encode in [SmallAnswer::for_attributes, SmallAnswer::for_statx] {
            let mut answer = encode(&entry(7, Duration::ZERO)).answer_body().to_vec();
            set_attribute_timeout(&mut answer, TERM);
            assert_eq!(answer, encode(&entry(7, TERM)).answer_body());
        }
        let mut answer = SmallAnswer::for_entry(&entry(7, Duration::ZERO)).answer_body().to_vec();
        set_entry_timeout(&mut answer, TERM);
        let mut expected = SmallAnswer::for_entry(&entry(7, TERM)).answer_body().to_vec();
        // The attributes of a name that was looked up are not cached: seconds and nanoseconds.
        expected[24..32].fill(0);
        expected[36..40].fill(0);
        assert_eq!(answer, expected);
        let absent = encode_absent_name(TERM);
        assert_eq!((absent.len(), &absent[..16], &absent[16..36]), (128, &[0; 16][..], &answer[16..36]));
    }

    #[test]
    fn a_listing_keeps_its_names_and_loses_their_nodes() {
        let list = |entry_node: fn(u64) -> u64| {
            let mut listing = ListingAnswer::new(4096);
            for (name, node) in [(&b"."[..], 1), (b"a", 5), (b"a long name", 6)] {
                let named = NameInAnswer { name, node, mode: 0o100_000, next: 1 };
                assert!(listing.add_name_with_entry(named, &entry(node, Duration::ZERO)));
            }
            let mut bytes = listing.into_bytes();
            let mut place = 0;
            for (name_len, node) in [(1, 1), (1, 5), (11usize, 6)] {
                bytes[place..place + 8].copy_from_slice(&u64::to_ne_bytes(entry_node(node)));
                place += (ENTRY_LEN + 24 + name_len).next_multiple_of(8);
            }
            bytes
        };
        let mut listing = list(|node| node);
        clear_listed_nodes(&mut listing);
        assert_eq!(listing, list(|_| 0));
        let mut names = ListingAnswer::new(4096);
        for (name, node) in [(&b"."[..], 1), (b"a", 5), (b"a long name", 6)] {
            assert!(names.add_name(NameInAnswer { name, node, mode: 0o100_000, next: 1 }));
        }
        assert_eq!(without_entries(&listing), names.into_bytes());
    }

    proptest! {
        #[test]
        fn any_answer_can_be_changed(mut answer in prop::collection::vec(any::<u8>(), 0..600)) {
            let len = answer.len();
            set_entry_timeout(&mut answer, TERM);
            set_attribute_timeout(&mut answer, TERM);
            clear_listed_nodes(&mut answer);
            assert_eq!(answer.len(), len);
            assert!(without_entries(&answer).len() <= len);
        }
    }
}

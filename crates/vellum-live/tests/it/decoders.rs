//! Any bytes behind right checksums: an error at worst.

use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn decoders_take_any_bytes(kind in 0_u8..5, rest in vec(any::<u8>(), 0..100)) {
        vellum_live::fuzzing::fuzz_live_files(&[&[kind][..], &rest].concat());
    }

    #[test]
    fn decoders_take_changed_seeds(number in 0_usize..6, at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/live_files");
        let mut seed = std::fs::read(format!("{seeds}/{number}")).unwrap();
        vellum_live::fuzzing::fuzz_live_files(&seed);
        *at.get_mut(&mut seed) = byte;
        vellum_live::fuzzing::fuzz_live_files(&seed);
    }
}

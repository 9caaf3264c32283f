//! The volume's config, which is read before any key is at hand.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_crypto::VolumeKeys;
use vellum_volume::config::VolumeConfig;

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = VolumeConfig::decode(bytes) else { return };
    let keys = VolumeKeys::for_plain(config.volume);
    if config.authenticate(bytes, &keys).is_ok() {
        assert_eq!(config.encode(&keys), bytes);
    }
});

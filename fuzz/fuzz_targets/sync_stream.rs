//! What another host sends to `vellum sync`: a greeting, and frames in a stream that may be compressed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_sync::remote::wire::{Greeting, WireCodec, WireReader};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let codec = Greeting::receive_from(&mut rest).map_or(WireCodec::Plain, |greeting| greeting.codec);
    let Ok(mut frames) = WireReader::new(std::io::Cursor::new(rest.to_vec()), codec) else { return };
    while frames.read_frame().is_ok() {}
});

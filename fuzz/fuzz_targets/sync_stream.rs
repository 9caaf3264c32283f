//! What another host sends to `vellum sync`: a greeting, and frames in a stream that may be compressed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_sync::wire::{Codec, FrameReader, Greeting};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let codec = Greeting::receive(&mut rest).map_or(Codec::Plain, |greeting| greeting.codec);
    let Ok(mut frames) = FrameReader::new(std::io::Cursor::new(rest.to_vec()), codec) else { return };
    while frames.read().is_ok() {}
});

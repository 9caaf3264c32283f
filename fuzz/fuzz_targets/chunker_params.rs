//! Chunk sizes from a config: what decodes encodes to the same bytes and can cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_chunker::{ChunkSizes, Chunker};
use vellum_types::{FieldReader, FieldWriter};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = FieldReader::new(bytes);
    let Ok(params) = ChunkSizes::decode(&mut reader) else { return };
    let mut writer = FieldWriter::new();
    params.encode(&mut writer);
    assert_eq!(writer.as_slice(), &bytes[..bytes.len() - reader.remaining()]);
    let chunker = Chunker::new(params, &[7; 32]);
    if let Some(len) = chunker.find_chunk_end(bytes, true) {
        assert!((1..=params.max_len()).contains(&len) && len <= bytes.len());
    }
});

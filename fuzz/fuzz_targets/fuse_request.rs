//! A request read from the FUSE device: whatever it holds, it is decoded or refused, and reads nothing that is not
//! there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_fuse::wire::{FuseOperation, FuseRequest};

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = FuseRequest::decode(bytes) else { return };
    match request.decode_operation() {
        Ok(FuseOperation::Write { data, .. }) => assert!(data.len() < bytes.len()),
        Ok(FuseOperation::WriteStored { chunks, .. }) => {
            assert!(chunks.iter_chunks().count() * 36 < bytes.len());
            assert!(chunks.iter_chunks().all(|chunk| chunk.len > 0) && chunks.count_bytes() <= u64::from(u32::MAX));
        }
        Ok(FuseOperation::BatchForget(forgets)) => assert!(forgets.iter_nodes().count() * 16 < bytes.len()),
        Ok(FuseOperation::Rename { name, to_name, .. }) => {
            assert!(!name.contains(&0) && !to_name.contains(&0))
        }
        Ok(_) | Err(_) => {}
    }
});

//! A stat cache, with its checksum set right: a walk through whatever it says ends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_checkout::statcache::{CachedDir, StatCache};

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    let Ok(cache) = StatCache::decode(bytes) else { return };
    let mut waiting = vec![CachedDir::ROOT];
    // Several entries may claim one directory: without a cap the walk ends, but late.
    for _ in 0..1000 {
        let Some(dir) = waiting.pop() else { break };
        for entry in cache.entries(dir) {
            let _ = cache.find_entry(dir, entry.name);
            let _ = entry.is_unchanged(&entry.stat);
            waiting.extend(entry.child);
        }
    }
    if let Some(root) = cache.root_entry() {
        let _ = cache.find_by_host_inode(root.stat.dev, root.stat.ino).count();
    }
});

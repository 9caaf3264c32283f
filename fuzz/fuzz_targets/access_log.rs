//! Lines of a mount's access log, as `vellum profile` reads them from a file that may have been cut or changed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_bench::access::{AccessFilter, AccessProfile, LoggedRequest};

fuzz_target!(|bytes: &[u8]| {
    let mut profile = AccessProfile::new(AccessFilter::default());
    for line in bytes.split(|byte| *byte == b'\n') {
        profile.read_line(line, true);
        let text = String::from_utf8_lossy(line);
        let Some(request) = LoggedRequest::parse_line(&text) else { continue };
        assert!(request.arguments.starts_with(request.requested_file()));
        // No line that was cut is a whole one.
        for end in text.char_indices().map(|(end, _)| end) {
            assert_eq!(LoggedRequest::parse_line(&text[..end]), None);
        }
    }
    let summary = profile.take_summary(10);
    assert!(summary.operations.iter().map(|operation| operation.count).sum::<u64>() == summary.requests);
});

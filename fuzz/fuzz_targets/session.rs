//! A writer's session, behind its seal: what decodes encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_volume::session::SessionObject;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(session) = SessionObject::decode(bytes) {
        assert_eq!(session.encode(), bytes);
        let _ = session.is_process_dead() || session.is_expired();
    }
});

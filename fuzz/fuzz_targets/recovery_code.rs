//! A recovery code as somebody types it: what parses, parses again from its printed form.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_crypto::RecoveryCode;

fuzz_target!(|text: &str| {
    if let Ok(code) = RecoveryCode::parse(text) {
        let printed = code.to_text();
        let again = RecoveryCode::parse(&printed).expect("a printed code parses");
        assert_eq!(*again.to_text(), *printed);
    }
});

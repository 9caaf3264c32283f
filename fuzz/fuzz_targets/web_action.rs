//! Bodies of requests to change something: no path that passes leads out of a worktree, and nothing becomes an option.

#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use libfuzzer_sys::fuzz_target;
use vellum_serve::web::actions::{ActionQuestion, PlanKind, RestoreBody};
use vellum_serve::web::query::check_path;

/// The options that commands of the page have.
const OPTIONS: [&str; 7] = ["--to=", "--mount=", "--from=", "--snapshot", "--until=", "--reason=", "--"];

fuzz_target!(|body: &[u8]| {
    if let Ok(asked) = RestoreBody::parse(body) {
        for path in asked.paths {
            assert_eq!(check_path(path.as_bytes()), Ok(()));
            assert!(!path.is_empty());
        }
    }
    for kind in PlanKind::ALL {
        let Ok(question) = ActionQuestion::parse(kind, body) else { continue };
        for is_mounted in [false, true] {
            let words = question.words(is_mounted);
            let options = words.iter().take_while(|word| *word != "--");
            for word in options.filter(|word| word.as_bytes().starts_with(b"-")) {
                let is_known = |option: &&str| word.as_bytes().starts_with(OsStr::new(*option).as_bytes());
                assert!(OPTIONS.iter().any(|option| is_known(&option)));
            }
            assert!(words.iter().any(|word| word == "--"));
        }
    }
});

//! Bodies of requests to change something: no path that passes leads out of a worktree, and nothing becomes an option.

#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use libfuzzer_sys::fuzz_target;
use vellum_serve::web::actions::{ActionQuestion, ForgetQuestion, PlanKind, RestoreBody};
use vellum_serve::web::query::check_path;

/// The options that commands of the page have.
const OPTIONS: [&str; 9] =
    ["--to=", "--mount=", "--from=", "--snapshot", "--until=", "--reason=", "--note=", "--set=", "--unset="];
/// Those of the command that forgets.
const FORGET_OPTIONS: [&str; 4] = ["--dry-run", "--policy", "--keep-", "--worktree="];

fn is_one_of(word: &OsStr, options: &[&str]) -> bool {
    options.iter().any(|option| word.as_bytes().starts_with(option.as_bytes()))
}

fuzz_target!(|body: &[u8]| {
    if let Ok(asked) = RestoreBody::parse(body) {
        for path in asked.paths {
            assert_eq!(check_path(path.as_bytes()), Ok(()));
            assert!(!path.is_empty());
        }
    }
    if let Ok(question) = ForgetQuestion::parse(body) {
        let words = question.words();
        // Only looked at, and never forced: what is forgotten are ids.
        let mut options = words.iter().skip(1).take_while(|word| *word != "--");
        assert!(options.all(|word| is_one_of(word, &FORGET_OPTIONS)));
        assert!(words.iter().any(|word| word == "--dry-run"));
    }
    for kind in PlanKind::ALL {
        let Ok(question) = ActionQuestion::parse(kind, body) else { continue };
        for is_mounted in [false, true] {
            let words = question.words(is_mounted);
            let options = words.iter().take_while(|word| *word != "--");
            for word in options.filter(|word| word.as_bytes().starts_with(b"-")) {
                assert!(is_one_of(word, &OPTIONS));
            }
            assert!(words.iter().any(|word| word == "--"));
        }
    }
});

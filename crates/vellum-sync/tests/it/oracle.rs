//! rsync itself: for options that both have, both make the same of the same trees.

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use vellum_sync::model::options::{CompareMethod, DeleteOptions, DeletePhase, SyncOptions};

use crate::run::{everything, plan};
use crate::trees::{build, cases, difference, facts, tree_with};

/// An option set as both know it. Not --ignore-existing: where the source has a directory and the destination a file,
/// rsync gives the file the directory's attributes. Not -H together with --existing: where a name of another kind is in the
/// way and the file's first name is not there, rsync removes the one and makes nothing.
fn both(switches: &[bool]) -> (SyncOptions, Vec<&'static str>) {
    let mut options = everything();
    let mut words = vec!["-rltpgoD", "--no-whole-file"];
    options.preserve.acls = false;
    options.preserve.xattrs = switches[0];
    options.preserve.hard_links = switches[1];
    options.compare.update = switches[3];
    let existing = switches[4] && !switches[1];
    options.compare.existing = existing;
    let switches = [switches[0], switches[1], switches[2], switches[3], existing, switches[5]];
    for (on, word) in switches.into_iter().zip(["-X", "-H", "--delete", "-u", "--existing", "-c"]) {
        if on {
            words.push(word);
        }
    }
    if switches[2] {
        options.delete = DeleteOptions { when: DeletePhase::After, force: true, ..DeleteOptions::default() };
    }
    if switches[5] {
        options.compare.by = CompareMethod::Content;
    }
    // A directory in the way goes with both.
    options.delete.obstacles = true;
    words.push("--force");
    (options, words)
}

/// Whether rsync could do all of it.
fn rsync(words: &[&str], from: &Path, to: &Path) -> bool {
    let mut from = from.as_os_str().to_os_string();
    let mut to = to.as_os_str().to_os_string();
    from.push("/");
    to.push("/");
    Command::new("rsync").args(words).arg(from).arg(to).output().unwrap().status.success()
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn rsync_makes_the_same_of_it(
        // rsync compares times by the second, so all have the same nanoseconds.
        source in tree_with(1),
        old in tree_with(1),
        switches in proptest::collection::vec(any::<bool>(), 6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        build(&source, &at("from"));
        build(&old, &at("ours"));
        build(&old, &at("theirs"));
        let (options, words) = both(&switches);
        let planned = plan(&at("from"), &at("ours"), &options);
        // rsync wipes silently what we refuse to.
        prop_assume!(planned.plan.refusal.is_none());
        prop_assert_eq!(planned.carry_out().unwrap().problems, []);
        // It stumbles over some trees: what it could not do says nothing.
        prop_assume!(rsync(&words, &at("from"), &at("theirs")));
        let comparable = |name: &str| {
            let mut found = facts(&at(name));
            for (path, facts) in &mut found {
                // Which old names rsync leaves linked without -H is its own affair.
                if !options.preserve.hard_links {
                    facts.first.clone_from(path);
                }
            }
            found
        };
        if let Some(text) = difference(&comparable("theirs"), &comparable("ours")) {
            panic!("{words:?}: {text}");
        }
    }
}

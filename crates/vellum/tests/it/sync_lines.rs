//! `--out-format` and `--log-file` of `vellum sync`, beside rsync's lines.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::world::{World, run};

/// A source with a file of each sort, and a destination with something old, changed and superfluous.
fn make(root: &Path) {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("src/new", "new");
    write("src/dir/inner file", "inner");
    write("src/changed", "long since changed");
    write("src/mode", "mode");
    write("src/same", "same");
    symlink("new", root.join("src/link")).unwrap();
    write("dst/changed", "short");
    write("dst/mode", "mode");
    write("dst/same", "same");
    write("dst/gone/deep", "gone");
    fs::set_permissions(root.join("src/mode"), fs::Permissions::from_mode(0o4711)).unwrap();
    let moment = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: moment, last_modification: moment };
    for name in
        ["src/new", "src/dir/inner file", "src/changed", "src/mode", "src/same", "dst/mode", "dst/same"]
    {
        rustix::fs::utimensat(rustix::fs::CWD, root.join(name), &times, rustix::fs::AtFlags::empty())
            .unwrap();
    }
}

/// The lines of one program, and those of the other.
fn both(format: &str, more: &[&str]) -> [BTreeSet<String>; 2] {
    let world = World::empty();
    let option = format!("--out-format={format}");
    let words = [&["-a", "--delete", &option], more, &["src/", "dst"]].concat();
    ["ours", "theirs"].map(|place| {
        let root = world.path(place);
        make(&root);
        let ended = match place {
            "ours" => {
                let words = [&["sync", "--force-delete"], &words[..]].concat();
                run(&root, &words, std::process::Stdio::null()).ok().out
            }
            _ => {
                let ended =
                    Command::new("rsync").args(&words).current_dir(&root).env("TZ", "UTC").output().unwrap();
                assert!(ended.status.success(), "{ended:?}");
                String::from_utf8(ended.stdout).unwrap()
            }
        };
        // Which directories changed their time meanwhile is not the same in all moments.
        ended.lines().filter(|line| !line.contains("./")).map(String::from).collect()
    })
}

#[test]
fn lines_in_a_format_are_those_of_rsync() {
    for more in [&[][..], &["-n"]] {
        for format in ["%i %n%L", "%o|%20n|%f|%B|%U:%G", "100%% %-30n|"] {
            let [ours, theirs] = both(format, more);
            let paths = |lines: &BTreeSet<String>| -> BTreeSet<String> {
                // rsync's long form of a path begins above the source, and it says that content differs with -c alone.
                // Without %i, it has no lines for attributes, and no modes of what it deletes.
                let is_compared = |line: &&String| {
                    format.contains("%i") || !line.contains("mode") && !line.contains("gone")
                };
                let common = |line: &String| line.replace("src/", "").replace(">fc", ">f.");
                lines.iter().filter(is_compared).map(common).collect()
            };
            assert!(theirs.len() > 5, "{theirs:#?}");
            assert_eq!(paths(&ours), paths(&theirs), "{format} {more:?}");
        }
        // rsync counts the bytes of directories, too.
        let [ours, theirs] = both("%l %M %n", more);
        let files = |lines: BTreeSet<String>| -> BTreeSet<String> {
            lines.into_iter().filter(|line| line.contains("2001/09/09") && !line.ends_with("mode")).collect()
        };
        let ours = files(ours);
        let theirs = files(theirs);
        assert!(theirs.len() > 2, "{theirs:#?}");
        assert_eq!(ours, theirs, "{more:?}");
    }
}

#[test]
fn a_log_has_what_was_done_and_what_failed() {
    let world = World::empty();
    let root = world.path("ours");
    make(&root);
    let sync = |words: &[&str]| {
        run(&root, &[&["sync", "--force-delete"], words].concat(), std::process::Stdio::null())
    };
    sync(&["-a", "-n", "--log-file", "log", "src/", "dst"]).ok();
    let planned = fs::read_to_string(root.join("log")).unwrap();
    assert!(planned.contains("] dry run: ") && planned.contains("] >f+++++++++ new\n"), "{planned}");
    assert!(!root.join("dst/new").exists());
    sync(&["-a", "--delete", "--log-file", "log", "--log-file-format=%o %n", "src/", "dst"]).ok();
    let log = fs::read_to_string(root.join("log")).unwrap();
    let done = log.strip_prefix(&planned).unwrap();
    assert!(done.contains("] send dir/inner file\n") && done.contains("] del. gone/deep\n"), "{done}");
    assert!(done.lines().last().unwrap().contains("] Done: "), "{done}");
    let stamp = done.split(' ').take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(stamp.len(), "2026/11/23 12:00:00".len(), "{done}");
    // What ends a run is there, too.
    sync(&["-a", "--log-file", "log", "nowhere/", "dst"]).code(2);
    assert!(fs::read_to_string(root.join("log")).unwrap().len() >= log.len());
}

#[test]
fn what_cannot_be_logged_changes_nothing() {
    let world = World::empty();
    let root = world.path("ours");
    make(&root);
    let sync = |words: &[&str]| {
        run(&root, &[&["sync"], words, &["src/", "dst"]].concat(), std::process::Stdio::null())
    };
    sync(&["-a", "--log-file", "no/such/log"]).code(2).remarks("no/such/log");
    sync(&["-a", "--log-file-format", "%n"]).code(3).remarks("--log-file");
    sync(&["-a", "--out-format", "%z"]).code(3).remarks("%z");
    sync(&["-a", "--log-file", "log", "--log-file-format", "%b"]).code(3).remarks("whole run");
    assert!(!root.join("dst/new").exists());
    sync(&["-a", "--two-way", "--out-format", "%n"]).code(3).remarks("--two-way");
    // No format, no lines.
    assert_eq!(sync(&["-a", "--out-format", ""]).ok().out, "");
}

/// The lines of `--list-only`, by our program and by rsync; directories without their bytes.
fn both_lists(root: &Path, words: &[&str]) -> [BTreeSet<String>; 2] {
    let ours = run(root, &[&["sync", "--list-only"], words].concat(), std::process::Stdio::null()).ok().out;
    let mut rsync = Command::new("rsync");
    let theirs = rsync.arg("--list-only").args(words).current_dir(root).env("TZ", "UTC").output().unwrap();
    assert!(theirs.status.success(), "{theirs:?}");
    [ours, String::from_utf8(theirs.stdout).unwrap()].map(|text| {
        let line = |line: &str| match line.starts_with('d') {
            true => format!("{} {}", &line[..10], line.rsplit(' ').next().unwrap()),
            false => line.to_owned(),
        };
        text.lines().map(line).collect()
    })
}

#[test]
fn a_source_is_listed_as_rsync_lists_it() {
    let world = World::empty();
    let root = world.path("ours");
    make(&root);
    for words in [
        &["-a", "src/"][..],
        &["-a", "src"],
        &["-d", "src/"],
        &["-d", "src"],
        &["-r", "--exclude=dir", "src/"],
        &["-a", "--include=*/", "--exclude=*", "src/"],
        &["src/new"],
        &["-a", "src/", "dst"],
        &["-a", "src/", "dst/gone", "elsewhere"],
    ] {
        let [ours, theirs] = both_lists(&root, words);
        assert!(!theirs.is_empty(), "{words:?}");
        assert_eq!(ours, theirs, "{words:?}");
    }
    assert!(!root.join("elsewhere").exists());
    let listed =
        run(&root, &["sync", "--list-only", "--json", "-a", "src/"], std::process::Stdio::null()).ok();
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let entries = listed["entries"].as_array().unwrap();
    let link = entries.iter().find(|entry| entry["path"] == "link").unwrap();
    assert_eq!((link["kind"].as_str(), link["target"]["path"].as_str()), (Some("symlink"), Some("new")));
    // One end is a source only if that is said.
    run(&root, &["sync", "-a", "src/"], std::process::Stdio::null()).code(3).remarks("--list-only SRC");
    run(&root, &["sync", "--list-only", "nowhere"], std::process::Stdio::null()).code(2).remarks("nowhere");
}

//! `vellum sync` beside rsync: the same words after the program's name make the same of the same trees.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::other_host::Host;
use crate::world::World;

/// When everything was made.
const PAST: i64 = 1_700_000_000;

/// All that can be seen of a tree: kind, mode, owner, time, content or target.
fn seen(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut paths = vec![PathBuf::new()];
    while let Some(path) = paths.pop() {
        let full = root.join(&path);
        let stat = fs::symlink_metadata(&full).unwrap();
        let content = if stat.is_dir() {
            paths.extend(fs::read_dir(&full).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
            "dir".to_owned()
        } else if stat.is_symlink() {
            let target = fs::read_link(&full).unwrap().display().to_string();
            format!("-> {}", target.replace("/theirs/", "/ours/"))
        } else if stat.is_file() {
            format!("'{}'", fs::read_to_string(&full).unwrap())
        } else {
            // Who reads a fifo waits for one who writes.
            "special".to_owned()
        };
        // A directory in which something is left to be changed has the time of that: one moment for each program.
        let time = if path.as_os_str().is_empty() || stat.mtime() != PAST { "now" } else { "past" };
        let mode = if stat.is_symlink() { 0 } else { stat.mode() & 0o7777 };
        found.insert(path, format!("{mode:o} {}:{} {time} {content}", stat.uid(), stat.gid()));
    }
    found
}

/// Two places with the same in them, and a time long ago on everything.
struct Beside {
    world: World,
}

impl Beside {
    fn new(make: impl Fn(&Path)) -> Self {
        let world = World::empty();
        for place in ["ours", "theirs"] {
            let root = world.path(place);
            fs::create_dir(&root).unwrap();
            make(&root);
            age(&root);
        }
        Self { world }
    }

    fn run(&self, program: &str, first: &[&str], words: &[&str], place: &str) -> Output {
        self.run_under("022", program, &[first, words].concat(), place)
    }

    fn run_under(&self, umask: &str, program: &str, words: &[&str], place: &str) -> Output {
        Command::new("sh")
            .args(["-c", "umask $0 && exec \"$@\"", umask, program])
            .args(words)
            .current_dir(self.world.path(place))
            .env("HOME", self.world.path("nobody"))
            .output()
            .unwrap()
    }

    /// Runs both with these words, and compares what came of `at`.
    #[track_caller]
    fn same(&self, words: &[&str], at: &str) -> &Self {
        self.same_under("022", words, at)
    }

    /// The same with this umask.
    #[track_caller]
    fn same_under(&self, umask: &str, words: &[&str], at: &str) -> &Self {
        let first = ["sync", "--force-delete"];
        let ours = self.run_under(umask, env!("CARGO_BIN_EXE_vellum"), &[&first, words].concat(), "ours");
        let theirs = self.run_under(umask, "rsync", words, "theirs");
        let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(theirs.status.success(), "rsync {words:?}: {}", text(&theirs));
        assert!(ours.status.success(), "{words:?}: {}", text(&ours));
        let tree = |place: &str| seen(&self.world.path(place).join(at));
        let ours = tree("ours");
        let theirs = tree("theirs");
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{words:?}");
        assert_eq!(ours, theirs, "{words:?}");
        self
    }

    fn ours(&self, path: &str) -> PathBuf {
        self.world.path("ours").join(path)
    }
}

fn age(root: &Path) {
    if root.is_dir() && !root.is_symlink() {
        fs::read_dir(root).unwrap().for_each(|entry| age(&entry.unwrap().path()));
    }
    let past = rustix::fs::Timespec { tv_sec: PAST, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: past, last_modification: past };
    rustix::fs::utimensat(rustix::fs::CWD, root, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Symlinks of every sort.
fn linked(root: &Path) {
    write(root, "src/file", "file");
    write(root, "src/dir/inner", "inner");
    write(root, "outside/far", "far");
    write(root, "outside/deep/x", "x");
    for (name, target) in [
        ("src/to_file", "file"),
        ("src/to_dir", "dir"),
        ("src/out_file", "../outside/far"),
        ("src/out_dir", "../outside/deep"),
        ("src/dir/up", "../file"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    symlink(root.join("outside/far"), root.join("src/absolute")).unwrap();
    fs::set_permissions(root.join("outside/deep"), fs::Permissions::from_mode(0o711)).unwrap();
}

#[test]
fn symlinks_are_followed_as_rsync_follows_them() {
    let beside = Beside::new(linked);
    for (number, word) in ["-L", "-k", "--copy-unsafe-links", "-Lk"].iter().enumerate() {
        for source in ["src/", "src"] {
            let to = format!("to{number}{}", source.len());
            beside.same(&["-a", word, source, &to], &to);
        }
    }
    for (number, source) in ["src/", "src"].iter().enumerate() {
        let to = format!("safe{number}");
        beside.same(&["-a", "--safe-links", source, &to], &to);
    }
    beside.same(&["-aL", "src/to_dir", "named"], "named");
    beside.same(&["-ak", "src/to_dir", "named2"], "named2");
    beside.same(&["-aL", "--delete", "--exclude=to_dir/", "src/", "rules"], "rules");
}

#[test]
fn a_symlink_to_its_own_directory_is_followed_once_and_told() {
    let world = World::empty();
    world.write("src/a", "x");
    symlink(".", world.tree().join("src/self")).unwrap();
    symlink("nowhere", world.tree().join("src/broken")).unwrap();
    let run = world.run(&["sync", "-aL", "src/", "dst"]);
    run.code(1).remarks("leads to a directory that it is in").remarks("the target of the symlink");
    assert_eq!(world.read("dst/a"), "x");
}

#[test]
fn a_followed_symlink_is_nothing_to_do_the_second_time() {
    let beside = Beside::new(linked);
    let again = || beside.run(env!("CARGO_BIN_EXE_vellum"), &["sync"], &["-aLHX", "src/", "to"], "ours");
    assert!(again().status.success());
    assert!(String::from_utf8_lossy(&again().stdout).contains("Nothing to do"));
    assert!(!beside.ours("to/out_dir").is_symlink());
}

#[test]
fn whole_paths_go_into_the_destination() {
    let make = |root: &Path| {
        linked(root);
        write(root, "src/dir/deep/y", "y");
        fs::create_dir(root.join("d")).unwrap();
        write(root, "d/src/dir/old", "old");
        write(root, "d/src/beside", "old");
        write(root, "d/other", "old");
    };
    let beside = Beside::new(make);
    beside.same(&["-aR", "src/dir/deep", "a"], "a");
    beside.same(&["-aR", "src/./dir/inner", "b/"], "b");
    beside.same(&["-aR", "./src/dir/", "c"], "c");
    beside.same(&["-aR", "src/to_dir/inner", "e"], "e");
    beside.same(&["-aR", "src/file", "outside/./deep", "outside/far", "f"], "f");
    beside.same(&["-aR", "--delete", "src/dir", "d"], "d");
    // Without -r, too, the directories on the way are entered, here and at the destination.
    for _ in 0..2 {
        beside.same(&["-tR", "src/./dir/deep/y", "src/file", "g"], "g");
        fs::write(beside.ours("src/dir/deep/y"), "changed").unwrap();
        fs::write(beside.world.path("theirs/src/dir/deep/y"), "changed").unwrap();
        age(&beside.world.path("ours/src"));
        age(&beside.world.path("theirs/src"));
    }
    let words = ["-aR", "src/../src/file", "x"];
    let refused = beside.run(env!("CARGO_BIN_EXE_vellum"), &["sync"], &words, "ours");
    assert_eq!(refused.status.code(), Some(3));
    let words = ["-aR", "src/nothing", "x"];
    let missing = beside.run(env!("CARGO_BIN_EXE_vellum"), &["sync"], &words, "ours");
    assert_eq!(missing.status.code(), Some(2));
    assert!(!beside.ours("x").exists());
}

/// What may be moved.
fn movable(root: &Path) {
    linked(root);
    write(root, "src/same", "same");
    write(root, "src/newer", "older here");
    write(root, "src/one.o", "left out");
    write(root, "src/dir/deep/long", &"long".repeat(100));
    fs::hard_link(root.join("src/file"), root.join("src/dir/again")).unwrap();
    fs::create_dir(root.join("src/empty")).unwrap();
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, root.join("src/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    write(root, "to/same", "same");
    write(root, "to/newer", "newer there");
}

#[test]
fn what_is_moved_is_what_rsync_moves() {
    let sets: [&[&str]; 10] = [
        &["-a", "src/", "to"],
        &["-aH", "src", "to"],
        &["-rt", "src/", "to"],
        &["-au", "--exclude=*.o", "src/", "to"],
        &["-a", "--existing", "src/", "to"],
        &["-a", "--ignore-existing", "src/", "to"],
        &["-a", "--max-size=100", "src/", "to"],
        &["-aR", "src/dir", "src/./file", "to"],
        &["-ac", "src/same", "src/file", "to/"],
        &["-an", "src/", "to"],
    ];
    for words in sets {
        let beside = Beside::new(movable);
        // The one that stays newer.
        for place in ["ours", "theirs"] {
            let newer =
                fs::File::options().write(true).open(beside.world.path(place).join("to/newer")).unwrap();
            newer
                .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(PAST as u64 + 10))
                .unwrap();
        }
        beside.same(&[&["--remove-source-files"], words].concat(), "");
    }
}

/// Directories on the way that are there stay as they are, and new ones are like any that somebody makes.
#[test]
fn directories_on_the_way_get_nothing_if_that_is_asked_for() {
    let make = |root: &Path| {
        write(root, "src/way/deep/f", "f");
        write(root, "src/way/deep/more/g", "g");
        write(root, "list", "way/deep/more/g\nmany/1\nmany/2\nmany/3\nmany/4\nmany/5\n");
        (1..6).for_each(|number| write(root, &format!("src/many/{number}"), "x"));
        for dir in ["src", "src/way", "src/way/deep"] {
            fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o711)).unwrap();
        }
        fs::create_dir_all(root.join("old/src/way")).unwrap();
        write(root, "old/src/way/beside", "x");
        fs::set_permissions(root.join("old/src/way"), fs::Permissions::from_mode(0o750)).unwrap();
    };
    let beside = Beside::new(make);
    for (number, option) in ["--no-implied-dirs", "--no-i-d", "--implied-dirs"].iter().enumerate() {
        let to = format!("to{number}");
        beside.same(&["-aR", option, "src/way/deep", &to], &to);
        beside.same(&["-aR", option, "src/./way/deep/more", &to], &to);
        let to = format!("list{number}");
        beside.same(&["-a", option, "--files-from=list", "src", &to], &to);
    }
    beside.same(&["-aR", "--no-implied-dirs", "src/way/deep", "old"], "old");
    beside.same(&["-aR", "--no-implied-dirs", "--delete", "src/way/deep", "old"], "old");
}

#[test]
fn whole_paths_of_a_snapshot_go_into_the_destination() {
    let make = |root: &Path| {
        write(root, "v/a", "a");
        write(root, "v/dir/deep/f", "f");
        write(root, "v/dir/deep/more/g", "g");
        write(root, "v/dir/beside", "x");
        fs::set_permissions(root.join("v/dir"), fs::Permissions::from_mode(0o711)).unwrap();
    };
    let beside = Beside::new(make);
    let ours = |words: &[&str]| {
        let output = beside.run(env!("CARGO_BIN_EXE_vellum"), &["-C", "v"], words, "ours");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    ours(&["init", "--plain"]);
    ours(&["snapshot", "--tag", "then"]);
    fs::remove_dir_all(beside.ours("v/dir")).unwrap();
    let sets: [(&[&str], &[&str]); 4] = [
        (&[".@then:/dir/deep"], &["./dir/deep"]),
        (&["@then:dir/./deep/f"], &["dir/./deep/f"]),
        (&[".@then:/dir/deep/more/", "@then:/a"], &["./dir/deep/more/", "./a"]),
        (&["@then:dir/beside"], &["dir/beside"]),
    ];
    for (number, (words, theirs)) in sets.iter().enumerate() {
        for more in [&["-aR"][..], &["-aR", "--delete"]] {
            let to = format!("../to{number}{}", more.len());
            ours(&[&["sync"], more, words, &[&to]].concat());
            let rsync = [more, theirs, &[&to]].concat();
            let output =
                Command::new("rsync").args(&rsync).current_dir(beside.world.path("theirs/v")).output();
            assert!(output.unwrap().status.success(), "rsync {rsync:?}");
            let tree = |place: &str| seen(&beside.world.path(place).join("v").join(&to));
            assert_eq!(tree("ours"), tree("theirs"), "{words:?}");
        }
    }
}

#[test]
fn listed_paths_are_paths_in_the_source_with_or_without_a_slash() {
    let make = |root: &Path| {
        linked(root);
        write(root, "list", "dir\nfile\nto_dir/inner\n");
        write(root, "files", "dir/inner\nfile\n");
    };
    let beside = Beside::new(make);
    beside.same(&["-a", "--files-from=list", "src", "a"], "a");
    beside.same(&["-a", "-r", "--files-from=list", "src/", "b"], "b");
    for _ in 0..2 {
        beside.same(&["-t", "--files-from=files", "src/", "c"], "c");
    }
}

#[test]
fn directories_without_content_and_without_directories() {
    let make = |root: &Path| {
        linked(root);
        fs::create_dir_all(root.join("src/empty/emptier")).unwrap();
        write(root, "src/only/x.o", "x");
        write(root, "to/empty/emptier/old", "old");
        write(root, "to/file", "old");
        write(root, "to/file2", "old");
        write(root, "to/file3", "old");
    };
    let beside = Beside::new(make);
    beside.same(&["-dlt", "src/", "dirs"], "dirs");
    beside.same(&["-am", "--exclude=*.o", "src/", "m"], "m");
    beside.same(&["-a", "--mkpath", "src/file", "x/y/z/file"], "x/y/z");
    beside.same(&["-a", "--mkpath", "src/", "x2/y/z"], "x2/y/z");
}

#[test]
fn directories_named_alone_and_paths_that_begin_with_a_dot_are_as_with_rsync() {
    let make = |root: &Path| {
        linked(root);
        fs::create_dir_all(root.join("src/empty/emptier")).unwrap();
        for to in ["dot", "plain", "existing", "old"] {
            fs::create_dir(root.join(to)).unwrap();
            fs::set_permissions(root.join(to), fs::Permissions::from_mode(0o700)).unwrap();
        }
        write(root, "old/file", "old");
    };
    let beside = Beside::new(make);
    beside.same(&["-dt", "src", "alone/"], "alone");
    beside.same(&["-a", "--existing", "src", "existing"], "existing");
    beside.same(&["-am", "--filter=P empty/", "src/", "pruned"], "pruned");
    beside.same(&["-aR", "./src/dir", "dot"], "dot");
    beside.same(&["-aR", "src/dir", "plain"], "plain");
    // Directories keep the times that making old versions gives them.
    beside.same(&["-ab", "src/", "old"], "old");
}

#[test]
fn a_listed_path_that_is_not_there_is_a_problem_unless_told_otherwise() {
    let world = World::empty();
    for path in ["src/a", "src/d/b", "dst/d/b", "dst/d/old"] {
        world.write(path, "x");
    }
    world.write("list", "a\nnone\nd/missing\nd/\n");
    let words = ["sync", "-a", "-r", "--delete", "--files-from=list", "src/", "dst"];
    world.run(&words).code(1).remarks("none").remarks("d/missing").remarks("it is listed");
    assert!(world.has("dst/a") && world.has("dst/d/old"), "nothing is deleted while something is missing");
    world.run(&[&words[..], &["--ignore-missing-args", "--force-delete"]].concat()).ok();
    assert!(!world.has("dst/d/old"));
    world.run(&["sync", "-a", "--ignore-missing-args", "src/a", "nowhere", "to/"]).ok();
    assert!(world.has("to/a"));
    world.run(&["sync", "-a", "--ignore-missing-args", "nowhere", "to/"]).ok();
    world.run(&["sync", "-a", "nowhere", "to/"]).code(2).remarks("nowhere");
}

#[test]
fn what_was_named_and_is_not_there_is_deleted_as_rsync_deletes_it() {
    let make = |root: &Path| {
        for path in ["src/a", "src/d/b", "src/d/c"] {
            write(root, path, "x");
        }
        for to in ["named", "forced", "listed", "relative", "nothing", "protected"] {
            for path in ["gone", "full/in", "d/gone", "d/stays", "other"] {
                write(root, &format!("{to}/{path}"), "old");
            }
            fs::create_dir(root.join(to).join("empty")).unwrap();
        }
        write(root, "list", "a\ngone\nd/gone\nd/c\nempty\n");
    };
    let beside = Beside::new(make);
    let missing = ["src/a", "src/gone", "src/full", "src/empty", "src/never"];
    beside
        .same(&[&["-a", "--delete-missing-args", "--force"], &missing[..], &["forced/"]].concat(), "forced");
    beside.same(&["-a", "--delete-missing-args", "--files-from=list", "src/", "listed"], "listed");
    let relative = ["-aR", "--delete-missing-args", "src/./d/gone", "src/./d/b", "src/./gone", "relative"];
    beside.same(&relative, "relative");
    beside.same(&["-a", "--delete-missing-args", "src/gone", "src/empty", "nothing"], "nothing");
    // rsync fails for the directory that it leaves.
    let host = Host::new();
    make(&host.world.tree());
    let words = ["-a", "--delete-missing-args"];
    let ran = host.sync(&[&words[..], &missing[..], &["named/"]].concat()).ok();
    ran.remarks("full");
    assert!(
        !host.world.has("named/gone") && !host.world.has("named/empty") && host.world.has("named/full/in")
    );
    host.sync(&[&words[..], &["--exclude=gone", "src/a", "src/gone", "protected"]].concat()).ok();
    assert!(host.world.has("protected/gone"));
    // To another host, and from it.
    let far = host.at("forced/");
    host.sync(&[&words[..], &["--force"], &missing[..], &[&*far]].concat()).ok();
    assert!(host.world.has("forced/a") && !host.world.has("forced/full") && host.world.has("forced/other"));
    let a = host.at("src/a");
    let gone = host.at("src/gone");
    host.sync(&["-a", "--ignore-missing-args", &a, &gone, "relative"]).ok();
    assert!(host.world.has("relative/a") && host.world.has("relative/gone"));
    host.sync(&["-a", "--delete-missing-args", "-b", &gone, "relative"]).ok();
    assert!(!host.world.has("relative/gone") && host.world.has("relative/gone~"));
    host.sync(&["-a", "--ignore-missing-args", &gone, "fresh"]).ok();
    assert!(!host.world.has("fresh"));
    host.sync(&["-a", "--delete-missing-args", "--files-from=list", &host.at("src/"), "listed"]).ok();
    assert!(!host.world.has("listed/d/gone") && host.world.has("listed/d/stays"));
    host.sync(&["--two-way", "--delete-missing-args", "src", "listed"]).code(3);
}

#[test]
fn lists_that_cannot_be_meant_are_refused() {
    let world = World::empty();
    world.write("src/a", "x");
    world.write("list", "a\n");
    world.write("marked", "# b/./c\nb/./a\n");
    let run = |words: &[&str]| world.run(&[&["sync", "-a"], words, &["src/", "dst"]].concat());
    run(&["--files-from=marked"]).code(3).remarks("'b/./a'");
    run(&["--files-from=host:list"]).code(3).remarks("on another host");
    run(&["--files-from=list", "--no-R"]).code(3).remarks("--no-relative");
    world.run(&["sync", "-tR", ".", "dst"]).code(3).remarks("give -r or -d");
    assert!(!world.has("dst"));
    run(&["--files-from=list"]).ok();
    assert!(world.has("dst/a"));
}

#[test]
fn owners_become_whom_a_map_says() {
    let make = |root: &Path| {
        for (number, id) in [0, 1, 2, 5, 4000, 4001, 65_000].into_iter().enumerate() {
            write(root, &format!("src/{number}"), "x");
            std::os::unix::fs::chown(root.join(format!("src/{number}")), Some(id), Some(id)).unwrap();
        }
    };
    let beside = Beside::new(make);
    let words = ["-a", "--usermap=1:bin,2-5:77,root:3,4000:0", "--groupmap=b*:78,:9,*:4", "src/", "to"];
    beside.same(&words, "to");
    beside.same(&["-r", "--usermap=*:bin", "src/", "all"], "all");
    let ours = beside.run(
        env!("CARGO_BIN_EXE_vellum"),
        &["sync"],
        &["--usermap=*:nobody-here", "src/", "no"],
        "ours",
    );
    assert_eq!(ours.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ours.stderr).contains("nobody-here"));
}

/// What is longer at the destination stays, what is shorter is made equal though its beginning differs.
#[test]
fn what_is_appended_is_compared_if_that_is_asked_for() {
    let make = |root: &Path| {
        for (name, here, there) in [
            ("shorter", "0123456789", "0123"),
            ("other", "0123456789", "X123"),
            ("longer", "0123", "0123456789"),
            ("empty", "0123", ""),
        ] {
            write(root, &format!("src/{name}"), here);
            write(root, &format!("to/{name}"), there);
        }
        write(root, "src/new", "new");
    };
    let beside = Beside::new(make);
    beside.same(&["-a", "--append-verify", "src/", "to"], "to");
    assert_eq!(fs::read_to_string(beside.ours("to/other")).unwrap(), "0123456789");
}

#[test]
fn what_several_sources_have_together_is_kept() {
    let make = |root: &Path| {
        write(root, "a/one", "1");
        write(root, "a/both", "of a");
        write(root, "a/dir/x", "x of a");
        write(root, "a/odd", "a file");
        write(root, "b/two", "2");
        write(root, "b/both", "of b, longer");
        write(root, "b/dir/x", "x of b");
        write(root, "b/dir/y", "y");
        write(root, "b/odd/in", "a directory");
        write(root, "c/dir/z", "z");
        write(root, "file", "alone");
        fs::set_permissions(root.join("b/dir"), fs::Permissions::from_mode(0o700)).unwrap();
        for to in ["d1", "d2", "d3", "d4"] {
            for old in ["one", "dir/gone", "c/gone", "two", "dir/y", "file"] {
                write(root, &format!("{to}/{old}"), "old");
            }
            write(root, &format!("{to}/gone"), "old");
        }
    };
    let beside = Beside::new(make);
    beside.same(&["-a", "--delete", "a/", "b/", "d1"], "d1");
    beside.same(&["-a", "--delete", "a/", "c", "file", "d2"], "d2");
    beside.same(&["-a", "--delete", "a/dir", "c/dir", "d3"], "d3");
    beside.same(&["-a", "--delete", "b/", "a/", "--exclude=y", "d4"], "d4");
    beside.same(&["-aR", "--delete", "a/./dir", "b/./dir", "d1"], "d1");
    beside.same(&["-a", "--delete", "file", "d2/"], "d2");
}

/// Modes that are not copied are the umask's affair, or that of the destination's default ACL.
#[test]
fn new_modes_are_those_that_rsync_gives() {
    let make = |root: &Path| {
        for (path, mode) in [("d700/f", 0o755), ("d777/f", 0o666), ("d777/g", 0o777), ("d711/f", 0o640)] {
            write(root, &format!("src/{path}"), path);
            fs::set_permissions(root.join("src").join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        for (path, mode) in [("src", 0o777), ("src/d700", 0o700), ("src/d777", 0o777), ("src/d711", 0o711)] {
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(root.join("listed")).unwrap();
        fs::create_dir(root.join("group")).unwrap();
        fs::set_permissions(root.join("group"), fs::Permissions::from_mode(0o2775)).unwrap();
        let acl = ["-d", "-m", "u::rwx,g::rwx,o::---,u:1:rwx"];
        assert!(Command::new("setfacl").args(acl).arg(root.join("listed")).status().unwrap().success());
    };
    let beside = Beside::new(make);
    for umask in ["022", "077", "0"] {
        for (number, chmod) in ["", "+w", "D+w", "=rwx", "u=g", "go=u"].iter().enumerate() {
            let more = if chmod.is_empty() { "-rt".to_owned() } else { format!("--chmod={chmod}") };
            for (place, perms) in [("", "-rt"), ("", "-rtp"), ("listed/", "-rt"), ("group/", "-rt")] {
                let to = format!("{place}{}{number}u{umask}", perms.trim_start_matches('-'));
                beside.same_under(umask, &[perms, &more, "src/", &to], &to);
            }
        }
    }
}

/// Of several sources the first one's entry is taken, whether or not anything is deleted, and again.
#[test]
fn the_first_of_two_sources_wins_and_a_second_run_is_idle() {
    let make = |root: &Path| {
        write(root, "x/r", "the first");
        write(root, "y/r", "the second, which is longer");
        write(root, "y/other", "of y");
        write(root, "x/tree/deep/f", "x");
        write(root, "y/tree/deep/f", "of y");
        write(root, "y/tree/deep/g", "g");
        fs::hard_link(root.join("x/r"), root.join("x/again")).unwrap();
        fs::hard_link(root.join("x/r"), root.join("y/again")).unwrap();
        fs::create_dir(root.join("dst")).unwrap();
    };
    let beside = Beside::new(make);
    let lines: [&[&str]; 6] = [
        &["-a", "x/r", "y/r", "dst/"],
        &["-a", "x/", "y/", "dst/both"],
        &["-a", "x/tree", "y/tree", "dst/named"],
        &["-aR", "x/./tree", "y/./tree", "dst/relative"],
        &["-aH", "x/r", "y/again", "dst/linked"],
        &["-aH", "x/", "y/", "dst/linked_too"],
    ];
    for words in lines {
        let to = words.last().unwrap().trim_end_matches('/');
        beside.same(words, to);
        let idle = beside.run(env!("CARGO_BIN_EXE_vellum"), &["sync"], words, "ours");
        assert!(String::from_utf8_lossy(&idle.stdout).contains("Nothing to do"), "{words:?}: {idle:?}");
    }
    let number = |path: &str| fs::metadata(beside.ours(path)).unwrap().ino();
    assert_eq!(number("dst/linked/r"), number("dst/linked/again"));
    assert_eq!(number("dst/linked_too/r"), number("dst/linked_too/again"));
}

/// The shell makes sources of names that a rule leaves out.
#[test]
fn a_rule_leaves_out_a_source_that_was_named_itself() {
    let make = |root: &Path| {
        for name in ["id_rsa", "ok", "big", "dir/id_rsa", "dir/k", "no/in", "no/deep/in"] {
            write(root, &format!("s/{name}"), name);
        }
        write(root, "s/big", &"b".repeat(2000));
        for to in ["d1", "d2", "d3", "d4", "d5", "d6", "d7"] {
            write(root, &format!("{to}/id_rsa"), "another");
            write(root, &format!("{to}/no/old"), "old");
        }
    };
    let beside = Beside::new(make);
    let all = ["s/big", "s/dir", "s/id_rsa", "s/no", "s/ok"];
    let with = |first: &[&'static str], to: &'static str| [first, &all, &[to]].concat();
    beside.same(&with(&["-a", "--exclude=id_rsa", "--exclude=no/"], "d1/"), "d1");
    beside.same(&with(&["-a", "--exclude=/no", "--max-size=1k"], "d2/"), "d2");
    beside.same(&with(&["-a", "--delete", "--exclude=id_rsa", "--exclude=no"], "d3/"), "d3");
    beside.same(&with(&["-aR", "--exclude=id_rsa", "--exclude=/s/no"], "d4/"), "d4");
    beside.same(&["-a", "--exclude=id_rsa", "s/id_rsa", "d5/"], "d5");
    beside.same(&["-a", "--exclude=id_rsa", "s/id_rsa", "d5/renamed"], "d5");
    beside.same(&["-a", "--delete", "--exclude=no", "s/no", "d6"], "d6");
    beside.same(&["-aR", "--exclude=/s/no/in", "s/no/in", "s/no/deep", "d7/"], "d7");
    beside.same(&["-a", "--max-size=1k", "s/big", "d7/big"], "d7");
    beside.same(&["-a", "--exclude=no", "s/no", "nowhere"], ".");
}

#[test]
fn rules_are_read_above_the_source_and_cvs_is_known() {
    let make = |root: &Path| {
        write(root, ".rsync-filter", "- *.no\n- /up/src/anchored\n- /src/other\n");
        write(root, "up/.rsync-filter", "- *.up\n- /src/dir/half\n+ keep.no\n");
        for name in
            ["a", "x.no", "keep.no", "x.up", "anchored", "other", "dir/half", "dir/anchored", "x.o", "x~"]
        {
            write(root, &format!("up/src/{name}"), name);
        }
        write(root, "up/src/dir/.cvsignore", "half a*\n");
        write(root, "up/src/.git/config", "x");
        write(root, "up/src/.git.txt", "x");
        write(root, "up/src/mine", "x");
        write(root, "gone/kept/x.o", "old");
        write(root, "gone/a", "old");
        write(root, "gone/x.o", "old");
        write(root, "gone/dir/anchored", "old");
        write(root, "gone/dir/x.o", "old");
    };
    let beside = Beside::new(make);
    beside.same(&["-aF", "up/src/", "a"], "a");
    beside.same(&["-aF", "up/src", "b"], "b");
    beside.same(&["-aFF", "up/src/", "c"], "c");
    beside.same(&["-aC", "up/src/", "d"], "d");
    beside.same(&["-a", "--include=x.o", "--cvs-exclude", "up/src/", "e"], "e");
    beside.same(&["-a", "-f", "-C", "--exclude=mine", "up/src/", "f"], "f");
    beside.same(&["-aC", "--delete", "up/src/", "gone"], "gone");
}

#[test]
fn perishable_rules_protect_nothing_in_what_is_deleted() {
    let make = |root: &Path| {
        write(root, "src/a", "a");
        write(root, "src/stays/a", "a");
        for path in
            ["stays/x.o", "gone/x.o", "gone/in/x.o", "gone/dir.o/y", "kept/x.o", "kept/x.k", "kept/in/y.o"]
        {
            write(root, &format!("to/{path}"), "old");
        }
        write(root, "to/x.o", "old");
        write(root, "to/stays/dir.o/y", "old");
        // Where the source has a file, a directory makes room.
        write(root, "src/place", "file");
        write(root, "to/place/x.o", "old");
    };
    let beside = Beside::new(make);
    let words = ["-a", "--delete", "--filter=-p *.o", "--filter=- *.k", "src/", "to"];
    beside.same(&words, "to").same(&words, "to");
}

#[test]
fn a_line_changes_nothing_of_all_this() {
    let make = |root: &Path| {
        linked(root);
        write(root, "src/.rsync-filter", "- inner\n");
        write(root, "other/file", "other");
        write(root, "other/more", "more");
        let script = root.join("rsh");
        fs::write(&script, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let beside = Beside::new(make);
    let root = beside.ours("");
    let far = |path: &str| format!("host:{}/{path}", root.display());
    let program = env!("CARGO_BIN_EXE_vellum");
    let rsh = beside.ours("rsh").display().to_string();
    let run = |words: &[&str], from: &[String], to: &str| {
        let first = ["sync", "-e", &rsh, "--remote-program", program, "-a", "--delete", "--force-delete"];
        let from: Vec<&str> = from.iter().map(String::as_str).collect();
        let output = beside.run(program, &first, &[words, &from, &[to]].concat(), "ours");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let sets: [(&[&str], &[&str]); 5] = [
        (&["-L"], &["src/"]),
        (&["-R"], &["./src/dir"]),
        (&[], &["src/", "other/"]),
        (&["-F"], &["src"]),
        (&["--safe-links", "-m"], &["src/"]),
    ];
    for (number, (words, from)) in sets.iter().enumerate() {
        let local: Vec<String> = from.iter().map(|path| (*path).to_owned()).collect();
        let there: Vec<String> = from.iter().map(|path| far(path)).collect();
        let [near, sent, fetched] = ["near", "sent", "fetched"].map(|name| format!("{name}{number}"));
        run(words, &local, &near);
        run(words, &local, &far(&sent));
        run(words, &there, &fetched);
        let expected = seen(&beside.ours(&near));
        assert_eq!(seen(&beside.ours(&sent)), expected, "{words:?} there");
        assert_eq!(seen(&beside.ours(&fetched)), expected, "{words:?} from there");
    }
}

#[test]
fn what_rsync_has_and_we_have_not_is_named() {
    let world = World::empty();
    world.write("src/a", "x");
    let run = |words: &[&str]| world.run(&[&["sync"], words, &["src/", "dst"]].concat());
    run(&["-a", "--fuzzy"]).code(3).remarks("--fuzzy").remarks("--detect-renames");
    run(&["-a", "--write-batch=x"]).code(3).remarks("there is none here").remarks("vellum snapshot");
    run(&["-y"]).code(3).remarks("--detect-renames");
    assert!(!world.has("dst"));
    run(&["-avvs", "--no-inc-recursive", "--secluded-args", "--no-o", "--no-group"]).ok();
    assert_eq!(world.read("dst/a"), "x");
    run(&["-t", "--delete"]).code(3).remarks("-r");
    world.run(&["sync", "rsync://host/module", "dst"]).code(3).remarks("daemon");
    run(&["-a"]).ok().says("Nothing to do: 1 entry is the same");
    world.run(&["sync", "-a", "src/", "x/y/z"]).code(2).remarks("--mkpath");
    world.run(&["sync", "--two-way", "-R", "src", "dst"]).code(3).remarks("--relative");
}

#[test]
fn directories_alone_go_where_rsync_puts_them() {
    let make = |root: &Path| {
        fs::create_dir_all(root.join("src/sub/deep")).unwrap();
        fs::create_dir_all(root.join("src/empty")).unwrap();
        fs::create_dir_all(root.join("dst")).unwrap();
        fs::write(root.join("src/f"), "f").unwrap();
        fs::write(root.join("src/sub/g"), "g").unwrap();
        fs::set_permissions(root.join("src/sub"), fs::Permissions::from_mode(0o750)).unwrap();
    };
    for words in [
        &["-dpt", "src", "new"][..],
        &["-dpt", "src/", "new"],
        &["-dpt", "src", "new/"],
        &["-dpt", "src", "dst"],
        &["-dpt", "src/", "dst"],
        &["-dpt", "src/sub", "new"],
        &["-dpt", "src/sub/deep", "dst/new"],
        &["-dpt", "src/empty", "new"],
        &["-dpt", "src/sub", "src/f", "new"],
        &["-a", "--no-r", "-d", "src/sub", "new"],
        &["-dpt", "src/f", "new"],
        &["-dptR", "src/sub", "new"],
        &["-dptn", "src", "new"],
        &["-dpt", "--exclude=sub", "src/", "new"],
    ] {
        let both = Beside::new(make);
        both.same(words, "");
        // The second run finds DST there.
        both.same(words, "");
    }
    let host = Host::new();
    make(&host.world.tree());
    let there = host.at("new");
    host.sync(&["-dpt", "src/sub", &there]).ok();
    assert!(host.world.has("new") && !host.world.has("new/sub"));
    host.sync(&["-dpt", "src/sub", &there]).ok();
    assert!(host.world.has("new/sub") && !host.world.has("new/sub/g"));
    host.sync(&["-dpt", &host.at("src/sub"), "back"]).ok();
    assert!(host.world.has("back") && !host.world.has("back/sub"));
}

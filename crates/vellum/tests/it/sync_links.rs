//! `vellum sync` and symlinks on the way to DST and to what options name: those of other users are not followed; and with
//! `--keep-dirlinks`, which takes symlinks in DST for the directories that they lead to.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::process::Command;

use crate::other_host::Host;
use crate::world::World;

/// A user that no system has.
const STRANGER: u32 = 61_234;

/// A directory in which everybody may write, and in it a symlink of the stranger to `inside`, which has the lists.
fn plant(world: &World) {
    world.write("src/file", "content");
    world.write("inside/list", "file\n");
    world.write("inside/rules", "*.o\n");
    let shared = world.tree().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    symlink("../inside", shared.join("theirs")).unwrap();
    lchown(shared.join("theirs"), Some(STRANGER), Some(STRANGER)).unwrap();
}

fn names(world: &World, path: &str) -> Vec<String> {
    let all = fs::read_dir(world.tree().join(path)).unwrap();
    let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const REFUSED: &str = "shared/theirs' (to '../inside') is not followed, because it belongs to user 61234";

#[test]
fn a_symlink_that_somebody_else_planted_does_not_lead_the_destination_elsewhere() {
    let world = World::empty();
    plant(&world);
    for to in ["shared/theirs", "shared/theirs/", "shared/theirs/new", "shared/theirs/../inside"] {
        world.run(&["sync", "-a", "src/", to]).code(2).remarks(REFUSED);
        world.run(&["sync", "-a", "--mkpath", "src", to]).code(2).remarks(REFUSED);
        world.run(&["sync", "-a", "src/file", to]).code(2).remarks(REFUSED);
        world.run_at_home(&["sync", "--two-way", "src", to]).code(2).remarks(REFUSED);
    }
    // A link of one's own that leads through it.
    symlink("shared/theirs/", world.tree().join("mine")).unwrap();
    world.run(&["sync", "-a", "src/", "mine"]).code(2).remarks(REFUSED);
    assert_eq!(names(&world, "inside"), ["list", "rules"]);
    // rsync does the same.
    let mut rsync = Command::new("rsync");
    rsync.args(["-a", "src/", "shared/theirs/"]).current_dir(world.tree());
    assert!(!rsync.output().unwrap().status.success());
}

#[test]
fn a_symlink_that_somebody_else_planted_does_not_lead_options_elsewhere() {
    let world = World::empty();
    plant(&world);
    let theirs = world.tree().join("shared/theirs");
    let theirs = theirs.to_str().unwrap();
    world.run(&["sync", "-a", "src/", "dst"]).ok();
    world.write("src/file", "edited");
    let before = names(&world, "inside");
    for option in [
        format!("--temp-dir={theirs}"),
        format!("--partial-dir={theirs}/new"),
        format!("--backup-dir={theirs}/new"),
        format!("--link-dest={theirs}"),
        format!("--log-file={theirs}/log"),
        format!("--files-from={theirs}/list"),
        format!("--exclude-from={theirs}/rules"),
        format!("--include-from={theirs}/rules"),
        format!("--filter=. {theirs}/rules"),
    ] {
        let ran = world.run(&["sync", "-a", &option, "src/", "dst"]).remarks(REFUSED);
        assert!(ran.code == 2 || ran.code == 3, "{option}: {} {}", ran.code, ran.err);
        assert_eq!(world.read("dst/file"), "content", "{option}");
    }
    assert_eq!(names(&world, "inside"), before);
}

#[test]
fn symlinks_that_only_trusted_users_can_have_made_are_followed() {
    let world = World::empty();
    plant(&world);
    // What a symlink at the source leads to is read.
    world.run(&["sync", "-a", "shared/theirs/", "copied"]).ok();
    assert_eq!(names(&world, "copied"), ["list", "rules"]);
    // One's own, in a directory of everybody's, and also to the end of a chain.
    symlink("theirs-again", world.tree().join("shared/own")).unwrap();
    symlink(world.tree().join("inside"), world.tree().join("shared/theirs-again")).unwrap();
    world.run(&["sync", "-a", "src/", "shared/own"]).ok();
    assert_eq!(names(&world, "inside"), ["file", "list", "rules"]);
    // Somebody else's, in a directory in which nobody else writes: who made it was trusted.
    world.write("kept/file", "");
    symlink("../inside", world.tree().join("kept/given")).unwrap();
    lchown(world.tree().join("kept/given"), Some(STRANGER), None).unwrap();
    world.run(&["sync", "-a", "src/", "kept/given/below"]).ok();
    world.chmod("kept", 0o775);
    world
        .run(&["sync", "-a", "src/", "kept/given"])
        .code(2)
        .remarks("kept/given' (to '../inside') is not followed");
    world.chmod("kept", 0o755);
    chown(world.tree().join("kept"), Some(STRANGER), None).unwrap();
    world.run(&["sync", "-a", "src/", "kept/given"]).code(2).remarks("belongs to user 61234");
    // What the shell makes of <(...), which is a pipe.
    let mut piped = Command::new("bash");
    let line = "\"$0\" sync -a --files-from=<(echo file) --exclude-from=/dev/stdin src/ listed </dev/null";
    piped.args(["-c", line, env!("CARGO_BIN_EXE_vellum")]).current_dir(world.tree());
    let output = piped.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(&world, "listed"), ["file"]);
}

#[test]
fn another_host_follows_no_symlink_that_somebody_planted_there() {
    let host = Host::new();
    plant(&host.world);
    let there = host.at("shared/theirs");
    host.sync(&["-a", "src/", &there]).code(2).remarks(REFUSED);
    host.sync(&["-a", "src/", &format!("{there}/new")]).code(2).remarks(REFUSED);
    assert_eq!(names(&host.world, "inside"), ["list", "rules"]);
}

/// Two trees: DST has symlinks where SRC has directories, and others.
fn fill_dir_links(root: &std::path::Path) {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("src/linked/new", "new");
    write("src/linked/deep/inner", "inner");
    write("src/chained/file", "file");
    write("src/dangling/file", "file");
    write("src/to-file/file", "file");
    write("src/now-a-file", "file");
    fs::create_dir_all(root.join("src/empty")).unwrap();
    symlink("elsewhere", root.join("src/same-link")).unwrap();
    write("dst/else/linked/old", "old");
    write("dst/else/linked/new", "old version of it");
    write("dst/else/deep/kept", "kept");
    write("dst/else/chained/extra", "extra");
    write("dst/else/untouched", "untouched");
    write("dst/else/gone/stays", "stays");
    write("dst/else/empty/extra", "extra");
    symlink("else/linked", root.join("dst/linked")).unwrap();
    symlink("../deep", root.join("dst/else/linked/deep")).unwrap();
    symlink("else/second", root.join("dst/chained")).unwrap();
    symlink("chained", root.join("dst/else/second")).unwrap();
    symlink("nowhere", root.join("dst/dangling")).unwrap();
    symlink("else/untouched", root.join("dst/to-file")).unwrap();
    symlink("else/gone", root.join("dst/now-a-file")).unwrap();
    symlink("else/gone", root.join("dst/extra-link")).unwrap();
    symlink("else/empty", root.join("dst/empty")).unwrap();
    symlink("elsewhere", root.join("dst/same-link")).unwrap();
}

fn listed(root: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![root.to_path_buf()];
    while let Some(path) = next.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_dir() {
            next.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            "dir".to_owned()
        } else if stat.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else {
            fs::read_to_string(&path).unwrap()
        };
        found.push(format!("{}: {content}", path.strip_prefix(root).unwrap().display()));
    }
    found.sort();
    found
}

#[test]
fn symlinks_at_the_destination_count_as_directories_with_keep_dirlinks_as_with_rsync() {
    for words in [
        &["-rlK", "src/", "dst"][..],
        &["-aK", "src/", "dst"],
        &["-rlpt", "--keep-dirlinks", "--delete", "--exclude=/else", "src/", "dst"],
        &["-aKm", "--delete", "--exclude=/else", "src/", "dst"],
        &["-a", "src/", "dst"],
        &["-aKn", "--delete", "--exclude=/else", "src/", "dst"],
        &["-rlK", "--delete", "src/chained", "dst"],
    ] {
        let [ours, theirs] = [World::empty(), World::empty()];
        fill_dir_links(&ours.tree());
        fill_dir_links(&theirs.tree());
        ours.run(&[&["sync", "--force-delete"], words].concat()).ok();
        let rsync = Command::new("rsync").args(words).current_dir(theirs.tree()).output().unwrap();
        assert!(rsync.status.success(), "{}", String::from_utf8_lossy(&rsync.stderr));
        assert_eq!(listed(&ours.tree()), listed(&theirs.tree()), "{words:?}");
        if words.contains(&"-aK") {
            ours.run(&[&["sync", "--force-delete"], words].concat()).ok().says("Nothing to do");
        }
    }
}

#[test]
fn another_host_takes_symlinks_for_directories_as_well() {
    let host = Host::new();
    let here = World::empty();
    fill_dir_links(&host.world.tree());
    fill_dir_links(&here.tree());
    let words = ["-aK", "--delete", "--force-delete", "--exclude=/else"];
    here.run(&[&["sync"], &words[..], &["src/", "dst"]].concat()).ok();
    let there = host.at("dst");
    host.sync(&[&words[..], &["src/", &there]].concat()).ok();
    assert_eq!(listed(&host.world.tree().join("dst")), listed(&here.tree().join("dst")));
    host.sync(&[&words[..], &["src/", &there]].concat()).ok().says("Nothing to do");
}

#[test]
fn keep_dirlinks_follows_no_symlink_out_of_the_destination() {
    for target in ["../outside", "/TREE/outside", "/TREE/dst/inside", "inside/../../outside"] {
        let host = Host::new();
        let world = &host.world;
        world.write("src/linked/deep/file", "new");
        world.write("src/other", "new");
        world.write("outside/kept", "kept");
        world.write("dst/inside/kept", "kept");
        let target = target.replace("/TREE", world.tree().to_str().unwrap());
        symlink(&target, world.tree().join("dst/linked")).unwrap();
        let words = ["-aK", "--delete", "--force-delete"];
        let output = "dst/inside";
        for to in ["dst".to_owned(), host.at("dst")] {
            let ran = match to.contains(':') {
                true => host.sync(&[&words[..], &["src/", &to]].concat()),
                false => world.run(&[&["sync"], &words[..], &["src/", &to]].concat()),
            };
            let ran = ran.code(1).remarks("linked: the symlink leads out of the destination");
            assert_eq!(ran.err.matches("linked").count(), 1, "{}", ran.err);
        }
        world.run(&["sync", "-aK", "src/linked", "dst"]).code(if target.contains(output) { 0 } else { 2 });
        assert_eq!(names(world, "outside"), ["kept"], "{target}");
        assert_eq!(world.read("dst/other"), "new");
        assert_eq!(fs::read_link(world.tree().join("dst/linked")).unwrap().to_str(), Some(&*target));
        // As with rsync.
        let mut rsync = Command::new("rsync");
        assert!(
            !rsync.args(["-aK", "src/", "dst"]).current_dir(world.tree()).output().unwrap().status.success()
        );
    }
    let world = World::empty();
    plant(&world);
    world.run_at_home(&["sync", "-aK", "--two-way", "src", "dst"]).code(3).remarks("--keep-dirlinks");
}

#[test]
fn another_host_writes_through_no_symlink_that_has_the_name_of_the_source() {
    let host = Host::new();
    host.world.write("src/file", "content");
    host.world.write("outside/kept", "kept");
    host.world.write("dst/other", "other");
    symlink("../outside", host.world.tree().join("dst/src")).unwrap();
    let there = host.at("dst");
    host.sync(&["-a", "src", &there]).code(2).remarks("it is not a directory");
    host.sync(&["-a", "--link-dest=../basis", "src", &there]).code(2);
    assert_eq!(names(&host.world, "outside"), ["kept"]);
    fs::remove_file(host.world.tree().join("dst/src")).unwrap();
    host.sync(&["-a", "src", &there]).ok();
    host.sync(&["-a", "src", &there]).ok().says("Nothing to do");
    host.assert_equal("src", "dst/src");
}

#[test]
fn keep_dirlinks_follows_a_symlink_at_the_name_of_the_source_only_within_the_destination() {
    let cases = [
        ("../outside", false),
        ("/TREE/outside", false),
        ("inside/../../outside", false),
        ("gone", false),
        ("other", false),
        ("inside", true),
        ("./inside/../inside", true),
        ("/TREE/dst/inside", true),
        ("inside/chain", true),
        ("inside/out", false),
    ];
    for (target, is_followed) in cases {
        for is_remote in [false, true] {
            let host = Host::new();
            let world = &host.world;
            world.write("src/deep/file", "new");
            world.write("outside/kept", "kept");
            world.write("dst/inside/real/kept", "kept");
            world.write("dst/other", "other");
            symlink("real", world.tree().join("dst/inside/chain")).unwrap();
            symlink("../../outside", world.tree().join("dst/inside/out")).unwrap();
            let target = target.replace("/TREE", world.tree().to_str().unwrap());
            symlink(&target, world.tree().join("dst/src")).unwrap();
            let ran = match is_remote {
                true => host.sync(&["-aK", "src", &host.at("dst")]),
                false => world.run(&["sync", "-aK", "src", "dst"]),
            };
            ran.code(if is_followed { 0 } else { 2 });
            assert_eq!(names(world, "outside"), ["kept"], "{target} {is_remote}");
            assert_eq!(fs::read_link(world.tree().join("dst/src")).unwrap().to_str(), Some(&*target));
            if is_followed {
                assert_eq!(world.read("dst/src/deep/file"), "new", "{target} {is_remote}");
            } else {
                assert_eq!(names(world, "dst"), ["inside", "other", "src"], "{target} {is_remote}");
            }
        }
    }
}

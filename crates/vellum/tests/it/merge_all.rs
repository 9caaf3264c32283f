//! `vellum merge --all` and `vellum mount --follow`: machines that keep a worktree of one name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::mounting::wait_until;
use crate::world::{Ran, World, run};

/// A volume with the worktree `tree`, and another machine's clones of it.
struct SharedVolume {
    world: World,
}

impl SharedVolume {
    fn new() -> Self {
        let world = World::empty();
        world.run(&["init", "--store", "../store"]).ok();
        world.write("a", "one\n");
        world.run(&["snapshot"]).ok();
        let code = world.json(&["device", "add", "laptop"])["code"].as_str().unwrap().to_owned();
        fs::write(world.path("code"), format!("{code}\n")).unwrap();
        Self { world }
    }

    /// A clone of the device `laptop`, under this name.
    fn clone(&self, dir: &str, name: &str) -> PathBuf {
        let args = ["clone", "store", dir, "--passphrase-file", "code", "--name", name];
        run(&self.world.path(""), &args, Stdio::null()).ok();
        self.world.path(dir)
    }
}

fn at(dir: &Path, args: &[&str]) -> Ran {
    run(dir, args, Stdio::null())
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let ran = at(dir, &[args, &["--json"]].concat());
    assert!(ran.code <= 1, "{} {}", ran.args, ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

/// Names and outcomes of merges.
fn merged(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let merges = report["merges"].as_array().unwrap();
    merges.iter().map(|merge| (text(&merge["name"]), text(&merge["outcome"]))).collect()
}

#[test]
fn all_worktrees_of_one_name_are_merged_and_no_others() {
    let shared = SharedVolume::new();
    let SharedVolume { world } = &shared;
    world.run(&["merge", "--all"]).ok().remarks("no other machine has a worktree 'tree'");
    assert_eq!(merged(&world.json(&["merge", "--all"])), []);
    let laptop = shared.clone("laptop", "laptop.tree");
    let apart = shared.clone("apart", "laptop.draft");
    // A dot in a name makes no device of what is before it.
    let dotted = shared.clone("dotted", "v1.tree");
    for dir in [&laptop, &apart, &dotted] {
        fs::write(dir.join(dir.file_name().unwrap()), "new\n").unwrap();
        at(dir, &["snapshot"]).ok();
    }
    world.write("b", "two\n");
    let preview = world.json(&["merge", "--all", "-n"]);
    assert_eq!(merged(&preview), [("laptop.tree".into(), "fast-forward".into())]);
    assert!(!world.has("laptop"));
    assert_eq!(merged(&world.json(&["merge", "--all"])), [("laptop.tree".into(), "merged".into())]);
    assert!(world.has("laptop") && world.has("b") && !world.has("apart") && !world.has("dotted"));
    at(&laptop, &["merge", "--all"]).ok().says("Moved to");
    assert!(laptop.join("b").exists());
    let settled = merged(&json(&laptop, &["merge", "--all"]));
    // Both stand on one snapshot now.
    assert_eq!(settled, [("tree".into(), "up-to-date".into())]);
}

#[test]
fn siblings_in_remotes_are_those_of_the_last_pull() {
    let shared = SharedVolume::new();
    let SharedVolume { world } = &shared;
    world.run(&["remote", "add", "origin", "../far"]).ok();
    world.run(&["push"]).ok();
    let args = ["clone", "far", "other", "--passphrase-file", "code", "--name", "laptop.tree"];
    at(&world.path(""), &args).ok();
    let other = world.path("other");
    fs::write(other.join("c"), "three\n").unwrap();
    at(&other, &["snapshot"]).ok();
    world.run(&["pull"]).ok();
    let merges = merged(&world.json(&["merge", "--all"]));
    assert!(merges.contains(&("origin/laptop.tree".into(), "fast-forward".into())), "{merges:?}");
    assert_eq!(world.read("c"), "three\n");
}

#[test]
fn a_conflict_ends_the_round_and_the_next_one_goes_on() {
    let shared = SharedVolume::new();
    let SharedVolume { world } = &shared;
    let laptop = shared.clone("laptop", "laptop.tree");
    world.run(&["device", "add", "tower", "--passphrase-file", "../code"]).ok();
    let tower = shared.clone("tower", "tower.tree");
    fs::write(laptop.join("a"), "laptop\n").unwrap();
    at(&laptop, &["snapshot"]).ok();
    fs::write(tower.join("t"), "tower\n").unwrap();
    at(&tower, &["snapshot"]).ok();
    world.write("a", "desk\n");
    world.run(&["merge", "--all"]).code(1).remarks("'vellum merge --continue'");
    assert!(!world.has("t"));
    world.run(&["merge", "--all"]).code(2).remarks("merge of laptop.tree is under way");
    world.run(&["resolve", "--ours", "a"]).ok();
    world.run(&["merge", "--continue"]).ok();
    let merges = merged(&world.json(&["merge", "--all"]));
    assert_eq!(merges[1], ("tower.tree".into(), "merged".into()));
    assert_eq!((world.read("a"), world.read("t")), ("desk\n".into(), "tower\n".into()));
    // What decides on conflicts holds for all.
    at(&tower, &["merge", "--all", "--theirs"]).ok();
    assert_eq!(fs::read_to_string(tower.join("a")).unwrap(), "desk\n");
}

#[test]
fn a_merge_that_waits_for_decisions_is_taken_over_by_nobody() {
    let shared = SharedVolume::new();
    let SharedVolume { world } = &shared;
    let laptop = shared.clone("laptop", "laptop.tree");
    world.run(&["device", "add", "tower", "--passphrase-file", "../code"]).ok();
    let tower = shared.clone("tower", "tower.tree");
    fs::write(laptop.join("a"), "laptop\n").unwrap();
    at(&laptop, &["snapshot"]).ok();
    world.write("a", "desk\n");
    world.run(&["merge", "laptop.tree"]).code(1);
    assert!(world.read("a").contains("<<<<<<<"));
    // Others get what was there before it, also one who names it.
    at(&tower, &["merge", "tree"]).ok().says("Moved to").remarks("a merge waits in 'tree'");
    assert_eq!(fs::read_to_string(tower.join("a")).unwrap(), "desk\n");
    // Whoever stands on it all the same does not hinder its end.
    at(&laptop, &["fork", "apart", "--to", "../apart", "--from", "tree"]).ok();
    world.run(&["resolve", "--ours", "a"]).ok();
    world.run(&["merge", "--continue"]).ok();
    world.run(&["conflicts"]).ok().remarks("no merge is under way");
    for place in [&tower, &laptop] {
        at(place, &["merge", "tree"]).ok().says("Moved to");
        assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "desk\n");
    }
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn what_says_which_snapshot_is_no_merge_of_all() {
    let world = World::with_snapshot();
    world.run(&["merge", "--all", "HEAD"]).code(3);
    world.run(&["merge", "--all", "--base", "HEAD"]).code(3);
    world.run(&["merge", "--all", "--continue"]).code(3);
}

/// Two mounts of one volume that follow each other.
struct FollowingMounts {
    shared: SharedVolume,
    places: [PathBuf; 2],
}

impl FollowingMounts {
    fn new() -> Self {
        let shared = SharedVolume::new();
        let laptop = shared.clone("laptop", "laptop.base");
        let places = ["desk-mount", "laptop-mount"].map(|name| shared.world.path(name));
        for (volume, worktree, place) in
            [(shared.world.tree(), "photos", &places[0]), (laptop, "laptop.photos", &places[1])]
        {
            fs::create_dir(place).unwrap();
            let place = place.to_str().unwrap();
            at(&volume, &["fork", worktree, "--mount", place]).ok();
            at(&volume, &["umount", place]).ok();
            let following = ["mount", "--worktree", worktree, "--follow", "--follow-interval", "1", place];
            at(&volume, &following).ok();
        }
        Self { shared, places }
    }
}

impl Drop for FollowingMounts {
    fn drop(&mut self) {
        for place in &self.places {
            run(&self.shared.world.path(""), &["umount", place.to_str().unwrap()], Stdio::null());
        }
    }
}

fn read(place: &Path, name: &str) -> Option<String> {
    fs::read_to_string(place.join(name)).ok()
}

#[test]
fn idle_mounts_take_over_what_the_others_did() {
    let mounts = FollowingMounts::new();
    let [desk, laptop] = &mounts.places;
    at(desk, &["status"]).ok().remarks("Following other machines");
    fs::write(desk.join("b"), "desk\n").unwrap();
    at(desk, &["snapshot", "--wait"]).ok();
    wait_until("the laptop has it", || read(laptop, "b").is_some());
    // Both at once: each merges, and they come to one snapshot.
    fs::write(desk.join("d"), "desk\n").unwrap();
    fs::write(laptop.join("l"), "laptop\n").unwrap();
    at(desk, &["snapshot", "--wait"]).ok();
    at(laptop, &["snapshot", "--wait"]).ok();
    let head = |place: &Path| json(place, &["status"])["head"]["id"].as_str().unwrap().to_owned();
    wait_until("both have both", || {
        [desk, laptop].iter().all(|place| read(place, "d").is_some() && read(place, "l").is_some())
            && head(desk) == head(laptop)
    });
    // What no snapshot holds is kept: the merge has it.
    fs::write(laptop.join("unsaved"), "kept\n").unwrap();
    fs::write(desk.join("e"), "desk\n").unwrap();
    at(desk, &["snapshot", "--wait"]).ok();
    wait_until("the laptop has both", || read(laptop, "e").is_some());
    assert_eq!(read(laptop, "unsaved").unwrap(), "kept\n");
    at(laptop, &["verify", "--all"]).ok();
}

#[test]
fn a_mount_that_is_worked_on_waits_and_conflicts_are_left_to_the_user() {
    let mounts = FollowingMounts::new();
    let [desk, laptop] = &mounts.places;
    let open = fs::File::open(laptop.join("a")).unwrap();
    fs::write(desk.join("b"), "desk\n").unwrap();
    at(desk, &["snapshot", "--wait"]).ok();
    // The other direction works meanwhile: as many rounds have passed here.
    fs::write(laptop.join("l"), "laptop\n").unwrap();
    at(laptop, &["snapshot", "--wait"]).ok();
    wait_until("the desk has it", || read(desk, "l").is_some());
    assert_eq!(read(laptop, "b"), None);
    drop(open);
    wait_until("the laptop has it", || read(laptop, "b").is_some());

    fs::write(desk.join("a"), "desk\n").unwrap();
    fs::write(laptop.join("a"), "laptop\n").unwrap();
    at(desk, &["snapshot", "--wait"]).ok();
    at(laptop, &["snapshot", "--wait"]).ok();
    let problem = |place: &Path| json(place, &["status"])["mount"]["follow_problem"].clone();
    wait_until("the conflict is reported", || problem(laptop).is_string());
    let command = problem(laptop).as_str().unwrap().split('\'').nth(3).unwrap().to_owned();
    assert_eq!(command, "vellum merge photos");
    assert_eq!(read(laptop, "a").unwrap(), "laptop\n");
    // A merge that waits for decisions on the desk, with its markers, is not taken over.
    at(desk, &["merge", "laptop.photos"]).code(1);
    assert!(read(desk, "a").unwrap().contains("<<<<<<<"));
    // Some rounds: if they take longer, this sees less.
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(read(laptop, "a").unwrap(), "laptop\n");
    }
    at(desk, &["merge", "--abort"]).ok();
    let words: Vec<&str> = command.split(' ').skip(1).chain(["--ours"]).collect();
    at(laptop, &words).ok();
    wait_until("the desk has the result", || read(desk, "a").unwrap() == "laptop\n");
    wait_until("nothing is left to decide", || problem(laptop).is_null());
}

#[test]
fn only_a_worktree_that_can_be_written_follows() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("m")).unwrap();
    for more in [&["--read-only"][..], &["--temporary"], &["--snapshot", "HEAD"]] {
        world.run(&[&["mount", "--follow"], more, &["../m"]].concat()).code(3);
    }
}

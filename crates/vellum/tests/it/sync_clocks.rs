//! `vellum sync` where clocks disagree: files from the future, hosts that are days apart, a clock that was set right.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::other_host::Host;
use crate::world::World;

/// Seconds of a day.
const DAY: i64 = 86_400;

/// Writes a file on a host whose clock is so many seconds ahead of this one's.
fn write_at(world: &World, ahead: i64, path: &str, content: &str) {
    world.write(path, content);
    set_time(world, ahead, path);
}

fn set_time(world: &World, ahead: i64, path: &str) {
    let now = SystemTime::now();
    let span = Duration::from_secs(ahead.unsigned_abs());
    let time = if ahead < 0 { now - span } else { now + span };
    let file = fs::File::options().write(true).open(world.tree().join(path)).unwrap();
    file.set_modified(time).unwrap();
}

fn time(world: &World, path: &str) -> SystemTime {
    fs::metadata(world.tree().join(path)).unwrap().modified().unwrap()
}

/// What is newer is said by the times of the two files, and by no clock.
#[test]
fn a_time_in_the_future_is_a_time_like_any_other() {
    let host = Host::new();
    let world = &host.world;
    for (number, to) in ["there".to_owned(), host.at("there")].iter().enumerate() {
        let _ = fs::remove_dir_all(world.tree().join("there"));
        let sync = |more: &[&str]| host.sync(&[more, &["src/", to]].concat()).ok();
        let there = || world.read("there/f");
        write_at(world, 10 * DAY, "src/f", "from the future");
        sync(&["-a"]);
        assert_eq!(time(world, "there/f"), time(world, "src/f"), "{number}");
        sync(&["-a"]).says("Nothing to do");
        // The source's clock was set right: what it has is another file, and goes, though it is the older one.
        write_at(world, 0, "src/f", "from the present");
        sync(&["-au"]).says("Nothing to do");
        sync(&["-a", "--newer-than", "there/f"]).says("Nothing to do");
        sync(&["-a"]);
        assert_eq!(there(), "from the present");
        // With --update the later one stays, whoever has it and whatever the time is here.
        write_at(world, 20 * DAY, "there/f", "further there");
        sync(&["-au"]).says("Nothing to do");
        assert_eq!(there(), "further there");
        write_at(world, 21 * DAY, "src/f", "further still");
        sync(&["-au"]);
        assert_eq!(there(), "further still");
        write_at(world, -9000 * DAY, "there/f", "long ago");
        write_at(world, -8999 * DAY, "src/f", "a day later");
        sync(&["-au"]);
        assert_eq!(there(), "a day later");
    }
}

/// A host whose clock is days ahead or behind: its edits go across all the same, and none is lost.
#[test]
fn both_ways_with_a_host_that_is_days_apart() {
    for ahead in [5 * DAY, -5 * DAY] {
        let host = Host::new();
        let world = &host.world;
        for name in ["edited", "both", "kept", "deleted"] {
            world.write(&format!("a/{name}"), "agreed");
        }
        fs::create_dir(world.tree().join("b")).unwrap();
        host.both(&[]).ok();
        write_at(world, ahead, "b/edited", "edited there");
        write_at(world, ahead, "b/new", "new there");
        // An edit wins against a deletion, were it made years before.
        world.remove("a/deleted");
        write_at(world, ahead, "b/deleted", "edited there");
        for (side, ahead) in [("a", 0), ("b", ahead)] {
            write_at(world, ahead, &format!("{side}/both"), &format!("by {side}"));
        }
        host.both(&["--conflict", "newer"]).ok();
        let winner = if ahead > 0 { "by b" } else { "by a" };
        for side in ["a", "b"] {
            let read = |name: &str| world.read(&format!("{side}/{name}"));
            assert_eq!(read("edited"), "edited there");
            assert_eq!(read("new"), "new there");
            assert_eq!(read("deleted"), "edited there");
            assert_eq!(read("both"), winner);
        }
        let (loser, lost) = if ahead > 0 { ("a", "by a") } else { ("b", "by b") };
        let dated = fs::read_dir(world.tree().join(loser).join(".vellum-trash")).unwrap().next().unwrap();
        assert_eq!(fs::read_to_string(dated.unwrap().path().join("both")).unwrap(), lost);
        // Both versions are kept where nobody says who wins.
        write_at(world, 0, "a/kept", "here");
        write_at(world, ahead, "b/kept", "there");
        host.both(&[]).ok().says("rename  kept -> kept.conflict-");
        for side in ["a", "b"] {
            let names = fs::read_dir(world.tree().join(side)).unwrap().map(|entry| entry.unwrap().path());
            let mut kept: Vec<_> = names
                .filter(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b"kept"))
                .map(|path| fs::read_to_string(path).unwrap())
                .collect();
            kept.sort();
            assert_eq!(kept, ["here", "there"]);
        }
        host.both(&[]).ok().says("Nothing to do");
    }
}

/// What both agreed on was of the future; the clock was set right, and an edit of the same size is older than that.
#[test]
fn both_ways_an_edit_that_is_older_than_the_agreement_is_an_edit() {
    let world = World::empty();
    write_at(&world, 10 * DAY, "a/f", "one");
    fs::create_dir(world.tree().join("b")).unwrap();
    let both = || world.run_at_home(&["sync", "--two-way", "--conflict", "newer", "a", "b"]).ok();
    both();
    for (side, other, content) in [("a", "b", "two"), ("b", "a", "six")] {
        write_at(&world, -DAY, &format!("{side}/f"), content);
        both();
        assert_eq!(world.read(&format!("{other}/f")), content);
        both().says("Nothing to do");
    }
    // Looked at again and again as long as its time is to come, and found to be the same.
    set_time(&world, 30 * DAY, "a/f");
    both();
    both().says("Nothing to do");
    let moment = time(&world, "a/f");
    world.write("a/f", "ten");
    fs::File::options().write(true).open(world.tree().join("a/f")).unwrap().set_modified(moment).unwrap();
    both();
    assert_eq!(world.read("b/f"), "ten");
}

//! `vellum sync --watch`

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vellum_testkit::LyingS3;

use crate::mounting::wait_until;
use crate::sync_objects::new_world;
use crate::world::World;

/// A run that stays; it goes with the test, however that ends.
struct Watching(Child);

impl Watching {
    fn start(world: &World, args: &[&str]) -> Self {
        let mut command = world.command_at_home(&[&["sync", "--watch"], args].concat());
        let said = fs::File::create(world.path("said")).unwrap();
        Self(command.stdout(Stdio::null()).stderr(said).spawn().unwrap())
    }

    /// Presses Ctrl-C; gives the exit code and what was said.
    fn stop(mut self, world: &World) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.0), Signal::INT).unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let said = fs::read_to_string(world.path("said")).unwrap();
        (status.code(), said)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn arrives(world: &World, path: &str, content: &str) {
    let file = world.tree().join(path);
    wait_until(path, || fs::read_to_string(&file).is_ok_and(|found| found == content));
}

#[test]
fn changes_go_across_as_they_happen_until_ctrl_c() {
    let world = World::empty();
    world.write("src/first", "1\n");
    let watching =
        Watching::start(&world, &["--delete", "--force-delete", "--exclude", "/left-out", "src/", "dst"]);
    arrives(&world, "dst/first", "1\n");
    world.write("src/dir/deep/second", "2\n");
    arrives(&world, "dst/dir/deep/second", "2\n");
    // A directory that was made while it ran is watched, too; what rules leave out stays here.
    world.write("src/left-out/file", "no\n");
    world.write("src/dir/deep/second", "changed\n");
    arrives(&world, "dst/dir/deep/second", "changed\n");
    fs::rename(world.tree().join("src/dir"), world.tree().join("src/moved")).unwrap();
    arrives(&world, "dst/moved/deep/second", "changed\n");
    wait_until("the old path is gone", || !world.has("dst/dir"));
    world.write("src/moved/deep/third", "3\n");
    arrives(&world, "dst/moved/deep/third", "3\n");
    assert!(!world.has("dst/left-out"));
    let (code, said) = watching.stop(&world);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Stopped watching"), "{said}");
}

#[test]
fn an_error_does_not_end_it() {
    let world = World::empty();
    let names = ["one", "two", "three", "four"].map(|name| format!("src/{name}"));
    names.iter().for_each(|name| world.write(name, "1\n"));
    let watching = Watching::start(&world, &["--delete", "src/", "dst"]);
    arrives(&world, "dst/two", "1\n");
    names.iter().for_each(|name| world.remove(name));
    // All that there was is gone: refused, and said.
    wait_until("the error", || fs::read_to_string(world.path("said")).unwrap().contains("error: "));
    names.iter().skip(1).for_each(|name| world.write(name, "2\n"));
    arrives(&world, "dst/two", "2\n");
    wait_until("what was deleted is gone", || !world.has("dst/one"));
    assert_eq!(watching.stop(&world).0, Some(0));
}

#[test]
fn both_sides_are_watched_with_two_way() {
    let world = World::empty();
    world.write("a/one", "1\n");
    world.write("b/two", "2\n");
    let watching = Watching::start(&world, &["--two-way", "a", "b"]);
    arrives(&world, "b/one", "1\n");
    arrives(&world, "a/two", "2\n");
    world.write("b/dir/three", "3\n");
    arrives(&world, "a/dir/three", "3\n");
    world.write("a/one", "changed\n");
    arrives(&world, "b/one", "changed\n");
    assert_eq!(watching.stop(&world).0, Some(0));
}

#[test]
fn what_never_changes_is_not_watched() {
    let world = World::with_snapshot();
    world.run_at_home(&["sync", "--watch", ".@first:/", "../out"]).code(3).remarks("ever changes");
}

#[test]
fn a_source_that_is_replaced_is_watched_at_its_path() {
    let world = World::empty();
    world.write("src/file", "1\n");
    // Not of the same size: both may be written in the same tick of the clock.
    world.write("next/file", "second\n");
    let watching = Watching::start(&world, &["src/", "dst"]);
    arrives(&world, "dst/file", "1\n");
    fs::rename(world.tree().join("src"), world.tree().join("previous")).unwrap();
    fs::rename(world.tree().join("next"), world.tree().join("src")).unwrap();
    arrives(&world, "dst/file", "second\n");
    // The directory that has the path now reports its changes.
    world.write("src/file", "third\n");
    arrives(&world, "dst/file", "third\n");
    assert_eq!(watching.stop(&world).0, Some(0));
}

#[test]
fn changes_go_to_a_service() {
    let world = new_world();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("p");
    world.write("src/first", "1\n");
    let watching = Watching::start(&world, &["-a", "--credentials", "test", "src/", &url]);
    let uploaded = |key: &str, content: &[u8]| {
        wait_until(key, || server.read_object(key).is_some_and(|found| found == content));
    };
    uploaded("p/first", b"1\n");
    world.write("src/dir/second", "2\n");
    uploaded("p/dir/second", b"2\n");
    assert_eq!(watching.stop(&world).0, Some(0));
    let refused = world.run_at_home(&["sync", "--watch", "--credentials", "test", &url, "down"]).code(3);
    refused.remarks("--watch has no meaning with a service");
}

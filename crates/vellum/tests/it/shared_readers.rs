//! Readers of a shared worktree: mounts that show what its server puts into the store.

use std::fs;
use std::process::Stdio;

use rustix::io::Errno;

use crate::mounting::wait_until;
use crate::open_file::OpenFile;
use crate::shared_take_over::Machine;
use crate::world::{Ran, World, noise, run};

/// Serves the worktree `work`.
fn serve(world: &World) -> Machine<'_> {
    let server = Machine::attached(world, "server");
    server.mounts(&["--listen", "127.0.0.1:0"]).ok();
    server
}

fn publish(server: &Machine<'_>) {
    run(&server.mount.path, &["flush"], Stdio::null()).ok();
}

fn follow(reader: &Machine<'_>, seconds: &str) -> Ran {
    reader.mounts(&["--follow", "--follow-interval", seconds])
}

#[test]
fn a_reader_shows_one_published_state_after_the_other() {
    let world = World::with_snapshot();
    let server = serve(&world);
    fs::write(server.mount.at("one"), "first").unwrap();
    fs::write(server.mount.at("gone"), "to be removed").unwrap();
    publish(&server);
    let reader = Machine::attached(&world, "reader");
    follow(&reader, "1").ok().says("Mounted the worktree work").says(", read-only");
    assert_eq!(reader.mount.sh("cat one gone; ls"), "firstto be removedgone\none\n");
    let mut open = OpenFile::open_to_read(&reader.mount.at("one"));
    let mut gone = OpenFile::open_to_read(&reader.mount.at("gone"));
    // Not published, not seen; and then all of it at once.
    fs::write(server.mount.at("one"), "second").unwrap();
    fs::remove_file(server.mount.at("gone")).unwrap();
    fs::create_dir(server.mount.at("made")).unwrap();
    fs::write(server.mount.at("made/new"), "new").unwrap();
    publish(&server);
    wait_until("the reader shows the next state", || fs::metadata(reader.mount.at("made/new")).is_ok());
    assert_eq!(reader.mount.sh("cat one made/new; ls"), "secondnewmade\none\n");
    assert_eq!(open.read(100).unwrap(), b"second");
    assert_eq!(gone.read(100), Err(Errno::STALE));
    // Nothing can be changed, and commands say what this is.
    assert_eq!(
        fs::write(reader.mount.at("one"), "x").unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    let refused = run(&reader.mount.path, &["snapshot"], Stdio::null());
    refused.code(3).remarks("follows a worktree of another machine, and is read-only");
    world.run_beside(&reader.dir, &["mounts"]).ok().says("work");
    drop((open, gone));
    reader.mount.umount().ok();
    // It needs no server.
    server.mount.umount().ok();
    follow(&reader, "1").ok();
    assert_eq!(reader.mount.sh("cat one"), "second");
    reader.mount.umount().ok();
}

#[test]
fn what_a_reader_shows_outlives_a_collection() {
    let world = World::with_snapshot();
    let server = serve(&world);
    fs::write(server.mount.at("noise"), noise(200_000)).unwrap();
    publish(&server);
    let reader = Machine::attached(&world, "reader");
    follow(&reader, "3600").ok();
    // The ref names the tree of now and the one before.
    fs::remove_file(server.mount.at("noise")).unwrap();
    for number in 0..3 {
        server.mount.sh(&format!("touch -d @{number} ."));
        publish(&server);
    }
    world.run(&["gc", "run"]).ok();
    // Read for the first time.
    assert!(fs::read(reader.mount.at("noise")).unwrap() == noise(200_000));
    reader.mount.umount().ok();
    world.run(&["gc", "run"]).ok().says("Freed");
    follow(&reader, "1").ok();
    assert!(fs::metadata(reader.mount.at("noise")).is_err());
    reader.mount.umount().ok();
    server.mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn what_a_reader_cannot_do_is_refused() {
    let world = World::with_snapshot();
    let reader = Machine::attached(&world, "reader");
    follow(&reader, "1").code(2).remarks("there is no worktree 'work'");
    let more = [&["--wait", "1s"][..], &["--rpo", "1s"], &["--server", "h:1"], &["--close", "applied"]];
    for more in more {
        let ran = reader.mounts(&[&["--follow"], more].concat());
        ran.code(3).remarks(&format!("{} means nothing with --shared and --follow", more[0]));
    }
    assert!(!reader.mount.is_mounted());
}

//! What clients of a shared worktree answer by themselves, through their kernels.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::mounting::{hold, kill, wait_until};
use crate::shared::Cluster;
use crate::world::World;

/// Lists everything below a directory and looks at each entry, as `git status` does; gives their number.
fn walk(dir: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        count += 1;
        if found.is_dir() {
            count += walk(&path);
        }
    }
    count
}

fn requests(cluster: &Cluster<'_>) -> u64 {
    cluster.sessions().iter().map(|session| session["requests"].as_u64().unwrap()).sum()
}

#[test]
fn a_further_walk_asks_the_server_nothing() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    for dir in 0..10 {
        fs::create_dir(cluster.server.at(&format!("d{dir}"))).unwrap();
        for file in 0..30 {
            fs::write(cluster.server.at(&format!("d{dir}/f{file}")), "x").unwrap();
        }
    }
    let one = cluster.client("one");
    let found = walk(&one.path);
    assert!(found >= 310);
    wait_until("a walk sends no request", || {
        let before = requests(&cluster);
        assert_eq!(walk(&one.path), found);
        requests(&cluster) == before
    });
    assert!(cluster.sessions()[0]["cached"].as_u64().unwrap() >= 310);
    // What one changes, the other sees at once: here, one file among all these.
    fs::write(cluster.server.at("d3/f7"), "longer").unwrap();
    assert_eq!(fs::metadata(one.at("d3/f7")).unwrap().len(), 6);
    // The walk before has asked for what 'statx' gives. A walk that begins here asks for the attributes of the directory in
    // another way, once.
    walk(&one.at("d4"));
    let before = requests(&cluster);
    walk(&one.at("d4"));
    assert_eq!(requests(&cluster), before);
}

#[test]
fn what_others_change_is_seen_at_once_however_often_it_was_looked_at() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let two = cluster.client("two");
    for (round, (writer, reader)) in
        [(&cluster.server, &one), (&two, &one), (&one, &two), (&one, &cluster.server)].into_iter().enumerate()
    {
        let dir = format!("dir{round}");
        fs::create_dir(writer.at(&dir)).unwrap();
        let in_writer = |name: &str| writer.at(&format!("{dir}/{name}"));
        let in_reader = |name: &str| reader.at(&format!("{dir}/{name}"));
        let names = || {
            let listed = fs::read_dir(reader.at(&dir)).unwrap();
            let mut names: Vec<_> =
                listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        // Absent names.
        assert!(names().is_empty() && !in_reader("a").exists());
        fs::write(in_writer("a"), "one").unwrap();
        assert_eq!((names(), fs::metadata(in_reader("a")).unwrap().len()), (vec!["a".into()], 3));
        // Hard links, and what one name of a file says of the other.
        fs::hard_link(in_writer("a"), in_writer("b")).unwrap();
        assert_eq!(fs::metadata(in_reader("a")).unwrap().nlink(), 2);
        OpenOptions::new().write(true).open(in_writer("b")).unwrap().set_len(1).unwrap();
        assert_eq!(fs::metadata(in_reader("a")).unwrap().len(), 1);
        fs::remove_file(in_writer("b")).unwrap();
        assert_eq!((names(), fs::metadata(in_reader("a")).unwrap().nlink()), (vec!["a".into()], 1));
        // A rename over a file, and of a directory.
        fs::write(in_writer("new"), "other content").unwrap();
        assert_eq!(fs::metadata(in_reader("new")).unwrap().len(), 13);
        fs::rename(in_writer("new"), in_writer("a")).unwrap();
        assert_eq!(
            (names(), fs::read_to_string(in_reader("a")).unwrap()),
            (vec!["a".into()], "other content".into())
        );
        assert!(!in_reader("new").exists());
        // Truncation by opening.
        drop(fs::File::create(in_writer("a")).unwrap());
        assert_eq!(fs::metadata(in_reader("a")).unwrap().len(), 0);
    }
}

#[test]
fn a_client_that_is_stopped_holds_a_change_up_for_its_term_and_shows_nothing_stale_afterwards() {
    let world = World::with_snapshot();
    let cluster = Cluster::serve(&world);
    let one = cluster.client("one");
    let file = "looked-at";
    fs::write(cluster.server.at(file), "x").unwrap();
    wait_until("it is answered by the client", || {
        let before = requests(&cluster);
        fs::metadata(one.at(file)).unwrap();
        requests(&cluster) == before
    });
    // It is read through the mount.
    let pid = one.pid();
    hold(pid);
    fs::write(cluster.server.at(file), "changed").unwrap();
    fs::write(cluster.server.at("new"), "").unwrap();
    kill(pid, "-CONT");
    assert_eq!(fs::metadata(one.at(file)).unwrap().len(), 7);
    assert!(one.at("new").exists());
}

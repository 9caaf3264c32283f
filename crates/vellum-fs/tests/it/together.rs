//! Many threads on the same few names: whatever they do, the map stays whole, and caches do not lie.

use std::sync::{Arc, Barrier};
use std::thread;

use rustix::io::Errno;
use vellum_fs::{AttributeChanges, FsError, RenameFlags};
use vellum_types::{FileKind, Ino};

use crate::check::check;
use crate::stand::{CALLER, EXCHANGE, MOVE, NOREPLACE, ROOT, Stand};
use vellum_fs::StateReader;
use vellum_testkit::random::{TestRandom, choose_seed};

const THREADS: u64 = 8;
const STEPS: usize = 400;
const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];

#[test]
fn threads_on_the_same_names_leave_the_map_whole() {
    let seed = choose_seed();
    let stand = Arc::new(Stand::new());
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let stand = stand.clone();
            thread::spawn(move || {
                let mut random = TestRandom::new(seed + number);
                for _ in 0..STEPS {
                    step(&stand, &mut random);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap_or_else(|_| panic!("VELLUM_SEED={seed}"));
    }
    check(&stand.fs);
    compare_caches(&stand);
    let stand = Arc::into_inner(stand).unwrap().again();
    check(&stand.fs);
}

fn step(stand: &Stand, random: &mut TestRandom) {
    let (dir, name) = place(stand, random);
    let (other, new_name) = place(stand, random);
    let flags: RenameFlags = random.pick_item(&[MOVE, MOVE, NOREPLACE, EXCHANGE]);
    let outcome = match random.next_below(10) {
        0 | 1 => stand.fs.names().create(dir, name, 0o644, CALLER).map(drop),
        2 | 3 => stand.fs.names().mkdir(dir, name, 0o755, CALLER).map(drop),
        4 => stand
            .names()
            .lookup(dir, name)
            .and_then(|node| stand.fs.names().link(node.ino, other, new_name))
            .map(drop),
        5 => stand.fs.names().unlink(dir, name, 0),
        6 => stand.fs.names().rmdir(dir, name, 0),
        7 => stand.fs.names().rename(dir, name, other, new_name, flags),
        8 => stand.names().lookup(dir, name).and_then(|node| use_open(stand, node.ino)),
        _ => stand.names().lookup(dir, name).and_then(|node| {
            let set = AttributeChanges { mode: Some(0o700), ..Default::default() };
            stand.attributes().setattr(node.ino, &set, CALLER).map(drop)
        }),
    };
    match outcome {
        Ok(()) | Err(FsError::Posix(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

fn use_open(stand: &Stand, ino: Ino) -> vellum_fs::Result<()> {
    let held = stand.hold(ino)?;
    // Whatever happens to its names: what is open is there.
    stand.inode_attr(ino)?;
    thread::yield_now();
    assert!(stand.inode_attr(ino).is_ok(), "an open inode is gone");
    stand.release(held)
}

/// A name in a directory at most two below the root.
fn place(stand: &Stand, random: &mut TestRandom) -> (Ino, &'static [u8]) {
    let mut dir = ROOT;
    for _ in 0..random.next_below(3) {
        match stand.names().lookup(dir, random.pick_item(&NAMES)) {
            Ok(node) if node.attr.kind == FileKind::Dir => dir = node.ino,
            _ => break,
        }
    }
    (dir, random.pick_item(&NAMES))
}

/// What caches say is what a fresh look says.
fn compare_caches(stand: &Stand) {
    let mut waiting = vec![ROOT];
    while let Some(dir) = waiting.pop() {
        let entries = stand.list_entries(dir).unwrap();
        for name in NAMES {
            let cached = stand.names().lookup(dir, name).ok().map(|node| node.ino);
            let listed = entries.iter().find(|entry| entry.name == name).map(|entry| entry.ino);
            assert_eq!(cached, listed);
        }
        for entry in entries {
            let cached = stand.inode_attr(entry.ino).unwrap();
            stand.live_map().inode_cache().clear_all();
            assert_eq!(stand.inode_attr(entry.ino).unwrap(), cached);
            waiting.extend((entry.kind == FileKind::Dir).then_some(entry.ino));
        }
    }
}

/// Each of two directories is moved into the other: one of them stays.
#[test]
fn directories_do_not_end_up_in_each_other() {
    let stand = Stand::new();
    for _ in 0..200 {
        stand.populate(&["a/", "b/"]);
        let [a, b] = ["a", "b"].map(|name| stand.at(name).ino);
        let start = Barrier::new(2);
        let into = |name: &[u8], dir| {
            start.wait();
            stand.fs.names().rename(ROOT, name, dir, name, MOVE)
        };
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| into(b"a", b));
            (into(b"b", a), first.join().unwrap())
        });
        let refused = match (first, second) {
            (Ok(()), Err(refused)) | (Err(refused), Ok(())) => refused.errno(),
            both => panic!("{both:?}"),
        };
        assert_eq!(refused, Errno::INVAL);
        check(&stand.fs);
        let (outer, inner) = if stand.exists("a") { ("a", "a/b") } else { ("b", "b/a") };
        stand.rmdir(inner).unwrap();
        stand.rmdir(outer).unwrap();
    }
}

/// Two files change places without end: at each place there always is one.
#[test]
fn an_exchange_is_seen_whole() {
    let stand = Stand::new();
    stand.populate(&["a", "b"]);
    let both = [stand.at("a").ino, stand.at("b").ino];
    thread::scope(|scope| {
        let mover = scope.spawn(|| (0..500).for_each(|_| stand.rename("a", "b", EXCHANGE).unwrap()));
        while !mover.is_finished() {
            assert!(both.contains(&stand.names().lookup(ROOT, b"a").unwrap().ino));
        }
    });
    check(&stand.fs);
}

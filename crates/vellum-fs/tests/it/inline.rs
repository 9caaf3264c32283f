//! Small files, whose content lies beside their attributes: what changes these alone leaves the content where it is.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vellum_fs::StateReader;
use vellum_fs::{AttributeChanges, LiveFilesystem};
use vellum_live::sim::{LOSSES, SimRandom};
use vellum_map::KeySpan;
use vellum_types::{Ino, MapKey};

use crate::check::check;
use crate::machine::Machine;
use crate::stand::{CALLER, Stand, request};

fn chmod(fs: &LiveFilesystem, ino: Ino, mode: u32) {
    fs.attributes()
        .setattr(ino, &AttributeChanges { mode: Some(mode), ..AttributeChanges::default() }, CALLER)
        .unwrap();
}

fn truncate(fs: &LiveFilesystem, ino: Ino, size: u64) {
    fs.attributes()
        .setattr(ino, &AttributeChanges { size: Some(size), ..AttributeChanges::default() }, CALLER)
        .unwrap();
}

fn read(fs: &LiveFilesystem, ino: Ino) -> Vec<u8> {
    fs.read(ino, 0, 1 << 20).unwrap()
}

#[test]
fn a_new_mode_does_not_journal_the_content_again() {
    let (machine, stand) = Machine::new();
    let ino = stand.create("f").unwrap().ino;
    stand.content().write(ino, 0, &[7; 4096], false).unwrap();
    let before = machine.live.statistics().journalled;
    for mode in 0..10 {
        chmod(&stand, ino, 0o600 + mode);
    }
    let journalled = machine.live.statistics().journalled - before;
    assert!(journalled < 10 * 200, "{journalled} bytes for ten modes");
    // In a layer that has not got it the content is written once.
    stand.create_snapshot(&request()).unwrap();
    let before = machine.live.statistics().journalled;
    for mode in 0..10 {
        chmod(&stand, ino, 0o600 + mode);
    }
    let journalled = machine.live.statistics().journalled - before;
    assert!((4096..4096 + 10 * 300).contains(&journalled), "{journalled} bytes for ten modes");
    assert_eq!(read(&stand, ino), [7; 4096]);
}

#[test]
fn every_state_has_its_own_content_and_attributes() {
    let (_machine, stand) = Machine::new();
    let ino = stand.create("f").unwrap().ino;
    stand.content().write(ino, 0, &[1; 3000], false).unwrap();
    let first = stand.create_snapshot(&request()).unwrap();
    chmod(&stand, ino, 0o600);
    let second = stand.create_snapshot(&request()).unwrap();
    stand.content().write(ino, 0, &[2; 2000], false).unwrap();
    let third = stand.create_snapshot(&request()).unwrap();
    truncate(&stand, ino, 10);
    let look =
        |view: &vellum_fs::LiveView| (view.inode_attr(ino).unwrap().mode, view.read(ino, 0, 9000).unwrap());
    let changed = [vec![2; 2000], vec![1; 1000]].concat();
    for _ in 0..2 {
        let views = [first, second, third].map(|id| stand.fs.open_snapshot_view(id).unwrap());
        let expected = [(0o644, vec![1; 3000]), (0o600, vec![1; 3000]), (0o600, changed.clone())];
        assert!(views.iter().zip(&expected).all(|(view, expected)| look(view) == *expected));
        assert_eq!(read(&stand, ino), [2; 10]);
        drop(views);
        stand.publisher().publish_all().unwrap();
    }
    check(&stand.fs);
    let attr = stand.inode_attr(ino).unwrap();
    let names = stand.list_entries(stand.at("").ino).unwrap();
    assert_eq!((attr.size, names.len()), (10, 1));
}

#[test]
fn content_comes_and_goes() {
    let stand = Stand::new();
    let ino = stand.create("f").unwrap().ino;
    for len in [4096, 100, 4096, 5000, 300, 0, 256, 255] {
        truncate(&stand, ino, 0);
        stand.content().write(ino, 0, &vec![3; len], false).unwrap();
        chmod(&stand, ino, 0o640);
        assert_eq!(read(&stand, ino), vec![3; len]);
        check(&stand.fs);
    }
    stand.unlink("f").unwrap();
    stand.publisher().publish_all().unwrap();
    check(&stand.fs);
}

/// Who reads outside of a transaction sees attributes and content that belong together.
#[test]
fn readers_beside_a_writer_find_no_damage() {
    let stand = Arc::new(Stand::new());
    let ino = stand.create("f").unwrap().ino;
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let stand = stand.clone();
            let over = over.clone();
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let content = read(&stand, ino);
                    assert!(content.iter().all(|byte| *byte == content[0]), "of two writes");
                    stand.live_map().read_head_state(|view| view.inode_attr(ino)).unwrap().unwrap();
                    stand
                        .live_map()
                        .read_head_state(|view| {
                            let span = KeySpan::from_prefix(MapKey::for_attr(ino).as_bytes());
                            view.scan(span, &mut |_, _| ControlFlow::Continue(()))
                        })
                        .unwrap();
                }
            })
        })
        .collect();
    for round in 0..5000_usize {
        let len = 200 + round * 37 % 3800;
        truncate(&stand, ino, 0);
        stand.content().write(ino, 0, &vec![(round % 251) as u8; len], false).unwrap();
        chmod(&stand, ino, 0o600 + (round % 8) as u32);
    }
    over.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    check(&stand.fs);
}

/// What a crash leaves is whole, whichever of attributes and content was written last.
#[test]
fn a_crash_leaves_attributes_with_their_content() {
    let (machine, stand) = Machine::new();
    let ino = stand.create("f").unwrap().ino;
    let first = machine.disk.operation_count();
    for round in 0..6_usize {
        stand.content().write(ino, 0, &vec![round as u8; 300 + round * 500], false).unwrap();
        chmod(&stand, ino, 0o600 + round as u32);
        if round == 3 {
            stand.create_snapshot(&request()).unwrap();
            stand.publisher().publish_all().unwrap();
        }
    }
    let mut random = SimRandom(3);
    for ops in first..=machine.disk.operation_count() {
        for loss in LOSSES {
            let (_machine, found) = machine.boot(machine.crash(ops, loss, &mut random));
            check(&found.fs);
            if found.exists("f") {
                let attr = found.attr("f");
                let content = read(&found, found.at("f").ino);
                assert_eq!(attr.size as usize, content.len(), "{loss:?} after {ops}");
                assert!(content.windows(2).all(|two| two[0] == two[1]), "{loss:?} after {ops}");
            }
        }
    }
}

//! Several threads on one file.

use std::sync::atomic::{AtomicBool, Ordering};

use super::world::{NEW, World, check, content, make};
use crate::StateReader;

const WRITERS: u8 = 4;

#[test]
fn appends_at_once_are_all_there_and_whole() {
    const TIMES: usize = 60;
    let world = World::new();
    let fs = world.open();
    make(&fs, NEW);
    // Short enough that some are inline at first, and not one length for all.
    let len = |writer: u8| 500 + usize::from(writer) * 100;
    std::thread::scope(|scope| {
        for writer in 1..=WRITERS {
            let fs = &fs;
            scope.spawn(move || {
                for _ in 0..TIMES {
                    assert_eq!(
                        fs.content().append_to_file(NEW, &vec![writer; len(writer)], false).unwrap(),
                        len(writer)
                    );
                }
            });
        }
    });
    check(&fs, NEW);
    let content = content(&fs, NEW);
    let mut counts = [0; WRITERS as usize + 1];
    let mut rest = content.as_slice();
    while let Some(writer) = rest.first() {
        let (record, after) = rest.split_at(len(*writer));
        assert!(record.iter().all(|byte| byte == writer), "a record is torn");
        counts[usize::from(*writer)] += 1;
        rest = after;
    }
    assert_eq!(counts[1..], [TIMES; WRITERS as usize]);
}

#[test]
fn a_reader_sees_one_write_or_the_other() {
    const LEN: usize = 20_000;
    let world = World::new();
    let fs = world.open();
    make(&fs, NEW);
    fs.content().write(NEW, 0, &[WRITERS; LEN], false).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=WRITERS)
            .map(|writer| {
                let fs = &fs;
                scope.spawn(move || {
                    for _ in 0..100 {
                        fs.content().write(NEW, 0, &[writer; LEN], false).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let seen = fs.read(NEW, 0, LEN).unwrap();
                assert!(seen.len() == LEN && seen.iter().all(|byte| *byte == seen[0]), "a torn read");
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    check(&fs, NEW);
}

//! Edits that hide from times and sizes, and files that change while they are read.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use vellum_host::ProgressMeter;
use vellum_volume::tree::FileReader;

use crate::audit::{audit, recorded};
use crate::place::{Place, concerning};
use crate::zoo::set_time;

#[test]
fn edits_within_one_tick_of_the_clock_are_seen() {
    let place = Place::new();
    for round in 0..60_u32 {
        place.write("file", format!("content {round:04}"));
        place.snapshot();
        // The same size, at once, and sometimes with the old time put back.
        let time = rustix::fs::stat(place.on("file")).unwrap();
        place.write("file", format!("another {round:04}"));
        if round % 2 == 0 {
            set_time(&place.on("file"), time.st_mtime, time.st_mtime_nsec as i64);
        }
        assert_eq!(place.status(), ["Modified file"], "round {round}");
        let made = place.snapshot();
        let state = place.state(made.record.root);
        let (_, attr) = state.find_path(b"file", "").unwrap();
        assert_eq!(attr.inline.unwrap(), format!("another {round:04}").into_bytes());
    }
}

#[test]
fn edits_right_after_a_restore_are_seen() {
    let place = Place::new();
    place.write("file", "first state");
    let first = place.snapshot();
    place.write("file", "second one!");
    place.snapshot();
    for round in 0..20 {
        place.restore(first.id);
        let time = rustix::fs::stat(place.on("file")).unwrap();
        place.write("file", format!("edited {round:04}"));
        set_time(&place.on("file"), time.st_mtime, time.st_mtime_nsec as i64);
        assert_eq!(place.status(), ["Modified file"], "round {round}");
        assert!(place.try_restore(&place.request(first.id, &[])).unwrap().safety.is_some());
    }
}

#[test]
fn a_file_that_changes_all_the_time_is_reported_and_not_remembered() {
    let place = Place::new();
    place.write("quiet", "x");
    place.write("restless", vec![0; 3 << 20]);
    let file = std::fs::File::options().write(true).open(place.on("restless")).unwrap();
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                file.write_all_at(&number.to_le_bytes(), number % (3 << 20)).unwrap();
            }
        });
        // On a busy machine it may rest just while it is read.
        let mut tries = (0..100).map(|_| place.try_snapshot(&[]));
        let outcome = tries.find(|outcome| outcome.as_ref().is_ok_and(|made| !made.problems.is_empty()));
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    let outcome = outcome.expect("a snapshot during which the file changed").unwrap();
    assert_eq!(concerning(&outcome.problems), ["restless"]);
    assert!(outcome.problems[0].message.contains("changed"), "{:?}", outcome.problems);
    audit(&place.state(outcome.record.root));
    // The writer put nothing new after its last time stamp, and yet the file is looked at again.
    let compared = place.tree.compare_with_snapshot(None, &[], &ProgressMeter::default()).unwrap();
    assert_eq!(compared.problems, []);
    let made = place.snapshot();
    let state = place.state(made.record.root);
    let (ino, _) = state.find_path(b"restless", "").unwrap();
    let reader = FileReader::new(&place.tree.volume, &state.read_inode(ino).unwrap()).unwrap();
    let content = reader.read_to_end().unwrap();
    assert!(content == place.read("restless"), "the file as it is now is recorded");
}

#[test]
fn files_that_come_and_go_leave_a_sound_snapshot() {
    let place = Place::new();
    for number in 0..200 {
        place.write(format!("d{}/f{number}", number % 7), format!("{number}"));
    }
    place.snapshot();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let a = place.on(format!("d{}/x", number % 7));
                let b = place.on(format!("d{}/y", number % 5));
                let _ = std::fs::write(&a, "x");
                let _ = std::fs::hard_link(&a, &b);
                let _ = std::fs::remove_file(&a);
                let _ = std::fs::create_dir_all(place.on("coming/and/going"));
                let _ = std::fs::write(place.on("coming/and/going/z"), "z");
                let _ = std::fs::remove_dir_all(place.on("coming"));
                let _ = std::fs::remove_file(&b);
            }
        });
        for _ in 0..25 {
            let outcome = place.try_snapshot(&[]);
            if outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            let state = place.state(outcome.unwrap().record.root);
            audit(&state);
            let held = recorded(&place.tree.volume, &state);
            assert!((0..200).all(|n| held.0.contains_key(format!("d{}/f{n}", n % 7).as_bytes())));
        }
        stop.store(true, Ordering::Relaxed);
    });
    place.snapshot();
    assert_eq!(place.status(), [""; 0]);
}

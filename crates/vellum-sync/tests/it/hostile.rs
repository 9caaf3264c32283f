//! Who means harm while a run is under way: exchanges names, plants things where files arrive, or speaks an older version.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags, mknodat, renameat_with, setxattr};
use vellum_sync::model::options::{DeleteOptions, DeletePhase, SyncOptions};
use vellum_sync::remote::wire::{Greeting, VERSION, WireCodec, WireError};

use crate::run::{everything, plan};
use crate::trees::{difference, facts};

/// Directories that are exchanged.
const DIRS: usize = 6;
/// Runs while that goes on: on any machine some of the calls of some of them meet an exchanged name.
const ROUNDS: usize = 25;

struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        for name in ["from", "to", "outside", "victim"] {
            fs::create_dir(world.at(name)).unwrap();
        }
        world
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Works while somebody exchanges the directories of one side for symlinks to those of the victim, over and over.
    fn exchanging(&self, side: &str, mut work: impl FnMut()) {
        for number in 0..DIRS {
            symlink(self.at(&format!("victim/d{number}")), self.at(&format!("outside/s{number}"))).unwrap();
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for number in 0..DIRS {
                        let ours = format!("outside/s{number}");
                        let theirs = format!("{side}/d{number}");
                        // It may be gone for a moment.
                        let _ =
                            renameat_with(CWD, self.at(&ours), CWD, self.at(&theirs), RenameFlags::EXCHANGE);
                    }
                }
            });
            // Also if the work panics the other thread must end.
            let stop = Stop(&over);
            work();
            drop(stop);
        });
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn deleting() -> SyncOptions {
    SyncOptions {
        delete: DeleteOptions { when: DeletePhase::After, force: true, ..DeleteOptions::default() },
        ..everything()
    }
}

/// hostile.md 36 to 38: writing, linking, chmod, chown, times, attributes, mkdir, unlink and rmdir all meet symlinks in
/// the place of directories that were listed.
#[test]
fn directories_exchanged_for_symlinks_during_a_run_lead_nowhere() {
    let world = World::new();
    for number in 0..DIRS {
        let dir = |side: &str| format!("{side}/d{number}");
        for name in ["written", "dressed", "deleted", "deep/inside"] {
            world.write(&format!("{}/{name}", dir("victim")), "the victim's");
        }
        world.write(&format!("{}/written", dir("from")), "new content");
        world.write(&format!("{}/dressed", dir("from")), "same");
        world.write(&format!("{}/made/inside", dir("from")), "new");
        fs::hard_link(
            world.at(&format!("{}/written", dir("from"))),
            world.at(&format!("{}/linked", dir("from"))),
        )
        .unwrap();
        let dressed = world.at(&format!("{}/dressed", dir("from")));
        fs::set_permissions(&dressed, fs::Permissions::from_mode(0o4711)).unwrap();
        std::os::unix::fs::chown(&dressed, Some(1234), Some(1234)).unwrap();
        setxattr(&dressed, "user.mark", b"ours", XattrFlags::empty()).unwrap();
    }
    let before = facts(&world.at("victim"));
    world.exchanging("to", || {
        for round in 0..ROUNDS {
            // What a round finds is as far from what it wants as can be; parts of it may be elsewhere.
            for number in 0..DIRS {
                let dir = world.at(&format!("to/d{number}"));
                if fs::symlink_metadata(&dir).is_ok_and(|found| found.is_dir()) {
                    let _ = fs::remove_dir_all(dir.join("made"));
                }
            }
            let from = world.at(&format!("from/d{}/written", round % DIRS));
            fs::write(from, format!("content {round}")).unwrap();
            // That entries fail is right; what counts is who was touched.
            let _ = plan(&world.at("from"), &world.at("to"), &deleting()).carry_out();
        }
    });
    if let Some(text) = difference(&before, &facts(&world.at("victim"))) {
        panic!("the victim was touched: {text}");
    }
    // Nobody is in the way any more.
    for number in 0..DIRS {
        let _ = fs::remove_file(world.at(&format!("to/d{number}")));
    }
    plan(&world.at("from"), &world.at("to"), &deleting()).carry_out().unwrap();
    let reported = difference(&facts(&world.at("from")), &facts(&world.at("to")));
    assert!(reported.is_none(), "{reported:?}");
}

/// What regular files below a directory hold, without following symlinks.
fn contents(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            contents(&path, found);
        } else if meta.is_file() {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
}

/// hostile.md 44: the other way round, what lies behind the symlink is not given away.
#[test]
fn directories_of_the_source_exchanged_for_symlinks_give_nothing_away() {
    let world = World::new();
    for number in 0..DIRS {
        for name in ["f", "deep/g"] {
            world.write(&format!("from/d{number}/{name}"), "public");
            world.write(&format!("victim/d{number}/{name}"), "secret");
        }
    }
    let mut options = deleting();
    options.compare.by = vellum_sync::model::options::CompareMethod::Nothing;
    world.exchanging("from", || {
        for _ in 0..ROUNDS {
            let _ = plan(&world.at("from"), &world.at("to"), &options).carry_out();
            let mut found = Vec::new();
            contents(&world.at("to"), &mut found);
            assert!(!found.iter().any(|content| content == "secret"), "it was given away");
        }
    });
}

/// hostile.md 39, 40: under names that can be foreseen.
#[test]
fn what_is_planted_where_a_file_arrives_is_neither_followed_nor_written() {
    let content = vec![7; 2 << 20];
    type Plant = fn(&World, &Path);
    let plants: [(&str, Plant); 5] = [
        ("symlink", |world, at| symlink(world.at("victim/f"), at).unwrap()),
        ("name of another file", |world, at| fs::hard_link(world.at("victim/f"), at).unwrap()),
        ("fifo", |_, at| mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap()),
        ("device", |_, at| {
            let null = rustix::fs::makedev(1, 3);
            mknodat(CWD, at, FileType::CharacterDevice, Mode::from_raw_mode(0o666), null).unwrap();
        }),
        ("directory", |_, at| fs::create_dir(at).unwrap()),
    ];
    for (what, put) in plants {
        for place in ["to/.partial/f", "to/.vellum-tmp-0123456789abcdef", "to/f"] {
            let world = World::new();
            world.write("victim/f", "the victim's");
            world.write("from/f", &content);
            fs::create_dir(world.at("to/.partial")).unwrap();
            put(&world, &world.at(place));
            let mut options = deleting();
            options.writing.partial_dir = Some(b".partial".to_vec());
            let report = plan(&world.at("from"), &world.at("to"), &options).carry_out().unwrap();
            assert_eq!(
                fs::read_to_string(world.at("victim/f")).unwrap(),
                "the victim's",
                "{what} at {place}"
            );
            let arrived = fs::symlink_metadata(world.at("to/f")).ok().filter(|found| found.is_file());
            let is_whole = arrived.is_some_and(|found| found.nlink() == 1 && found.len() == 2 << 20);
            assert!(is_whole || !report.problems.is_empty(), "{what} at {place}: {report:?}");
        }
    }
    // The directory for them may be planted itself.
    let world = World::new();
    world.write("from/f", &content);
    symlink(world.at("victim"), world.at("to/.partial")).unwrap();
    let mut options = deleting();
    options.writing.partial_dir = Some(b".partial".to_vec());
    plan(&world.at("from"), &world.at("to"), &options).carry_out().unwrap();
    assert_eq!(fs::read_dir(world.at("victim")).unwrap().count(), 0);
}

/// hostile.md 53.
#[test]
fn other_versions_are_refused_by_name() {
    for (lowest, highest) in [(0, VERSION - 1), (VERSION + 1, u16::MAX), (2, 1)] {
        let mut bytes = Vec::new();
        Greeting { codec: WireCodec::Zstd, lowest, highest }.send_to(&mut bytes).unwrap();
        let reported = Greeting::receive_from(&mut bytes.as_slice());
        assert!(matches!(reported, Err(WireError::Version(..))), "{lowest} to {highest}: {reported:?}");
    }
}

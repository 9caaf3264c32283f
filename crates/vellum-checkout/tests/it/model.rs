//! Random edits, snapshots and restores, checked against remembered pictures and against snapshots from nothing.

use vellum_host::ProgressMeter;
use vellum_types::SnapshotId;
use vellum_volume::StateDir;

use crate::audit::{audit, recorded};
use crate::chance::Chance;
use crate::edits::Editor;
use crate::mounted::Mounted;
use crate::picture::Picture;
use crate::place::Place;
use crate::zoo::set_time;

/// Snapshots in a run.
const SNAPSHOTS: usize = 40;

#[test]
fn random_edits_snapshots_and_restores() {
    run(&Place::new(), Chance::new(1), SNAPSHOTS);
}

/// Another filesystem gives out inode numbers in another way, and is faster.
#[test]
fn random_edits_snapshots_and_restores_in_memory() {
    let memory = Mounted::in_memory(256 << 10);
    for seed in [2, 3] {
        let dir = memory.path().join(seed.to_string());
        run(&Place::at(&dir.join("tree"), &dir.join("store")), Chance::new(seed), SNAPSHOTS);
    }
}

/// For hours, by `make soak`.
#[test]
#[ignore = "long"]
fn random_edits_snapshots_and_restores_for_long() {
    for seed in 1000..1050 {
        run(&Place::new(), Chance::new(seed), 100);
    }
}

fn run(place: &Place, mut chance: Chance, snapshots: usize) {
    let mut remembered: Vec<(SnapshotId, Picture)> = Vec::new();
    for number in 0..snapshots {
        for _ in 0..1 + chance.below(12) {
            println!("  {}", Editor::new(&place.path, &mut chance).edit());
        }
        match chance.below(4) {
            0 => place.forget_statcache(),
            1 => damage_statcache(place, &mut chance),
            _ => {}
        }
        let (id, picture) = snapshot(place, number);
        remembered.push((id, picture));
        if chance.below(3) == 0 {
            let (id, picture) = chance.pick(&remembered).unwrap().clone();
            for _ in 0..chance.below(4) {
                println!("  {}", Editor::new(&place.path, &mut chance).edit());
            }
            restore(place, id, &picture);
        }
    }
    for (id, picture) in &remembered {
        restore(place, *id, picture);
    }
}

fn snapshot(place: &Place, number: usize) -> (SnapshotId, Picture) {
    let picture = place.picture();
    let made = place.snapshot();
    println!("snapshot {number}: {}", made.id);
    let state = place.state(made.record.root);
    audit(&state);
    let statistics = made.record.statistics;
    let entries = statistics.files + statistics.dirs + statistics.others;
    let inodes =
        picture.0.iter().filter(|(path, seen)| seen.first.as_ref().is_none_or(|first| first == *path));
    assert_eq!(entries, inodes.count() as u64, "the statistics count every inode: {statistics:?}");
    assert_eq!(place.status(), [""; 0], "nothing changed since snapshot {number}");
    let again = place.snapshot();
    assert!(again.unchanged, "snapshot {number} again");
    place.forget_statcache();
    assert_eq!(place.status(), [""; 0], "nothing changed since snapshot {number}, without a stat cache");
    assert_eq!(place.snapshot().record.root, made.record.root, "snapshot {number} without a stat cache");
    let fresh = from_nothing(place);
    recorded(&place.tree.volume, &state).expect(&fresh, "incremental against fresh");
    (made.id, picture)
}

/// What a worktree that has never seen the directory records of it.
fn from_nothing(place: &Place) -> Picture {
    let before = rustix::fs::stat(&place.path).unwrap();
    let aside = place.beside().join("state aside");
    std::fs::rename(place.on(".vellum"), &aside).unwrap();
    let state = StateDir::create(&place.path).unwrap();
    std::fs::copy(aside.join("key"), place.on(".vellum/key")).unwrap();
    let name = format!("w{}", std::fs::read_dir(place.beside().join("store/refs/worktree")).unwrap().count());
    let volume = place.tree.volume.fork_into(&state, &name).unwrap();
    set_time(&place.path, before.st_mtime, before.st_mtime_nsec as i64);
    let tree = vellum_checkout::CheckoutWorktree::from_volume(volume).unwrap();
    let request = vellum_checkout::CheckoutSnapshotRequest {
        note: String::new(),
        paths: Vec::new(),
        origin: vellum_volume::SnapshotOrigin::User,
        only_if_changed: false,
    };
    let made = tree.create_snapshot(&request, &ProgressMeter::default()).unwrap();
    let state = tree.volume.open_tree(made.record.root);
    audit(&state);
    let picture = recorded(&tree.volume, &state);
    std::fs::remove_dir_all(place.on(".vellum")).unwrap();
    std::fs::rename(&aside, place.on(".vellum")).unwrap();
    set_time(&place.path, before.st_mtime, before.st_mtime_nsec as i64);
    picture
}

fn restore(place: &Place, id: SnapshotId, picture: &Picture) {
    let unsaved = !place.status().is_empty();
    let before = place.picture();
    println!("restore {id}");
    let outcome = place.restore(id);
    place.picture().expect(picture, "restored");
    assert_eq!(place.tree.head_snapshot().unwrap().unwrap().id, id);
    assert_eq!(place.status(), [""; 0], "nothing changed since the restore");
    let root = place.entry(id).record.root;
    assert_eq!(place.snapshot().record.root, root, "a restored directory gives the restored root");
    match outcome.safety {
        Some(safety) => {
            audit(&place.state(place.entry(safety).record.root));
            place.restore(safety);
            place.picture().expect(&before, "undone");
            place.restore(id);
        }
        None => assert!(!unsaved || before == *picture || only_losses(place, &before), "something was lost"),
    }
}

/// Whether the unsaved changes were nothing but removals, which a restore cannot lose.
fn only_losses(place: &Place, before: &Picture) -> bool {
    let head = place.tree.volume.catalog.list_ids().unwrap();
    // Every file that was there is in some snapshot as it was.
    let states: Vec<_> = head
        .iter()
        .map(|id| {
            let state = place.state(place.entry(*id).record.root);
            recorded(&place.tree.volume, &state)
        })
        .collect();
    before.0.iter().all(|(path, seen)| {
        states.iter().any(|state| {
            state.0.get(path).is_some_and(|there| {
                (there.mtime, there.mode, there.owner, &there.xattrs)
                    == (seen.mtime, seen.mode, seen.owner, &seen.xattrs)
                    || seen.kind == "Directory"
            })
        })
    })
}

fn damage_statcache(place: &Place, chance: &mut Chance) {
    let path = place.on(".vellum/statcache");
    let Ok(mut bytes) = std::fs::read(&path) else { return };
    if chance.below(2) == 0 {
        bytes.truncate(chance.below(bytes.len()));
    } else {
        let at = chance.below(bytes.len());
        bytes[at] ^= 1 << chance.below(8);
    }
    std::fs::write(&path, bytes).unwrap();
}

//! Commands killed after any operation, and run again as a user would.

use std::sync::Arc;

use vellum_testkit::{FaultTrigger, FaultyStore, StoreFault};
use vellum_types::SnapshotId;
use vellum_volume::history::list_history;
use vellum_volume::{Result, Volume};

use crate::collecting::collect;
use crate::model::{Tree, small};
use crate::ram::{Image, Ram};
use crate::world::{PLAIN, SEALED, World, assert_clean, bury_sessions, record_on, snapshot};

/// Runs `command` on copies of the store with a kill at each of its operations, and `then` on what is left.
pub fn kill_everywhere(
    world: &World,
    image: &Image,
    command: impl Fn(&Volume) -> Result<()>,
    then: impl Fn(&Volume, &Arc<Ram>),
) {
    for fault in [StoreFault::Before, StoreFault::After] {
        for at in 0.. {
            let ram = Ram::of(image.clone());
            let faulty = Arc::new(FaultyStore::new(ram.clone()));
            let volume = world.seen_in(faulty.clone());
            let start = faulty.operation_count();
            faulty.set_script([
                (FaultTrigger::Nth(start + at), fault),
                (FaultTrigger::From(start + at + 1), StoreFault::Before),
            ]);
            let outcome = command(&volume);
            let done = faulty.operation_count() <= start + at;
            assert!(outcome.is_ok() || !done);
            bury_sessions(&ram, &world.volume);
            // The same worktree, and one that knows nothing.
            let again = Volume::open_on(ram.clone(), &volume.state).unwrap();
            then(&again, &ram);
            then(&world.seen_in(ram.clone()), &ram);
            if done {
                assert!(at > 1, "{at} operations");
                break;
            }
        }
    }
}

pub fn try_snapshot(volume: &Volume, tree: &Tree) -> Result<SnapshotId> {
    let mut session = volume.begin_write_session()?;
    let root = tree.store(volume, &session)?;
    session.flush_blobs()?;
    let id = volume.commit_snapshot(record_on(volume, volume.read_head()?, root, "tried"))?;
    session.end_session()?;
    Ok(id)
}

#[test]
fn a_snapshot_killed_at_any_operation_can_be_made_again() {
    for encrypted in [SEALED, PLAIN] {
        let world = World::new(encrypted);
        snapshot(&world.volume, &small(1), "before");
        let image = world.ram.image();
        let command = |volume: &Volume| try_snapshot(volume, &small(2)).map(|_| ());
        kill_everywhere(&world, &image, command, |volume, ram| {
            let id = try_snapshot(volume, &small(2)).unwrap();
            assert_eq!(volume.read_head().unwrap(), Some(id));
            for entry in list_history(&volume.catalog).unwrap() {
                let tree = if entry.record.note == "before" { small(1) } else { small(2) };
                tree.assert_readable(volume, entry.record.root);
            }
            assert_clean(volume);
            collect(&world.seen_in(ram.clone())).unwrap();
            assert_clean(volume);
        });
    }
}

#[test]
fn forgetting_tagging_and_renaming_killed_at_any_operation_can_be_done_again() {
    let world = World::new(SEALED);
    let gone = snapshot(&world.volume, &small(1), "gone");
    let head = snapshot(&world.volume, &small(2), "head");
    world.worktree("side").set_head(head).unwrap();
    world.volume.add_tag("old", head).unwrap();
    let image = world.ram.image();
    let forgotten = |volume: &Volume| volume.catalog.list_ids().unwrap() == [head];
    kill_everywhere(
        &world,
        &image,
        |volume| volume.forget_snapshot(&gone),
        |volume, _| {
            if !forgotten(volume) {
                volume.forget_snapshot(&gone).unwrap();
            }
            assert!(forgotten(volume));
            assert_clean(volume);
        },
    );
    kill_everywhere(
        &world,
        &image,
        |volume| volume.add_tag("new", head),
        |volume, _| {
            volume.add_tag("new", head).unwrap();
            assert_eq!(volume.list_tags().unwrap(), [("new".into(), head), ("old".into(), head)]);
            assert_clean(volume);
        },
    );
    kill_everywhere(
        &world,
        &image,
        |volume| volume.remove_tag("old").map(|_| ()),
        |volume, _| {
            if !volume.list_tags().unwrap().is_empty() {
                volume.remove_tag("old").unwrap();
            }
            assert_eq!(volume.list_tags().unwrap(), []);
            assert_clean(volume);
        },
    );
    kill_everywhere(
        &world,
        &image,
        |volume| volume.rename_worktree("side", "aside"),
        |volume, _| {
            if volume.read_worktree_head("side").unwrap().is_some() {
                volume.rename_worktree("side", "aside").unwrap();
            }
            let names: Vec<_> = volume.list_worktrees().unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["aside", "main"]);
            assert_eq!(volume.read_worktree_head("aside").unwrap().unwrap().head, Some(head));
            assert_clean(volume);
        },
    );
}

//! Several processes write into one store and share one local copy of the index.

use std::process::Command;

use vellum_types::BlobKind;

use crate::world::{World, noise};

const PROCESSES: u64 = 3;
const COMMITS: u64 = 40;
const VARIABLE: &str = "VELLUM_TEST_WRITER";

/// The child's part: does nothing unless it was started by the test below.
#[test]
fn writer_process() {
    let Ok(task) = std::env::var(VARIABLE) else { return };
    let (number, path) = task.split_once(':').unwrap();
    let number: u64 = number.parse().unwrap();
    let mut world = World::new();
    world.dir = tempfile::Builder::new().disable_cleanup(true).tempdir_in(path).unwrap();
    let objects = std::sync::Arc::new(vellum_store::LocalStore::open(format!("{path}/store")).unwrap());
    for commit in 0..COMMITS {
        let local = format!("{path}/shared-index");
        let store = world.open_with(objects.clone(), local.as_ref(), vellum_store::BlobOptions::default());
        let writer = store.create_writer();
        // One content of its own, one that all have.
        writer.put_blob(BlobKind::Node, &noise(number << 32 | commit, 500)).unwrap();
        writer.put_blob(BlobKind::Node, &noise(commit, 500)).unwrap();
        writer.finish().unwrap();
    }
}

#[test]
fn several_processes_write_at_once() {
    let world = World::new();
    world.objects();
    let children: Vec<_> = (1..=PROCESSES)
        .map(|number| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "processes::writer_process"]);
            child.env(VARIABLE, format!("{number}:{}", world.dir.path().display())).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    for local in ["shared-index", "fresh"] {
        let store = world.open(local);
        for commit in 0..COMMITS {
            for number in 0..=PROCESSES {
                let content = noise(number << 32 | commit, 500);
                let id = world.keys.compute_blob_id(BlobKind::Node, &content);
                assert_eq!(store.read_blob(BlobKind::Node, &id).unwrap(), content);
            }
        }
    }
}

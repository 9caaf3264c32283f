//! Several at work on one worktree at the same time.

use std::collections::HashSet;

use vellum_checkout::{CheckoutSnapshotRequest, CheckoutWorktree};
use vellum_host::ProgressMeter;
use vellum_volume::SnapshotOrigin;
use vellum_volume::history::AncestorWalk;

use crate::place::Place;

#[test]
fn snapshots_taken_at_the_same_time_all_stay_in_the_history() {
    let place = Place::new();
    place.write("file", "x");
    let first = place.snapshot();
    let ids: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|number| {
                let path = &place.path;
                scope.spawn(move || {
                    let tree = CheckoutWorktree::open(path).unwrap();
                    let mut ids = Vec::new();
                    for round in 0..3 {
                        std::fs::write(path.join(format!("by {number}")), format!("{round}")).unwrap();
                        let note = format!("{number}.{round}");
                        let request = CheckoutSnapshotRequest {
                            note,
                            paths: Vec::new(),
                            origin: SnapshotOrigin::User,
                            only_if_changed: false,
                        };
                        let _lock = tree.lock_worktree(|| {}).unwrap();
                        ids.push(tree.create_snapshot(&request, &ProgressMeter::default()).unwrap().id);
                    }
                    ids
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let tree = place.again();
    let head = tree.head_snapshot().unwrap().unwrap();
    let line: HashSet<_> = AncestorWalk::from_heads(&tree.volume.catalog, [head.id])
        .unwrap()
        .map(|entry| entry.unwrap().id)
        .collect();
    assert_eq!(ids.len(), 18);
    assert!(ids.iter().chain([&first.id]).all(|id| line.contains(id)), "none is lost from the line");
    assert_eq!(place.status(), [""; 0]);
}

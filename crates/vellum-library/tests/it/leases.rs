//! Who closes a worktree lets others have it.

use vellum_volume::{StateDir, Volume};

use crate::stand::Stand;

#[test]
fn a_worktree_that_is_published_and_closed_is_free() {
    let stand = Stand::new();
    let state = StateDir::find_enclosing(stand.dir.path()).unwrap();
    let ended = || {
        let head = Volume::open(&state).unwrap().read_worktree_head("work").unwrap().unwrap();
        head.lease.unwrap().ended
    };
    stand.write("file", "x").unwrap();
    assert!(!ended());
    stand.flush().unwrap();
    let Stand { work, volume, dir: _dir } = stand;
    drop((work, volume));
    assert!(ended());
}

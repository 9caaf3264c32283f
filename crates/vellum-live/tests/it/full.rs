//! A disk that is full.

use vellum_live::{EmbeddedStore, EngineLimits, LiveStore, NoDurabilityHooks};
use vellum_types::ErrorKind;

use crate::transact;

#[test]
fn a_full_disk_is_an_error_and_space_makes_it_well() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("small");
    std::fs::create_dir(&mount).unwrap();
    // Needs the right to mount; without it there is nothing to test here.
    let flags = rustix::mount::MountFlags::empty();
    let Ok(()) = rustix::mount::mount("tmpfs", &mount, "tmpfs", flags, c"size=1m") else { return };
    let outcome = std::panic::catch_unwind(|| fill_up(&mount));
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

fn fill_up(mount: &std::path::Path) {
    let open = || {
        EmbeddedStore::open_with(
            &mount.join("live"),
            NoDurabilityHooks,
            EngineLimits { journal: 64 << 20, run: 1 },
        )
        .unwrap()
    };
    let store = open();
    let ballast = mount.join("ballast");
    std::fs::write(&ballast, vec![0; 300_000]).unwrap();
    let mut count = 0_u32;
    let error = loop {
        let key = count.to_be_bytes();
        match transact(&store, |txn| txn.set_key(&[b"layer-001", &key[..]].concat(), [7; 1000].into())) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(store.freeze_prefix(b"layer-001").unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(store.statistics().runs, 0);
    assert!(store.get(b"layer-001\0\0\0\0").unwrap().is_some(), "reads go on");
    drop(store);
    let store = open();
    let is_there =
        |number: u32| store.get(&[b"layer-001", &number.to_be_bytes()[..]].concat()).unwrap().is_some();
    assert!((0..count).all(is_there) && !is_there(count), "what was acknowledged is there, no more");
    std::fs::remove_file(&ballast).unwrap();
    let after = transact(&store, |txn| txn.set_key(b"after", [7; 1000].into())).unwrap();
    store.wait_until_durable(after).unwrap();
}

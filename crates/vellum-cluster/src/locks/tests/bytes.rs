//! The table as bytes.

use proptest::prelude::*;

use super::*;

/// A table with locks of each kind on two files.
fn varied() -> Desk {
    let desk = Desk::new();
    let set = |request: LockRequest| desk.table.set(&request).unwrap();
    set(request(owner(1, 1), Posix, Exclusive, (0, 9)));
    set(request(owner(1, 1), Posix, Shared, (10, 19)));
    set(request(owner(2, 5), Ofd, Shared, (15, LockRange::LAST)));
    set(flock(owner(2, 5), Shared));
    set(flock(owner(3, 6), Shared));
    set(LockRequest { ino: OTHER_FILE, ..flock(owner(3, 7), Exclusive) });
    desk
}

#[test]
fn a_table_is_restored_with_its_sessions_and_goes_on() {
    let desk = varied();
    // A request that waits is not part of it.
    desk.wait(&request(owner(3, 9), Posix, Exclusive, (0, 0)), 1);
    let bytes = desk.table.encode();
    let restored = LockTable::decode(&bytes, LockLimits::default()).unwrap();
    assert_eq!(restored.encode(), bytes);
    for file in [FILE, OTHER_FILE] {
        assert_eq!(restored.list_locks(file), desk.table.list_locks(file));
    }
    assert_eq!(restored.list_sessions(), [1, 2, 3].map(session));
    assert_eq!(restored.usage(session(1)).unwrap().locks, 2);
    assert_eq!(restored.set(&request(owner(3, 9), Posix, Exclusive, (0, 0))), Err(LockError::WouldBlock));
    assert_eq!(restored.end_session(session(1)), [FILE]);
    restored.set(&request(owner(3, 9), Posix, Exclusive, (0, 14))).unwrap();
}

#[test]
fn a_file_is_restored_alone() {
    let desk = varied();
    let bytes = desk.table.encode_file(FILE).unwrap();
    assert_eq!(desk.table.encode_file(Ino(99)), None);
    let restored = LockTable::new(LockLimits::default());
    restored.restore_file(FILE, &bytes).unwrap();
    assert_eq!(restored.list_locks(FILE), desk.table.list_locks(FILE));
    assert_eq!(restored.list_sessions(), [1, 2, 3].map(session));
    assert!(restored.restore_file(FILE, &bytes).is_err());
}

#[test]
fn bytes_that_break_the_rules_are_refused() {
    // Each of these is what one change of the table's rules would have written.
    let lock = |owner: u8, flags: u8, range: &[u8]| {
        let mut bytes = [session(1).0.as_slice(), &[owner, 0, 0, 0, 0, 0, 0, 0, flags]].concat();
        bytes.extend_from_slice(range);
        bytes.push(5);
        bytes
    };
    let file = |locks: &[Vec<u8>]| {
        let mut bytes = vec![1, locks.len() as u8];
        bytes.extend(locks.concat());
        bytes
    };
    let restore = |bytes: &[u8]| LockTable::new(LockLimits::default()).restore_file(FILE, bytes);
    let good = [lock(1, 1, &[0, 9]), lock(1, 0, &[10, 19]), lock(2, 2, &[15, 30]), lock(3, 5, &[])];
    restore(&file(&good)).unwrap();
    let bad: [(&str, Vec<Vec<u8>>); 10] = [
        ("no lock", vec![]),
        ("two owners, one exclusive", vec![lock(1, 1, &[0, 9]), lock(2, 0, &[9, 12])]),
        ("two owners, the later exclusive", vec![lock(1, 0, &[0, 9]), lock(2, 1, &[9, 12])]),
        ("one owner twice", vec![lock(1, 0, &[0, 9]), lock(1, 0, &[9, 12])]),
        ("not merged", vec![lock(1, 0, &[0, 9]), lock(1, 0, &[10, 12])]),
        ("owners out of order", vec![lock(2, 0, &[0, 9]), lock(1, 0, &[20, 21])]),
        ("flock before ranges", vec![lock(1, 4, &[]), lock(1, 0, &[20, 21])]),
        ("two exclusive flocks", vec![lock(1, 5, &[]), lock(2, 5, &[])]),
        ("a range that ends before it begins", vec![lock(1, 0, &[9, 8])]),
        ("a kind that does not exist", vec![lock(1, 6, &[])]),
    ];
    for (what, locks) in bad {
        assert!(restore(&file(&locks)).is_err(), "{what}");
    }
    assert!(restore(&[2, 0]).is_err(), "another version");
}

proptest! {
    #[test]
    fn what_decodes_encodes_to_the_same_bytes(
        (position, value, cut) in (0usize..400, any::<u8>(), 0usize..400),
    ) {
        let mut bytes = varied().table.encode();
        if let Some(byte) = bytes.get_mut(position) {
            *byte = value;
        }
        bytes.truncate(cut.max(position));
        if let Ok(table) = LockTable::decode(&bytes, LockLimits::default()) {
            prop_assert_eq!(table.encode(), bytes);
        }
    }
}

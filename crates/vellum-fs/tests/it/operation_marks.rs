//! Operations for other machines: marked together with what they change.

use std::collections::BTreeSet;

use vellum_fs::{OperationMark, StateReader};
use vellum_types::FileKind;

use crate::stand::{CALLER, ROOT, Stand};

const SESSION: u64 = 7;

fn mark(number: u64, obsolete: &[u64]) -> OperationMark {
    OperationMark { session: SESSION, number, obsolete: obsolete.into() }
}

#[test]
fn what_was_carried_out_is_known_after_the_process_has_ended() {
    let stand = Stand::new();
    {
        let _mark = mark(1, &[]).enter();
        stand.names().mknod(ROOT, b"a", FileKind::File, 0o644, 0, CALLER).unwrap();
    }
    {
        let _mark = mark(2, &[]).enter();
        stand.names().mknod(ROOT, b"a", FileKind::File, 0o644, 0, CALLER).unwrap_err();
        stand.find_dentry(ROOT, b"nothing").unwrap_err();
    }
    // Not for the session.
    stand.names().mknod(ROOT, b"b", FileKind::File, 0o644, 0, CALLER).unwrap();
    let stand = stand.again();
    assert_eq!(stand.marked_operations(SESSION).unwrap(), BTreeSet::from([1]));
    assert_eq!(stand.marked_sessions().unwrap(), BTreeSet::from([SESSION]));
    assert!(stand.marked_operations(8).unwrap().is_empty());
}

#[test]
fn marks_go_when_nobody_will_ask_for_them() {
    let stand = Stand::new();
    for number in 1..=4u64 {
        let obsolete: Vec<u64> = number.checked_sub(2).into_iter().filter(|old| *old > 0).collect();
        let _mark = mark(number, &obsolete).enter();
        let name = format!("f{number}");
        stand.names().mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, CALLER).unwrap();
    }
    assert_eq!(stand.marked_operations(SESSION).unwrap(), BTreeSet::from([3, 4]));
    stand.remove_operation_marks(SESSION).unwrap();
    assert!(stand.marked_sessions().unwrap().is_empty());
}

#[test]
fn sessions_that_have_locks_are_known_after_the_process_has_ended() {
    let stand = Stand::new();
    stand.add_lock_holder([1; 16]).unwrap();
    stand.add_lock_holder([2; 16]).unwrap();
    stand.remove_lock_holders(&[[2; 16], [3; 16]]).unwrap();
    let stand = stand.again();
    assert_eq!(stand.lock_holders().unwrap(), BTreeSet::from([[1; 16]]));
    stand.remove_lock_holders(&[[1; 16]]).unwrap();
    assert!(stand.lock_holders().unwrap().is_empty());
}

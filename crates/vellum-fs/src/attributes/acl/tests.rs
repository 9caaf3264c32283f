//! Lists are checked as the kernel does, agree with modes, and are inherited by the rules of `acl(5)`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;

fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, allowed, id) in entries {
        bytes.extend([tag.to_le_bytes(), allowed.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHERS: u16 = 32;

fn plain(owner: u16, group: u16, others: u16) -> Vec<u8> {
    bytes(&[(OWNER, owner, NOBODY), (OWNING, group, NOBODY), (OTHERS, others, NOBODY)])
}

fn named(owner: u16, user: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    bytes(&[
        (OWNER, owner, NOBODY),
        (USER, user, 1000),
        (OWNING, group, NOBODY),
        (MASK, mask, NOBODY),
        (OTHERS, others, NOBODY),
    ])
}

#[test]
fn a_list_survives_a_round_trip() {
    let list = named(7, 6, 5, 4, 0);
    let acl = AccessControlList::decode(&list).unwrap().unwrap();
    assert!(acl.is_extended());
    assert_eq!(acl.encode(), list);
    assert_eq!(AccessControlList::decode(&bytes(&[])), Ok(None));
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    let bad: &[Vec<u8>] = &[
        vec![],
        plain(7, 7, 8),
        plain(7, 7, 7)[..20].to_vec(),
        bytes(&[(OWNER, 7, NOBODY), (OWNING, 7, NOBODY)]),
        bytes(&[(OWNING, 7, NOBODY), (OWNER, 7, NOBODY), (OTHERS, 7, NOBODY)]),
        bytes(&[(OWNER, 7, NOBODY), (OWNER, 7, NOBODY), (OWNING, 7, NOBODY), (OTHERS, 7, NOBODY)]),
        // Somebody is named and there is no mask.
        bytes(&[(OWNER, 7, NOBODY), (USER, 7, 1), (OWNING, 7, NOBODY), (OTHERS, 7, NOBODY)]),
        bytes(&[(OWNER, 7, NOBODY), (OWNING, 7, NOBODY), (GROUP, 7, 1), (OTHERS, 7, NOBODY)]),
        bytes(&[(OWNER, 7, NOBODY), (3, 7, 1), (OWNING, 7, NOBODY), (MASK, 7, NOBODY), (OTHERS, 7, NOBODY)]),
        bytes(&[
            (OWNER, 7, NOBODY),
            (USER, 7, NOBODY),
            (OWNING, 7, NOBODY),
            (MASK, 7, NOBODY),
            (OTHERS, 7, NOBODY),
        ]),
    ];
    for list in bad {
        assert_eq!(AccessControlList::decode(list), Err(Errno::INVAL), "{list:?}");
    }
    assert_eq!(AccessControlList::decode(&[3, 0, 0, 0]), Err(Errno::OPNOTSUPP));
}

#[test]
fn mode_and_list_agree() {
    let mut acl = AccessControlList::decode(&named(7, 6, 5, 4, 1)).unwrap().unwrap();
    assert_eq!(acl.to_mode_bits(), 0o741, "the mask stands for the group");
    acl.set_mode(0o4620);
    assert_eq!(acl.encode(), named(6, 6, 5, 2, 0));
    assert_eq!(AccessControlList::decode(&plain(6, 4, 0)).unwrap().unwrap().to_mode_bits(), 0o640);
}

#[test]
fn without_a_default_list_the_umask_decides() {
    assert_eq!(inherit_access(None, 0o1777, 0o022), InheritedAccess { mode: 0o1755, access: None });
    assert_eq!(inherit_access(None, 0o4777, 0o7777), InheritedAccess { mode: 0o4000, access: None });
}

#[test]
fn a_default_list_decides_instead_of_the_umask() {
    let got = inherit_access(Some(&plain(7, 5, 0)), 0o666, 0o077);
    assert_eq!(got, InheritedAccess { mode: 0o640, access: None });
    let got = inherit_access(Some(&named(7, 7, 5, 7, 5)), 0o2664, 0o077);
    assert_eq!(got, InheritedAccess { mode: 0o2664, access: Some(named(6, 7, 5, 6, 4)) });
}

#[test]
fn a_list_that_cannot_be_read_is_none() {
    assert_eq!(inherit_access(Some(b"?"), 0o666, 0o022), InheritedAccess { mode: 0o644, access: None });
}

//! Metadata applied and read back.

use std::os::unix::fs::symlink;

use vellum_host::beneath::{BeneathError, ExtendedAttribute, HeldNode, SpecialFile};
use vellum_host::metadata::{MetadataCaller, TargetMetadata, apply_metadata};
use vellum_types::UnixTime;

use crate::workspace::{Workspace, is_root};

/// An access ACL: owner rw-, user 1 r--, group r--, mask r--, others ---.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16,
    0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

fn xattr(name: &str, value: &[u8]) -> ExtendedAttribute {
    ExtendedAttribute { name: name.into(), value: value.into() }
}

fn supports_xattrs(space: &Workspace) -> bool {
    space.write("probe", "");
    let supported = space.root.hold_node(b"probe").unwrap().set_xattr(b"user.probe", b"").is_ok();
    std::fs::remove_file(space.at("probe")).unwrap();
    supported
}

/// Owner and group of everything that this test makes.
fn owner(space: &Workspace) -> (u32, u32) {
    let stat = space.root.stat_self().unwrap();
    (stat.uid, stat.gid)
}

#[test]
fn attributes_come_back_as_they_were_set() {
    let space = Workspace::new();
    if !supports_xattrs(&space) {
        return;
    }
    space.write("f", "content");
    let before_1970 = UnixTime { secs: -86_400, nanos: 1 };
    let after_2106 = UnixTime { secs: 5_000_000_000, nanos: 999_999_999 };
    let times = Some((before_1970, after_2106));
    let xattrs =
        [xattr("system.posix_acl_access", ACL), xattr("user.big", &[7; 3000]), xattr("user.empty", b"")];
    let (uid, gid) = owner(&space);
    let wanted = TargetMetadata { mode: 0o640, uid, gid, times, xattrs: &xattrs };
    let file = space.root.open_file_to_update(b"f").unwrap().file;
    let held = space.root.hold_node(b"f").unwrap();
    for node in [HeldNode::from_file(&file), held] {
        node.set_xattr(b"user.stale", b"old").unwrap();
        let applied = apply_metadata(&node, &wanted, MetadataCaller::current_process());
        assert!(applied.is_complete(), "{applied:?}");
        assert!(node.read_xattrs().unwrap() == xattrs);
        let stat = node.stat().unwrap();
        assert_eq!((stat.mode, stat.mtime), (0o640, after_2106));
        node.set_mode(0o600).unwrap();
    }
}

#[test]
fn an_inherited_acl_does_not_stay_on_a_file_that_had_none() {
    let space = Workspace::new();
    if !supports_xattrs(&space) {
        return;
    }
    space.root.hold_self().set_xattr(b"system.posix_acl_default", ACL).unwrap();
    space.write("f", "");
    let node = space.root.hold_node(b"f").unwrap();
    assert!(node.read_xattr(b"system.posix_acl_access").unwrap().is_some());
    let (uid, gid) = owner(&space);
    let applied = apply_metadata(
        &node,
        &TargetMetadata { mode: 0o644, uid, gid, times: None, xattrs: &[] },
        MetadataCaller::current_process(),
    );
    assert!(applied.is_complete(), "{applied:?}");
    assert!(node.read_xattrs().unwrap().is_empty());
    assert_eq!(node.stat().unwrap().mode, 0o644);
}

#[test]
fn what_cannot_be_opened_still_gets_its_metadata() {
    let space = Workspace::new();
    symlink("nowhere", space.at("link")).unwrap();
    space.root.create_special(b"fifo", SpecialFile::Fifo, 0o600).unwrap();
    space.root.create_special(b"socket", SpecialFile::Socket, 0o600).unwrap();
    space.root.create_dir(b"dir", 0o700).unwrap();
    let (uid, gid) = owner(&space);
    let time = UnixTime { secs: 1_000_000_000, nanos: 42 };
    for name in [&b"link"[..], b"fifo", b"socket", b"dir"] {
        let node = space.root.hold_node(name).unwrap();
        let wanted = TargetMetadata { mode: 0o751, uid, gid, times: Some((time, time)), xattrs: &[] };
        let applied = apply_metadata(&node, &wanted, MetadataCaller::current_process());
        assert!(applied.is_complete(), "{applied:?}");
        let stat = space.root.stat(name).unwrap();
        assert_eq!(stat.mtime, time);
        assert_eq!(stat.mode, if name == b"link" { 0o777 } else { 0o751 });
    }
}

#[test]
fn root_keeps_owners_and_set_id_bits() {
    let space = Workspace::new();
    if !is_root() {
        return;
    }
    space.write("f", "");
    let node = space.root.hold_node(b"f").unwrap();
    let wanted = TargetMetadata { mode: 0o6755, uid: 12_345, gid: 54_321, times: None, xattrs: &[] };
    assert!(apply_metadata(&node, &wanted, MetadataCaller::current_process()).is_complete());
    let stat = node.stat().unwrap();
    assert_eq!((stat.mode, stat.uid, stat.gid), (0o6755, 12_345, 54_321));
    symlink("x", space.at("l")).unwrap();
    assert!(
        apply_metadata(&space.root.hold_node(b"l").unwrap(), &wanted, MetadataCaller::current_process())
            .is_complete()
    );
    assert_eq!(space.root.stat(b"l").unwrap().uid, 12_345);
}

#[test]
fn the_id_that_means_nobody_never_means_leave_it() {
    let space = Workspace::new();
    space.write("f", "");
    let node = space.root.hold_node(b"f").unwrap();
    let wanted = TargetMetadata { mode: 0o4755, uid: u32::MAX, gid: u32::MAX, times: None, xattrs: &[] };
    let applied = apply_metadata(&node, &wanted, MetadataCaller::current_process());
    assert!(applied.owner_lost);
    assert_eq!(node.stat().unwrap().mode, 0o755, "set-id bits go with the owner");
}

#[test]
fn impossible_attributes_are_told_and_the_others_applied() {
    let space = Workspace::new();
    space.write("f", "");
    let (uid, gid) = owner(&space);
    let xattrs = [xattr("nonsense", b"x"), xattr("user.fine", b"y")];
    let node = space.root.hold_node(b"f").unwrap();
    let applied = apply_metadata(
        &node,
        &TargetMetadata { mode: 0o640, uid, gid, times: None, xattrs: &xattrs },
        MetadataCaller::current_process(),
    );
    assert!(
        applied
            .problems
            .iter()
            .any(|problem| matches!(problem, BeneathError::System { name, .. } if **name == *b"nonsense"))
    );
    assert_eq!(node.stat().unwrap().mode, 0o640);
}

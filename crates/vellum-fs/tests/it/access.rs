//! Access control lists and modes.

use rustix::io::Errno;
use vellum_fs::StateReader;
use vellum_fs::{AttributeChanges, RequestCaller, XattrFlags};

use crate::stand::{CALLER, ROOT, Stand, errno};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const SET: XattrFlags = XattrFlags { create: false, replace: false, drops_set_gid: false };

/// Owner, the user 1000, owning group, mask, others.
fn list(owner: u8, user: u8, group: u8, mask: u8, others: u8) -> Vec<u8> {
    let entry = |tag: u8, allowed: u8, id: u32| [&[tag, 0, allowed, 0], &id.to_le_bytes()[..]].concat();
    let no_id = u32::MAX;
    let entries = [
        entry(1, owner, no_id),
        entry(2, user, 1000),
        entry(4, group, no_id),
        entry(16, mask, no_id),
        entry(32, others, no_id),
    ];
    [vec![2, 0, 0, 0], entries.concat()].concat()
}

fn plain(owner: u8, group: u8, others: u8) -> Vec<u8> {
    let entry = |tag: u8, allowed: u8| [tag, 0, allowed, 0, 255, 255, 255, 255];
    [vec![2, 0, 0, 0], [entry(1, owner), entry(4, group), entry(32, others)].concat()].concat()
}

#[test]
fn a_list_sets_the_mode_and_the_mode_the_list() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    fs.attributes().setxattr(file, ACCESS, &list(6, 7, 4, 6, 0), SET).unwrap();
    assert_eq!(fs.attr("f").mode, 0o660);
    fs.attributes()
        .setattr(file, &AttributeChanges { mode: Some(0o751), ..Default::default() }, CALLER)
        .unwrap();
    assert_eq!(&*fs.getxattr(file, ACCESS).unwrap(), list(7, 7, 4, 5, 1));
    assert_eq!(fs.attr("f").mode, 0o751);
}

#[test]
fn a_list_that_is_a_mode_is_not_kept() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    fs.attributes().setxattr(file, ACCESS, &list(6, 7, 4, 6, 0), SET).unwrap();
    fs.attributes().setxattr(file, ACCESS, &plain(7, 5, 1), SET).unwrap();
    assert_eq!(fs.attr("f").mode, 0o751);
    assert_eq!(errno(fs.getxattr(file, ACCESS)), Errno::NODATA);
    assert!(fs.listxattr(file).unwrap().is_empty());
    fs.attributes().removexattr(file, ACCESS).unwrap();
}

#[test]
fn what_is_made_inherits() {
    let fs = Stand::new();
    let dir = fs.mkdir("d").unwrap().ino;
    fs.attributes().setxattr(dir, DEFAULT, &list(7, 7, 5, 7, 0), SET).unwrap();
    assert_eq!(fs.attr("d").mode, 0o755, "a default list is not about the directory itself");
    let caller = RequestCaller { umask: 0o077, ..CALLER };
    let file = fs.fs.names().create(dir, b"f", 0o664, caller).unwrap();
    assert_eq!(file.attr.mode, 0o660);
    assert_eq!(&*fs.getxattr(file.ino, ACCESS).unwrap(), list(6, 7, 5, 6, 0));
    assert_eq!(errno(fs.getxattr(file.ino, DEFAULT)), Errno::NODATA);
    let sub = fs.fs.names().mkdir(dir, b"s", 0o755, caller).unwrap();
    assert_eq!(sub.attr.mode, 0o750);
    assert_eq!(&*fs.getxattr(sub.ino, ACCESS).unwrap(), list(7, 7, 5, 5, 0));
    assert_eq!(&*fs.getxattr(sub.ino, DEFAULT).unwrap(), list(7, 7, 5, 7, 0));
    let link = fs.names().symlink(dir, b"l", b"f", caller).unwrap();
    assert_eq!((link.attr.mode, fs.listxattr(link.ino).unwrap().len()), (0o777, 0));
    let tmp = fs.names().tmpfile(dir, 0o644, caller).unwrap();
    assert_eq!(&*fs.getxattr(tmp.ino, ACCESS).unwrap(), list(6, 7, 5, 4, 0));
}

#[test]
fn a_plain_default_list_leaves_a_plain_file() {
    let fs = Stand::new();
    let dir = fs.mkdir("d").unwrap().ino;
    fs.attributes().setxattr(dir, DEFAULT, &plain(7, 5, 0), SET).unwrap();
    let file = fs.create("d/f").unwrap();
    assert_eq!(file.attr.mode, 0o640);
    assert!(fs.listxattr(file.ino).unwrap().is_empty());
    fs.attributes().removexattr(dir, DEFAULT).unwrap();
    assert_eq!(fs.create("d/g").unwrap().attr.mode, 0o644);
}

#[test]
fn wrong_lists_are_refused() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    let link = fs.names().symlink(ROOT, b"s", b"f", CALLER).unwrap().ino;
    assert_eq!(errno(fs.attributes().setxattr(file, ACCESS, b"nonsense", SET)), Errno::OPNOTSUPP);
    assert_eq!(errno(fs.attributes().setxattr(file, ACCESS, &[2, 0, 0, 0, 1], SET)), Errno::INVAL);
    assert_eq!(errno(fs.attributes().setxattr(file, DEFAULT, &plain(7, 5, 0), SET)), Errno::ACCESS);
    assert_eq!(errno(fs.attributes().setxattr(link, ACCESS, &plain(7, 5, 0), SET)), Errno::OPNOTSUPP);
    assert_eq!(fs.attr("f").mode, 0o644);
}

//! Extended attributes.

use rustix::io::Errno;
use vellum_fs::XattrFlags;

use crate::stand::{CALLER, ROOT, Stand, errno, wait_for_tick};
use vellum_fs::StateReader;

const SET: XattrFlags = XattrFlags { create: false, replace: false, drops_set_gid: false };
const CREATE: XattrFlags = XattrFlags { create: true, replace: false, drops_set_gid: false };
const REPLACE: XattrFlags = XattrFlags { create: false, replace: true, drops_set_gid: false };

#[test]
fn values_are_kept_and_listed() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap();
    wait_for_tick();
    fs.attributes().setxattr(file.ino, b"user.b", b"1", SET).unwrap();
    fs.attributes().setxattr(file.ino, b"trusted.a", b"", CREATE).unwrap();
    fs.attributes().setxattr(file.ino, b"user.b", &[0xFF], REPLACE).unwrap();
    assert_eq!(&*fs.getxattr(file.ino, b"user.b").unwrap(), [0xFF]);
    assert_eq!(&*fs.getxattr(file.ino, b"trusted.a").unwrap(), b"");
    assert_eq!(fs.listxattr(file.ino).unwrap(), [&b"trusted.a"[..], b"user.b"]);
    assert!(fs.attr("f").ctime > file.attr.ctime && fs.attr("f").mtime == file.attr.mtime);
    fs.attributes().removexattr(file.ino, b"user.b").unwrap();
    assert_eq!(errno(fs.getxattr(file.ino, b"user.b")), Errno::NODATA);
    assert_eq!(fs.listxattr(file.ino).unwrap(), [b"trusted.a"]);
}

#[test]
fn they_go_with_their_file() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    fs.attributes().setxattr(file, b"user.a", b"1", SET).unwrap();
    fs.unlink("f").unwrap();
    assert_eq!(errno(fs.getxattr(file, b"user.a")), Errno::NODATA);
    assert_eq!(errno(fs.listxattr(file)), Errno::STALE);
}

#[test]
fn presence_is_asked_for() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    assert_eq!(errno(fs.attributes().setxattr(file, b"user.a", b"", REPLACE)), Errno::NODATA);
    fs.attributes().setxattr(file, b"user.a", b"", CREATE).unwrap();
    assert_eq!(errno(fs.attributes().setxattr(file, b"user.a", b"", CREATE)), Errno::EXIST);
    assert_eq!(errno(fs.attributes().removexattr(file, b"user.b")), Errno::NODATA);
}

#[test]
fn namespaces_and_lengths_are_those_of_linux() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    let link = fs.names().symlink(ROOT, b"s", b"f", CALLER).unwrap().ino;
    let long = [b"user.".to_vec(), vec![b'x'; 251]].concat();
    let set = |ino, name: &[u8], value: &[u8]| fs.attributes().setxattr(ino, name, value, SET);
    assert_eq!(errno(set(file, b"", b"")), Errno::RANGE);
    assert_eq!(errno(set(file, &long, b"")), Errno::RANGE);
    set(file, &long[..255], b"").unwrap();
    assert_eq!(errno(set(file, b"user.", b"")), Errno::INVAL);
    for name in [&b"users.a"[..], b"system.x", b"a"] {
        assert_eq!(errno(set(file, name, b"")), Errno::OPNOTSUPP);
    }
    assert_eq!(errno(set(file, b"user.big", &[0; 65_537])), Errno::TOOBIG);
    set(file, b"user.big", &[0; 65_536]).unwrap();
    assert_eq!(fs.getxattr(file, b"user.big").unwrap().len(), 65_536);
    assert_eq!(errno(set(link, b"user.a", b"")), Errno::PERM);
    set(link, b"trusted.a", b"").unwrap();
}

#[test]
fn there_are_no_more_than_can_be_listed() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    let name = |number: usize| format!("user.{number:0>250}").into_bytes();
    for number in 0..256 {
        fs.attributes().setxattr(file, &name(number), b"", SET).unwrap();
    }
    assert_eq!(errno(fs.attributes().setxattr(file, &name(256), b"", SET)), Errno::NOSPC);
    fs.attributes().setxattr(file, &name(255), b"again", SET).unwrap();
    fs.attributes().removexattr(file, &name(7)).unwrap();
    fs.attributes().setxattr(file, &name(256), b"", SET).unwrap();
}

//! Every kind of request as a line.

use rustix::io::Errno;
use vellum_types::{FileKind, Ino, InodeAttr, UnixTime};

use super::*;
use crate::metrics::RequestKind;
use crate::wire::{RequestHeader, WriteFlags};

/// The line behind the time, without the duration.
fn format_line<T: LineDetail>(what: FuseOperation<'_>, done: std::result::Result<T, FsError>) -> String {
    let head = RequestHeader { opcode: 0, unique: 0, node: 17, uid: 5, gid: 6, pid: 7 };
    let kind = RequestKind::from_operation(&what).unwrap();
    let noted = LineNote::new(
        kind,
        ServedRequest { head: &head, operation: &what },
        Instant::now(),
        Duration::from_micros(120),
        &done,
    );
    let text = noted.to_log_line(&ClockPair::now()).to_string();
    let rest = text.split_once(" [uid:5,gid:6,pid:7] ").unwrap().1;
    rest.strip_suffix(" <0.000120>\n").unwrap().to_owned()
}

fn done(what: FuseOperation<'_>) -> String {
    format_line(what, Ok(()))
}

#[test]
fn arguments_of_names_are_told() {
    use FuseOperation as Do;
    assert_eq!(done(Do::Lookup { name: b"a b" }), r#"lookup (17,"a b"): ok"#);
    let made = Do::Mknod { name: b"n", mode: 0o100_644, device: 0, umask: 0o22 };
    assert_eq!(done(made), r#"mknod (17,"n",0100644,0x0,022): ok"#);
    let made = Do::Mkdir { name: b"d", mode: 0o755, umask: 0o22 };
    assert_eq!(done(made), r#"mkdir (17,"d",0755,022): ok"#);
    assert_eq!(done(Do::Tmpfile { mode: 0o600, umask: 0 }), "tmpfile (17,0600,00): ok");
    let made = Do::Symlink { name: b"s", target: b"../x" };
    assert_eq!(done(made), r#"symlink (17,"s","../x"): ok"#);
    assert_eq!(done(Do::Link { node: 18, name: b"l" }), r#"link (17,"l",18): ok"#);
    assert_eq!(done(Do::Unlink { name: b"a" }), r#"unlink (17,"a"): ok"#);
    assert_eq!(done(Do::Rmdir { name: b"a" }), r#"rmdir (17,"a"): ok"#);
    let renamed = Do::Rename { name: b"a", to_dir: 19, to_name: b"b", flags: 1 };
    assert_eq!(done(renamed), r#"rename (17,"a",19,"b",0x1): ok"#);
    let listed = Do::Readdir { offset: 3, room: 4096 };
    assert_eq!(done(listed), "readdir (17,4096,3): ok");
}

#[test]
fn arguments_of_content_are_told() {
    use FuseOperation as Do;
    assert_eq!(done(Do::Read { offset: 8192, len: 4096, direct: false }), "read (17,4096,8192): ok");
    let write = Do::Write { offset: 1, flags: WriteFlags(1), data: b"abc" };
    assert_eq!(format_line(write, Ok(3_u32)), "write (17,3,1,0x1): ok 3");
    assert_eq!(done(Do::Fsync { data_only: true }), "fsync (17,1): ok");
    assert_eq!(done(Do::Fsyncdir { data_only: false }), "fsyncdir (17,0): ok");
    let allocated = Do::Fallocate { offset: 1, len: 2, mode: 3 };
    assert_eq!(done(allocated), "fallocate (17,0x3,1,2): ok");
    assert_eq!(format_line(Do::Lseek { offset: 1, whence: 3 }, Ok(5_u64)), "lseek (17,1,3): ok 5");
    let copied = Do::CopyFileRange { offset: 1, to: 18, to_offset: 2, len: 3, wide: true };
    assert_eq!(format_line(copied, Ok(3_u64)), "copy_file_range (17,1,18,2,3): ok 3");
}

#[test]
fn arguments_of_attributes_are_told() {
    use FuseOperation as Do;
    for (what, name) in [(Do::Getattr, "getattr"), (Do::Statx, "statx"), (Do::Statfs, "statfs")] {
        assert_eq!(done(what), format!("{name} (17): ok"));
    }
    assert_eq!(format_line(Do::Readlink, Ok(vec![0; 4])), "readlink (17): ok 4");
    let set = AttributeChanges {
        mode: Some(0o644),
        uid: Some(1),
        gid: None,
        size: Some(10),
        atime: Some(TimeChange::Now),
        mtime: Some(TimeChange::At(UnixTime { secs: -3, nanos: 7 })),
        ctime: None,
    };
    let whole = "setattr (17,mode=0644,uid=1,size=10,atime=now,mtime=-3.000000007): ok";
    assert_eq!(done(Do::Setattr(set)), whole);
    let set = Do::Setxattr { name: b"user.a", value: b"1234", flags: 2, drops_set_gid: false };
    assert_eq!(done(set), r#"setxattr (17,"user.a",4,0x2): ok"#);
    let got = Do::Getxattr { name: b"user.a", room: 0 };
    assert_eq!(format_line(got, Ok(Arc::<[u8]>::from(vec![0; 4]))), r#"getxattr (17,"user.a",0): ok 4"#);
    assert_eq!(done(Do::Listxattr { room: 64 }), "listxattr (17,64): ok");
    assert_eq!(done(Do::Removexattr { name: b"user.a" }), r#"removexattr (17,"user.a"): ok"#);
}

#[test]
fn what_came_of_it_is_told() {
    let attr = InodeAttr { size: 12, ..InodeAttr::new(FileKind::File, 0o644) };
    let attr = crate::adapter::convert::to_node_attributes(Ino(18).0, &attr, 0);
    let entry = EntryAnswer { attr, generation: 0, timeout: Duration::ZERO };
    let found = format_line(FuseOperation::Lookup { name: b"a" }, Ok(entry));
    assert_eq!(found, r#"lookup (17,"a"): ok 18,0100644,12"#);
    let missing = format_line::<EntryAnswer>(FuseOperation::Lookup { name: b"a" }, Err(Errno::NOENT.into()));
    assert_eq!(missing, r#"lookup (17,"a"): No such file or directory (os error 2)"#);
}

#[test]
fn names_can_hold_anything_but_stay_on_one_line() {
    let what = FuseOperation::Mkdir { name: b"a\n\"): ok <1>\xff", mode: 0o755, umask: 0 };
    assert_eq!(done(what), r#"mkdir (17,"a\n\"): ok <1>\xff",0755,00): ok"#);
}

#[test]
fn the_time_of_day_is_that_of_when_it_was_done() {
    let head = RequestHeader { opcode: 0, unique: 0, node: 1, uid: 0, gid: 0, pid: 1 };
    let request = ServedRequest { head: &head, operation: &FuseOperation::Getattr };
    let clock =
        ClockPair { moment: Instant::now(), of_day: UNIX_EPOCH + Duration::from_millis(1_700_000_000_500) };
    let began = clock.moment.checked_sub(Duration::from_millis(400)).unwrap();
    let noted = LineNote::new(RequestKind::Getattr, request, began, Duration::from_millis(150), &Ok(()));
    let line = noted.to_log_line(&clock).to_string();
    assert_eq!(line, "1700000000.250000 [uid:0,gid:0,pid:1] getattr (1): ok <0.150000>\n");
}

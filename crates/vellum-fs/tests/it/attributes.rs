//! Setting attributes.

use rustix::io::Errno;
use vellum_fs::StateReader;
use vellum_fs::{AttributeChanges, RequestCaller, TimeChange, XattrFlags};
use vellum_types::UnixTime;

use crate::stand::{CALLER, ROOT, Stand, errno, request, wait_for_tick};

const USER: RequestCaller = RequestCaller { uid: 1000, gid: 1000, umask: 0 };

fn time(secs: i64, nanos: u32) -> UnixTime {
    UnixTime { secs, nanos }
}

#[test]
fn times_are_set_to_the_nanosecond() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap();
    wait_for_tick();
    let atime = time(-5, 999_999_999);
    let mtime = time(1 << 40, 1);
    let set = AttributeChanges {
        atime: Some(TimeChange::At(atime)),
        mtime: Some(TimeChange::At(mtime)),
        ..Default::default()
    };
    let after = fs.attributes().setattr(file.ino, &set, CALLER).unwrap().attr;
    assert_eq!((after.atime, after.mtime), (atime, mtime));
    assert!(after.ctime > file.attr.ctime && after.btime == file.attr.btime);
    wait_for_tick();
    let set = AttributeChanges { mtime: Some(TimeChange::Now), ..Default::default() };
    let now = fs.attributes().setattr(file.ino, &set, CALLER).unwrap().attr;
    assert_eq!((now.atime, now.mtime), (atime, now.ctime));
    let set = AttributeChanges { ctime: Some(time(7, 7)), ..Default::default() };
    assert_eq!(fs.attributes().setattr(file.ino, &set, CALLER).unwrap().attr.ctime, time(7, 7));
    assert_eq!(fs.attr("f").ctime, time(7, 7));
}

#[test]
fn a_new_owner_does_not_get_set_id_bits() {
    let fs = Stand::new();
    let set = |path: &str, set: AttributeChanges| {
        fs.attributes().setattr(fs.at(path).ino, &set, CALLER).unwrap().attr
    };
    let mode = |mode| AttributeChanges { mode: Some(mode), ..Default::default() };
    let owner = AttributeChanges { uid: Some(7), ..Default::default() };
    fs.populate(&["f", "d/"]);
    set("f", mode(0o6755));
    let changed = set("f", owner);
    assert_eq!((changed.uid, changed.gid, changed.mode), (7, 0, 0o755));
    set("f", mode(0o6744));
    assert_eq!(
        set("f", AttributeChanges { gid: Some(9), ..Default::default() }).mode,
        0o2744,
        "it locks, and stays"
    );
    set("d", mode(0o6755));
    assert_eq!(set("d", owner).mode, 0o6755);
}

#[test]
fn a_new_owner_does_not_get_capabilities() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    fs.attributes().setxattr(file, b"security.capability", b"x", XattrFlags::default()).unwrap();
    fs.attributes().setattr(file, &AttributeChanges { uid: Some(7), ..Default::default() }, CALLER).unwrap();
    assert_eq!(errno(fs.getxattr(file, b"security.capability")), Errno::NODATA);
}

#[test]
fn sizes_are_those_of_files() {
    let fs = Stand::new();
    fs.populate(&["f", "d/"]);
    let size = |size| AttributeChanges { size: Some(size), ..Default::default() };
    let before = fs.attr("f");
    wait_for_tick();
    let after = fs.attributes().setattr(fs.at("f").ino, &size(1 << 40), CALLER).unwrap().attr;
    assert!(after.size == 1 << 40 && after.mtime > before.mtime && after.ctime > before.ctime);
    assert_eq!(errno(fs.attributes().setattr(fs.at("f").ino, &size(1 << 63), CALLER)), Errno::FBIG);
    assert_eq!(errno(fs.attributes().setattr(ROOT, &size(0), CALLER)), Errno::ISDIR);
    let link = fs.names().symlink(ROOT, b"s", b"f", CALLER).unwrap().ino;
    assert_eq!(errno(fs.attributes().setattr(link, &size(0), CALLER)), Errno::INVAL);
    assert_eq!(
        errno(fs.attributes().setattr(
            link,
            &AttributeChanges { mode: Some(0), ..Default::default() },
            CALLER
        )),
        Errno::OPNOTSUPP
    );
}

#[test]
fn who_has_no_privileges_loses_set_id_bits_by_truncating() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap().ino;
    let mode = Some(0o6777);
    let size = Some(1);
    fs.attributes().setattr(file, &AttributeChanges { mode, ..Default::default() }, CALLER).unwrap();
    assert_eq!(
        fs.attributes()
            .setattr(file, &AttributeChanges { size, ..Default::default() }, CALLER)
            .unwrap()
            .attr
            .mode,
        0o6777
    );
    assert_eq!(
        fs.attributes()
            .setattr(file, &AttributeChanges { size, ..Default::default() }, USER)
            .unwrap()
            .attr
            .mode,
        0o777
    );
}

#[test]
fn accesses_are_recorded_as_relatime_does() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap();
    wait_for_tick();
    fs.live_map().record_access(file.ino).unwrap();
    let first = fs.attr("f");
    assert!(first.atime > file.attr.atime && first.ctime == file.attr.ctime);
    fs.live_map().record_access(file.ino).unwrap();
    assert_eq!(fs.attr("f").atime, first.atime);
    let old = AttributeChanges {
        atime: Some(TimeChange::At(time(first.atime.secs - 90_000, 0))),
        mtime: Some(TimeChange::At(time(0, 0))),
        ctime: Some(time(0, 0)),
        ..Default::default()
    };
    fs.attributes().setattr(file.ino, &old, CALLER).unwrap();
    wait_for_tick();
    fs.live_map().record_access(file.ino).unwrap();
    assert!(fs.attr("f").atime > first.atime);
}

#[test]
fn reading_alone_changes_nothing_that_is_kept() {
    let fs = Stand::new();
    fs.mkdir("d").unwrap();
    let file = fs.create("d/f").unwrap();
    fs.content().write(file.ino, 0, b"content", false).unwrap();
    let link = fs.names().symlink(ROOT, b"l", b"d/f", CALLER).unwrap();
    fs.publisher().publish_all().unwrap();
    let snapshot = fs.create_snapshot(&request()).unwrap();
    fs.publisher().publish_all().unwrap();
    let before = ["d", "d/f", "l"].map(|path| fs.attr(path));
    let root = fs.live_map().lock_head().state.base;
    wait_for_tick();
    fs.read(file.ino, 0, 10).unwrap();
    fs.list_entries(fs.at("d").ino).unwrap();
    fs.readlink(link.ino).unwrap();
    for (path, before) in ["d", "d/f", "l"].into_iter().zip(&before) {
        let now = fs.attr(path);
        assert!(now.atime > before.atime && now.atime > now.mtime, "{path} was read");
        assert_eq!((now.mtime, now.ctime), (before.mtime, before.ctime), "{path}");
    }
    assert!(!fs.is_changed().unwrap());
    fs.publisher().publish_all().unwrap();
    assert_eq!(fs.live_map().lock_head().state.base, root);
    assert_eq!(fs.live_map().lock_head().snapshot.unwrap().id, snapshot);
    // It is recorded with the next change, and not before.
    let seen = fs.attr("d/f").atime;
    let mode = AttributeChanges { mode: Some(0o600), ..Default::default() };
    assert_eq!(fs.attributes().setattr(file.ino, &mode, CALLER).unwrap().attr.atime, seen);
    let fs = fs.again();
    assert_eq!(fs.attr("d/f").atime, seen);
    assert_eq!(fs.attr("l").atime, before[2].atime, "that one was in memory only");
}

#[test]
fn a_time_of_access_that_is_set_counts() {
    let fs = Stand::new();
    let file = fs.create("f").unwrap();
    fs.read(file.ino, 0, 1).unwrap();
    let early = AttributeChanges { atime: Some(TimeChange::At(time(5, 6))), ..Default::default() };
    assert_eq!(fs.attributes().setattr(file.ino, &early, CALLER).unwrap().attr.atime, time(5, 6));
    assert_eq!(fs.attr("f").atime, time(5, 6));
    wait_for_tick();
    fs.read(file.ino, 0, 1).unwrap();
    assert!(fs.attr("f").atime > fs.attr("f").mtime);
}

#[test]
fn there_is_room() {
    let fs = Stand::new();
    let room = fs.attributes().statfs().unwrap();
    assert!(room.blocks >= room.blocks_free && room.files > room.files_free && room.name_max == 255);
}

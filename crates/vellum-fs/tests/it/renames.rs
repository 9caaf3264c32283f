//! The corners of renaming.

use rustix::io::Errno;

use crate::stand::{EXCHANGE, MOVE, NOREPLACE, ROOT, Stand, errno, wait_for_tick};

#[test]
fn a_file_moves_and_knows_where_it_is() {
    let fs = Stand::new();
    fs.populate(&["d/", "f"]);
    let before = fs.at("f");
    wait_for_tick();
    fs.rename("f", "d/g", MOVE).unwrap();
    let after = fs.at("d/g");
    assert!(!fs.exists("f"));
    assert_eq!(after.ino, before.ino);
    assert_eq!((after.attr.parent, &*after.attr.name), (fs.at("d").ino, &b"g"[..]));
    assert!(after.attr.ctime > before.attr.ctime && after.attr.mtime == before.attr.mtime);
    assert_eq!((fs.attr("").mtime, fs.attr("d").mtime), (after.attr.ctime, after.attr.ctime));
    assert_eq!(after.attr.generation, before.attr.generation);
}

#[test]
fn a_directory_moves_with_its_link_counts() {
    let fs = Stand::new();
    fs.populate(&["a/", "b/", "a/d/", "a/d/f"]);
    fs.rename("a/d", "b/e", MOVE).unwrap();
    assert_eq!((fs.attr("a").nlink, fs.attr("b").nlink, fs.attr("").nlink), (2, 3, 4));
    assert_eq!(fs.names().parent_dir(fs.at("b/e").ino).unwrap(), fs.at("b").ino);
    assert!(fs.exists("b/e/f"));
}

#[test]
fn an_empty_directory_is_replaced() {
    let fs = Stand::new();
    fs.populate(&["a/", "b/", "a/d/", "b/e/"]);
    let gone = fs.at("b/e").ino;
    fs.rename("a/d", "b/e", MOVE).unwrap();
    assert_eq!((fs.attr("a").nlink, fs.attr("b").nlink), (2, 3));
    assert_eq!(errno(fs.live_map().inode_attr(gone)), Errno::STALE);
    fs.populate(&["x/", "y/"]);
    fs.rename("x", "y", MOVE).unwrap();
    assert_eq!(fs.attr("").nlink, 5);
}

#[test]
fn kinds_must_agree() {
    let fs = Stand::new();
    fs.populate(&["d/", "full/", "full/f", "f"]);
    assert_eq!(errno(fs.rename("d", "f", MOVE)), Errno::NOTDIR);
    assert_eq!(errno(fs.rename("f", "d", MOVE)), Errno::ISDIR);
    assert_eq!(errno(fs.rename("d", "full", MOVE)), Errno::NOTEMPTY);
    assert_eq!(errno(fs.rename("none", "f", MOVE)), Errno::NOENT);
    let file = fs.at("f").ino;
    assert_eq!(errno(fs.fs.names().rename(ROOT, b"d", file, b"x", MOVE)), Errno::NOTDIR);
    assert_eq!(errno(fs.fs.names().rename(file, b"d", ROOT, b"x", MOVE)), Errno::NOTDIR);
}

#[test]
fn nothing_moves_into_itself() {
    let fs = Stand::new();
    fs.populate(&["d/", "d/e/", "d/e/f/"]);
    assert_eq!(errno(fs.rename("d", "d/x", MOVE)), Errno::INVAL);
    assert_eq!(errno(fs.rename("d", "d/e/f/x", MOVE)), Errno::INVAL);
    assert_eq!(errno(fs.rename("d", "d/e", MOVE)), Errno::INVAL);
    assert_eq!(errno(fs.rename("d/e/f", "d", MOVE)), Errno::NOTEMPTY);
    assert_eq!(errno(fs.rename("d/e/f", "d", EXCHANGE)), Errno::INVAL);
    assert_eq!(errno(fs.rename("d", "d/e/f", EXCHANGE)), Errno::INVAL);
    fs.create("d/e/g").unwrap();
    assert_eq!(errno(fs.rename("d/e/g", "d", MOVE)), Errno::NOTEMPTY);
    fs.rename("d/e/f", "d/e/f", MOVE).unwrap();
    fs.rename("d/e/f", "f", MOVE).unwrap();
}

#[test]
fn links_of_one_file_do_not_replace_each_other() {
    let fs = Stand::new();
    fs.create("a").unwrap();
    fs.link("a", "b").unwrap();
    let before = fs.attr("a");
    fs.rename("a", "b", MOVE).unwrap();
    assert!(fs.exists("a") && fs.exists("b"));
    assert_eq!(fs.attr("a"), before);
    assert_eq!(errno(fs.rename("a", "b", NOREPLACE)), Errno::EXIST);
}

#[test]
fn replacing_one_of_several_links_leaves_the_others() {
    let fs = Stand::new();
    fs.populate(&["a", "new"]);
    fs.link("a", "b").unwrap();
    fs.rename("new", "a", MOVE).unwrap();
    let left = fs.attr("b");
    assert_eq!((left.nlink, &*left.name), (1, &b"b"[..]));
}

#[test]
fn a_second_link_moves_and_the_first_stays_the_place() {
    let fs = Stand::new();
    fs.create("a").unwrap();
    fs.link("a", "b").unwrap();
    fs.rename("b", "c", MOVE).unwrap();
    assert_eq!(&*fs.attr("c").name, b"a");
    fs.unlink("a").unwrap();
    assert_eq!(&*fs.attr("c").name, b"c");
}

#[test]
fn noreplace_does_not_replace() {
    let fs = Stand::new();
    fs.populate(&["a", "b"]);
    assert_eq!(errno(fs.rename("a", "b", NOREPLACE)), Errno::EXIST);
    assert_eq!(errno(fs.rename("a", "a", NOREPLACE)), Errno::EXIST);
    fs.rename("a", "c", NOREPLACE).unwrap();
    let both = vellum_fs::RenameFlags { noreplace: true, exchange: true, whiteout: None, uid: 0 };
    assert_eq!(errno(fs.rename("c", "b", both)), Errno::INVAL);
}

#[test]
fn a_file_and_a_directory_change_places() {
    let fs = Stand::new();
    fs.populate(&["a/", "b/", "a/d/", "a/d/x", "b/f"]);
    let dir = fs.at("a/d").ino;
    let file = fs.at("b/f").ino;
    fs.rename("a/d", "b/f", EXCHANGE).unwrap();
    assert_eq!((fs.at("a/d").ino, fs.at("b/f").ino), (file, dir));
    assert_eq!((fs.attr("a").nlink, fs.attr("b").nlink), (2, 3));
    assert_eq!(fs.names().parent_dir(dir).unwrap(), fs.at("b").ino);
    assert_eq!((fs.attr("a/d").parent, &*fs.attr("a/d").name), (fs.at("a").ino, &b"d"[..]));
    assert!(fs.exists("b/f/x"));
    assert_eq!(errno(fs.rename("a/d", "none", EXCHANGE)), Errno::NOENT);
}

#[test]
fn full_directories_change_places() {
    let fs = Stand::new();
    fs.populate(&["a/", "b/", "a/x", "b/y"]);
    fs.rename("a", "b", EXCHANGE).unwrap();
    assert!(fs.exists("a/y") && fs.exists("b/x"));
    assert_eq!(&*fs.attr("a").name, b"a");
}

//! The traits of the crate vfs, by that crate's own tests of filesystems.

#![expect(clippy::useless_vec, reason = "of a macro of the crate vfs")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use vellum_library::vfs::{VfsDir, VfsTree};
use vellum_library::{Dir, Tree, Volume, VolumeOptions, Worktree};
use vfs::VfsPath;

use crate::stand::Stand;

/// One volume for all tests of the crate, which say when one begins and not when it ends.
static WORK: LazyLock<Worktree> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vfs");
    // What the last run left.
    let _ = fs::remove_dir_all(&dir);
    let options = VolumeOptions { plain: true, ..VolumeOptions::default() };
    let volume = Volume::create_with(&dir, &options).unwrap().volume;
    volume.create_worktree("work", None).unwrap()
});

fn empty_dir() -> Dir {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = COUNT.fetch_add(1, Ordering::Relaxed).to_string();
    WORK.mkdir(&name).unwrap();
    WORK.root().open_dir(&name).unwrap()
}

vfs::test_vfs!(VfsDir(empty_dir()));

#[test]
fn a_snapshot_is_read_and_never_changed() {
    let stand = Stand::new();
    stand.mkdir("dir").unwrap();
    stand.write("dir/file", "content").unwrap();
    let id = stand.create_snapshot("one").unwrap();
    stand.write("dir/file", "other").unwrap();
    let root = VfsPath::new(VfsTree(stand.open_snapshot(&id.to_string()).unwrap()));
    let file = root.join("dir/file").unwrap();
    assert_eq!(file.read_to_string().unwrap(), "content");
    assert_eq!(file.metadata().unwrap().len, 7);
    assert_eq!(root.join("dir").unwrap().read_dir().unwrap().count(), 1);
    assert!(!root.join("dir/absent").unwrap().exists().unwrap());
    assert!(root.join("new").unwrap().create_dir().is_err());
    assert!(root.join("new").unwrap().create_file().is_err());
    assert!(file.append_file().is_err());
    assert!(file.remove_file().is_err());
    assert_eq!(file.read_to_string().unwrap(), "content");
}

#[test]
fn a_name_that_is_not_text_is_reported_and_not_left_out() {
    use std::os::unix::ffi::OsStrExt;
    let stand = Stand::new();
    let root = VfsPath::new(VfsDir(stand.root().clone()));
    root.join("text").unwrap().create_file().unwrap().write_all(b"x").unwrap();
    stand.write(std::ffi::OsStr::from_bytes(b"\xff"), "x").unwrap();
    assert!(root.read_dir().err().unwrap().to_string().contains("not UTF-8"));
}

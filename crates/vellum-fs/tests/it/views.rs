//! Views: what they show does not change, whatever happens to the worktree, and nothing is left when they end.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::publish::PublishProgress;
use vellum_fs::tree::head::layer_prefix;
use vellum_fs::{LiveFilesystem, LiveView, SeekTarget, XattrFlags};
use vellum_map::KeySpan;
use vellum_types::{Ino, SnapshotId};
use vellum_volume::SnapshotOrigin;

use crate::stand::{MOVE, ROOT, Stand, errno};
use vellum_fs::StateReader;

/// More than what is kept beside the attributes.
const BIG: usize = 100_000;

fn write(fs: &LiveFilesystem, ino: Ino, byte: u8, len: usize) {
    assert_eq!(fs.content().write(ino, 0, &vec![byte; len], false).unwrap(), len);
}

fn snapshot(fs: &LiveFilesystem) -> SnapshotId {
    fs.create_snapshot(&LiveSnapshotRequest {
        note: String::new(),
        tags: Vec::new(),
        origin: SnapshotOrigin::User,
    })
    .unwrap()
}

/// The layers that something stands in.
fn layers(fs: &LiveFilesystem) -> usize {
    let mut prefixes: Vec<Vec<u8>> = Vec::new();
    let all = KeySpan::from_prefix(&layer_prefix(vellum_fs::tree::head::LayerId(0))[..1]);
    let visit = &mut |key: &[u8], _: &vellum_live::ValueBytes| {
        prefixes.push(key[..9].to_vec());
        ControlFlow::Continue(())
    };
    fs.live_map().live_store().scan(&all, visit).unwrap();
    prefixes.dedup();
    prefixes.len()
}

fn publish(fs: &LiveFilesystem) {
    fs.publisher().publish_all().unwrap();
    // Once more, for what ended meanwhile.
    fs.publisher().publish_oldest().unwrap();
}

/// A worktree with some of everything, and a view of it.
fn with_view() -> (Stand, LiveView) {
    let stand = Stand::new();
    stand.populate(&["dir/", "dir/small", "dir/big", "moved", "gone", "empty/"]);
    write(&stand, stand.at("dir/small").ino, b's', 10);
    write(&stand, stand.at("dir/big").ino, b'b', BIG);
    stand.attributes().setxattr(stand.at("moved").ino, b"user.mark", b"old", XattrFlags::default()).unwrap();
    stand.fs.names().symlink(ROOT, b"link", b"dir", crate::stand::CALLER).unwrap();
    let view = stand.fs.open_view().unwrap();
    (stand, view)
}

fn change_everything(stand: &Stand) {
    write(stand, stand.at("dir/small").ino, b'S', 20);
    write(stand, stand.at("dir/big").ino, b'B', BIG / 2);
    stand.attributes().setxattr(stand.at("moved").ino, b"user.mark", b"new", XattrFlags::default()).unwrap();
    stand.rename("moved", "dir/moved", MOVE).unwrap();
    stand.unlink("gone").unwrap();
    stand.unlink("link").unwrap();
    stand.rmdir("empty").unwrap();
    stand.populate(&["new"]);
}

#[track_caller]
fn assert_old(view: &LiveView) {
    let names: Vec<_> = view.list_entries(ROOT).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [&b"dir"[..], b"empty", b"gone", b"link", b"moved"]);
    let dir = view.find_dentry(ROOT, b"dir").unwrap().ino;
    let at = |name: &[u8]| view.lookup(dir, name).unwrap();
    assert_eq!(view.read(at(b"small").ino, 0, 100).unwrap(), vec![b's'; 10]);
    assert_eq!(at(b"big").attr.size, BIG as u64);
    assert!(view.read(at(b"big").ino, 0, BIG + 1).unwrap() == vec![b'b'; BIG]);
    assert_eq!(view.seek_data_or_hole(at(b"big").ino, 5, SeekTarget::Hole).unwrap(), BIG as u64);
    assert_eq!(errno(view.find_dentry(dir, b"moved")), Errno::NOENT);
    let moved = view.find_dentry(ROOT, b"moved").unwrap().ino;
    assert_eq!(&*view.getxattr(moved, b"user.mark").unwrap(), b"old");
    assert_eq!(view.listxattr(moved).unwrap(), [b"user.mark"]);
    let link = view.find_dentry(ROOT, b"link").unwrap().ino;
    assert_eq!(view.readlink(link).unwrap(), b"dir");
    assert_eq!(errno(view.list_entries(link)), Errno::NOTDIR);
}

#[test]
fn later_changes_are_not_seen() {
    let (stand, view) = with_view();
    assert_old(&view);
    change_everything(&stand);
    assert_old(&view);
    assert!(stand.exists("dir/moved") && stand.exists("new") && !stand.exists("gone"));
    crate::check::check(&stand);
}

#[test]
fn publishing_and_restoring_leave_views_alone() {
    let (stand, view) = with_view();
    let before = snapshot(&stand);
    publish(&stand);
    assert_old(&view);
    change_everything(&stand);
    publish(&stand);
    assert_old(&view);
    let later = stand.fs.open_view().unwrap();
    stand.restore_snapshot(before, true).unwrap();
    publish(&stand);
    change_everything(&stand);
    publish(&stand);
    assert_old(&view);
    assert!(later.find_dentry(ROOT, b"new").is_ok());
    drop((view, later));
    publish(&stand);
    assert_eq!(layers(&stand), 0);
}

#[test]
fn nothing_is_left_of_a_view_that_ended() {
    let (stand, view) = with_view();
    change_everything(&stand);
    publish(&stand);
    assert!(layers(&stand) > 0 && stand.write_log().used_bytes() > 0, "the view needs them");
    drop(view);
    stand.publisher().publish_oldest().unwrap();
    assert_eq!((layers(&stand), stand.write_log().used_bytes()), (0, 0));
}

#[test]
fn a_view_is_a_layer_only_while_it_lasts() {
    let stand = Stand::new();
    stand.populate(&["a"]);
    for _ in 0..10 {
        drop(stand.fs.open_view().unwrap());
        stand.rename("a", "b", MOVE).unwrap();
        let [_one, _two] = [stand.fs.open_view().unwrap(), stand.fs.open_view().unwrap()];
        stand.rename("b", "a", MOVE).unwrap();
    }
    // One for each pair, and the one that is written to.
    assert_eq!(stand.live_map().lock_head().state.layers.len(), 11);
}

#[test]
fn a_crash_leaves_no_layer_of_a_view() {
    let (stand, view) = with_view();
    change_everything(&stand);
    publish(&stand);
    assert!(layers(&stand) > 0);
    // It never ends: the process dies with it.
    std::mem::forget(view);
    let stand = stand.again();
    stand.publisher().publish_oldest().unwrap();
    assert_eq!((layers(&stand), stand.write_log().used_bytes()), (0, 0));
    assert!(stand.exists("dir/moved"));
}

#[test]
fn a_discarded_state_leaves_no_layer() {
    let stand = Stand::new();
    stand.populate(&["a"]);
    let id = snapshot(&stand);
    publish(&stand);
    write(&stand, stand.at("a").ino, b'x', BIG);
    stand.restore_snapshot(id, true).unwrap();
    publish(&stand);
    assert_eq!((layers(&stand), stand.write_log().used_bytes()), (0, 0));
    assert_eq!(stand.attr("a").size, 0);
}

#[test]
fn more_views_than_layers_may_be() {
    let stand = Stand::new();
    stand.populate(&["a"]);
    let ino = stand.at("a").ino;
    let views: Vec<LiveView> = (0..1500)
        .map(|count: u32| {
            stand.content().write(ino, 0, &count.to_le_bytes(), false).unwrap();
            stand.fs.open_view().unwrap()
        })
        .collect();
    assert!(stand.live_map().lock_head().state.layers.len() <= 65);
    for (count, view) in views.iter().enumerate() {
        assert_eq!(view.read(ino, 0, 4).unwrap(), (count as u32).to_le_bytes());
    }
    drop(views);
    publish(&stand);
    assert_eq!(layers(&stand), 0);
}

#[test]
fn a_snapshot_is_viewed_before_and_after_it_is_published() {
    let (stand, first) = with_view();
    drop(first);
    let id = snapshot(&stand);
    let waiting = stand.fs.open_snapshot_view(id).unwrap();
    change_everything(&stand);
    assert_old(&waiting);
    publish(&stand);
    assert_old(&waiting);
    assert_old(&stand.fs.open_snapshot_view(id).unwrap());
    let unknown = stand.fs.open_snapshot_view(SnapshotId([7; 32]));
    assert!(unknown.is_err());
}

/// Publishes until there is nothing to do, which must be soon.
#[track_caller]
fn publish_all(fs: &LiveFilesystem) {
    let mut left = 5;
    while fs.publisher().publish_oldest().unwrap() == PublishProgress::Some {
        left -= 1;
        assert!(left > 0, "publishing does not end");
    }
}

#[test]
fn publishing_ends_though_what_was_published_is_changed_again() {
    let stand = Stand::new();
    stand.populate(&["a"]);
    let ino = stand.at("a").ino;
    write(&stand, ino, b'1', BIG);
    snapshot(&stand);
    stand.content().write(ino, 10, b"again", false).unwrap();
    publish_all(&stand);
    assert!(stand.is_changed().unwrap());
    publish(&stand);
    assert_eq!(layers(&stand), 0);
    assert_eq!(stand.read(ino, 9, 7).unwrap(), b"1again1");
}

#[test]
fn publishing_ends_though_a_file_without_a_name_is_open() {
    let stand = Stand::new();
    stand.populate(&["a"]);
    let ino = stand.at("a").ino;
    let held = stand.hold(ino).unwrap();
    write(&stand, ino, b'1', BIG);
    stand.unlink("a").unwrap();
    snapshot(&stand);
    publish_all(&stand);
    assert!(!stand.is_changed().unwrap());
    assert!(stand.read(ino, 0, BIG).unwrap() == vec![b'1'; BIG]);
    stand.release(held).unwrap();
    publish(&stand);
    assert_eq!((layers(&stand), stand.write_log().used_bytes()), (0, 0));
}

#[test]
fn no_view_is_of_half_a_change() {
    let stand = Stand::new();
    stand.populate(&["one"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                stand.rename("one", "two", MOVE).unwrap();
                stand.rename("two", "one", MOVE).unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                stand.publisher().publish_all().unwrap();
            }
        });
        let looking: Vec<_> =
            (0..2).map(|_| scope.spawn(|| (0..1000).for_each(|_| look(&stand.fs)))).collect();
        let looked: Vec<_> = looking.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        looked.into_iter().for_each(|outcome| outcome.unwrap());
    });
}

/// One of two names is there, and it stays so.
fn look(fs: &std::sync::Arc<LiveFilesystem>) {
    let view = fs.open_view().unwrap();
    let names = || view.list_entries(ROOT).unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
    let first = names();
    assert!(first == [b"one"] || first == [b"two"], "{first:?}");
    std::thread::yield_now();
    assert_eq!(names(), first);
    assert!(view.find_dentry(ROOT, &first[0]).is_ok());
}

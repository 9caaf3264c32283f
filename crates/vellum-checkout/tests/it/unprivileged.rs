//! What happens to somebody who is not root. Run by root, each test runs itself again as nobody.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use vellum_checkout::scan::ScanProblemCause;
use vellum_host::beneath::ExtendedAttribute;
use vellum_host::metadata::{MetadataCaller, TargetMetadata, apply_metadata};

use crate::workspace::{Workspace, is_root, paths};

/// The user and group that own nothing.
const NOBODY: u32 = 65_534;

/// Whether the rest of the test is to run here. Root has another process do it, if one can be started as nobody.
fn am_nobody(test: &str) -> bool {
    if !is_root() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", &format!("unprivileged::{test}")]).uid(NOBODY).gid(NOBODY).env_remove("TMPDIR");
    match command.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        // The program lies where nobody may not go.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    false
}

#[test]
fn what_may_not_be_read_is_a_problem_and_no_more() {
    if !am_nobody("what_may_not_be_read_is_a_problem_and_no_more") {
        return;
    }
    let space = Workspace::new();
    for path in ["blind/inner", "closed/inner", "open/inner"] {
        space.write(path, "");
    }
    space.settle_and_remember();
    let permit = |name: &str, mode| {
        std::fs::set_permissions(space.at(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    permit("blind", 0o600);
    permit("closed", 0o000);
    let tree = space.scan_cached();
    assert_eq!(paths(&tree), ["blind", "closed", "open", "open/inner"]);
    assert!(!tree.is_complete());
    let causes: Vec<_> = tree.problems().iter().map(|problem| (&problem.path[..], &problem.cause)).collect();
    assert!(matches!(
        causes[..],
        [
            (b"blind/inner", ScanProblemCause::Unexaminable(_)),
            (b"closed", ScanProblemCause::UnreadableDir(_))
        ]
    ));
    let closed = tree.dirs().find(|dir| dir.path() == b"closed").unwrap();
    assert!(
        !closed.is_readable() && !closed.has_examined(b"inner") && closed.missing_entries().next().is_none()
    );
    space.remember(
        &tree,
        vellum_checkout::statcache::FilesystemTime::read_filesystem_time(&space.state).unwrap(),
    );
    let closed = space
        .cache()
        .find_entry(vellum_checkout::statcache::CachedDir::ROOT, b"closed")
        .unwrap()
        .child
        .unwrap();
    assert!(space.cache().find_entry(closed, b"inner").is_some(), "what was not read is still remembered");
    permit("blind", 0o700);
    permit("closed", 0o700);
}

#[test]
fn files_cannot_be_given_away_and_lose_their_set_id_bits() {
    if !am_nobody("files_cannot_be_given_away_and_lose_their_set_id_bits") {
        return;
    }
    let space = Workspace::new();
    space.write("f", "");
    let node = space.root.hold_node(b"f").unwrap();
    let before = node.stat().unwrap();
    let wanted = TargetMetadata { mode: 0o6755, uid: 0, gid: 0, times: None, xattrs: &[] };
    let applied = apply_metadata(&node, &wanted, MetadataCaller::current_process());
    assert!(applied.owner_lost && applied.problems.is_empty(), "{applied:?}");
    let after = node.stat().unwrap();
    assert_eq!((after.mode, after.uid, after.gid), (0o755, before.uid, before.gid));
}

#[test]
fn attributes_of_a_read_only_file_can_be_set() {
    if !am_nobody("attributes_of_a_read_only_file_can_be_set") {
        return;
    }
    let space = Workspace::new();
    space.write("f", "");
    let node = space.root.hold_node(b"f").unwrap();
    if node.set_xattr(b"user.probe", b"").is_err() {
        return;
    }
    node.set_mode(0o444).unwrap();
    let stat = node.stat().unwrap();
    let xattrs = [ExtendedAttribute { name: b"user.x".to_vec(), value: b"y".to_vec() }];
    let wanted = TargetMetadata { mode: 0o444, uid: stat.uid, gid: stat.gid, times: None, xattrs: &xattrs };
    let applied = apply_metadata(&node, &wanted, MetadataCaller::current_process());
    assert!(applied.is_complete(), "{applied:?}");
    assert_eq!(node.read_xattrs().unwrap(), xattrs);
    assert_eq!(node.stat().unwrap().mode, 0o444);
}

#[test]
fn someone_elses_file_is_read_without_leave_to_keep_its_access_time() {
    if !am_nobody("someone_elses_file_is_read_without_leave_to_keep_its_access_time") {
        return;
    }
    let etc = vellum_host::beneath::HeldDir::open_root("/etc".as_ref()).unwrap();
    let Ok(opened) = etc.open_file(b"passwd") else { return };
    assert!(!std::io::read_to_string(opened.file).unwrap().is_empty());
}

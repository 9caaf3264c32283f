//! `vellum sync`: owners and groups by name, and what somebody who is not root may set.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use crate::world::World;

/// A user and groups that no system has.
const USER: &str = "61234";
const OWN: u32 = 61_234;
const MEMBER: u32 = 61_300;
const FOREIGN: u32 = 61_400;

fn ids(world: &World, path: &str) -> (u32, u32) {
    let found = fs::symlink_metadata(world.tree().join(path)).unwrap();
    (found.uid(), found.gid())
}

/// Users that this system has, too, under other numbers: Debian's 'nobody' is in the group 'nogroup'.
const USERS: &str = "root:x:0:0::/:/bin/sh\nnobody:x:7001:7001::/:/bin/sh\n";
const GROUPS: &str = "root:x:0:\nnogroup:x:7100:\n";

/// A way to "another host": this one, where users and groups are these.
fn other_host(world: &World, users: &str, groups: &str) -> String {
    fs::write(world.path("passwd"), users).unwrap();
    fs::write(world.path("group"), groups).unwrap();
    let script = world.path("rsh");
    let passwd = world.path("passwd");
    let group = world.path("group");
    // The words behind the host are for its shell.
    let text = format!(
        "#!/bin/sh\nshift\nexport WORDS=\"$*\"\nexec unshare -m sh -c 'mount --bind {} /etc/passwd && \
         mount --bind {} /etc/group && exec sh -c \"$WORDS\"'\n",
        passwd.display(),
        group.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

#[test]
fn owners_go_by_name_to_another_host_and_back() {
    let world = World::empty();
    let rsh = other_host(&world, USERS, GROUPS);
    for (name, uid, gid) in [("named", 65_534, 65_534), ("root", 0, 0), ("nameless", 6_000_001, 6_000_002)] {
        world.write(&format!("src/{name}"), name);
        chown(world.tree().join(format!("src/{name}")), Some(uid), Some(gid)).unwrap();
    }
    let there = format!("host:{}", world.tree().join("there/").display());
    let program = env!("CARGO_BIN_EXE_vellum");
    let run = |more: &[&str], from: &str, to: &str| {
        let words = ["sync", "-a", "-e", &rsh, "--remote-program", program];
        world.run(&[&words, more, &[from, to]].concat())
    };
    run(&[], "src/", &there).ok();
    assert_eq!(ids(&world, "there/named"), (7001, 7100));
    assert_eq!((ids(&world, "there/root"), ids(&world, "there/nameless")), ((0, 0), (6_000_001, 6_000_002)));
    run(&[], "src/", &there).ok().says("Nothing to do");
    run(&[], &there, "back").ok();
    assert_eq!(ids(&world, "back/named"), (65_534, 65_534));
    run(&["--numeric-ids"], &there, "numbers").ok();
    assert_eq!(ids(&world, "numbers/named"), (7001, 7100));
}

/// hostile.md 45: whatever a host says of its numbers, an owner whom this one does not know keeps the number, nobody becomes
/// root, and root nobody else.
#[test]
fn names_that_lie_make_nobody_root() {
    let world = World::empty();
    let users = "nobody:x:0:0::/:/bin/sh\nroot:x:7001:7001::/:/bin/sh\nnosuchuser:x:7002:7002::/:/bin/sh\n\
                 root:x:7003:7003::/:/bin/sh\ndaemon:x:4294967295:1::/:/bin/sh\n";
    let groups = "nogroup:x:0:\nroot:x:7001:\nnosuchgroup:x:7002:\nroot:x:7003:\ndaemon:x:4294967295:\n";
    let rsh = other_host(&world, users, groups);
    let all = [0, 7001, 7002, 7003];
    for id in all {
        world.write(&format!("src/{id}"), "x");
        chown(world.tree().join(format!("src/{id}")), Some(id), Some(id)).unwrap();
        world.chmod(&format!("src/{id}"), 0o6755);
    }
    let program = env!("CARGO_BIN_EXE_vellum");
    let far = |path: &str| format!("host:{}", world.tree().join(path).display());
    for (from, to) in [(far("src/"), "fetched".to_owned()), ("src/".to_owned(), far("sent"))] {
        world.run(&["sync", "-a", "-e", &rsh, "--remote-program", program, &from, &to]).ok();
    }
    for id in all {
        for side in ["fetched", "sent"] {
            assert_eq!(ids(&world, &format!("{side}/{id}")), (id, id), "{side}");
        }
    }
}

#[test]
fn who_is_not_root_keeps_the_groups_that_they_are_in() {
    let world = World::empty();
    for (name, gid) in [("own", OWN), ("member", MEMBER), ("foreign", FOREIGN), ("shared", OWN)] {
        world.write(&format!("src/{name}"), name);
        chown(world.tree().join(format!("src/{name}")), Some(FOREIGN), Some(gid)).unwrap();
    }
    // Others may enter and read.
    for place in [world.tree(), world.path("")] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir(world.tree().join("dst")).unwrap();
    chown(world.tree().join("dst"), Some(OWN), Some(OWN)).unwrap();
    let groups = format!("--groups={OWN},{MEMBER}");
    let run = |program: &[&str], words: &[&str]| {
        let user = [format!("--reuid={USER}"), format!("--regid={USER}"), groups.clone()];
        let mut command = Command::new("setpriv");
        let output = command.args(user).args(program).args(words).current_dir(world.tree());
        let output = output.env("HOME", "/").output().unwrap();
        let text = format!("{output:?}");
        assert!(output.status.success(), "{text}");
        text
    };
    let ours = [env!("CARGO_BIN_EXE_vellum"), "sync"];
    run(&ours, &["-a", "src/", "dst/ours"]);
    run(&["rsync"], &["-a", "src/", "dst/theirs"]);
    for (name, gid) in [("own", OWN), ("member", MEMBER), ("foreign", OWN)] {
        assert_eq!(ids(&world, &format!("dst/ours/{name}")), (OWN, gid), "{name}");
        assert_eq!(ids(&world, &format!("dst/theirs/{name}")), (OWN, gid), "{name}");
    }
    assert!(run(&ours, &["-a", "src/", "dst/ours"]).contains("Nothing to do"));
    // Of a file of somebody else they set nothing, and it is no difference.
    chown(world.tree().join("dst/ours/shared"), Some(FOREIGN), Some(FOREIGN)).unwrap();
    assert!(run(&ours, &["-a", "src/", "dst/ours"]).contains("Nothing to do"));
    chown(world.tree().join("dst/ours/member"), Some(OWN), Some(OWN)).unwrap();
    run(&ours, &["-a", "src/", "dst/ours"]);
    assert_eq!(ids(&world, "dst/ours/member"), (OWN, MEMBER));
}

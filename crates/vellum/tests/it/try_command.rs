//! `vellum try`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::disk::Disk;
use crate::mounting::{Mount, kill, sh, wait_until};
use crate::world::{Ran, World, run};

/// A directory in which commands are tried: checked out, or mounted.
fn places(world: &World) -> (Mount<'_>, [PathBuf; 2]) {
    let mount = Mount::new(world, "work");
    let path = mount.path.clone();
    (mount, [world.tree(), path])
}

#[track_caller]
fn tried(dir: &Path, options: &[&str], script: &str) -> Ran {
    run(dir, &[&["try"], options, &["--", "bash", "-c", script]].concat(), Stdio::null())
}

/// What `vellum try --list` shows.
pub fn tries(dir: &Path) -> Vec<Value> {
    let ran = run(dir, &["--json", "try", "--list"], Stdio::null()).ok();
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    value["tries"].as_array().unwrap().clone()
}

fn worktrees(world: &World) -> Vec<String> {
    let listed = world.json(&["worktree", "list"]);
    listed["worktrees"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().into()).collect()
}

/// Nothing of a try is left: no mount, no worktree, no folder.
#[track_caller]
fn assert_clean(world: &World) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = world.tree().join(".vellum/try");
    assert!(!table.contains(below.to_str().unwrap()), "{table}");
    let left: Vec<_> = fs::read_dir(&below).map(|dir| dir.flatten().collect()).unwrap_or_default();
    assert!(left.is_empty(), "{left:?}");
    assert!(!worktrees(world).iter().any(|name| name.starts_with("try-")));
    let live = world.tree().join(".vellum/live");
    let is_gone = || {
        let entries = fs::read_dir(&live).into_iter().flatten().flatten();
        !entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("try-"))
    };
    wait_until("the state of the fork is removed", is_gone);
}

#[test]
fn a_command_changes_the_fork_and_not_the_worktree() {
    let world = World::with_snapshot();
    let (_mount, places) = places(&world);
    for place in places {
        let script = "pwd; cat a.txt; echo tried > a.txt; rm -r dir; echo new > new; exit 7";
        let ran = tried(&place, &["--discard"], script).code(7);
        assert_eq!(ran.out, format!("{}\none\ntwo\nthree\n", place.display()), "{}", ran.err);
        assert_eq!(fs::read_to_string(place.join("a.txt")).unwrap(), "one\ntwo\nthree\n");
        assert!(place.join("dir/b.txt").exists() && !place.join("new").exists());
        assert_clean(&world);
    }
}

#[test]
fn changes_are_applied() {
    let world = World::with_snapshot();
    let (_mount, places) = places(&world);
    for place in places {
        fs::write(place.join("unsaved"), "unsaved").unwrap();
        let ran =
            tried(&place, &["--apply"], "cat unsaved; echo tried > a.txt; mv dir moved; rm unsaved").ok();
        ran.says("M  a.txt").says("unsaved");
        assert_eq!(fs::read_to_string(place.join("a.txt")).unwrap(), "tried\n");
        assert!(place.join("moved/b.txt").exists() && !place.join("dir").exists());
        assert!(!place.join("unsaved").exists());
        assert_clean(&world);
        run(&place, &["status"], Stdio::null()).ok();
    }
}

#[test]
fn what_others_change_meanwhile_survives() {
    let world = World::with_snapshot();
    let (_mount, places) = places(&world);
    for place in places {
        let (go, going) = (world.path("go"), world.path("going"));
        let script = format!(
            "touch {}; while ! [ -e {} ]; do sleep 0.01; done; sed -i s/one/ONE/ a.txt; echo n > new",
            going.display(),
            go.display()
        );
        std::thread::scope(|scope| {
            let running = scope.spawn(|| tried(&place, &["--apply"], &script));
            wait_until("it runs", || going.exists());
            fs::write(place.join("a.txt"), "one\ntwo\nTHREE\n").unwrap();
            fs::write(place.join("other"), "other").unwrap();
            fs::write(&go, "").unwrap();
            running.join().unwrap().ok();
        });
        assert_eq!(fs::read_to_string(place.join("a.txt")).unwrap(), "ONE\ntwo\nTHREE\n");
        assert_eq!(fs::read_to_string(place.join("other")).unwrap(), "other");
        assert!(place.join("new").exists());
        assert_clean(&world);
        fs::remove_file(go).unwrap();
        fs::remove_file(going).unwrap();
    }
}

#[test]
fn conflicts_wait_for_a_decision() {
    let world = World::with_snapshot();
    tried(&world.tree(), &[], "echo tried > a.txt").ok().remarks("the try is kept");
    let name = tries(&world.tree())[0]["name"].as_str().unwrap().to_owned();
    world.write("a.txt", "mine\n");
    world.snapshot("mine");
    assert_eq!(tries(&world.tree())[0]["conflicts"], 1);
    world.run(&["try", "--list"]).ok().says("1 conflict").says("ended with 0").says("bash -c");
    world.run(&["try", "--apply", &name]).code(1).remarks("vellum merge --continue");
    world.run(&["merge", "--abort"]).ok();
    assert_eq!(world.read("a.txt"), "mine\n");
    world.run(&["try", "--discard", &name]).ok().says("Discarded");
    assert_clean(&world);
}

#[test]
fn a_try_is_kept_and_decided_on_later() {
    let world = World::with_snapshot();
    let (_mount, places) = places(&world);
    for place in places {
        tried(&place, &[], "echo tried > a.txt").ok().remarks("vellum try --apply");
        tried(&place, &[], "echo other > other; exit 3").code(3);
        let listed = tries(&place);
        assert_eq!(listed.len(), 2);
        assert_eq!((&listed[0]["status"], &listed[1]["status"]), (&0.into(), &3.into()));
        assert_eq!((&listed[0]["changed"], &listed[0]["bytes"]), (&1.into(), &6.into()));
        let name = |number: usize| listed[number]["name"].as_str().unwrap().to_owned();
        run(&place, &["try", "--apply", &name(0)], Stdio::null()).ok();
        assert_eq!(fs::read_to_string(place.join("a.txt")).unwrap(), "tried\n");
        run(&place, &["try", "--keep", &name(1)], Stdio::null()).ok();
        assert!(tries(&place).is_empty());
        run(&place, &["cat", &name(1), "other"], Stdio::null()).ok().says("other");
        world.run(&["worktree", "remove", &name(1)]).ok();
    }
    tried(&world.tree(), &["--keep", "side"], "echo side > side").ok();
    world.run(&["cat", "side", "side"]).ok().says("side");
    // Before anything runs.
    tried(&world.tree(), &["--keep", "side"], "touch /tmp/not-run-by-vellum-try").code(2).remarks("exists");
    assert!(!Path::new("/tmp/not-run-by-vellum-try").exists());
}

#[test]
fn commands_inside_find_the_worktree_of_the_try() {
    let world = World::with_snapshot();
    let (_mount, places) = places(&world);
    let vellum = env!("CARGO_BIN_EXE_vellum");
    for place in places {
        let script = format!(
            "set -e; mkdir -p sub; cd sub; echo x > x; {vellum} status || [ $? = 1 ]; {vellum} snapshot -m inside; \
             echo two > two; {vellum} diff --name-status || true; {vellum} cat HEAD x; {vellum} history -n 1; \
             cd ..; {vellum} restore --discard first; ls"
        );
        let ran = tried(&place, &["--discard"], &script).ok();
        ran.says("A\ttwo").says("inside").remarks("Worktree try-");
        assert!(!place.join("sub").exists());
        tried(&place, &["--discard"], &format!("{vellum} try -- true")).code(3).remarks("already");
        assert_clean(&world);
    }
}

#[test]
fn the_state_of_the_worktree_cannot_be_removed_from_within() {
    let world = World::with_snapshot();
    tried(&world.tree(), &["--discard"], "rm -rf .vellum; rm -rf *; ls -A").ok();
    assert!(world.has("a.txt"));
    world.run(&["verify"]).ok();
    world.run(&["status"]).ok();
}

#[test]
fn no_descriptor_leads_to_the_worktree() {
    let world = World::with_snapshot();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let script = format!(
        "exec 7< .; {vellum} try --discard -- bash -c 'ls /proc/self/fd; echo leak > /proc/self/fd/7/LEAK' || true; \
         {vellum} try --discard -- bash -c 'cd /proc/self/cwd; echo leak > LEAK; [ -e a.txt ]'"
    );
    sh(&world.tree(), &script);
    assert!(!world.has("LEAK"));
    sh(&world.tree(), &format!("! {vellum} try --strict --discard -- true > out 2> ../said"));
    assert!(fs::read_to_string(world.path("said")).unwrap().contains("standard output"));
}

#[test]
fn open_files_are_inherited_if_that_is_wanted() {
    let world = World::with_snapshot();
    fs::write(world.path("beside"), "beside").unwrap();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let list = "cat <&7; ls /proc/self/fd";
    let script = format!("exec 7< ../beside; {vellum} try --keep-fds --discard -- bash -c '{list}'");
    let out = sh(&world.tree(), &script);
    // What the try itself has open is not for the command.
    assert_eq!(out, sh(&world.tree(), &format!("exec 7< ../beside; bash -c '{list}'")));
    assert!(out.starts_with("beside"), "{out}");
    world.run(&["try", "--strict", "--keep-fds", "--", "true"]).code(3);
}

#[test]
fn how_it_ended_is_how_the_command_ended() {
    let world = World::with_snapshot();
    let code = |words: &[&str]| world.run(&[&["try", "--discard", "--"], words].concat()).code;
    world.write("plain", "no program");
    assert_eq!(code(&["no-such-command"]), 127);
    assert_eq!(code(&["./plain"]), 126);
    assert_eq!(code(&["sh", "-c", "kill -9 $$"]), 137);
    assert_eq!(code(&["sh", "-c", "kill -TERM $$"]), 143);
    assert_eq!(code(&["false"]), 1);
    world.run(&["try"]).code(3).remarks("no command");
    world.run(&["try", "--apply", "nothing"]).code(3).remarks("no try");
    assert_clean(&world);
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    let world = World::with_snapshot();
    let beside = world.path("beside");
    let script =
        format!("(sleep 600; true) & (while :; do date > {}; sleep 0.05; done) & true", beside.display());
    tried(&world.tree(), &["--discard"], &script).ok();
    let _ = fs::remove_file(&beside);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!beside.exists());
    // One that has left the session, and heeds no signal.
    let daemon = format!(
        "setsid -f bash -c 'trap \"\" HUP TERM INT; touch {0}; while :; do sleep 0.05; date > {0}; done' < /dev/null > /dev/null 2>&1
         while ! [ -e {0} ]; do sleep 0.01; done",
        beside.display()
    );
    tried(&world.tree(), &["--discard"], &daemon).ok();
    fs::remove_file(&beside).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!beside.exists());
    tried(&world.tree(), &["--wait", "--apply"], "(sleep 0.3; echo late > late) > /dev/null 2>&1 & true")
        .ok();
    assert_eq!(world.read("late"), "late\n");
    assert_clean(&world);
}

/// A try that runs until a file is there.
fn start(world: &World, dir: &Path) -> Child {
    let going = world.path("going");
    let script = format!("echo tried > a.txt; sync; touch {}; exec sleep 600", going.display());
    let child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["try", "--", "bash", "-c", &script])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it runs", || going.exists());
    fs::remove_file(going).unwrap();
    child
}

/// The child of a process that is not the daemon.
fn child_of(pid: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is_daemon =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("--detach");
    text.split_whitespace().map(|pid| pid.parse().unwrap()).find(|pid| !is_daemon(pid)).unwrap()
}

fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn whatever_is_killed_the_worktree_is_whole_and_the_rest_is_found() {
    let world = World::with_snapshot();
    let (_mount, places) = places(&world);
    for place in places {
        for victim in ["parent", "entered", "init", "daemon"] {
            let mut child = start(&world, &place);
            let entered = child_of(child.id());
            let init = child_of(entered);
            let command = child_of(init);
            let name = tries(&place)[0]["name"].as_str().unwrap().to_owned();
            assert_eq!(tries(&place)[0]["running"], true);
            let fork = world.tree().join(".vellum/try").join(&name).join("mnt");
            let daemon: Value =
                serde_json::from_slice(&fs::read(fork.join(".vellum/mount.json")).unwrap()).unwrap();
            let pid = match victim {
                "parent" => child.id(),
                "entered" => entered,
                "init" => init,
                _ => u32::try_from(daemon["pid"].as_u64().unwrap()).unwrap(),
            };
            kill(i32::try_from(pid).unwrap(), "-9");
            if victim == "daemon" {
                kill(i32::try_from(command).unwrap(), "-9");
            }
            child.wait().unwrap();
            wait_until("the command has ended", || ![entered, init, command].into_iter().any(is_alive));
            assert_eq!(fs::read_to_string(place.join("a.txt")).unwrap(), "one\ntwo\nthree\n", "{victim}");
            let left = tries(&place);
            assert_eq!((left.len(), &left[0]["running"]), (1, &false.into()), "{victim}");
            // What it had written is there.
            run(&place, &["try", "--apply", &name], Stdio::null()).ok();
            assert_eq!(fs::read_to_string(place.join("a.txt")).unwrap(), "tried\n", "{victim}");
            assert_clean(&world);
            run(&place, &["restore", "--discard", "first"], Stdio::null()).ok();
        }
    }
}

#[test]
fn a_signal_for_the_try_reaches_the_command() {
    let world = World::with_snapshot();
    let mut child = start(&world, &world.tree());
    kill(i32::try_from(child.id()).unwrap(), "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let left = tries(&world.tree());
    assert_eq!((&left[0]["status"], &left[0]["changed"]), (&143.into(), &1.into()));
    world.run(&["try", "--discard", left[0]["name"].as_str().unwrap()]).ok();
    assert_clean(&world);
}

#[test]
fn where_a_fork_cannot_stand_is_refused() {
    let world = World::with_snapshot();
    let home = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["try", "--", "true"])
        .current_dir(world.tree())
        .env("HOME", world.tree())
        .output()
        .unwrap();
    assert_eq!(home.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&home.stderr).contains("home directory"));
    // A store in the worktree.
    let other = World::empty();
    other.run(&["init", "--plain", "--store", "store"]).ok();
    other.run(&["try", "--", "true"]).code(3).remarks("holds its store");
}

#[test]
fn what_is_mounted_below_is_named() {
    let world = World::with_snapshot();
    fs::create_dir(world.tree().join("sub")).unwrap();
    world.snapshot("sub");
    let script = format!(
        "mount -t tmpfs none sub && touch sub/file && {} try --discard -- ls sub",
        env!("CARGO_BIN_EXE_vellum")
    );
    let ran =
        Command::new("unshare").args(["--mount", "bash", "-c", &script]).current_dir(world.tree()).output();
    let ran = ran.unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{err}");
    assert!(err.contains("nothing is mounted on") && err.contains("/sub"), "{err}");
}

#[test]
fn what_is_mounted_below_can_be_seen_and_not_written() {
    let world = World::with_snapshot();
    fs::create_dir(world.tree().join("sub")).unwrap();
    world.snapshot("sub");
    let vellum = env!("CARGO_BIN_EXE_vellum");
    for options in ["", "--strict"] {
        let script = format!(
            "mount -t tmpfs none sub && mkdir sub/deep && mount -t tmpfs none sub/deep && touch sub/file sub/deep/file && \
             {vellum} try {options} --with-mounts --discard -- \
             bash -c 'ls sub sub/deep; echo x > a.txt; ! touch sub/new && ! touch sub/deep/new' && touch sub/still-writable"
        );
        let mut command = Command::new("unshare");
        let ran =
            command.args(["--mount", "bash", "-c", &script]).current_dir(world.tree()).output().unwrap();
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{options}: {err}");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "sub:\ndeep\nfile\n\nsub/deep:\nfile\n");
        assert!(!err.contains("nothing is mounted on"), "{err}");
    }
    assert_clean(&world);
}

#[test]
fn a_command_may_move_the_directory_that_it_stands_in() {
    let world = World::with_snapshot();
    let (_mount, places) = places(&world);
    for place in places {
        let script = "mv ../dir ../moved; pwd -P; echo new > new; rmdir ../gone 2> /dev/null; ls";
        let ran = tried(&place.join("dir"), &["--apply"], script).ok();
        assert!(
            ran.out.starts_with(&format!("{}/moved\nb.txt\ndeep\nnew\n", place.display())),
            "{}",
            ran.out
        );
        assert_eq!(fs::read_to_string(place.join("moved/new")).unwrap(), "new\n");
        assert!(place.join("moved/b.txt").exists() && !place.join("dir").exists());
        // And one that is not there any more when it ends.
        let script = format!("rm -r ../moved; echo alone > {}/alone", place.display());
        let ran = tried(&place.join("moved"), &["--apply"], &script).ok();
        ran.says("alone");
        assert!(place.join("alone").exists() && !place.join("moved").exists());
        assert_clean(&world);
    }
}

#[test]
fn a_command_that_fills_the_disk_harms_the_try_only() {
    let disk = Disk::in_memory(24);
    let world = World::on(&disk.path());
    world.run(&["init", "--plain"]).ok();
    world.write("a.txt", "one\n");
    world.snapshot("first");
    let ran =
        tried(&world.tree(), &["--discard"], "head -c 60M /dev/urandom > big; [ $? != 0 ] && cat a.txt");
    assert_eq!(ran.ok().out, "one\n");
    assert_eq!(world.read("a.txt"), "one\n");
    assert!(!world.has("big"));
    assert_clean(&world);
    world.run(&["verify"]).ok();
    // There is room again.
    world.write("b.txt", "two\n");
    world.run(&["gc", "run"]).ok();
    world.snapshot("second");
}

#[test]
fn a_try_that_finds_no_room_for_its_result_says_how_to_end_it() {
    let disk = Disk::in_memory(12);
    let world = World::on(&disk.path());
    world.run(&["init", "--plain"]).ok();
    world.write("a.txt", "one\n");
    world.snapshot("first");
    let ran = tried(&world.tree(), &[], "head -c 30M /dev/urandom > big; true").code(2);
    let name = tries(&world.tree())[0]["name"].as_str().unwrap().to_owned();
    let hint = format!("try --discard {name}");
    let ran = ran.remarks("No space left on device").remarks(&hint);
    assert!(!ran.out.contains("run the command again"), "{}", ran.out);
    world.run(&["try", "--discard", &name]).ok();
    assert_clean(&world);
    assert_eq!(world.read("a.txt"), "one\n");
}

#[test]
fn what_is_left_of_a_try_is_removed_by_the_next_list() {
    let world = World::with_snapshot();
    tried(&world.tree(), &[], "echo tried > a.txt").ok();
    let name = tries(&world.tree())[0]["name"].as_str().unwrap().to_owned();
    // As if it had been killed when it had removed the worktree, and not the rest.
    world.run(&["worktree", "remove", &name]).ok();
    // And one before its note was written, or whose note a power cut took.
    let folder = world.tree().join(".vellum/try/try-00000000");
    fs::create_dir_all(folder.join("mnt")).unwrap();
    fs::write(folder.join("note.json"), "").unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::open(&folder).unwrap().set_modified(long_ago).unwrap();
    assert!(tries(&world.tree()).is_empty());
    assert_clean(&world);
}

/// Runs a script in the worktree as a user who may use FUSE, as on most machines.
fn as_user(world: &World, script: &str) -> Ran {
    world.give_to(65534);
    let script = format!(
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/fuse c 10 229 && \
         exec setpriv --reuid nobody --regid nogroup --clear-groups bash -c '{script}'"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &script]).current_dir(world.tree()).stdin(Stdio::null());
    Ran::of(&[&script], command.output().unwrap())
}

#[test]
fn who_is_not_root_tries_in_a_user_namespace() {
    let world = World::with_snapshot();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let script = format!(
        "set -e; {vellum} try --discard -- bash -c \"id -u; echo x > a.txt; rm -r dir; ps ax | wc -l; {vellum} status -q; exit 0\"; cat a.txt; \
         {vellum} try -q --apply -- bash -c \"echo tried > a.txt; rm -rf .vellum || true\"; cat a.txt; \
         mkdir ../mnt || mkdir mnt; {vellum} try --list"
    );
    let ran = as_user(&world, &script).ok();
    let seen: Vec<_> = ran.out.lines().take(2).map(|line| line.trim().parse::<u32>().unwrap()).collect();
    assert!(seen[0] == 65534 && seen[1] < 8, "{}\n{}", ran.out, ran.err);
    assert!(ran.out.contains("one\ntwo\nthree\n") && ran.out.contains("tried\n"), "{}", ran.out);
    assert_clean(&world);
}

#[test]
fn who_is_not_root_hears_of_owners_that_cannot_be_set() {
    let world = World::with_snapshot();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    // What the snapshot has is root's.
    let ran = as_user(&world, &format!("{vellum} restore --discard first")).ok();
    ran.remarks("could not be given to the owner or group");
    let script =
        format!("{vellum} try --apply -- bash -c \"! chown 0 a.txt; echo tried > a.txt\"; cat a.txt");
    let ran = as_user(&world, &script).ok();
    assert!(ran.out.ends_with("tried\n"), "{}", ran.out);
}

#[test]
fn root_can_have_a_user_namespace() {
    let world = World::with_snapshot();
    let script = "echo x > a.txt; ps ax | wc -l";
    let ran = tried(&world.tree(), &["--strict", "--discard"], script).ok();
    assert!(ran.out.trim().parse::<u32>().unwrap() < 8, "it sees its own processes only: {}", ran.out);
}

#[test]
fn without_user_namespaces_it_says_which_setting_allows_them() {
    let world = World::with_snapshot();
    let name = "/proc/sys/user/max_user_namespaces";
    let before = fs::read_to_string(name).unwrap();
    // The limit of a user namespace is its own: that of the machine stays as it is.
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let script =
        format!("echo 0 > {name} && ! {vellum} try --strict -- touch ran 2> ../said && ! [ -e ran ]");
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "bash", "-c", &script])
        .current_dir(world.tree())
        .output()
        .unwrap();
    assert_eq!(fs::read_to_string(name).unwrap(), before);
    let said = fs::read_to_string(world.path("said")).unwrap_or_default();
    assert!(ran.status.success(), "{} {said}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("user.max_user_namespaces = 0") && said.contains("sysctl"), "{said}");
    assert!(said.contains("'vellum try --copy -- COMMAND'"), "{said}");
    world.run(&["try", "--list"]).ok();
    assert_clean(&world);
}

#[test]
fn bind_mounts_of_a_mount_are_the_worktree() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let vellum = env!("CARGO_BIN_EXE_vellum");
    fs::create_dir(world.path("bound")).unwrap();
    for bound in ["", "dir"] {
        let script = format!(
            "mount --bind {} {bound} && cd {bound} && mount -t tmpfs none {} && {vellum} status && {vellum} history",
            mount.at(bound).display(),
            world.path("hidden").display(),
            bound = world.path("bound").display(),
        );
        fs::create_dir_all(world.path("hidden")).unwrap();
        let ran = Command::new("unshare").args(["--mount", "bash", "-c", &script]).output().unwrap();
        assert!(ran.status.success(), "{bound}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}

#[test]
fn the_document_says_what_happens() {
    const DOCUMENT: &str = include_str!("../../../../docs/try.md");
    let world = World::empty();
    let script: Vec<_> = DOCUMENT.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let bin = Path::new(env!("CARGO_BIN_EXE_vellum")).parent().unwrap();
    let script = format!("export PATH={}:$PATH\n{}", bin.display(), script.join("\n"));
    let out = sh(&world.tree(), &script);
    assert!(out.contains("one\ntwo\n") && out.contains("ended with 0"), "{out}");
    assert_eq!(world.read("project/list"), "one\n2\n");
}

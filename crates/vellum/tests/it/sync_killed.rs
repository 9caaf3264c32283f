//! `vellum sync` killed at chosen calls while it fills new directories.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::world::World;

const DIRS: usize = 6;
/// Of each directory: more than one thread takes at a time.
const FILES: usize = 40;

/// Calls before which a run is killed: making, writing and dressing files, naming directories, dressing those.
const GROUPS: [&str; 5] = ["mkdirat", "pwrite64", "utimensat", "renameat2", "linkat"];

/// Kills a run before the N-th such call of a thread; false if it ended before.
fn kill_at(world: &World, group: &str, number: usize) -> bool {
    let inject = format!("inject={group}:signal=KILL:when={number}");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={group}"), "-e", &inject])
        .arg(env!("CARGO_BIN_EXE_vellum"))
        .args(["sync", "-a", "src/", "dst/"])
        .current_dir(world.tree())
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
    assert!(killed || output.status.success(), "{group} {number}: {output:?}");
    killed
}

/// The names in the destination, and in its directories; temporary ones too.
fn names(world: &World) -> Vec<String> {
    let dst = world.tree().join("dst");
    let list = |dir: &std::path::Path| -> Vec<String> {
        let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let inner = |name: String| {
        list(&dst.join(&name))
            .into_iter()
            .map(|file| format!("{name}/{file}"))
            .chain([name.clone()])
            .collect::<Vec<_>>()
    };
    list(&dst).into_iter().flat_map(inner).collect()
}

fn is_temporary(name: &str) -> bool {
    name.split('/').any(|part| part.starts_with(".vellum-tmp-"))
}

#[test]
fn killed_between_files_of_new_directories_nothing_is_torn_and_the_next_run_completes_it() {
    let content = |number: usize| format!("{number} ").repeat(100 + number);
    let mut kills = 0;
    let mut seen_hidden = false;
    for group in GROUPS {
        for step in [1, 2, 3, 7, 50] {
            let world = World::empty();
            for number in 0..DIRS * FILES {
                world.write(&format!("src/d{}/f{number:03}", number / FILES), content(number));
            }
            if !kill_at(&world, group, step) {
                break;
            }
            kills += 1;
            let found = names(&world);
            seen_hidden |= found.iter().any(|name| is_temporary(name) && name.contains('/'));
            for name in found.iter().filter(|name| name.contains('/') && !is_temporary(name)) {
                let number = name.split_once("/f").unwrap().1.parse().unwrap();
                assert!(
                    world.read(&format!("dst/{name}")) == content(number),
                    "{group} {step}: {name} is torn"
                );
            }
            world.run(&["sync", "-a", "src/", "dst/"]).ok();
            world.run(&["sync", "-ac", "--delete", "src/", "dst/"]).ok().says("Nothing to do");
            let left = names(&world);
            assert_eq!(left.len(), DIRS + DIRS * FILES, "{group} {step}");
            assert!(!left.iter().any(|name| is_temporary(name)), "{group} {step}: {left:?}");
        }
    }
    assert!(kills >= 8 && seen_hidden, "only {kills} runs were killed");
}

//! `vellum web` and gateways: which program they execute.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::world::World;

/// A directory with this program in it, and perhaps another one beside it.
fn place_programs(world: &World, serve: Option<&str>) -> PathBuf {
    let dir = world.path("programs");
    fs::create_dir_all(&dir).unwrap();
    let own = dir.join("vellum");
    // A copy, not a link: the program finds its neighbours by its own place.
    fs::copy(env!("CARGO_BIN_EXE_vellum"), &own).unwrap();
    if let Some(serve) = serve {
        write_script(&dir.join("vellum-serve"), serve);
    }
    own
}

fn write_script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn run_web(world: &World, own: &Path, path: &str) -> (Option<i32>, String) {
    run_words(world, own, path, &["web", "--listen", "127.0.0.1:0"])
}

fn run_words(world: &World, own: &Path, path: &str, words: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(own);
    command.args(words).current_dir(world.tree()).envs(crate::world::profile()).env("PATH", path);
    let output = loop {
        match command.output() {
            // Another test has forked while this program was written: for a moment, its child has it open for writing.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            ended => break ended.unwrap(),
        }
    };
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_program_that_is_only_in_the_path_is_not_executed() {
    let world = World::with_snapshot();
    let own = place_programs(&world, None);
    let elsewhere = world.path("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    write_script(&elsewhere.join("vellum-serve"), "echo executed");
    let (code, said) = run_web(&world, &own, &format!("{}:/usr/bin:/bin", elsewhere.display()));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("programs/vellum-serve, which comes with Vellum") && !said.contains("executed"),
        "{said}"
    );
}

#[test]
fn a_program_of_another_version_is_not_executed() {
    let world = World::with_snapshot();
    let own =
        place_programs(&world, Some("[ \"$1\" = --version ] && echo vellum-serve 0.0.1 || echo executed"));
    let (code, said) = run_web(&world, &own, "/usr/bin:/bin");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("it is 'vellum-serve 0.0.1'") && !said.contains("executed"), "{said}");
}

#[test]
fn the_program_beside_this_one_takes_its_place() {
    let world = World::with_snapshot();
    let version = env!("CARGO_PKG_VERSION");
    let script = format!("[ \"$1\" = --version ] && echo vellum-serve {version} || echo executed \"$@\"");
    let own = place_programs(&world, Some(&script));
    let (code, said) = run_web(&world, &own, "/usr/bin:/bin");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("executed web /") && said.contains("--listen 127.0.0.1:0"), "{said}");
}

#[test]
fn gateways_stand_beside_serving_a_shared_worktree() {
    let world = World::with_snapshot();
    let version = env!("CARGO_PKG_VERSION");
    let script = format!("[ \"$1\" = --version ] && echo vellum-serve {version} || echo executed \"$@\"");
    let own = place_programs(&world, Some(&script));
    let run = |words: &[&str]| run_words(&world, &own, "/usr/bin:/bin", words);
    let (code, said) = run(&["serve", "webdav", "main@HEAD", "--credentials", "users", "--read-only"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("executed webdav /") && said.contains("main@HEAD --listen 127.0.0.1:0"), "{said}");
    assert!(said.contains("--read-only --credentials /") && said.contains("/users"), "{said}");
    // A worktree that is called like a gateway, and one that is not.
    for words in [
        ["serve", "--listen", "127.0.0.1:0", "--", "webdav"].as_slice(),
        &["serve", "nothing", "--listen", "127.0.0.1:0"],
    ] {
        let (code, said) = run(words);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("no worktree") && !said.contains("executed"), "{said}");
    }
    for words in [
        ["serve"].as_slice(),
        &["serve", "main"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["serve", "webdav"],
    ] {
        let (code, said) = run(words);
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("required"), "{said}");
    }
}

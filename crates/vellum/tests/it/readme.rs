//! The README's tour, run as it is written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::other_host::Host;
use crate::world::{World, profile};

const README: &str = include_str!("../../../../README.md");

/// What follows each command: its exit code, in a line that nothing else prints.
const MARK: &str = "--- exit code";

/// The commands of the section, in order.
fn commands(section: &str) -> Vec<&'static str> {
    let text = README.split_once(&format!("\n## {section}\n")).unwrap().1;
    let text = text.split("\n## ").next().unwrap();
    text.lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// The command as the test runs it: what goes on until Ctrl-C is stopped when it has done its first work.
fn as_run(command: &str) -> String {
    let Some((watching, _)) = command.split_once('#').filter(|_| command.contains("--watch")) else {
        return command.into();
    };
    format!(
        "{watching} & until [ -e ~/public/list ]; do kill -0 $! || break; sleep 0.1; done; kill -INT $!; wait $! || true"
    )
}

/// Whether a command may end with 1: it did its work, and there are differences.
fn may_differ(command: &str) -> bool {
    ["vellum status", "vellum diff", "--dry-run"].iter().any(|word| command.contains(word))
}

#[test]
fn the_tour_runs_as_written() {
    let host = Host::new();
    let home = host.world.path("home");
    let far = host.world.path("far");
    let bin = host.world.path("bin");
    for dir in [&home, &far, &bin] {
        fs::create_dir(dir).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_vellum"), bin.join("vellum")).unwrap();
    // The host 'nas' is this one; its home is a directory of the test.
    let ssh = host.rsh.strip_prefix("ssh ").unwrap();
    let there = format!("cd {} && PATH={}:/usr/bin:/bin &&", far.display(), bin.display());
    let script = format!("#!/bin/sh\nhost=$1; shift\nexec /usr/bin/ssh {ssh} \"$host\" \"{there} $*\"\n");
    fs::write(bin.join("ssh"), script).unwrap();
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();

    let tour = commands("A tour");
    assert!(tour.len() > 40, "{tour:?}");
    let script: String =
        tour.iter().map(|command| format!("{}\necho \"{MARK} $?\"\n", as_run(command))).collect();
    let ran = Command::new("bash")
        .args(["-c", &script])
        .current_dir(&home)
        .env_clear()
        .envs(profile())
        .env("HOME", &home)
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    for mountpoint in ["work", "try"] {
        // Only there if the tour failed.
        let _ = Command::new("umount").arg("-l").arg(home.join(mountpoint)).output();
    }
    let out = String::from_utf8_lossy(&ran.stdout);
    let err = String::from_utf8_lossy(&ran.stderr);
    let codes: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::trim).collect();
    assert_eq!(codes.len(), tour.len(), "{out}\n{err}");
    for (command, code) in tour.iter().zip(&codes) {
        assert!(
            *code == "0" || *code == "1" && may_differ(command),
            "$ {command}\nended with {code}\n{out}\n{err}"
        );
    }
    assert_eq!(fs::read_to_string(home.join("elsewhere/one.jpg")).unwrap(), "a picture\n");
    assert_eq!(fs::read_to_string(far.join("photos/one.jpg")).unwrap(), "a picture\n");
    assert_eq!(fs::read_to_string(home.join("public/list")).unwrap(), "buy milk\n");
    // The latest snapshot is the one that the restore made of what no other held.
    assert_eq!(fs::read_to_string(home.join("project/src/parser.rs")).unwrap(), "fn parse() {}\n");
    assert!(err.contains("newer: vellum history --all"), "{err}");
}

#[test]
fn what_is_to_be_installed_is_there() {
    let path = README.split("cargo install --path ").nth(1).unwrap().split_whitespace().next().unwrap();
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let manifest = fs::read_to_string(format!("{manifest}/{path}/Cargo.toml")).unwrap();
    assert!(manifest.contains("name = \"vellum\""), "{manifest}");
    // Whoever follows the tour has installed it.
    assert!(README.find("cargo install").unwrap() < README.find("\n## A tour\n").unwrap());
}

/// The text with ids replaced, and without what depends on the compressor's version.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() == 8 && word.bytes().all(|digit| digit.is_ascii_hexdigit());
    let shown =
        |word: &str| if is_id(word.trim_end_matches(':')) { "ID".to_owned() } else { word.to_owned() };
    let lines = text.lines().map(|line| match line.split_once("changed, ") {
        Some((before, _)) => before,
        None => line,
    });
    lines.map(|line| line.split(' ').map(shown).collect::<Vec<_>>().join(" ") + "\n").collect()
}

#[test]
fn the_first_screen_shows_what_the_commands_print() {
    let world = World::empty();
    let home = world.path("ann");
    fs::create_dir(&home).unwrap();
    let session = README.split("```\n").nth(1).unwrap();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_vellum")).parent().unwrap();
    let mut printed = String::new();
    let mut dir = home.clone();
    for command in session.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let ran = Command::new("bash")
            .args(["-c", &format!("{command} 2>&1 && pwd > {}/cwd || test $? = 1", home.display())])
            .current_dir(&dir)
            .env_clear()
            .envs(profile())
            .env("HOME", &home)
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(ran.status.success(), "$ {command}\n{}", String::from_utf8_lossy(&ran.stdout));
        printed += &format!("$ {command}\n{}", String::from_utf8_lossy(&ran.stdout));
        dir = fs::read_to_string(home.join("cwd")).unwrap().trim().into();
    }
    let printed = printed.replace(home.to_str().unwrap(), "/home/ann");
    assert_eq!(without_ids(&printed), without_ids(session));
}

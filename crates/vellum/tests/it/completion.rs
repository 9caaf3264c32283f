//! `vellum completion`, and what the shells make of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use vellum_testkit::LyingS3;

use crate::remote::{init, world_with_credentials};
use crate::terminal::Terminal;
use crate::world::{Ran, World};

/// Asks as fish does: the words, of which the last is being typed.
fn ask(world: &World, dir: &str, words: &[&str]) -> Ran {
    let mut command: Command = world.command_at_home(&[&["--", "vellum"], words].concat());
    command.env("VELLUM_COMPLETE", "fish").current_dir(world.path(dir));
    Ran::of(words, command.output().unwrap())
}

/// The candidates, without their descriptions.
#[track_caller]
fn complete(world: &World, words: &[&str]) -> Vec<String> {
    let ran = ask(world, "tree", words).ok();
    assert_eq!(ran.err, "");
    let candidates = ran.lines();
    let candidates = candidates.iter().map(|line| line.split('\t').next().unwrap().to_owned());
    // Where nothing is typed yet, options are offered, too.
    let wants_options = words.last().unwrap().starts_with('-');
    candidates.filter(|candidate| candidate.starts_with('-') == wants_options).collect()
}

/// A worktree with two tags, and another one beside it.
fn world_with_names() -> (World, String) {
    let world = World::with_snapshot();
    world.write("late.txt", "late\n");
    let id = world.snapshot("fine");
    world.run(&["fork", "other", "--to", world.path("other").to_str().unwrap()]).ok();
    (world, id)
}

#[test]
fn names_and_ids_of_snapshots_are_offered() {
    let (world, id) = world_with_names();
    assert_eq!(complete(&world, &["show", "fi"]), ["fine", "first"]);
    assert_eq!(complete(&world, &["restore", "oth"]), ["other"]);
    assert_eq!(complete(&world, &["verify", "HE"]), ["HEAD"]);
    assert_eq!(complete(&world, &["cat", &id[..5]]), [&id[..8]]);
    assert_eq!(complete(&world, &["fork", "x", "--from", "fir"]), ["first"]);
    assert_eq!(complete(&world, &["find", "x", "--in", "first..fi"]), ["first..fine", "first..first"]);
    assert_eq!(complete(&world, &["tag", "remove", ""]), ["fine", "first"]);
    assert_eq!(complete(&world, &["worktree", "remove", ""]), ["main", "other"]);
    assert!(ask(&world, "tree", &["show", "fi"]).ok().out.contains("tag: fine, just now"));
    let tree = world.tree();
    let elsewhere = ask(&world, "", &["-C", tree.to_str().unwrap(), "show", "fir"]).ok();
    assert!(elsewhere.out.starts_with("first\t"), "{}", elsewhere.out);
}

#[test]
fn paths_are_those_of_the_snapshot() {
    let (world, _) = world_with_names();
    fs::remove_dir_all(world.tree().join("dir")).unwrap();
    assert_eq!(complete(&world, &["cat", "first", ""]), ["a.txt", "dir/"]);
    assert_eq!(complete(&world, &["cat", "fine", "l"]), ["late.txt"]);
    assert_eq!(complete(&world, &["ls", "first", "dir/"]), ["dir/b.txt", "dir/deep/"]);
    assert_eq!(complete(&world, &["history", "--path", "di"]), ["dir/"]);
    assert_eq!(complete(&world, &["diff", "fine", "la"]), ["latest", "late.txt"]);
    assert_eq!(complete(&world, &["history", "la"]), ["latest", "late.txt"]);
    assert_eq!(complete(&world, &["history", "late.txt", "di"]), ["dir/"]);
    assert_eq!(complete(&world, &["snapshot", "l"]), ["late.txt"]);
}

#[test]
fn commands_and_options_are_offered() {
    let world = World::empty();
    assert_eq!(complete(&world, &["snap"]), ["snapshot"]);
    assert_eq!(complete(&world, &["diff", "--st"]), ["--stat"]);
}

#[test]
fn where_nothing_is_known_nothing_is_said() {
    let world = World::empty();
    assert_eq!(complete(&world, &["show", "fi"]), Vec::<String>::new());
    fs::write(world.path("secret"), "a secret\n").unwrap();
    world.run(&["init", "--passphrase-file", world.path("secret").to_str().unwrap()]).ok();
    world.write("a.txt", "one\n");
    world.snapshot("first");
    assert_eq!(complete(&world, &["show", "fi"]), ["first"]);
    fs::remove_file(world.tree().join(".vellum/key")).unwrap();
    assert_eq!(complete(&world, &["show", "fi"]), Vec::<String>::new());
}

#[test]
fn a_service_is_not_asked() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    init(&world, &server.store_url("store")).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot", "--tag", "first"]).ok();
    world.run_at_home(&["tag", "list"]).ok();
    let _ = server.take_requests();
    assert_eq!(complete(&world, &["show", "fi"]), ["first"]);
    let paths = ask(&world, "tree", &["cat", "first", ""]).ok();
    assert_eq!(paths.err, "");
    assert_eq!(server.take_requests().len(), 0);
}

/// What a shell needs to find the binary, and nothing of the user's.
fn environment(world: &World) -> [(&'static str, String); 5] {
    let binary = Path::new(env!("CARGO_BIN_EXE_vellum"));
    let share = world.path("share").display().to_string();
    [
        ("PATH", format!("{}:/usr/bin:/bin", binary.parent().unwrap().display())),
        ("HOME", world.path("home").display().to_string()),
        ("XDG_DATA_DIRS", share),
        ("TERM", "xterm".into()),
        ("LC_ALL", "C.UTF-8".into()),
    ]
}

/// Types into a shell: what it is told first, and then lines that only succeed if the shell completes them.
fn type_into_shell(program: &str, args: &[&str], setup: &str) {
    let (world, _) = world_with_names();
    for (place, shell) in [
        ("bash-completion/completions/vellum", "bash"),
        ("site-functions/_vellum", "zsh"),
        ("fish/vendor_completions.d/vellum.fish", "fish"),
    ] {
        let file = world.path("share").join(place);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, world.run(&["completion", shell]).ok().raw).unwrap();
    }
    fs::create_dir(world.path("home")).unwrap();
    let environment = environment(&world);
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut shell = Terminal::start_program(&world, program, args, &environment);
    let setup = setup.replace("SHARE", world.path("share").to_str().unwrap());
    // The shell takes out the quotes, so that what it prints is not what was typed.
    shell.press(&format!("{setup} echo is re''ady\r"));
    shell.wait("is ready", 1);
    shell.press("vellum cat fir\tdi\tb\t | tr b q\r");
    shell.wait("q\r\n", 1);
    shell.press("vellum show oth\t | tr -c '\\n' x; echo is do''ne\r");
    shell.wait("is done", 1);
    shell.press("exit\r");
    let (_, text) = shell.end();
    assert!(!text.contains("error:"), "{text}");
}

#[test]
fn bash_completes_names_and_paths() {
    let setup = "source /usr/share/bash-completion/bash_completion;";
    type_into_shell("bash", &["--norc", "--noprofile"], setup);
}

#[test]
fn zsh_completes_names_and_paths() {
    let setup = "fpath=(SHARE/site-functions $fpath); autoload -Uz compinit; compinit -u;";
    type_into_shell("zsh", &["-f"], setup);
}

#[test]
fn fish_completes_names_and_paths() {
    type_into_shell("fish", &["--no-config"], "source SHARE/fish/vendor_completions.d/vellum.fish;");
}

#[test]
fn every_shell_has_a_script() {
    let world = World::empty();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        world.run(&["completion", shell]).ok().says("VELLUM_COMPLETE");
        world.run(&["completion", "--static", shell]).ok().says("snapshot").says("restore");
    }
    world.run(&["completion", "tcsh"]).code(3);
}

//! The whole command line reference as one text. `UPDATE=1 cargo test -p vellum help` writes it anew.

use std::path::Path;
use std::process::Stdio;

use crate::world::run;

const COMMANDS: &[&[&str]] = &[
    &[],
    &["init"],
    &["clone"],
    &["status"],
    &["snapshot"],
    &["history"],
    &["find"],
    &["show"],
    &["diff"],
    &["ls"],
    &["cat"],
    &["export"],
    &["restore"],
    &["merge"],
    &["conflicts"],
    &["resolve"],
    &["fork"],
    &["sync"],
    &["mount"],
    &["umount"],
    &["mounts"],
    &["flush"],
    &["worktree"],
    &["worktree", "list"],
    &["worktree", "rename"],
    &["worktree", "keep"],
    &["worktree", "quota"],
    &["worktree", "remove"],
    &["tag"],
    &["tag", "add"],
    &["tag", "list"],
    &["tag", "remove"],
    &["remote"],
    &["remote", "add"],
    &["remote", "list"],
    &["remote", "show"],
    &["remote", "rename"],
    &["remote", "remove"],
    &["push"],
    &["pull"],
    &["publish"],
    &["verify"],
    &["gc"],
    &["gc", "plan"],
    &["gc", "run"],
    &["forget"],
    &["info"],
    &["cache"],
    &["hydrate"],
    &["evict"],
    &["pin"],
    &["unpin"],
    &["pins"],
    &["offline"],
    &["bandwidth"],
    &["bench"],
    &["bench", "engines"],
    &["bench", "pipeline"],
    &["bench", "compare"],
    &["mdtest"],
    &["objbench"],
    &["stats"],
    &["profile"],
    &["key"],
    &["key", "add"],
    &["key", "list"],
    &["key", "remove"],
    &["device"],
    &["device", "add"],
    &["device", "list"],
    &["device", "revoke"],
    &["completion"],
    &["help"],
];

#[test]
fn the_reference_is_the_recorded_one() {
    let mut reference = String::new();
    for command in COMMANDS {
        let name = [&["vellum"][..], command].concat().join(" ");
        let help: &[&str] = if *command == ["help"] { &[] } else { &["--help"] };
        let text = run(Path::new("/"), &[command, help].concat(), Stdio::null()).ok().out;
        reference += &format!("===== {name}\n{}\n\n", text.trim_end());
    }
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/help.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&recorded, &reference).unwrap();
    }
    let expected = std::fs::read_to_string(&recorded).unwrap();
    assert!(
        reference == expected,
        "the help differs from tests/it/help.txt; run with UPDATE=1 and look at the difference"
    );
}

#[test]
fn every_command_is_in_the_reference() {
    let top = run(Path::new("/"), &["--help"], Stdio::null()).ok().out;
    let listed =
        top.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 15);
    for name in names {
        assert!(COMMANDS.iter().any(|command| command.first() == Some(&name)), "{name} is missing");
    }
}

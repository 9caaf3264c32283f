//! The whole command line reference as one text. `UPDATE=1 cargo test -p vellum help` writes it anew.

use std::path::Path;
use std::process::Stdio;

use crate::world::run;

/// The help of a command.
fn help_text(command: &[String]) -> String {
    let mut args: Vec<_> = command.iter().map(String::as_str).collect();
    if args != ["help"] {
        args.push("--help");
    }
    run(Path::new("/"), &args, Stdio::null()).ok().out
}

/// All commands at and below one, as its own help lists them.
fn list_commands(command: Vec<String>, listed: &mut Vec<Vec<String>>) {
    listed.push(command.clone());
    // It prints the help of the whole.
    if command == ["help"] {
        return;
    }
    let help = help_text(&command);
    let rows =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A description that is longer than a line goes on further right.
    let rows = rows.filter_map(|row| row.strip_prefix("  ")).filter(|row| !row.starts_with(' '));
    let names: Vec<_> = rows.filter_map(|row| row.split_whitespace().next()).map(str::to_owned).collect();
    let is_top = command.is_empty();
    // Each group has a 'help', which is that of the whole.
    for name in names.into_iter().filter(|name| is_top || name != "help") {
        list_commands([&command[..], &[name]].concat(), listed);
    }
}

#[test]
fn the_reference_is_the_recorded_one() {
    let mut commands = Vec::new();
    list_commands(Vec::new(), &mut commands);
    assert!(commands.len() > 60, "{commands:?}");
    let mut reference = String::new();
    for command in commands {
        let name = [&["vellum".to_owned()], &command[..]].concat().join(" ");
        reference += &format!("===== {name}\n{}\n\n", help_text(&command).trim_end());
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

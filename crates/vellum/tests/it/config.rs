//! `vellum config`

use std::fs;

use crate::world::World;

/// The user's config file of a world.
fn user_file(world: &World) -> std::path::PathBuf {
    let folder = world.path("config/vellum");
    fs::create_dir_all(&folder).unwrap();
    folder.join("config.toml")
}

#[test]
fn the_worktree_counts_before_the_volume_and_that_before_the_user() {
    let world = World::with_snapshot();
    let get =
        |expected: &str| world.run_at_home(&["config", "get", "retention.keep-last"]).ok().says(expected);
    world.run_at_home(&["config", "get", "retention.keep-last"]).code(1);
    world.run_at_home(&["config", "set", "--user", "retention.keep-last", "3"]).ok().says("is 3 (user)");
    get("3");
    world.run_at_home(&["config", "set", "--volume", "retention.keep-last", "4"]).ok();
    get("4");
    world.run_at_home(&["config", "set", "retention.keep-last", "5"]).ok().says("is 5 (worktree)");
    get("5");
    world.run_at_home(&["config", "get", "--volume", "retention.keep-last"]).ok().says("4");
    world.run_at_home(&["config", "unset", "retention.keep-last"]).ok().says("not set any more");
    world.run_at_home(&["config", "unset", "retention.keep-last"]).ok().says("was not set");
    get("4");
    let listed = world.run_at_home(&["config", "list"]).ok().says("retention.keep-last  4  volume");
    assert_eq!(listed.lines().len(), 1);
    world.run_at_home(&["config", "list", "--user"]).ok().says("retention.keep-last  3  user");
    // A fork has the same volume, and the settings of no other worktree.
    world.run_at_home(&["verify", "--all"]).ok();
}

#[test]
fn all_settings_are_described() {
    let world = World::with_snapshot();
    let all = world.run_at_home(&["config", "list", "--all"]).ok();
    all.says("safety.keep-within").says("14d").says("a time like 14d").says("auto or always or never");
    let json = world.run_at_home(&["config", "list", "--all", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let pager = json["settings"].as_array().unwrap().iter().find(|it| it["name"] == "ui.pager").unwrap();
    assert_eq!(pager["scopes"], serde_json::json!(["user"]));
    assert!(pager["scope"].is_null() && pager["help"].is_string());
}

#[test]
fn what_cannot_be_set_is_refused_with_the_way_out() {
    let world = World::with_snapshot();
    let set = |args: &[&str]| world.run_at_home(&[&["config", "set"], args].concat());
    set(&["retention.keep-dayly", "7"]).code(3).remarks("did you mean 'retention.keep-daily'?");
    set(&["nothing.like.it", "7"]).code(3).remarks("vellum config list --all");
    set(&["retention.keep-daily", "many"]).code(3).remarks("retention.keep-daily takes a number from 1");
    set(&["retention.keep-daily", "0"]).code(3).remarks("a number from 1");
    set(&["--volume", "ui.pager", "less"]).code(3).remarks("cannot be set for a volume").remarks("--user");
    set(&["--volume", "author", "eve"]).code(3).remarks("--worktree or --user");
    set(&["author", "a\x1b[2J"]).code(3).remarks("author takes a name");
    world.run_at_home(&["config", "list"]).ok().remarks("nothing is set");
}

#[test]
fn a_file_of_the_user_keeps_its_comments_and_unknown_settings_warn() {
    let world = World::with_snapshot();
    let file = user_file(&world);
    fs::write(&file, "# mine\nauthor = \"ann\" # that is me\ncolour = \"red\"\n[sync.x]\noptions = []\n")
        .unwrap();
    let ran = world.run_at_home(&["config", "set", "--user", "ui.color", "never"]).ok();
    assert_eq!(ran.err.matches("colour").count(), 1, "{}", ran.err);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("# mine\nauthor = \"ann\" # that is me\ncolour = \"red\"\n"), "{text}");
    assert!(text.contains("[ui]\ncolor = \"never\""), "{text}");
    world.write("b.txt", "b");
    world.run_at_home(&["snapshot"]).ok();
    world.run_at_home(&["show"]).ok().says("ann@");
}

#[test]
fn files_that_cannot_be_understood_are_refused_and_stay() {
    let world = World::with_snapshot();
    let file = user_file(&world);
    for (text, problem) in [
        ("version = 2\n", "was written for another version of Vellum"),
        ("[retention]\nkeep-last = \"many\"\n", "retention.keep-last takes a number from 1"),
        ("[retention]\nkeep-last = [1]\n", "retention.keep-last takes a number from 1"),
        ("retention = 1\n", "retention is a section"),
        ("not toml", "config.toml"),
    ] {
        fs::write(&file, text).unwrap();
        let ran = world.run_at_home(&["config", "set", "--user", "ui.color", "never"]);
        assert!(ran.err.contains(problem), "{text}: {}", ran.err);
        assert_eq!(ran.code, 3, "{text}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn a_wrong_value_is_named_by_its_line_and_mended_by_command() {
    let world = World::with_snapshot();
    let file = world.tree().join(".vellum/config.toml");
    let wrong = "author = \"ann\"\n\n[retention]\nkeep-daily = \"x\" # few\n";
    fs::write(&file, wrong).unwrap();
    let refused = world.run(&["status"]).code(3);
    let place = format!("{}, line 4: retention.keep-daily takes a number from 1", file.display());
    assert!(refused.err.contains(&place), "{}", refused.err);
    assert!(refused.err.contains("'vellum config unset --worktree retention.keep-daily'"), "{}", refused.err);
    world.run(&["doctor"]).code(1).says("settings of the worktree: ").says("line 4").says("(wrong-settings)");
    // Another setting does not change while this one is wrong, and the settings of others are not concerned.
    world.run(&["config", "set", "retention.keep-last", "3"]).code(3);
    world.run_at_home(&["config", "set", "--user", "ui.color", "never"]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), wrong);
    world.run(&["config", "set", "retention.keep-daily", "7"]).ok();
    assert!(fs::read_to_string(&file).unwrap().contains("keep-daily = 7"));
    fs::write(&file, wrong).unwrap();
    world.run(&["config", "unset", "--worktree", "retention.keep-daily"]).ok().says("is not set any more");
    world.run(&["status"]).ok();
    // It ends with 1 if a mount of another test is in trouble.
    let doctor = world.run(&["doctor"]);
    assert!(!doctor.out.contains("wrong-settings"), "{}", doctor.out);
    assert!(fs::read_to_string(&file).unwrap().contains("author = \"ann\""));
}

#[test]
fn a_file_that_is_no_toml_is_named_by_its_line() {
    let world = World::with_snapshot();
    let file = world.tree().join(".vellum/config.toml");
    fs::write(&file, "author = \"ann\"\nnot toml\n").unwrap();
    for args in [&["status"][..], &["config", "list"], &["config", "unset", "author"]] {
        let ran = world.run(args).code(3);
        assert!(ran.err.contains("config.toml, line 2: "), "{args:?}: {}", ran.err);
        assert!(ran.err.contains("edit the file there"), "{args:?}: {}", ran.err);
    }
    world.run(&["doctor"]).code(1).says("line 2").says("(wrong-settings)");
}

#[test]
fn nothing_is_compressed_on_request() {
    let sizes: Vec<u64> = ["none", "19"]
        .iter()
        .map(|level| {
            let world = World::new();
            world.run_at_home(&["config", "set", "compression", level]).ok();
            world.write("text", "the same line, again and again\n".repeat(20_000));
            world.run_at_home(&["snapshot"]).ok();
            let json = world.run_at_home(&["show", "--json"]).ok();
            let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
            json["snapshot"]["stored"].as_u64().unwrap_or_else(|| panic!("{json}"))
        })
        .collect();
    assert!(sizes[0] > 500_000 && sizes[1] < 50_000, "{sizes:?}");
}

#[test]
fn the_volume_says_how_all_its_worktrees_compress() {
    let world = World::new();
    world.run_at_home(&["config", "set", "--user", "compression", "19"]).ok();
    world.run_at_home(&["config", "set", "--volume", "compression", "none"]).ok();
    let level = |expected: i64| {
        let json: serde_json::Value =
            serde_json::from_str(&world.run_at_home(&["info", "--json"]).ok().out).unwrap();
        assert_eq!(json["compression_level"], expected);
    };
    level(0);
    world.write("text", "the same line, again and again\n".repeat(20_000));
    world.run_at_home(&["snapshot"]).ok();
    let json: serde_json::Value =
        serde_json::from_str(&world.run_at_home(&["show", "--json"]).ok().out).unwrap();
    assert!(json["snapshot"]["stored"].as_u64().unwrap() > 500_000, "{json}");
    // The worktree decides before the volume.
    world.run_at_home(&["config", "set", "--worktree", "compression", "7"]).ok();
    level(7);
}

#[test]
fn ignore_files_are_those_that_are_set() {
    let world = World::new();
    world.write(".gitignore", "*.o\n!kept.o\n");
    world.write(".vellumignore", "kept.o\n*.log\n");
    for name in ["a.o", "kept.o", "a.log", "text"] {
        world.write(name, name);
    }
    let recorded = |files: &str| {
        world.run_at_home(&["snapshot"]).ok();
        let listed = world.run_at_home(&["ls", "HEAD"]).ok().out;
        let shown: Vec<_> = listed.lines().filter(|name| !name.starts_with('.')).collect();
        assert_eq!(shown.join(" "), files);
    };
    recorded("a.o text");
    world.run_at_home(&["config", "set", "--volume", "ignore-files", ".vellumignore", ".gitignore"]).ok();
    recorded("kept.o text");
    world.run_at_home(&["config", "set", "ignore-files", ".gitignore", ".vellumignore"]).ok();
    recorded("text");
    world.run_at_home(&["config", "set", "ignore-files", ".gitignore"]).ok();
    recorded("a.log kept.o text");
    // What is ignored is never in a restore's way without a word.
    world.run_at_home(&["restore", "HEAD~3"]).code(2).remarks("a.o");
    world.run_at_home(&["config", "set", "ignore-files", "sub/.gitignore"]).code(3).remarks("names of files");
    world.run_at_home(&["config", "unset", "ignore-files"]).ok();
    world.run_at_home(&["config", "unset", "--volume", "ignore-files"]).ok();
    recorded("a.o text");
}

#[test]
fn options_may_stand_behind_the_value() {
    let world = World::with_snapshot();
    world.run_at_home(&["config", "set", "retention.keep-last", "3", "--user"]).ok().says("is 3 (user)");
    world.run_at_home(&["config", "set", "ignore-files", "a", "b", "--volume"]).ok();
    assert_eq!(world.run_at_home(&["config", "get", "ignore-files"]).ok().out.lines().count(), 2);
    world.run_at_home(&["config", "set", "ignore-files", "-a"]).code(3).remarks("unexpected argument '-a'");
    world.run_at_home(&["config", "set", "--volume", "ignore-files", "--", "-a"]).ok();
    world.run_at_home(&["config", "get", "ignore-files"]).ok().says("-a");
}

#[test]
fn colours_are_those_that_the_user_has_set() {
    let world = World::with_snapshot();
    let history = || world.run_at_home(&["history"]).ok().out.contains('\x1b');
    assert!(!history(), "no terminal");
    world.run_at_home(&["config", "set", "--user", "ui.color", "always"]).ok();
    assert!(history());
    world.run_at_home(&["config", "set", "--user", "ui.color", "never"]).ok();
    assert!(!history());
}

#[test]
fn settings_of_a_volume_go_with_pushes_pulls_and_clones_and_the_later_one_counts() {
    let world = World::with_snapshot();
    let store = world.path("remote").display().to_string();
    world.run(&["remote", "add", "origin", &store]).ok();
    world.run(&["config", "set", "--volume", "retention.keep-daily", "7"]).ok();
    world.run(&["config", "set", "--volume", "retention.keep-weekly", "4"]).ok();
    world.run(&["push"]).ok();
    let clone = world.path("clone").display().to_string();
    world.run_beside("", &["clone", "--plain", &store, &clone]).ok();
    world.run_beside("clone", &["config", "get", "--volume", "retention.keep-daily"]).ok().says("7");
    world.run_beside("clone", &["config", "set", "--volume", "retention.keep-daily", "9"]).ok();
    world.run_beside("clone", &["config", "unset", "--volume", "retention.keep-weekly"]).ok();
    // The remote is the clone's own store.
    world.run(&["pull"]).ok();
    world.run(&["config", "get", "--volume", "retention.keep-daily"]).ok().says("9");
    assert!(!world.run(&["config", "list"]).ok().out.contains("keep-weekly"));
    world.run(&["verify", "--all"]).ok();
}

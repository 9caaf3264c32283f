//! `make install`, and what it installs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::world::{World, profile};

/// Installs the binary of the tests below a prefix.
fn install(arguments: &[String]) {
    let output = Command::new("make")
        .args(["-s", "install", concat!("BINARY=", env!("CARGO_BIN_EXE_vellum"))])
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert_silent("make install", &output);
}

#[track_caller]
fn assert_silent(what: &str, output: &Output) {
    let said = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{what}: {}", String::from_utf8_lossy(&said));
}

fn list(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn everything_is_installed_below_the_prefix() {
    let world = World::empty();
    let prefix = world.path("prefix");
    install(&[format!("PREFIX={}", prefix.display())]);
    let helper =
        Command::new(prefix.join("sbin/mount.fuse.vellum")).arg("--version").envs(profile()).output();
    assert!(helper.unwrap().stdout.starts_with(b"mount.vellum "));
    for completion in [
        "bash-completion/completions/vellum",
        "zsh/site-functions/_vellum",
        "fish/vendor_completions.d/vellum.fish",
    ] {
        assert!(
            fs::read_to_string(prefix.join("share").join(completion)).unwrap().contains("VELLUM_COMPLETE")
        );
    }
    check_manual(&prefix.join("share/man"));
    check_units(&world, &prefix.join("lib/systemd/system"));
}

#[test]
fn pages_go_into_a_directory_that_is_named_from_where_one_stands() {
    let world = World::empty();
    fs::create_dir_all(world.path("pkg/man1")).unwrap();
    world.run_beside("", &["manual", "pkg/man1"]).ok();
    assert!(world.path("pkg/man1/vellum.1").exists());
}

/// Every command has a page, and man(1) has nothing to say against any of them.
fn check_manual(dir: &Path) {
    let pages = list(&dir.join("man1"));
    assert!(pages.len() > 60, "{pages:?}");
    let recorded = include_str!("help.txt");
    for command in recorded.lines().filter_map(|line| line.strip_prefix("===== ")) {
        let name = command.replace(' ', "-");
        // Help is about commands, and is no page of its own.
        if name != "vellum-help" {
            assert!(dir.join(format!("man1/{name}.1")).exists(), "{command} has no manual page");
        }
    }
    let helper = dir.join("man8/mount.vellum.8");
    assert!(fs::read_to_string(&helper).unwrap().contains("worktree=NAME"));
    for page in pages.iter().chain([&helper]) {
        let output = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
            .arg(page)
            .env("MANROFFSEQ", "")
            .env("MANWIDTH", "100")
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && err.is_empty(), "{}: {err}", page.display());
    }
}

/// systemd understands each unit, and all that it names is there.
fn check_units(world: &World, dir: &Path) {
    let units = list(dir);
    let names: Vec<_> = units.iter().map(|unit| unit.file_name().unwrap().to_str().unwrap()).collect();
    let expected = [
        "vellum-forget@.service",
        "vellum-forget@.timer",
        "vellum-mount@.service",
        "vellum-serve@.service",
        "vellum-snapshot@.service",
        "vellum-snapshot@.timer",
        "vellum-verify@.service",
        "vellum-verify@.timer",
    ];
    assert_eq!(names, expected);
    // What is wrong with an instance is found in the file of an instance only.
    let instances = world.path("instances");
    fs::create_dir(&instances).unwrap();
    for unit in &units {
        let name = unit.file_name().unwrap().to_str().unwrap().replace('@', "@srv-data");
        fs::copy(unit, instances.join(name)).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=one"]).args(list(&instances));
    assert_silent("systemd-analyze verify", &verify.output().unwrap());
}

/// The unit that forgets runs where rules are set, and is skipped elsewhere: systemd takes 255 for a failure, and other codes
/// for a condition that does not hold.
#[test]
fn snapshots_are_forgotten_by_a_unit_where_rules_are_set() {
    let world = World::with_snapshot();
    let prefix = world.path("prefix");
    install(&[format!("PREFIX={}", prefix.display())]);
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/vellum-forget@.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecCondition=/bin/sh -c '")).unwrap();
    let script = line.strip_suffix("' sh %f").unwrap().replace("$$", "$");
    let check = |dir: &Path| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script, "sh"]).arg(dir).envs(profile());
        shell.env("XDG_CONFIG_HOME", world.path("config")).output().unwrap().status.code()
    };
    assert_eq!(check(&world.tree()), Some(1));
    assert_eq!(check(&world.path("nowhere")), Some(255));
    world.run_at_home(&["config", "set", "--volume", "retention.zone", "Europe/Berlin"]).ok();
    assert_eq!(check(&world.tree()), Some(1));
    world.run_at_home(&["config", "set", "--volume", "retention.keep-last", "1"]).ok();
    assert_eq!(check(&world.tree()), Some(0));
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let start = start.replace("%f", world.tree().to_str().unwrap());
    let mut words = start.split(' ');
    let ran = Command::new(words.next().unwrap()).args(words).envs(profile()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn packages_are_built_below_another_root() {
    let world = World::empty();
    let root = world.path("root");
    install(&["PREFIX=/usr".into(), format!("DESTDIR={}", root.display())]);
    assert_eq!(fs::read_link(root.join("sbin/mount.vellum")).unwrap(), Path::new("/usr/bin/vellum"));
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/vellum-mount@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/vellum mount --foreground"), "{unit}");
    let installed = String::from_utf8(Command::new("find").arg(&root).output().unwrap().stdout).unwrap();
    assert!(!installed.contains("local"), "{installed}");
}

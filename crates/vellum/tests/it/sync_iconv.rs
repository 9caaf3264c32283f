//! `vellum sync --iconv`: names in the charsets of two hosts.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::other_host::Host;
use crate::world::World;

/// Names whose order is another one in KOI8-R than in UTF-8.
const NAMES: [&str; 6] = ["яблоко", "арбуз", "Юг", "plain", "каталог/берёза", "каталог/дно/ёж"];

fn encode(text: &str, charset: &str) -> Vec<u8> {
    let encoding = encoding_rs::Encoding::for_label(charset.as_bytes()).unwrap();
    let (bytes, _, has_replacements) = encoding.encode(text);
    assert!(!has_replacements, "{text} in {charset}");
    bytes.into_owned()
}

fn path_in(world: &World, dir: &str, name: &[u8]) -> PathBuf {
    world.tree().join(dir).join(OsStr::from_bytes(name))
}

/// A tree whose names are in a charset; each file holds its name in UTF-8.
fn fill(world: &World, dir: &str, charset: &str) {
    for name in NAMES {
        let file = path_in(world, dir, &encode(name, charset));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, name).unwrap();
    }
    let link = path_in(world, dir, &encode("ссылка", charset));
    symlink(OsStr::from_bytes(&encode("каталог/берёза", charset)), link).unwrap();
    fs::hard_link(
        path_in(world, dir, &encode("Юг", charset)),
        path_in(world, dir, &encode("другое имя", charset)),
    )
    .unwrap();
    // rsync leaves times alone that are in the right second.
    let touch = "find . -depth -exec touch -h -d @1600000000 {} +";
    let touched = Command::new("sh").args(["-c", touch]).current_dir(world.tree().join(dir)).status();
    assert!(touched.unwrap().success());
}

/// Everything in a directory: path, kind, target and content, the names decoded.
fn describe(dir: &Path, charset: &str) -> Vec<String> {
    let decode = |bytes: &[u8]| {
        let encoding = encoding_rs::Encoding::for_label(charset.as_bytes()).unwrap();
        encoding
            .decode_without_bom_handling_and_without_replacement(bytes)
            .expect("a name of the charset")
            .into_owned()
    };
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(here) = dirs.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            let name = decode(path.strip_prefix(dir).unwrap().as_os_str().as_bytes());
            let stat = fs::symlink_metadata(&path).unwrap();
            if stat.is_dir() {
                all.push(format!("{name}/"));
                dirs.push(path);
            } else if stat.is_symlink() {
                let target = decode(fs::read_link(&path).unwrap().as_os_str().as_bytes());
                all.push(format!("{name} -> {target}"));
            } else {
                all.push(format!("{name}: {}", fs::read_to_string(&path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

fn assert_same(world: &World, one: (&str, &str), other: (&str, &str)) {
    let of = |(dir, charset): (&str, &str)| describe(&world.tree().join(dir), charset);
    assert_eq!(of(one), of(other));
}

#[test]
fn names_go_to_another_host_and_come_back() {
    let host = Host::new();
    let world = &host.world;
    fill(world, "src", "utf-8");
    let (far, from_far) = (host.at("far"), host.at("far/"));
    let iconv = "--iconv=utf-8,koi8-r";
    let push = ["-aHi", "--delete", iconv, "src/", &far];
    host.sync(&push).ok().says("каталог/берёза").says("ссылка -> каталог/берёза");
    assert_same(world, ("src", "utf-8"), ("far", "koi8-r"));
    host.sync(&push).ok().says("Nothing to do");
    host.sync(&["-aHc", "--delete", iconv, "src/", &far]).ok().says("Nothing to do");

    let pull = ["-aHi", "--delete", iconv, &from_far, "back"];
    host.sync(&pull).ok().says("каталог/берёза").says("ссылка -> каталог/берёза");
    assert_same(world, ("src", "utf-8"), ("back", "utf-8"));
    host.sync(&pull).ok().says("Nothing to do");
    host.sync(&["-aHc", "--delete", iconv, &from_far, "back"]).ok().says("Nothing to do");

    // Each kind of change, both ways: content, a new name, one that is gone.
    fs::write(world.tree().join("src/яблоко"), "changed, with what was there before").unwrap();
    fs::rename(world.tree().join("src/арбуз"), world.tree().join("src/ананас")).unwrap();
    fs::remove_file(world.tree().join("src/каталог/дно/ёж")).unwrap();
    let dry = ["-aHn", "--delete", iconv, "src/", &far];
    host.sync(&dry).ok().says("delete  каталог/дно/ёж").says("update  яблоко");
    host.sync(&["-aH", "--delete", "--detect-renames", iconv, "src/", &far]).ok();
    assert_same(world, ("src", "utf-8"), ("far", "koi8-r"));
    host.sync(&pull).ok();
    assert_same(world, ("src", "utf-8"), ("back", "utf-8"));
}

#[test]
fn a_program_is_told_names_of_this_host() {
    let host = Host::new();
    fill(&host.world, "src", "utf-8");
    let ran = host.sync(&["--json", "-a", "-n", "--iconv=utf-8,koi8-r", "src/", &host.at("far")]);
    let output: serde_json::Value = serde_json::from_str(&ran.ok().out).unwrap();
    let steps = output["steps"].as_array().unwrap();
    let has = |name: &str| steps.iter().any(|step| step["path"] == name);
    assert!(NAMES.iter().all(|name| has(name)), "{output:#}");
}

#[test]
fn paths_that_are_typed_or_listed_for_the_other_host_are_converted() {
    let host = Host::new();
    let world = &host.world;
    fill(world, "old", "koi8-r");
    let iconv = "--iconv=utf-8,koi8-r";
    // A directory by its name, one file, and one file under another name.
    host.sync(&["-a", iconv, &host.at("old/каталог"), "to"]).ok();
    assert_eq!(world.read("to/каталог/дно/ёж"), "каталог/дно/ёж");
    host.sync(&["-a", iconv, &host.at("old/яблоко"), "to/"]).ok();
    host.sync(&["-a", iconv, &host.at("old/яблоко"), "to/日本"]).ok();
    assert_eq!((world.read("to/яблоко"), world.read("to/日本")), ("яблоко".into(), "яблоко".into()));
    host.sync(&["-a", iconv, "to/яблоко", &host.at("old/груша")]).ok();
    host.sync(&["-a", iconv, "to/каталог", &host.at("new")]).ok();
    assert_eq!(fs::read_to_string(path_in(world, "old", &encode("груша", "koi8-r"))).unwrap(), "яблоко");
    let inner = path_in(world, "new", &encode("каталог/берёза", "koi8-r"));
    assert_eq!(fs::read_to_string(inner).unwrap(), "каталог/берёза");
    // What is listed, with everything else at the destination left alone.
    world.write("list", "каталог/берёза\nяблоко\n");
    host.sync(&["-a", iconv, "--files-from=list", &host.at("old"), "listed"]).ok();
    assert_eq!(describe(&world.tree().join("listed"), "utf-8").len(), 3);
    host.sync(&["-a", iconv, "--files-from=list", "--delete-missing-args", "listed", &host.at("again")]).ok();
    assert_same(world, ("listed", "utf-8"), ("again", "koi8-r"));
    world.remove("listed/яблоко");
    let push = ["-a", iconv, "--files-from=list", "--delete-missing-args", "listed", &host.at("again")];
    host.sync(&push).ok().says("1 deleted");
    assert_same(world, ("listed", "utf-8"), ("again", "koi8-r"));
    host.sync(&["-aR", iconv, &host.at("old/./каталог/дно"), "relative"]).ok();
    assert_eq!(world.read("relative/каталог/дно/ёж"), "каталог/дно/ёж");
    host.sync(&["-aR", iconv, &host.at("old/./каталог/нет"), "relative"]).code(2).remarks("каталог/нет");
    // Several sources, one of them on this host.
    host.sync(&["-a", iconv, &host.at("old/каталог"), "to/日本", "union"]).ok();
    assert_eq!(describe(&world.tree().join("union"), "utf-8").len(), 5);
    host.sync(&["--list-only", iconv, &host.at("old/")])
        .ok()
        .says("каталог")
        .says("ссылка -> каталог/берёза");
}

#[test]
fn what_has_no_name_there_is_left_out_and_nothing_is_deleted_for_it() {
    let host = Host::new();
    let world = &host.world;
    world.write("src/für", "u");
    world.write("src/日本/inside", "j");
    symlink("日本", world.tree().join("src/link")).unwrap();
    fs::write(path_in(world, "src", b"not \xff utf-8"), "raw").unwrap();
    world.write("far/old", "old");
    let far = host.at("far");
    let ran = host.sync(&["-a", "--delete", "--force-delete", "--iconv=utf-8,iso-8859-1", "src/", &far]);
    ran.code(1)
        .remarks("日本: its name has a character that ISO-8859-1 does not have")
        .remarks("link: its target has a character")
        .remarks("its name is not valid UTF-8")
        .remarks("nothing is deleted");
    assert_eq!(describe(&world.tree().join("far"), "iso-8859-1"), ["für: u", "old: old"]);
    // The other way every byte is a character.
    fs::write(path_in(world, "far", b"\x80"), "control").unwrap();
    host.sync(&["-a", "--iconv=utf-8,iso-8859-1", &format!("{far}/"), "back"]).ok();
    assert_eq!(world.read("back/\u{80}"), "control");
    host.sync(&["-a", "--iconv=ascii,utf-8", &format!("{far}/"), "back"])
        .code(1)
        .remarks("is not valid UTF-8");
}

#[test]
fn what_is_copied_is_removed_at_the_source() {
    let host = Host::new();
    let world = &host.world;
    for (from, to, iconv) in [
        ("src".to_owned(), host.at("far"), "--iconv=utf-8,koi8-r"),
        (host.at("src"), "here".to_owned(), "--iconv=koi8-r,utf-8"),
    ] {
        fill(world, "src", "utf-8");
        host.sync(&["-a", "--remove-source-files", iconv, &format!("{from}/"), &to]).ok();
        assert_eq!(describe(&world.tree().join("src"), "utf-8"), ["каталог/", "каталог/дно/"]);
        fs::remove_dir_all(world.tree().join("src")).unwrap();
    }
    assert_same(world, ("far", "koi8-r"), ("here", "koi8-r"));
}

#[test]
fn two_directories_of_one_host_have_charsets_too() {
    let world = World::empty();
    fill(&world, "src", "utf-8");
    let sync = ["sync", "-aH", "--delete", "--iconv=utf-8,koi8-r", "src/", "to"];
    world.run(&sync).ok();
    world.run(&sync).ok().says("Nothing to do");
    assert_same(&world, ("src", "utf-8"), ("to", "koi8-r"));
    world
        .run(&["sync", "-aHn", "--delete", "--iconv=utf-8,koi8-r", "--exclude=Юг", "src/", "new"])
        .ok()
        .says("яблоко");
    // As rsync does it.
    let rsync = |line: &[&str]| {
        let ran = Command::new("rsync").args(line).current_dir(world.tree()).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    assert_eq!(rsync(&["-aHni", "--delete", "--iconv=utf-8,koi8-r", "src/", "to/"]), "");
    rsync(&["-aH", "--iconv=utf-8,koi8-r", "src/", "theirs/"]);
    assert_same(&world, ("to", "koi8-r"), ("theirs", "koi8-r"));
    world
        .run(&["sync", "-aHc", "--delete", "--iconv=utf-8,koi8-r", "src/", "theirs"])
        .ok()
        .says("Nothing to do");
}

#[test]
fn the_locale_says_what_a_dot_means() {
    let world = World::empty();
    fill(&world, "src", "koi8-r");
    let ran = |locale: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
        command.args(["sync", "-a", "--iconv=.,utf-8", "src/", "to"]).current_dir(world.tree());
        command.env("LC_ALL", locale).output().unwrap().status.code()
    };
    assert_eq!(ran("ru_RU.KOI8-R@accent"), Some(0));
    assert_same(&world, ("src", "koi8-r"), ("to", "utf-8"));
    // Names of another charset are no names in this one.
    assert_eq!(ran("C"), Some(1));
}

#[test]
fn what_names_no_two_charsets_is_refused() {
    let world = World::empty();
    world.write("src/file", "content");
    for (line, words) in [
        ("--iconv=utf-8 src/ to", "'utf-8' does not name two charsets"),
        ("--iconv=. src/ to", "--iconv LOCAL,REMOTE"),
        ("--iconv=utf-8,. src/ to", "the charset of the other host's locale is not known here"),
        ("--iconv=utf-8,utf-16 src/ to", "'utf-16' is not a charset that names can be converted from and to"),
        ("--iconv=utf-8,latin1 --two-way src to", "--iconv has no meaning with --two-way"),
        (
            "-e false --iconv=utf-8,latin1 src/ host:/日本",
            "'/日本' has a character that ISO-8859-1 does not have",
        ),
    ] {
        let typed: Vec<_> = ["sync", "-a"].into_iter().chain(line.split(' ')).collect();
        world.run(&typed).code(3).remarks(words);
    }
    assert!(!world.has("to"));
    world.run(&["sync", "-a", "--iconv=utf-8,latin1", "--iconv=-", "src/", "to"]).ok();
    world.run(&["sync", "-a", "--iconv=bad,worse", "--no-iconv", "src/", "to"]).ok();
}

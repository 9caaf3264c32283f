//! `vellum export`

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::world::World;

fn entries(raw: &[u8]) -> BTreeMap<String, (tar::Header, Vec<u8>)> {
    let mut archive = tar::Archive::new(raw);
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        found.insert(path, (entry.header().clone(), content));
    }
    found
}

#[test]
fn a_tar_stream_goes_to_a_pipe() {
    let world = World::with_snapshot();
    let long = format!("dir/{}/{}", "l".repeat(200), "n".repeat(200));
    world.write(&long, "long");
    fs::hard_link(world.tree().join("a.txt"), world.tree().join("z.txt")).unwrap();
    std::os::unix::fs::symlink("a.txt", world.tree().join("link")).unwrap();
    world.snapshot("second");
    let found = entries(&world.run(&["export", "HEAD"]).ok().raw);
    assert_eq!(found["a.txt"].1, b"one\ntwo\nthree\n");
    assert_eq!(found[&long].1, b"long");
    assert_eq!(found["z.txt"].0.entry_type(), tar::EntryType::Link);
    assert_eq!(found["link"].0.entry_type(), tar::EntryType::Symlink);
    assert!(found.contains_key("dir/deep/"));
    let part = entries(&world.run(&["export", "HEAD", "dir/deep"]).ok().raw);
    assert_eq!(part["c.bin"].1, [0, 1, 2, 255]);
}

#[test]
fn tar_itself_gives_back_times_and_attributes() {
    let world = World::with_snapshot();
    let when = std::time::UNIX_EPOCH + std::time::Duration::new(1_600_000_000, 123_456_789);
    fs::File::options().write(true).open(world.tree().join("a.txt")).unwrap().set_modified(when).unwrap();
    world.snapshot("second");
    world.run(&["export", "HEAD", "--tar", "../out.tar"]).ok().says("Exported");
    fs::create_dir(world.path("out")).unwrap();
    let tar =
        std::process::Command::new("tar").args(["-xf", "../out.tar"]).current_dir(world.path("out")).status();
    if !tar.is_ok_and(|status| status.success()) {
        return;
    }
    let metadata = fs::metadata(world.path("out/a.txt")).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_600_000_000, 123_456_789));
    world.run(&["export", "HEAD", "--tar", "../out.tar"]).code(2).remarks("out.tar");
}

#[test]
fn a_directory_is_written() {
    let world = World::with_snapshot();
    world.write("a.txt", "later");
    world.run(&["export", "HEAD", "--to", "../out"]).ok();
    assert_eq!(fs::read_to_string(world.path("out/a.txt")).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(fs::read(world.path("out/dir/deep/c.bin")).unwrap(), [0, 1, 2, 255]);
    assert!(!world.path("out/.vellum").exists());
    world.run(&["export", "HEAD", "--to", "../out"]).code(2).remarks("not empty");
}

#[test]
fn json_and_a_stream_do_not_share_standard_output() {
    let world = World::with_snapshot();
    world.run(&["export", "HEAD", "--json"]).code(3).remarks("--tar FILE");
    let value = world.json(&["export", "HEAD", "--tar", "../x.tar"]);
    assert_eq!(value["problems"], serde_json::json!([]));
}

#[test]
fn a_hyphen_means_standard_output() {
    let world = World::with_snapshot();
    let ran = world.run(&["export", "first", "--tar", "-"]).ok();
    assert!(!world.has("-"));
    assert!(ran.raw.starts_with(b"PaxHeaders") || ran.raw.len() > 1024, "a tar stream");
    let mut names: Vec<_> = tar::Archive::new(&*ran.raw)
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    names.sort();
    assert!(names.iter().any(|name| name == "dir/deep/c.bin"), "{names:?}");
}

//! `vellum ls`

use crate::world::World;

#[test]
fn a_directory_is_listed() {
    let world = World::with_snapshot();
    assert_eq!(world.run(&["ls", "HEAD"]).ok().lines(), ["a.txt", "dir/"]);
    assert_eq!(world.run(&["ls", "HEAD", "dir"]).ok().lines(), ["b.txt", "deep/"]);
    assert_eq!(world.run_in("dir", &["ls", "HEAD"]).ok().lines(), ["b.txt", "deep/"]);
    assert_eq!(world.run(&["ls", "HEAD", "dir/b.txt"]).ok().lines(), ["b.txt"]);
    assert_eq!(world.run_in("dir", &["ls", "--state"]).ok().lines().len(), 2);
    assert_eq!(world.run(&["ls"]).ok().lines(), ["a.txt", "dir/"]);
    let all = ["a.txt", "dir/", "dir/b.txt", "dir/deep/", "dir/deep/c.bin"];
    assert_eq!(world.run(&["ls", "-R", "HEAD"]).ok().lines(), all);
}

#[test]
fn details() {
    let world = World::new();
    world.write("file", "12345");
    world.chmod("file", 0o4755);
    std::os::unix::fs::symlink("target", world.tree().join("link")).unwrap();
    world.snapshot("s");
    world
        .run(&["ls", "-l", "HEAD"])
        .ok()
        .says("-rwsr-xr-x  1")
        .says("5 B")
        .says("link -> target")
        .says("lrwxrwxrwx");
}

#[test]
fn what_is_not_there_is_an_error() {
    let world = World::with_snapshot();
    world.run(&["ls", "HEAD", "nothing"]).code(2).remarks("'nothing' is not in snapshot");
    world.run(&["ls", "nothing"]).code(2).remarks("no snapshot, tag or worktree is called 'nothing'");
    world.run(&["ls", "dir"]).code(3).remarks("no snapshot").remarks("'HEAD dir' is that path");
    world.run(&["ls", "HEAD~7"]).code(2).remarks("not that long");
}

#[test]
fn json() {
    let world = World::with_snapshot();
    std::fs::write(
        std::path::Path::new(&world.tree())
            .join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff")),
        "",
    )
    .unwrap();
    world.snapshot("odd");
    let value = world.json(&["ls", "HEAD"]);
    assert_eq!(value["entries"][1]["kind"], "directory");
    assert_eq!(value["entries"][0]["mode"], "0644");
    assert_eq!(value["entries"][2]["path_hex"], "ff");
}

/// What a listing may take beside what the program takes anyway, KiB: less than the paths of `LONG_PATHS` files.
const MEMORY_KIB: u32 = 120 << 10;
/// Each of them has 3,500 bytes.
const LONG_PATHS: usize = 40_000;

#[test]
fn json_of_a_large_tree_takes_no_memory_for_its_paths() {
    let world = World::new();
    let dir = ["d"; 14].map(|name| name.repeat(248)).join("/");
    let place = world.tree().join(&dir);
    std::fs::create_dir_all(&place).unwrap();
    for file in 0..LONG_PATHS {
        std::fs::File::create(place.join(file.to_string())).unwrap();
    }
    world.snapshot("s");
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let list = format!("ulimit -d {MEMORY_KIB}; exec '{vellum}' --json ls -R HEAD");
    let ended = std::process::Command::new("sh")
        .args(["-c", &list])
        .current_dir(world.tree())
        .stdout(std::fs::File::create(world.path("listing")).unwrap())
        .status()
        .unwrap();
    assert!(ended.success(), "{ended}");
    let listing: serde_json::Value =
        serde_json::from_slice(&std::fs::read(world.path("listing")).unwrap()).unwrap();
    assert_eq!(listing["version"], 1);
    assert_eq!(listing["entries"].as_array().unwrap().len(), 14 + LONG_PATHS);
}

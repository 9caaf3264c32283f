//! `vellum ls`

use crate::world::World;

#[test]
fn a_directory_is_listed() {
    let world = World::with_snapshot();
    assert_eq!(world.run(&["ls", "HEAD"]).ok().lines(), ["a.txt", "dir/"]);
    assert_eq!(world.run(&["ls", "HEAD", "dir"]).ok().lines(), ["b.txt", "deep/"]);
    assert_eq!(world.run_in("dir", &["ls", "HEAD"]).ok().lines(), ["b.txt", "deep/"]);
    assert_eq!(world.run(&["ls", "HEAD", "dir/b.txt"]).ok().lines(), ["b.txt"]);
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

//! `vellum cat`

use crate::world::{World, noise};

#[test]
fn the_content_comes_back_byte_for_byte() {
    let world = World::with_snapshot();
    let big = noise(3_000_000);
    world.write("big", &big);
    world.snapshot("big");
    world.write("big", "gone");
    assert!(world.run(&["cat", "big", "big"]).ok().raw == big);
    assert_eq!(world.run(&["cat", "HEAD", "dir/deep/c.bin"]).ok().raw, [0, 1, 2, 255]);
}

#[test]
fn holes_are_zeros() {
    let world = World::new();
    let file = std::fs::File::create(world.tree().join("sparse")).unwrap();
    file.set_len(3 << 20).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"x", 1 << 20).unwrap();
    world.snapshot("s");
    let raw = world.run(&["cat", "HEAD", "sparse"]).ok().raw;
    assert_eq!(raw.len(), 3 << 20);
    assert!(raw.iter().enumerate().all(|(at, byte)| *byte == if at == 1 << 20 { b'x' } else { 0 }));
}

#[test]
fn only_files_have_content() {
    let world = World::with_snapshot();
    world.run(&["cat", "HEAD", "dir"]).code(3).remarks("'dir' is a directory, not a file");
    world.run(&["cat", "HEAD", "nothing"]).code(2);
}

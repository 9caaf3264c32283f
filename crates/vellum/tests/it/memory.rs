//! Memory that the process behind a mount takes.

use std::fs;

use crate::mounting::Mount;
use crate::world::World;

/// Where glibc begins a heap that is not the first: at multiples of this.
const HEAP: u64 = 64 << 20;

/// How many heaps a process has beside the first one.
fn heaps(pid: i32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let is_heap = |line: &&str| {
        let mut words = line.split_whitespace();
        let start = words.next().and_then(|range| range.split('-').next()).unwrap();
        let starts = u64::from_str_radix(start, 16).unwrap().is_multiple_of(HEAP);
        starts && words.next() == Some("rw-p") && words.nth(2) == Some("0")
    };
    maps.lines().filter(is_heap).count()
}

#[test]
fn threads_share_few_heaps() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh(
        "for i in 1 2 3 4 5 6 7 8; do
            (mkdir $i && for j in $(seq 20); do head -c 20000 /dev/urandom > $i/$j; done; sync $i/1) & done; wait",
    );
    world.run(&["-C", mount.path.to_str().unwrap(), "flush"]).ok();
    mount.sh("cat */* | wc -c");
    let most = std::thread::available_parallelism().unwrap().get().clamp(2, 8);
    let found = heaps(mount.pid());
    assert!(found < most, "{found} heaps beside the first one");
}

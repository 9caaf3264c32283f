//! Names in a history: what a search reads.

use vellum_types::Ino;
use vellum_volume::history::list_history;
use vellum_volume::name_search::PeriodSplit;

use crate::model::{Tree, noise};
use crate::ram::Hooked;
use crate::world::{PLAIN, World, snapshot};

/// Files in a directory.
const FILES: u64 = 50;

/// A volume with a first snapshot of so many directories, and more, each of which changes the files of one directory.
struct ChangingVolume {
    world: World,
    tree: Tree,
    files: Vec<Vec<Ino>>,
}

impl ChangingVolume {
    fn new(dirs: usize) -> Self {
        let mut tree = Tree::default();
        let mut files = Vec::new();
        for number in 0..dirs {
            let dir = tree.dir(Ino::ROOT, &format!("dir-{number:04}"));
            let file = |file| tree.file(dir, &format!("file-{number:04}-{file:02}"), noise(file, 40));
            files.push((0..FILES).map(file).collect());
        }
        let world = World::new(PLAIN);
        snapshot(&world.volume, &tree, "first");
        Self { world, tree, files }
    }

    fn add_snapshots(&mut self, count: usize) {
        for number in 0..count {
            for file in &self.files[number * 3] {
                self.tree.node(*file).content = format!("changed {number}").into_bytes();
            }
            snapshot(&self.world.volume, &self.tree, &number.to_string());
        }
    }

    /// How many requests it takes to find a name in all snapshots, and how many periods it has.
    fn count_requests(&self, name: &str, split: PeriodSplit) -> (u64, usize) {
        let counting = Hooked::new(self.world.ram.clone(), |_| {});
        let cold = self.world.seen_in(counting.clone());
        let snapshots = list_history(&cold.catalog).unwrap();
        let before = counting.operations();
        let found = cold.find_names(&snapshots, split, |other| other == name.as_bytes()).unwrap();
        (counting.operations() - before, found.len())
    }
}

/// How many more requests it takes to find a name in 24 more snapshots, in a tree of so many directories.
fn count_requests_of_changes(dirs: usize, split: PeriodSplit) -> u64 {
    let mut volume = ChangingVolume::new(dirs);
    let name = "file-0006-07";
    let (first, found) = volume.count_requests(name, split);
    assert_eq!(found, 1);
    volume.add_snapshots(24);
    let (all, found) = volume.count_requests(name, split);
    assert_eq!(found, if split == PeriodSplit::ByContent { 2 } else { 1 });
    all - first
}

#[test]
fn a_search_reads_what_differs_between_snapshots_and_not_each_of_them() {
    for split in [PeriodSplit::ByPresence, PeriodSplit::ByContent] {
        let small = count_requests_of_changes(80, split);
        let large = count_requests_of_changes(480, split);
        assert!(small > 0 && large <= small + small / 2, "{small} of 4,000 files, {large} of 24,000");
    }
}

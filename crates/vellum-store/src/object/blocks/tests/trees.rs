//! Trees that are read in another order than the one in which they were stored, as `grep -r` and `find` do: few requests, and a
//! bound on what nobody wants.

use super::*;

/// What is stored of each directory, bytes, in so many files.
const DIRECTORY: u64 = 200 << 10;
const FILES: u64 = 20;

impl TestPack {
    fn directories(&self) -> u64 {
        self.content.len() as u64 / DIRECTORY
    }

    /// Reads the files of a directory, in an order of their own. Returns how many bytes they have.
    fn read_directory(&self, directory: u64) -> u64 {
        for file in scatter(FILES) {
            self.store.note_whole_file();
            self.check_range(directory * DIRECTORY + file * (DIRECTORY / FILES), DIRECTORY / FILES);
        }
        DIRECTORY
    }

    fn bytes(&self) -> u64 {
        self.counting.bytes.load(Ordering::Relaxed)
    }

    /// A pack of nodes with the same content.
    fn into_node_pack(self) -> Self {
        let id = PackId([7; PackId::LEN]);
        let key = crate::pack::pack_key(&id);
        self.counting.inner.put_object(&key, &self.content).unwrap();
        self.store.set_node_packs(HashSet::from([id]));
        Self { key, ..self }
    }
}

/// The numbers of what lies in a tree, in the order in which it is read: that of one subtree after another, of which each has
/// so many, and these are stored one after another.
fn list_subtrees(count: u64, subtree: u64) -> impl Iterator<Item = u64> {
    scatter(count / subtree).flat_map(move |one| scatter(subtree).map(move |entry| one * subtree + entry))
}

#[test]
fn a_tree_that_is_read_whole_takes_few_requests_in_any_order() {
    let pack = make_pack(32 * MIB);
    for directory in list_subtrees(pack.directories(), 12) {
        pack.read_directory(directory);
    }
    // 8 would do if all of it were known from the start.
    assert!(pack.gets() <= 20, "{} requests", pack.gets());
    assert!(pack.bytes() <= pack.content.len() as u64);
}

#[test]
fn all_names_of_a_tree_take_few_requests_in_any_order() {
    let pack = make_pack(4 * MIB).into_node_pack();
    list_subtrees(pack.content.len() as u64 / 5000, 50).for_each(|node| pack.check_range(node * 5000, 5000));
    assert!(pack.gets() <= 8, "{} requests", pack.gets());
    assert!(pack.bytes() <= pack.content.len() as u64);
}

#[test]
fn some_names_of_a_large_tree_bring_no_others() {
    let pack = make_pack(64 * MIB).into_node_pack();
    for node in scatter(13_000).take(100) {
        pack.check_range(node * 5000, 5000);
    }
    assert!(pack.bytes() / pack.gets() <= PIECE, "{} bytes, {} requests", pack.bytes(), pack.gets());
}

#[test]
fn some_directories_bring_three_times_their_size_of_others_at_most() {
    for part in [3, 10] {
        let pack = make_pack(256 * MIB);
        let count = pack.directories() / part;
        let used: u64 =
            scatter(pack.directories()).take(count as usize).map(|one| pack.read_directory(one)).sum();
        // Not exactly four times: which pieces of a large pack stay in memory is a matter of chance, and debt has its limit.
        assert!(pack.bytes() <= 4 * used + 8 * MIB, "{} bytes for {used}", pack.bytes());
    }
}

#[test]
fn some_files_of_many_directories_bring_no_more_than_their_pieces() {
    let pack = make_pack(256 * MIB);
    for directory in scatter(pack.directories()).take(300) {
        pack.store.note_whole_file();
        pack.check_range(directory * DIRECTORY, DIRECTORY / FILES);
    }
    assert!(pack.bytes() <= 300 * PIECE, "{} bytes", pack.bytes());
}

#[test]
fn who_reads_here_and_there_after_a_tree_fetches_no_long_spans() {
    let pack = make_pack(64 * MIB);
    for directory in 0..40 {
        pack.read_directory(directory);
    }
    let other = make_pack(64 * MIB);
    let large = ObjectKey::new("packs/cd/pack").unwrap();
    pack.counting.inner.put_object(&large, &other.content).unwrap();
    let bytes = pack.bytes();
    for blob in scatter(640).take(60) {
        pack.store.note_scattered_read();
        pack.store.get_range(&large, blob * 100_000, 100_000).unwrap();
    }
    assert!(pack.bytes() - bytes <= 60 * 2 * PIECE, "{} bytes", pack.bytes() - bytes);
    // Files that are small again are a tree again, which is first to be seen.
    let bytes = pack.bytes();
    for directory in scatter(300).take(7) {
        pack.store.note_whole_file();
        pack.check_range((directory + 20) * DIRECTORY, 1000);
    }
    assert!(pack.bytes() - bytes <= 7 * PIECE, "{} bytes", pack.bytes() - bytes);
}

//! Volumes with very many refs, snapshots and packs in a service: what a command asks for is bounded by the pages of the
//! listings, and by what it has not seen yet.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use vellum_crypto::RecordDomain;
use vellum_store::{MemoryObjectStore, ObjectKey, ObjectStore};
use vellum_testkit::{GeneratedObjects, LyingS3};
use vellum_types::{BlobId, FieldWriter, SnapshotId};
use vellum_volume::Volume;
use vellum_volume::state::StateDir;

use crate::remote::{init, world_with_credentials};
use crate::remote_faults::{finish, measure_peak_memory, spawn_in};
use crate::world::World;

/// Requests of a command that lists nothing: it opens the volume, asks for what the user named, and says what it has done.
const FEW: usize = 60;
/// How often a command may list the same page.
const LISTS_OF_A_PAGE: usize = 3;
/// Memory of a command apart from what it lists, KiB.
const BASE_KIB: u64 = 160 << 10;
/// Memory for each listed object, KiB: its key, its content with a name of 255 bytes, and both once more while they are
/// written down.
const OBJECT_KIB: u64 = 4;

/// How many objects a store has.
#[derive(Clone, Copy)]
struct StoreSize {
    tags: usize,
    snapshots: usize,
    packs: usize,
    /// Keys in one reply to a listing.
    page: usize,
}

impl StoreSize {
    /// The replies to listings of everything.
    fn count_pages(&self) -> usize {
        [self.tags, self.snapshots, self.packs].map(|count| count.div_ceil(self.page) + 1).iter().sum()
    }

    fn memory_max(&self) -> u64 {
        BASE_KIB + OBJECT_KIB * (self.tags + self.snapshots + self.packs) as u64
    }
}

/// A volume in a service that has so many objects.
struct LargeStore {
    size: StoreSize,
    world: World,
    server: LyingS3,
}

impl LargeStore {
    fn new(size: StoreSize) -> Self {
        let (world, server) = (world_with_credentials(), LyingS3::start().unwrap());
        server.set_page_size(size.page);
        init(&world, &server.store_url("store")).ok();
        world.write("a.txt", "one\n");
        world.run_at_home(&["snapshot", "-m", "one"]).ok();
        let large = Self { size, world, server };
        large.add_tags_and_snapshots();
        // Packs that nothing names, as pushes leave them that were killed.
        large.server.add_generated_objects(GeneratedObjects {
            prefix: format!("store/packs/00/{}", "0".repeat(54)),
            suffix: String::new(),
            count: size.packs as u64,
        });
        large
    }

    /// Adds what a machine with the key would have put, without a request for each.
    fn add_tags_and_snapshots(&self) {
        let objects = MemoryObjectStore::new("memory://copy");
        for (key, bytes) in self.server.copy_objects() {
            let key = ObjectKey::new(key.strip_prefix("store/").unwrap()).unwrap();
            objects.put_object(&key, &bytes).unwrap();
        }
        let state = StateDir::find_enclosing(&self.world.tree()).unwrap();
        let volume = Volume::open_on(Arc::new(objects), &state).unwrap();
        let head = volume.read_head().unwrap().unwrap();
        (0..self.size.tags).for_each(|number| self.add_tag(&volume, number, head));
        (0..self.size.snapshots).for_each(|number| self.add_snapshot(&volume, number, head));
    }

    fn add_tag(&self, volume: &Volume, number: usize, target: SnapshotId) {
        let name = format!("{number:0255}");
        let id = volume.keys.compute_name_id(RecordDomain::Ref, format!("tag/{name}").as_bytes());
        let key = format!("refs/tag/{}", BlobId(id));
        let mut plain = FieldWriter::new();
        plain.write_u8(1).write_varint(1).write_bytes(name.as_bytes()).write_bytes(target.as_bytes());
        let bound_to = format!("tag\0{key}");
        self.put_sealed(volume, RecordDomain::Ref, &key, (bound_to.as_bytes(), plain.as_slice()));
    }

    fn add_snapshot(&self, volume: &Volume, number: usize, parent: SnapshotId) {
        let mut record = (*volume.catalog.get_record(&parent).unwrap()).clone();
        record.parents = vec![parent];
        record.note = format!("{number:0255}");
        let id = record.compute_id(&volume.keys);
        let plain = record.encode();
        self.put_sealed(volume, RecordDomain::Snapshot, &format!("snapshots/{id}"), (id.as_bytes(), &plain));
    }

    fn put_sealed(
        &self,
        volume: &Volume,
        domain: RecordDomain,
        key: &str,
        (bound_to, plain): (&[u8], &[u8]),
    ) {
        let mut sealed = Vec::new();
        volume.keys.seal_record(domain, bound_to, plain, &mut sealed);
        self.server.overwrite_object(&format!("store/{key}"), &sealed);
    }

    /// Runs a command in the worktree; gives how many requests of each method it took.
    fn count_requests(&self, args: &[&str]) -> BTreeMap<&'static str, usize> {
        let _ = self.server.take_requests();
        let (ran, peak) = measure_peak_memory(&self.world, args);
        ran.code(0);
        assert!(peak < self.size.memory_max(), "{args:?}: {peak} KiB");
        let mut counts = BTreeMap::new();
        for request in self.server.take_requests() {
            *counts.entry(request.method).or_default() += 1;
        }
        eprintln!("{args:?}: {counts:?}, {peak} KiB");
        counts
    }
}

fn check_large_store(size: StoreSize) {
    let large = LargeStore::new(size);
    // Opens the volume, and lists nothing.
    for args in [
        &["cat", "HEAD", "a.txt"][..],
        &["history", "-n", "1"],
        &["tag", "list"],
        &["worktree", "list"],
        &["history", "--all"],
        &["info"],
        &["gc", "plan"],
        &["snapshot", "-m", "two"],
        &["status"],
        &["tag", "add", "new"],
        &["tag", "remove", "new"],
        &["usage"],
        &["doctor"],
        &["verify"],
    ] {
        let cold = large.count_requests(args);
        let warm = large.count_requests(args);
        let _ = (cold, warm);
    }
    fs::create_dir(large.world.path("other")).unwrap();
    let _ = large.server.take_requests();
    finish(spawn_in(
        &large.world,
        "other",
        &[
            "init",
            "--plain",
            "--name",
            "other",
            "--store",
            &large.server.store_url("store"),
            "--credentials",
            "test",
        ],
    ))
    .ok();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for request in large.server.take_requests() {
        *counts.entry(request.method).or_default() += 1;
    }
    eprintln!("attach: {counts:?}, pages {}", size.count_pages());
}

#[test]
fn very_many_refs_snapshots_and_packs_cost_the_pages_of_their_listings() {
    check_large_store(StoreSize { tags: 3_000, snapshots: 3_000, packs: 2_000, page: 50 });
}

#[test]
#[ignore = "long"]
fn a_million_refs_and_snapshots_cost_the_pages_of_their_listings() {
    check_large_store(StoreSize { tags: 1_000_000, snapshots: 1_000_000, packs: 200_000, page: 1_000 });
}

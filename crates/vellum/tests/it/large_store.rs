//! Volumes with very many refs, snapshots and packs in a service: what a command asks for is bounded by the pages of the
//! listings, and by what it has not seen yet.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use vellum_crypto::RecordDomain;
use vellum_store::{MemoryObjectStore, ObjectKey, ObjectStore};
use vellum_testkit::{GeneratedObjects, LyingS3};
use vellum_types::{BlobId, FieldWriter, SnapshotId};
use vellum_volume::Volume;
use vellum_volume::state::StateDir;

use crate::remote::{init, world_with_credentials};
use crate::world::{Ran, World};

/// Requests of a command that lists nothing: it opens the volume, asks for what the user named, and says what it has done.
const FEW: usize = 20;
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

/// How many requests a command took.
#[derive(Debug, Clone, Copy)]
struct CommandRequests {
    lists: usize,
    others: usize,
}

/// A volume in a service that has so many objects.
struct LargeStore {
    size: StoreSize,
    world: World,
    server: LyingS3,
}

impl LargeStore {
    fn new(size: StoreSize) -> Self {
        let world = world_with_credentials();
        let server = LyingS3::start().unwrap();
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
        let sealed = seal_record(volume, RecordDomain::Ref, bound_to.as_bytes(), plain.as_slice());
        self.server.overwrite_object(&format!("store/{key}"), &sealed);
    }

    fn add_snapshot(&self, volume: &Volume, number: usize, parent: SnapshotId) {
        let mut record = (*volume.catalog.get_record(&parent).unwrap()).clone();
        record.parents = vec![parent];
        record.note = format!("{number:0255}");
        let id = record.compute_id(&volume.keys);
        let sealed = seal_record(volume, RecordDomain::Snapshot, id.as_bytes(), &record.encode());
        self.server.overwrite_object(&format!("store/snapshots/{id}"), &sealed);
    }

    /// Runs a command in the worktree, with bounded memory, and counts what it asks for.
    fn count_requests(&self, args: &[&str]) -> CommandRequests {
        let script = format!("ulimit -d {}; exec \"$@\"", self.size.memory_max());
        let own = self.world.command_at_home(args);
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(own.get_program()).args(own.get_args());
        command.current_dir(self.world.tree()).env_clear();
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.count_requests_of(args, &mut command)
    }

    fn count_requests_of(&self, args: &[&str], command: &mut Command) -> CommandRequests {
        let _ = self.server.take_requests();
        let begun = Instant::now();
        let ran = Ran::of(args, command.output().unwrap());
        assert!(matches!(ran.code, 0 | 1), "{args:?} ended with {}: {}", ran.code, ran.err);
        let requests = self.server.take_requests();
        // For whoever runs the long ones with '--nocapture'.
        println!("{args:?}: {} requests, {:.1} s", requests.len(), begun.elapsed().as_secs_f64());
        let lists = requests.iter().filter(|request| request.method == "LIST").count();
        CommandRequests { lists, others: requests.len() - lists }
    }
}

/// What a machine with the key makes of a record that is bound to its object's name.
fn seal_record(volume: &Volume, domain: RecordDomain, bound_to: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    volume.keys.seal_record(domain, bound_to, plain, &mut sealed);
    sealed
}

/// Commands that list nothing which may be long.
const OPENING: [&[&str]; 2] = [&["cat", "HEAD", "a.txt"], &["snapshot", "-m", "two"]];
/// Commands that list refs or snapshots. What they have read once, they know.
const LISTING: [&[&str]; 8] = [
    &["history", "-n", "1"],
    &["history", "--all"],
    &["tag", "list"],
    &["worktree", "list"],
    &["tag", "add", "new"],
    &["status"],
    &["info"],
    &["doctor"],
];
/// Commands that read every ref each time: what nothing names is about to be deleted.
const COLLECTING: [&[&str]; 2] = [&["gc", "plan"], &["usage"]];

fn check_large_store(size: StoreSize) {
    let large = LargeStore::new(size);
    let few = |requests: CommandRequests, args: &[&str]| {
        assert!(requests.lists + requests.others <= FEW, "{args:?}: {requests:?}");
    };
    let bounded = |requests: CommandRequests, unseen: usize, args: &[&str]| {
        let lists_max = LISTS_OF_A_PAGE * size.count_pages();
        assert!(requests.lists <= lists_max, "{args:?}: {requests:?} of {lists_max}");
        assert!(requests.others <= unseen + FEW, "{args:?}: {requests:?} of {unseen}");
    };
    OPENING.iter().for_each(|args| few(large.count_requests(args), args));
    for args in LISTING {
        bounded(large.count_requests(args), size.tags + size.snapshots, args);
        bounded(large.count_requests(args), 0, args);
    }
    COLLECTING.iter().for_each(|args| bounded(large.count_requests(args), size.tags, args));
    // With all that is known of them by now.
    OPENING.iter().for_each(|args| few(large.count_requests(args), args));
    fs::create_dir(large.world.path("other")).unwrap();
    let url = large.server.store_url("store");
    let attach = ["init", "--plain", "--name", "other", "--store", &url, "--credentials", "test"];
    let mut command = large.world.command_at_home(&attach);
    few(large.count_requests_of(&attach, command.current_dir(large.world.path("other"))), &attach);
}

#[test]
fn very_many_refs_snapshots_and_packs_cost_the_pages_of_their_listings() {
    check_large_store(StoreSize { tags: 3_000, snapshots: 3_000, packs: 2_000, page: 50 });
}

#[test]
#[ignore = "long"]
fn a_tenth_of_a_million_refs_and_snapshots_cost_the_pages_of_their_listings() {
    check_large_store(StoreSize { tags: 100_000, snapshots: 100_000, packs: 20_000, page: 1_000 });
}

#[test]
#[ignore = "long"]
fn a_million_refs_and_snapshots_cost_the_pages_of_their_listings() {
    check_large_store(StoreSize { tags: 1_000_000, snapshots: 1_000_000, packs: 200_000, page: 1_000 });
}

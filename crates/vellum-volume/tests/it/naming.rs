//! A verification names the files that damage hits, of the snapshots that have them.

use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::{BlobKind, FileKind, Ino, PackId, SnapshotId};
use vellum_volume::Volume;
use vellum_volume::verify::{TreeOwner, VerifyFinding, VerifyScope, verify_volume};

use crate::model::{Tree, noise};
use crate::ram::Ram;
use crate::world::{PLAIN, SEALED, World, assert_clean, snapshot, verified};

fn pack_key(ram: &Ram, pack: PackId) -> ObjectKey {
    ram.keys("packs").into_iter().find(|key| key.name() == pack.to_string()).unwrap()
}

/// Flips a bit in the blob, in the pack where it is read.
fn spoil(world: &World, kind: BlobKind, content: &[u8]) {
    let id = world.volume.keys.compute_blob_id(kind, content);
    let place = world.volume.blobs.locate_blob(&id).unwrap();
    let key = pack_key(&world.ram, place.pack);
    let mut bytes = world.ram.bytes(&key);
    bytes[place.offset as usize + 30] ^= 1;
    world.ram.force(&key, &bytes);
}

/// Each finding that hits files, as "snapshot: path path".
fn hits(findings: &[VerifyFinding], names: &[(SnapshotId, &str)]) -> Vec<String> {
    let name = |owner: &TreeOwner| match owner {
        TreeOwner::Snapshot(id) => names.iter().find(|(known, _)| known.to_string() == *id).unwrap().1,
        TreeOwner::Worktree(_) => "worktree",
        TreeOwner::Trash(_) => "trash",
    };
    let mut hits: Vec<_> = findings
        .iter()
        .flat_map(|finding| &finding.affected)
        .map(|hit| format!("{}: {}", name(&hit.owner), hit.paths.join(" ")))
        .collect();
    hits.sort();
    hits
}

/// Three snapshots: "shared" is in all, "first" in the first only, "late" from the second on.
fn history(encrypted: bool) -> (World, [SnapshotId; 3]) {
    let world = World::new(encrypted);
    let mut tree = Tree::default();
    let dir = tree.dir(Ino::ROOT, "dir");
    tree.file(dir, "shared", noise(1, 600));
    tree.file(Ino::ROOT, "first", noise(2, 600));
    let one = snapshot(&world.volume, &tree, "one");
    tree.unlink(Ino::ROOT, b"first");
    tree.file(dir, "late\n", [noise(3, 700), noise(4, 600)].concat());
    let two = snapshot(&world.volume, &tree, "two");
    tree.rename((Ino::ROOT, b"dir"), (Ino::ROOT, b"moved"));
    let three = snapshot(&world.volume, &tree, "three");
    (world, [one, two, three])
}

#[test]
fn a_damaged_chunk_names_the_files_of_all_snapshots_that_have_it() {
    for encrypted in [SEALED, PLAIN] {
        let cases: [(Vec<u8>, &[&str]); 3] = [
            (noise(1, 600), &["one: dir/shared", "three: moved/shared", "two: dir/shared"]),
            (noise(2, 600), &["one: first"]),
            (noise(4, 600), &["three: moved/late\\n", "two: dir/late\\n"]),
        ];
        for (content, expected) in cases {
            let (world, [one, two, three]) = history(encrypted);
            spoil(&world, BlobKind::Chunk, &content);
            let findings = verified(&world.volume).findings;
            let names = [(one, "one"), (two, "two"), (three, "three")];
            assert_eq!(hits(&findings, &names), expected);
            let id = world.volume.keys.compute_blob_id(BlobKind::Chunk, &content).to_string();
            assert!(findings.iter().any(|finding| finding.object.contains(&id)));
            // One snapshot at a time.
            for (id, name) in names {
                let entry = world.volume.resolve_snapshot(&id.to_string()).unwrap();
                let report = verify_volume(
                    &world.volume,
                    &VerifyScope::Snapshot(entry),
                    false,
                    &ProgressMeter::default(),
                )
                .unwrap();
                let own: Vec<_> =
                    expected.iter().filter(|hit| hit.starts_with(&format!("{name}:"))).collect();
                assert_eq!(hits(&report.findings, &names), own.into_iter().copied().collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn a_lost_cut_or_exchanged_pack_names_the_files_of_its_chunks() {
    let (world, [one, two, three]) = history(SEALED);
    let names = [(one, "one"), (two, "two"), (three, "three")];
    let place = |content: &[u8]| {
        let id = world.volume.keys.compute_blob_id(BlobKind::Chunk, content);
        pack_key(&world.ram, world.volume.blobs.locate_blob(&id).unwrap().pack)
    };
    let first = place(&noise(1, 600));
    let second = place(&noise(3, 700));
    let image = world.ram.image();
    let all_first = ["one: dir/shared", "one: first", "three: moved/shared", "two: dir/shared"];
    let all_second = ["three: moved/late\\n", "three: moved/late\\n", "two: dir/late\\n", "two: dir/late\\n"];
    let check = |world: &World, key: &ObjectKey, expected: &[&str]| {
        for volume in [&world.volume, &world.seen_in(world.ram.clone())] {
            let findings = verified(volume).findings;
            assert_eq!(hits(&findings, &names), expected);
            assert!(findings.iter().any(|finding| finding.object.contains(key.name())));
        }
        world.ram.become_like(&image);
    };
    world.ram.delete_object(&first).unwrap();
    check(&world, &first, &all_first);
    world.ram.force(&second, &image[&first]);
    check(&world, &second, &all_second);
    world.ram.force(&second, b"");
    check(&world, &second, &all_second);
    assert_clean(&world.volume);
}

/// A tree of several leaves, of which the files' attributes are spread over the leaves.
fn wide(volume: &Volume) -> (Tree, SnapshotId) {
    let mut tree = Tree::default();
    for number in 0..800 {
        let ino = tree.file(Ino::ROOT, &format!("file-{number:04}"), noise(number, 90));
        tree.node(ino).xattrs.insert(b"user.x".to_vec(), noise(number, 60));
    }
    let id = snapshot(volume, &tree, "wide");
    (tree, id)
}

#[test]
fn a_damaged_node_names_the_files_that_it_describes() {
    let world = World::new(SEALED);
    let (tree, id) = wide(&world.volume);
    let root = world.volume.catalog.get_record(&id).unwrap().root;
    let bytes = world.volume.blobs.read_blob(BlobKind::Node, &root.0).unwrap();
    let node = vellum_map::MapNode::decode(bytes).unwrap();
    let children: Vec<_> = node.children().map(|child| child.id).collect();
    assert!(children.len() > 3, "{} leaves", children.len());
    let last = *children.last().unwrap();
    spoil(&world, BlobKind::Node, &world.volume.blobs.read_blob(BlobKind::Node, &last).unwrap());
    let report = verified(&world.seen_in(world.ram.clone()));
    let finding = report.findings.iter().find(|finding| finding.object.contains(&last.to_string())).unwrap();
    let [hit] = finding.affected.as_slice() else { panic!("{finding:#?}") };
    assert_eq!(hit.owner, TreeOwner::Snapshot(id.to_string()));
    // What the damage hides cannot be counted; what is named is hit, or stands at the edge.
    assert_eq!(hit.count, None);
    assert!(hit.paths.contains(&"file-0799".into()) || hit.paths.len() == 100, "{:?}", hit.paths);
    let state = world.seen_in(world.ram.clone());
    let fs = state.open_tree(root);
    let readable = |path: &str| {
        let ino = tree.paths()[path.as_bytes()];
        fs.read_inode(ino).is_ok()
    };
    let readable: Vec<_> = hit.paths.iter().filter(|path| readable(path)).collect();
    assert!(readable.len() <= 1, "{readable:?}");
    let hit_files = tree.paths().into_iter().filter(|(_, ino)| fs.read_inode(*ino).is_err()).count();
    assert!(hit_files > 0 && hit.paths.len() >= hit_files.min(100));
}

#[test]
fn a_damaged_root_hits_the_whole_snapshot_and_no_other() {
    let world = World::new(PLAIN);
    let (mut tree, one) = wide(&world.volume);
    tree.add(Ino::ROOT, "link", FileKind::Symlink, b"file-0001".to_vec());
    let two = snapshot(&world.volume, &tree, "two");
    let root = world.volume.catalog.get_record(&two).unwrap().root;
    spoil(&world, BlobKind::Node, &world.volume.blobs.read_blob(BlobKind::Node, &root.0).unwrap());
    let report = verified(&world.volume);
    let hit: Vec<_> = report.findings.iter().flat_map(|finding| &finding.affected).collect();
    assert_eq!(hit.len(), 1);
    assert_eq!((hit[0].owner.clone(), hit[0].count), (TreeOwner::Snapshot(two.to_string()), None));
    let root = world.volume.catalog.get_record(&one).unwrap().root;
    assert_eq!(world.volume.open_tree(root).list_entries(Ino::ROOT).unwrap().len(), 800);
}

#[test]
fn metadata_only_passes_over_chunks_and_finds_nodes() {
    let (world, _) = history(SEALED);
    spoil(&world, BlobKind::Chunk, &noise(1, 600));
    let report = verify_volume(&world.volume, &VerifyScope::All, true, &ProgressMeter::default()).unwrap();
    assert_eq!(report.findings, []);
    let root = world.volume.resolve_snapshot("HEAD").unwrap().record.root;
    spoil(&world, BlobKind::Node, &world.volume.blobs.read_blob(BlobKind::Node, &root.0).unwrap());
    let report = verify_volume(&world.volume, &VerifyScope::All, true, &ProgressMeter::default()).unwrap();
    assert!(!report.findings.is_empty());
}

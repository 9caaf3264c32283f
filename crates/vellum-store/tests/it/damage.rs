//! Every object flipped, cut, lengthened, exchanged or removed: wrong content is never given out, and the findings
//! name what is hit.

use std::fs;
use std::path::PathBuf;

use vellum_store::pack::PackFlaw;
use vellum_store::{BlobStore, PackFinding, PackRange, pack};
use vellum_types::{BlobId, BlobKind, PackId};

use crate::world::{World, noise};

const LEN: usize = 200;

struct Volume {
    world: World,
    ids: Vec<(BlobKind, BlobId)>,
}

impl Volume {
    fn new() -> Self {
        let world = World::new();
        let store = world.open("a");
        let mut ids = Vec::new();
        for commit in 0..2 {
            let writer = store.create_writer();
            for seed in 2 * commit..2 * commit + 2 {
                for kind in [BlobKind::Chunk, BlobKind::Node] {
                    ids.push((kind, writer.put_blob(kind, &noise(seed, LEN)).unwrap()));
                }
            }
            writer.finish().unwrap();
        }
        Self { world, ids }
    }

    fn files(&self) -> Vec<PathBuf> {
        let keys = self.world.objects().list_keys("").unwrap();
        keys.iter().map(|key| self.world.local("store").join(key.as_str())).collect()
    }

    fn open(&self) -> BlobStore {
        let _ = fs::remove_dir_all(self.world.local("fresh"));
        self.world.open("fresh")
    }

    /// Whatever can be read is right; returns how many blobs can.
    fn readable(&self, store: &BlobStore) -> usize {
        let right = |(i, (kind, id)): (usize, &(BlobKind, BlobId))| match store.read_blob(*kind, id) {
            Ok(content) => {
                assert_eq!(content, noise(i as u64 / 2, LEN));
                true
            }
            Err(_) => false,
        };
        self.ids.iter().enumerate().filter(|case| right(*case)).count()
    }

    fn findings(&self, store: &BlobStore) -> usize {
        let packs = store.list_packs().unwrap();
        packs.iter().map(|pack| store.check_pack(&pack.id).unwrap().len()).sum::<usize>()
            + store.index_problems().len()
    }
}

#[test]
fn an_undamaged_volume_has_no_findings() {
    let volume = Volume::new();
    let store = volume.open();
    assert_eq!((volume.readable(&store), volume.findings(&store)), (8, 0));
}

#[test]
fn every_flipped_byte_of_every_object_is_noticed() {
    let volume = Volume::new();
    for file in volume.files() {
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&file, &bad).unwrap();
            let store = volume.open();
            volume.readable(&store);
            assert!(volume.findings(&store) > 0, "byte {at} of {}", file.display());
            fs::write(&file, &good).unwrap();
        }
    }
    assert_eq!(volume.readable(&volume.open()), 8);
}

#[test]
fn every_cut_and_every_lengthened_object_is_noticed() {
    let volume = Volume::new();
    for file in volume.files() {
        let good = fs::read(&file).unwrap();
        let longer = [&good[..], b"more"].concat();
        for bad in (0..good.len()).map(|len| &good[..len]).chain([&longer[..]]) {
            fs::write(&file, bad).unwrap();
            let store = volume.open();
            volume.readable(&store);
            assert!(volume.findings(&store) > 0, "{} bytes of {}", bad.len(), file.display());
        }
        fs::write(&file, &good).unwrap();
    }
}

#[test]
fn exchanged_objects_are_noticed() {
    let volume = Volume::new();
    let files = volume.files();
    for (i, one) in files.iter().enumerate() {
        for other in &files[i + 1..] {
            let a = fs::read(one).unwrap();
            let b = fs::read(other).unwrap();
            fs::write(one, &b).unwrap();
            fs::write(other, &a).unwrap();
            let store = volume.open();
            volume.readable(&store);
            assert!(volume.findings(&store) > 0, "{} and {}", one.display(), other.display());
            fs::write(one, &a).unwrap();
            fs::write(other, &b).unwrap();
        }
    }
}

#[test]
fn objects_of_another_volume_are_refused() {
    let volume = Volume::new();
    let foreign = World::new();
    let keys = vellum_crypto::VolumeKeys::for_encrypted(
        &vellum_crypto::MasterKey::from_bytes([7; 32]),
        vellum_types::VolumeId([1; 16]),
    );
    let foreign = World { keys: keys.into(), ..foreign };
    let store = vellum_store::BlobStore::open(
        volume.world.objects(),
        foreign.keys.clone(),
        &foreign.local("a"),
        vellum_store::BlobOptions::default(),
    );
    let store = store.unwrap();
    assert_eq!(store.index_problems().len(), 2);
    assert!(volume.ids.iter().all(|(kind, id)| store.read_blob(*kind, id).is_err()));
}

/// What is found in a pack that is checked in parts of some length, and how many parts there are.
pub fn check_in_parts(store: &BlobStore, pack: &PackId, len: u64) -> (Vec<PackFinding>, usize) {
    let mut findings = Vec::new();
    let mut from = Some(0);
    let mut parts = 0;
    while let Some(begin) = from {
        let checked = store.check_pack_range(pack, PackRange { from: begin, len }).unwrap();
        assert!(checked.next.is_none_or(|next| next > begin));
        findings.extend(checked.findings);
        from = checked.next;
        parts += 1;
    }
    (findings, parts)
}

#[test]
fn what_is_checked_in_parts_is_checked_whole() {
    let volume = Volume::new();
    let store = volume.open();
    for pack in store.list_packs().unwrap() {
        for len in [1, 300, pack.size] {
            let (findings, parts) = check_in_parts(&store, &pack.id, len);
            assert_eq!(findings, []);
            // Two blobs are in each pack.
            assert!(if len == 1 { parts == 2 } else { parts <= 2 }, "{parts} parts of {len}");
        }
        let path = volume.world.local("store").join(pack::pack_key(&pack.id).as_str());
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let whole = store.check_pack(&pack.id).unwrap();
            let (findings, _) = check_in_parts(&store, &pack.id, 1);
            // What no blob and no table has is found by the hash of the whole alone.
            let is_counted = |finding: &&PackFinding| finding.flaw != PackFlaw::Hash;
            match whole.iter().find(is_counted) {
                Some(finding) => {
                    assert!(findings.contains(finding), "byte {at}: {findings:?} and not {whole:?}")
                }
                None => assert!(findings.is_empty() || findings == whole, "byte {at}"),
            }
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(!check_in_parts(&store, &pack.id, 1).0.is_empty());
        fs::remove_file(&path).unwrap();
        assert_eq!(check_in_parts(&store, &pack.id, 1).0[0].flaw, PackFlaw::Missing);
    }
}

#[test]
fn a_removed_pack_is_named() {
    let volume = Volume::new();
    let store = volume.open();
    let (kind, id) = volume.ids[0];
    let gone = store.locate_blob(&id).unwrap().pack;
    store.delete_pack(&gone).unwrap();
    let store = volume.open();
    let error = store.read_blob(kind, &id).unwrap_err().to_string();
    assert!(error.contains(&gone.to_string()) && error.contains(&id.to_string()), "{error}");
    let finding = &store.check_pack(&gone).unwrap()[0];
    assert_eq!((finding.pack, &finding.flaw), (gone, &pack::PackFlaw::Missing));
}

#[test]
fn the_index_is_made_anew_from_packs_alone() {
    let volume = Volume::new();
    for file in volume.files().iter().filter(|file| file.starts_with(volume.world.local("store/index"))) {
        fs::write(file, "damaged").unwrap();
    }
    let store = volume.open();
    assert_eq!((volume.readable(&store), store.index_problems().len()), (0, 2));
    let stats = store.rebuild_index().unwrap();
    assert_eq!((stats.packs, stats.blobs, stats.unreadable.len()), (4, 8, 0));
    assert_eq!(volume.readable(&store), 8);
    let store = volume.open();
    assert_eq!((volume.readable(&store), volume.findings(&store)), (8, 0));
}

#[test]
fn a_rebuild_leaves_out_what_cannot_be_read() {
    let volume = Volume::new();
    let file =
        volume.files().into_iter().find(|file| file.starts_with(volume.world.local("store/packs"))).unwrap();
    fs::write(&file, "").unwrap();
    let store = volume.open();
    let stats = store.rebuild_index().unwrap();
    let name: PackId = file.file_name().unwrap().to_str().unwrap().parse().unwrap();
    assert_eq!(stats.unreadable.len(), 1);
    assert_eq!(stats.unreadable[0].0, name);
    assert_eq!(volume.readable(&store), 6);
}

#[test]
fn a_second_copy_serves_when_the_first_is_damaged() {
    let volume = Volume::new();
    let store = volume.open();
    let (kind, id) = volume.ids[0];
    let first = store.locate_blob(&id).unwrap().pack;
    store.repack_blobs(&[(first, [id].into())]).unwrap();
    for pack in store.list_packs().unwrap().iter().filter(|pack| pack.id == first) {
        let path = volume.world.local("store").join(pack::pack_key(&pack.id).as_str());
        let mut bytes = fs::read(&path).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(volume.open().read_blob(kind, &id).unwrap(), noise(0, LEN));
}

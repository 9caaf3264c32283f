//! Objects of released versions stay readable, and what is written today in a plain volume has the same bytes.
//!
//! `VELLUM_BLESS=1` writes the files anew; only a new format version may do so.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_store::{BlobOptions, BlobStore, LocalStore};
use vellum_types::{BlobId, BlobKind, VolumeId};

use crate::world::noise;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn keys(name: &str) -> Arc<VolumeKeys> {
    let volume = VolumeId(*b"golden volume v1");
    Arc::new(match name {
        "plain" => VolumeKeys::for_plain(volume),
        _ => VolumeKeys::for_encrypted(&MasterKey::from_bytes(*b"golden master key of version one"), volume),
    })
}

fn contents() -> [(BlobKind, Vec<u8>); 4] {
    [
        (BlobKind::Chunk, noise(1, 300)),
        (BlobKind::Chunk, b"compressible ".repeat(40)),
        (BlobKind::Node, b"a node".to_vec()),
        (BlobKind::Node, Vec::new()),
    ]
}

fn write(name: &str, to: &Path) {
    let objects = Arc::new(LocalStore::create(to.join("store")).unwrap());
    // Another version of zstd may compress to other bytes: where bytes are compared, nothing is compressed.
    let level = if name == "plain" { 0 } else { 3 };
    let options = BlobOptions { level, ..BlobOptions::default() };
    let store = BlobStore::open(objects, keys(name), &to.join("local"), options).unwrap();
    let writer = store.create_writer();
    for (kind, content) in contents() {
        writer.put_blob(kind, &content).unwrap();
    }
    writer.finish().unwrap();
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

#[test]
fn version_1_is_read() {
    for name in ["plain", "sealed"] {
        if std::env::var_os("VELLUM_BLESS").is_some() {
            let _ = fs::remove_dir_all(golden(name));
            write(name, &golden(name));
            let _ = fs::remove_dir_all(golden(name).join("store/.tmp"));
        }
        // A copy: nothing that is tested here may touch the files themselves.
        let dir = tempfile::tempdir().unwrap();
        copy(&golden(name), dir.path());
        let local = dir.path().join("local");
        let before: Vec<_> = files(&local).iter().map(|file| fs::read(file).unwrap()).collect();
        for local in [local.clone(), dir.path().join("fresh")] {
            let objects = Arc::new(LocalStore::open(dir.path().join("store")).unwrap());
            let store = BlobStore::open(objects, keys(name), &local, BlobOptions::default()).unwrap();
            for (kind, content) in contents() {
                let id: BlobId = keys(name).compute_blob_id(kind, &content);
                assert_eq!(store.read_blob(kind, &id).unwrap(), content, "{name}");
            }
            for pack in store.list_packs().unwrap() {
                assert_eq!(store.check_pack(&pack.id).unwrap(), []);
            }
        }
        let after: Vec<_> = files(&local).iter().map(|file| fs::read(file).unwrap()).collect();
        assert_eq!(before, after, "{name}: the local run is taken as it is");
    }
}

/// A pack without its salt (16 bytes at the head of the table) and the table's checksum (16 at its end), which
/// differ each time.
fn without_salt(mut pack: Vec<u8>) -> Vec<u8> {
    let table_end = pack.len() - 8;
    let table_len = u32::from_le_bytes(pack[table_end..table_end + 4].try_into().unwrap()) as usize;
    let table = &mut pack[table_end - table_len..table_end];
    table[..16].fill(0);
    table[table_len - 16..].fill(0);
    pack
}

#[test]
fn version_1_is_written_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    write("plain", dir.path());
    let packs = |root: &Path| -> Vec<Vec<u8>> {
        let packs = files(&root.join("store/packs"));
        let mut packs: Vec<_> = packs.iter().map(|file| without_salt(fs::read(file).unwrap())).collect();
        packs.sort();
        packs
    };
    assert_eq!(packs(dir.path()), packs(&golden("plain")));
    // Index objects and their local form name packs: of these the frame is compared.
    let frames = |root: &Path| -> Vec<(usize, Vec<u8>)> {
        let files = [files(&root.join("store/index")), files(&root.join("local"))].concat();
        let read = files.iter().map(|file| fs::read(file).unwrap());
        read.map(|bytes| (bytes.len(), bytes[..12].to_vec())).collect()
    };
    assert_eq!(frames(dir.path()), frames(&golden("plain")));
}

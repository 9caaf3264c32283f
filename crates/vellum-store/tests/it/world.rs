//! What the tests share: a store of objects, keys, and folders that disappear.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use vellum_crypto::{MasterKey, VolumeKeys};
use vellum_store::{BlobOptions, BlobStore, LocalStore, ObjectStore};
use vellum_types::VolumeId;

/// A volume's store in a temporary directory.
pub struct World {
    pub dir: TempDir,
    pub keys: Arc<VolumeKeys>,
}

impl World {
    pub fn new() -> Self {
        let keys = VolumeKeys::for_encrypted(&MasterKey::from_bytes([7; 32]), VolumeId([9; 16]));
        Self { dir: tempfile::tempdir().unwrap(), keys: Arc::new(keys) }
    }

    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::new(LocalStore::create(self.dir.path().join("store")).unwrap())
    }

    pub fn local(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Opens the blobs with the local index in a folder of this name.
    pub fn open(&self, local: &str) -> BlobStore {
        self.open_over(self.objects(), local)
    }

    pub fn open_over(&self, objects: Arc<dyn ObjectStore>, local: &str) -> BlobStore {
        self.open_with(objects, &self.local(local), BlobOptions::default())
    }

    pub fn open_with(&self, objects: Arc<dyn ObjectStore>, local: &Path, options: BlobOptions) -> BlobStore {
        BlobStore::open(objects, self.keys.clone(), local, options).unwrap()
    }
}

/// Bytes that no two seeds share and that do not compress.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

//! A store in memory of which images can be taken and changed, and one that runs a hook before each operation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use vellum_store::{ObjectInfo, ObjectKey, ObjectStore, StoreError};

/// All objects of a store.
pub type Image = BTreeMap<ObjectKey, Arc<[u8]>>;

/// Bytes of an object that has swollen.
pub const TEBIBYTE: u64 = 1 << 40;

/// A store in memory.
#[derive(Default)]
pub struct Ram {
    objects: Mutex<Image>,
    omitted: Mutex<Option<ObjectKey>>,
    swollen: Mutex<Option<ObjectKey>>,
    dates: Mutex<Option<BTreeMap<ObjectKey, SystemTime>>>,
    reads: Mutex<Vec<ObjectKey>>,
}

impl Ram {
    pub fn of(image: Image) -> Arc<Self> {
        Arc::new(Self { objects: Mutex::new(image), ..Self::default() })
    }

    pub fn image(&self) -> Image {
        self.objects.lock().clone()
    }

    pub fn become_like(&self, image: &Image) {
        *self.objects.lock() = image.clone();
    }

    /// Keys of a folder.
    pub fn keys(&self, folder: &str) -> Vec<ObjectKey> {
        self.list_keys(folder).unwrap()
    }

    /// The bytes of an object that is there.
    pub fn bytes(&self, key: &ObjectKey) -> Vec<u8> {
        self.objects.lock()[key].to_vec()
    }

    /// Puts these bytes, whatever is there.
    pub fn force(&self, key: &ObjectKey, bytes: &[u8]) {
        self.is_written(key);
        self.objects.lock().insert(key.clone(), bytes.into());
    }

    /// The objects that were read since this was asked last, each as often as it was requested.
    pub fn take_reads(&self) -> Vec<ObjectKey> {
        std::mem::take(&mut *self.reads.lock())
    }

    /// From now on listings leave this object out, though it is there.
    pub fn omit(&self, key: &ObjectKey) {
        *self.omitted.lock() = Some(key.clone());
    }

    /// From now on listings tell when objects were written: now, unless they are dated otherwise.
    pub fn keep_dates(&self) {
        *self.dates.lock() = Some(BTreeMap::new());
    }

    /// This object was written then, until it is written again.
    pub fn date(&self, key: &ObjectKey, written: SystemTime) {
        self.dates.lock().as_mut().unwrap().insert(key.clone(), written);
    }

    fn is_written(&self, key: &ObjectKey) {
        self.dates.lock().as_mut().and_then(|dates| dates.remove(key));
    }

    fn written(&self, key: &ObjectKey) -> Option<SystemTime> {
        let dates = self.dates.lock();
        Some(dates.as_ref()?.get(key).copied().unwrap_or_else(SystemTime::now))
    }

    /// From now on this object has a tebibyte; only its beginning can be read.
    pub fn swell(&self, key: &ObjectKey) {
        *self.swollen.lock() = Some(key.clone());
    }

    fn reported_size(&self, key: &ObjectKey, bytes: &[u8]) -> u64 {
        let is_swollen = self.swollen.lock().as_ref() == Some(key);
        if is_swollen { TEBIBYTE } else { bytes.len() as u64 }
    }

    fn found(&self, key: &ObjectKey) -> Result<Arc<[u8]>, StoreError> {
        let missing = || StoreError::NotFound { place: self.describe_location(), key: key.to_string() };
        self.objects.lock().get(key).cloned().ok_or_else(missing)
    }
}

impl ObjectStore for Ram {
    fn describe_location(&self) -> String {
        "memory".into()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.reads.lock().push(key.clone());
        // Found once: between two looks another thread may replace the object by a longer one.
        let bytes = self.found(key)?;
        let size = self.reported_size(key, &bytes);
        if size > max {
            return Err(StoreError::TooLarge {
                place: self.describe_location(),
                key: key.to_string(),
                size,
                max,
            });
        }
        Ok(bytes.to_vec())
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.reads.lock().push(key.clone());
        let bytes = self.found(key)?;
        let range = usize::try_from(offset).unwrap().min(bytes.len())..;
        let found = bytes[range].iter().copied().take(usize::try_from(len).unwrap()).collect::<Vec<_>>();
        let got = found.len() as u64;
        if got == len {
            return Ok(found);
        }
        Err(StoreError::Length { place: self.describe_location(), key: key.to_string(), wanted: len, got })
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        Ok(self.reported_size(key, &self.found(key)?))
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let mut objects = self.objects.lock();
        if objects.contains_key(key) {
            return Err(StoreError::Exists { place: self.describe_location(), key: key.to_string() });
        }
        self.is_written(key);
        objects.insert(key.clone(), bytes.into());
        Ok(())
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let mut objects = self.objects.lock();
        if objects.get(key).map(|bytes| &**bytes) != expected {
            return Err(StoreError::Changed { place: self.describe_location(), key: key.to_string() });
        }
        match new {
            Some(bytes) => {
                self.is_written(key);
                objects.insert(key.clone(), bytes.into())
            }
            None => objects.remove(key),
        };
        Ok(())
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let prefix =
            if folder.is_empty() || folder.ends_with('/') { folder.into() } else { format!("{folder}/") };
        let objects = self.image();
        let omitted = self.omitted.lock().clone();
        let listed = |key: &ObjectKey| key.as_str().starts_with(&prefix) && Some(key) != omitted.as_ref();
        let inside = objects.iter().filter(|(key, _)| listed(key));
        let info = |(key, bytes): (&ObjectKey, &Arc<[u8]>)| ObjectInfo {
            key: key.clone(),
            size: self.object_size(key).unwrap_or(bytes.len() as u64),
            modified: self.written(key),
            version: None,
        };
        Ok(inside.map(info).collect())
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.objects.lock().remove(key);
        Ok(())
    }
}

type Hook = Box<dyn FnMut(u64) + Send>;

/// Runs a hook with the operation's number before each operation.
pub struct Hooked {
    inner: Arc<dyn ObjectStore>,
    count: AtomicU64,
    hook: Mutex<Hook>,
    is_remote: bool,
}

impl Hooked {
    pub fn new(inner: Arc<dyn ObjectStore>, hook: impl FnMut(u64) + Send + 'static) -> Arc<Self> {
        Self::new_of_kind(inner, false, hook)
    }

    /// The same, of a service or of a directory.
    pub fn new_of_kind(
        inner: Arc<dyn ObjectStore>,
        is_remote: bool,
        hook: impl FnMut(u64) + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, count: AtomicU64::new(0), hook: Mutex::new(Box::new(hook)), is_remote })
    }

    pub fn operations(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn before(&self) -> &dyn ObjectStore {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        (self.hook.lock())(number);
        &*self.inner
    }
}

impl ObjectStore for Hooked {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn is_remote(&self) -> bool {
        self.is_remote
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.before().get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.before().get_range(key, offset, len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.before().object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        self.before().put_object(key, bytes)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.before().swap_ref(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.before().list_objects(folder)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.before().delete_object(key)
    }
}

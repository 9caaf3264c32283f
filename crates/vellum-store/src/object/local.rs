//! Objects as files of a directory.
//!
//! Invariant: a file under an object's name is whole and durable, or its put has not returned yet. Everything
//! happens beneath one held descriptor and follows no symlink. Names that begin with a dot are the store's own:
//! `.tmp` holds what is being written, `.lock` serialises compare-and-swap, `.reserve` keeps some room.

mod handles;
mod rename;
mod temp;
mod tree;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use vellum_host::lock::lock_exclusive;
use vellum_types::LookupResult;

use self::handles::FileHandles;
use self::temp::TempFile;
use self::tree::StoreFolders;
use super::{ObjectInfo, ObjectKey, ObjectStore, RenameObjects, check_read_length, key};
use crate::error::StoreError;
use crate::reserve::DiskReserve;

/// The folder of unfinished files; on the same filesystem, so that a rename publishes them.
pub const TEMP_FOLDER: &str = ".tmp";
/// The file whose lock makes compare-and-swap atomic between processes.
pub const LOCK_FILE: &str = ".lock";
/// The file of the reserve.
const RESERVE_FILE: &str = ".reserve";
/// Objects of this folder never change and are read in pieces: their descriptors are kept.
const HELD_FOLDER: &str = "packs/";

/// A store in a directory of a local filesystem.
pub struct LocalStore {
    path: PathBuf,
    tree: StoreFolders,
    handles: FileHandles,
    sweep: Once,
}

impl LocalStore {
    /// Opens an existing directory.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        let tree = StoreFolders::open(&path).map_err(|source| wrap_address_error(&path, &source))?;
        Ok(Self { path, tree, handles: FileHandles::default(), sweep: Once::new() })
    }

    /// Opens a directory that is made if there is none, with its parents.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        tree::create_path(&path).map_err(|source| wrap_address_error(&path, &source))?;
        Self::open(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new temporary file with these bytes, not yet durable.
    fn stage_object(&self, bytes: &[u8]) -> io::Result<TempFile> {
        let folder = self.tree.open_writable_folder(TEMP_FOLDER)?;
        // Once per process, and by writers only: a store that is only read is not changed.
        self.sweep.call_once(|| temp::remove_leftovers(&folder));
        TempFile::create(folder, self.tree.file_mode(), bytes)
    }

    fn put_staged_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        self.check_free_space(objects)?;
        let mut staged = Vec::with_capacity(objects.len());
        for (key, bytes) in objects {
            staged.push((key, self.stage_object(bytes).map_err(|e| self.wrap_io_error("write", key, e))?));
        }
        // All files are written before the first is flushed: the filesystem can then write them together, and later
        // flushes find little to do.
        for (key, temp) in &staged {
            temp.sync_file().map_err(|e| self.wrap_io_error("write", key, e))?;
        }
        // Neighbours in one folder share one flush of the folder. Groups stay in order, so nothing is visible
        // before what stands earlier in the list.
        for group in staged.chunk_by_mut(|(a, _), (b, _)| a.folder() == b.folder()) {
            self.publish_group(group)?;
        }
        Ok(())
    }

    /// Refuses what is large if it would fill the disk up.
    fn check_free_space(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        let len: u64 = objects.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        // Small objects may use the last of the disk: a collection needs refs, records and sessions in order to free
        // space.
        let Some((first, _)) = objects.first().filter(|_| len > SMALL) else { return Ok(()) };
        // If the filesystem does not report this, the write itself fails.
        let Ok(disk) = rustix::fs::fstatvfs(self.tree.root()) else { return Ok(()) };
        let left = (disk.f_blocks.saturating_mul(disk.f_frsize) / LEFT_PART).min(LEFT_MAX);
        if disk.f_bavail.saturating_mul(disk.f_frsize) < len.saturating_add(left) {
            return Err(self.wrap_io_error("write", first, Errno::NOSPC.into()));
        }
        Ok(())
    }

    /// Names the files of one folder, then makes the names durable. A name that could not be made durable is
    /// taken back, so that nothing relies on it.
    fn publish_group(&self, group: &mut [(&ObjectKey, TempFile)]) -> Result<(), StoreError> {
        let Some((first, _)) = group.first() else { return Ok(()) };
        let first = *first;
        let folder = self
            .tree
            .open_writable_folder(first.folder())
            .map_err(|e| self.wrap_io_error("make the folder of", first, e))?;
        for (key, temp) in group.iter_mut() {
            let published = temp.publish_new(&folder, key.name());
            if published.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                // The process that named it may have been killed before the name was durable.
                rustix::fs::fsync(&*folder)
                    .map_err(|errno| self.wrap_io_error("write", key, errno.into()))?;
            }
            published.map_err(|e| self.wrap_io_error("write", key, e))?;
        }
        rustix::fs::fsync(&*folder).map_err(|errno| {
            // A name that is not durable must not stay: a later writer would get `Exists`, and rely on it.
            for (key, _) in group.iter() {
                let _ = rustix::fs::unlinkat(&*folder, key.name(), AtFlags::empty());
            }
            self.wrap_io_error("write", first, errno.into())
        })
    }

    /// Whether the ref's bytes are these; `None` stands for no ref.
    fn is_current_ref(&self, key: &ObjectKey, expected: Option<&[u8]>) -> Result<bool, StoreError> {
        // Never more bytes than are compared: a longer ref is a different one, whatever it holds.
        match self.get_object(key, expected.map_or(0, <[u8]>::len) as u64) {
            Ok(bytes) => Ok(expected == Some(&bytes)),
            Err(StoreError::NotFound { .. }) => Ok(expected.is_none()),
            Err(StoreError::TooLarge { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn lock(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // The lock file is never removed. A process that waits for the lock of a removed file would not exclude one
        // that creates the file anew.
        let lock = rustix::fs::openat(self.tree.root(), LOCK_FILE, flags, self.tree.file_mode())?;
        vellum_host::owner::set_owner_from_dir(self.tree.root(), &lock)?;
        lock_exclusive(&lock, || format!("the store {}", self.path.display()))?;
        Ok(lock)
    }

    fn replace_ref(&self, key: &ObjectKey, new: Option<&[u8]>) -> io::Result<()> {
        let folder = self.tree.open_writable_folder(key.folder())?;
        match new {
            Some(bytes) => {
                // Flushed before the rename. Otherwise a power cut could leave the new name with empty content.
                let mut temp = self.stage_object(bytes)?;
                temp.sync_file()?;
                temp.publish_replacing(&folder, key.name())?;
            }
            None => rustix::fs::unlinkat(&*folder, key.name(), AtFlags::empty())?,
        }
        // After a removal, too: a swap is durable when it returns.
        Ok(rustix::fs::fsync(&*folder)?)
    }

    fn open_handle(&self, key: &ObjectKey) -> io::Result<Arc<OwnedFd>> {
        // Other objects can be replaced by a rename, and a held descriptor would still show the old one.
        if !key.as_str().starts_with(HELD_FOLDER) {
            return self.tree.open_file(key.as_str()).map(Arc::new);
        }
        if let Some(held) = self.handles.get(key) {
            return Ok(held);
        }
        let opened = Arc::new(self.tree.open_file(key.as_str())?);
        self.handles.insert_handle(key, &opened);
        Ok(opened)
    }

    fn wrap_io_error(&self, action: &'static str, key: &ObjectKey, source: io::Error) -> StoreError {
        let place = self.describe_location();
        let name = key.to_string();
        match source.kind() {
            io::ErrorKind::NotFound => StoreError::NotFound { place, key: name },
            io::ErrorKind::AlreadyExists => StoreError::Exists { place, key: name },
            io::ErrorKind::IsADirectory if action == "read" => StoreError::NotAFile { place, key: name },
            _ => StoreError::Io { place, key: name, action, source },
        }
    }

    fn walk_objects(&self, folder: &str, sizes: bool) -> Result<Vec<ObjectInfo>, StoreError> {
        let folder = key::check_folder(folder)?;
        let mut found = Vec::new();
        self.tree.walk_objects(folder, sizes, &mut found).map_err(|source| StoreError::Io {
            place: self.describe_location(),
            key: folder.to_owned(),
            action: "list",
            source,
        })?;
        // `readdir` returns names in no useful order.
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }
}

impl ObjectStore for LocalStore {
    fn describe_location(&self) -> String {
        self.path.display().to_string()
    }

    fn local_dir(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn ensure_reserve(&self) {
        DiskReserve::new(self.tree.root(), RESERVE_FILE).ensure_reserve();
    }

    fn release_reserve(&self) {
        DiskReserve::new(self.tree.root(), RESERVE_FILE).release_if_full();
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        // Never through a held descriptor: the object may be a ref.
        let fd = self.tree.open_file(key.as_str()).map_err(|e| self.wrap_io_error("read", key, e))?;
        let size = handles::file_size(&fd).map_err(|e| self.wrap_io_error("read", key, e))?;
        if size > max {
            return Err(StoreError::TooLarge {
                place: self.describe_location(),
                key: key.to_string(),
                size,
                max,
            });
        }
        // If the file grows after its size was read, the rest is not read, so memory stays bounded by `max`.
        handles::read_range_at(&fd, 0, size).map_err(|e| self.wrap_io_error("read", key, e))
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let fd = self.open_handle(key).map_err(|e| self.wrap_io_error("read", key, e))?;
        let bytes =
            handles::read_range_at(&fd, offset, len).map_err(|e| self.wrap_io_error("read", key, e))?;
        check_read_length(self, key, bytes, len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.open_handle(key)
            .and_then(|fd| handles::file_size(&fd))
            .map_err(|e| self.wrap_io_error("read", key, e))
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        self.put_staged_objects(&[(key.clone(), bytes)])
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        self.put_staged_objects(objects)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        // A process that runs for long changes a ref now and then. Here it closes the descriptors of packs that
        // others deleted.
        self.handles.evict_deleted();
        let _lock = self.lock().map_err(|e| self.wrap_io_error("lock", key, e))?;
        if !self.is_current_ref(key, expected)? {
            return Err(StoreError::Changed { place: self.describe_location(), key: key.to_string() });
        }
        // The ref is absent, and is to be absent: there is nothing to write.
        if expected.is_none() && new.is_none() {
            return Ok(());
        }
        self.replace_ref(key, new).map_err(|e| self.wrap_io_error("change", key, e))
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.walk_objects(folder, true)
    }

    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        Ok(self.walk_objects(folder, false)?.into_iter().map(|info| info.key).collect())
    }

    fn as_renaming(&self) -> Option<&dyn RenameObjects> {
        Some(self)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        // An open descriptor would keep the space of the deleted pack in use.
        self.handles.evict_handle(key);
        // It may be gone: another process deleted it, or this deletion is a repetition.
        self.tree
            .unlink(key.folder(), key.name())
            .ignore_missing()
            .map_err(|error| self.wrap_io_error("delete", key, error))
    }
}

fn wrap_address_error(path: &Path, source: &io::Error) -> StoreError {
    StoreError::Address {
        url: path.display().to_string(),
        reason: source.to_string(),
        kind: vellum_types::ErrorKind::from_io_error(source),
    }
}

/// Bytes of a disk that packs leave free at most, and the part of it: what frees space again, a collection, or the journal
/// of a mount beside the store, needs some itself.
const LEFT_MAX: u64 = 2 << 20;
const LEFT_PART: u64 = 32;
/// Bytes of objects that may take the last of it: refs, sessions, records, small indexes.
const SMALL: u64 = 64 << 10;

/// Permissions of a directory that the store makes; see [`StoreFolders::file_mode`] for files.
const PRIVATE_DIR: Mode = Mode::RWXU;

//! The folders of a local store: opened beneath the root, made durable, walked.
//!
//! Invariant: no path leaves the root or goes through a symlink, whatever stands in the directory. A folder that
//! `writable` returns is durable itself: a file made durable in it survives a power cut.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{ObjectInfo, ObjectKey, PRIVATE_DIR};
use crate::object::key;
use vellum_host::owner::set_owner_from_dir;
use vellum_types::LookupResult;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
// `O_NONBLOCK`, because opening a FIFO would wait for a writer.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// Folders whose descriptors are kept, a count: packs alone have 256, each of which is written to once in a while.
const FOLDERS_MAX: usize = 32;

struct StoreFolder {
    fd: Arc<OwnedFd>,
    /// Subfolders that were there before this folder was last synced here: their names are durable.
    settled: HashSet<String>,
}

pub(super) struct StoreFolders {
    root: OwnedFd,
    mode: Mode,
    folders: Mutex<HashMap<String, StoreFolder>>,
}

/// Forgets a folder that somebody has removed, and those below it, which went first.
fn forget_removed_folder(folders: &mut HashMap<String, StoreFolder>, path: &str) {
    folders.retain(|other, _| {
        let below = other.strip_prefix(path);
        below.is_none_or(|below| !below.is_empty() && !below.starts_with('/'))
    });
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    if let Some(parent) = folders.get_mut(parent) {
        // Made again, its name is a new one, which is not durable yet.
        parent.settled.remove(name);
    }
}

/// Fewest digits of an object's name that is an id: those of folders have two.
const ID_LEN_MIN: usize = 16;

impl StoreFolders {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // The root itself may be reached through symlinks: the user named it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        // Without the bits above the permissions, which mean something else for files.
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&root)?.st_mode) & Mode::from_raw_mode(0o777);
        Ok(Self { root, mode, folders: Mutex::default() })
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Files may be read and written only by those users whom the root directory admits.
    pub(super) fn file_mode(&self) -> Mode {
        self.mode & Mode::from_raw_mode(0o666) | Mode::RUSR | Mode::WUSR
    }

    /// Opens a regular file for reading. What is something else is [`io::ErrorKind::IsADirectory`], whatever it is.
    pub(super) fn open_file(&self, path: &str) -> io::Result<OwnedFd> {
        let fd = match self.open_beneath(path, FILE) {
            // `ELOOP`: a symlink. `ENXIO`: a socket.
            Err(error) if [Errno::LOOP, Errno::NXIO].map(Some).contains(&Errno::from_io_error(&error)) => {
                return Err(Errno::ISDIR.into());
            }
            opened => opened?,
        };
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::RegularFile => Ok(fd),
            _ => Err(Errno::ISDIR.into()),
        }
    }

    fn open_beneath(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS) => self.open_by_components(path, flags),
            answer => Ok(answer?),
        }
    }

    /// For kernels before 5.6: the same, one component at a time.
    fn open_by_components(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let mut dir = self.root.try_clone()?;
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            dir = rustix::fs::openat(&dir, part, DIR, Mode::empty())?;
        }
        Ok(rustix::fs::openat(&dir, name, flags, Mode::empty())?)
    }

    fn open_folder(&self, folder: &str) -> io::Result<OwnedFd> {
        if folder.is_empty() { Ok(self.root.try_clone()?) } else { self.open_beneath(folder, DIR) }
    }

    /// The folder, made if need be, to put files into.
    pub(super) fn open_writable_folder(&self, folder: &str) -> io::Result<Arc<OwnedFd>> {
        let mut folders = self.folders.lock();
        self.ensure_folder(&mut folders, folder)
    }

    fn ensure_folder(
        &self,
        folders: &mut HashMap<String, StoreFolder>,
        path: &str,
    ) -> io::Result<Arc<OwnedFd>> {
        if let Some(known) = folders.get(path) {
            // The root is not made again: a store that is gone has to be reported.
            if path.is_empty() || rustix::fs::fstat(&*known.fd)?.st_nlink > 0 {
                return Ok(known.fd.clone());
            }
            forget_removed_folder(folders, path);
        }
        let fd = if path.is_empty() { self.root.try_clone()? } else { self.ensure_subfolder(folders, path)? };
        let folder = StoreFolder { fd: Arc::new(fd), settled: HashSet::new() };
        let fd = folder.fd.clone();
        if folders.len() >= FOLDERS_MAX {
            // What is known of subfolders stays with their parents: only another descriptor has to be opened.
            folders.retain(|path, folder| path.is_empty() || !folder.settled.is_empty());
        }
        folders.insert(path.to_owned(), folder);
        Ok(fd)
    }

    fn ensure_subfolder(
        &self,
        folders: &mut HashMap<String, StoreFolder>,
        path: &str,
    ) -> io::Result<OwnedFd> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent_fd = self.ensure_folder(folders, parent)?;
        // As open to others as the root directory is, and usable by its owner in any case.
        let is_new = match rustix::fs::mkdirat(&*parent_fd, name, self.mode | PRIVATE_DIR) {
            Ok(()) => true,
            // Also a folder that another process made just now may not be durable yet.
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let fd = rustix::fs::openat(&*parent_fd, name, DIR, Mode::empty())?;
        if is_new {
            set_owner_from_dir(&*parent_fd, &fd)?;
        }
        let known = folders.get_mut(parent).ok_or(Errno::NOENT)?;
        // Whoever put something into the folder had made its name durable before.
        if !known.settled.contains(name) && (is_new || is_empty_folder(&fd)?) {
            // Listed before: a name that appears between the two may not be durable. Noted after: a failure leaves
            // nothing that counts as durable.
            let settled = list_subfolders(&parent_fd)?;
            rustix::fs::fsync(&*parent_fd)?;
            known.settled = settled;
        }
        Ok(fd)
    }

    /// Removes what has the name of an object. A directory that stands there instead is removed if it is empty: its
    /// content does not belong to the store.
    pub(super) fn unlink(&self, folder: &str, name: &str) -> io::Result<()> {
        let dir = self.open_folder(folder)?;
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => Ok(rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)?),
            done => Ok(done?),
        }
    }

    /// Renames the file of an object. What has the name of one and is no file stays.
    pub(super) fn rename_file(&self, from: &ObjectKey, folder: &OwnedFd, name: &str) -> io::Result<()> {
        let dir = self.open_folder(from.folder())?;
        let stat = rustix::fs::statat(&dir, from.name(), AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::ISDIR.into());
        }
        Ok(rustix::fs::renameat(&dir, from.name(), folder, name)?)
    }

    /// Adds every object in `folder` and below. Names that no key can have are not objects and are passed over. What is
    /// not a file and stands where an object should be is listed, so that a reader of it gets an error.
    pub(super) fn walk_objects(
        &self,
        folder: &str,
        sizes: bool,
        found: &mut Vec<ObjectInfo>,
    ) -> io::Result<()> {
        let Some(dir) = self.open_folder(folder).none_if_missing()? else { return Ok(()) };
        let mut below = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if !key::is_key_component(name.as_bytes()) {
                continue;
            }
            let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            match resolve_file_type(&dir, name, entry.file_type())? {
                FileType::Unknown => {}
                FileType::Directory => {
                    if is_object_id(name) {
                        add_object(&dir, name, path.clone(), sizes, found)?;
                    }
                    below.push(path);
                }
                _ => add_object(&dir, name, path, sizes, found)?,
            }
        }
        // A key has few components, so that this does not go deep.
        below
            .iter()
            .filter(|path| path.split('/').count() < key::DEPTH_MAX)
            .try_for_each(|path| self.walk_objects(path, sizes, found))
    }
}

/// Whether a name is that of an object and not of a folder: most objects are named by ids.
fn is_object_id(name: &str) -> bool {
    name.len() >= ID_LEN_MIN && name.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn resolve_file_type(dir: &OwnedFd, name: &str, seen: FileType) -> io::Result<FileType> {
    // Some filesystems do not report types in listings (`DT_UNKNOWN`).
    if seen != FileType::Unknown {
        return Ok(seen);
    }
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode)),
        Err(Errno::NOENT) => Ok(FileType::Unknown),
        Err(errno) => Err(errno.into()),
    }
}

fn add_object(
    dir: &OwnedFd,
    name: &str,
    path: String,
    sizes: bool,
    found: &mut Vec<ObjectInfo>,
) -> io::Result<()> {
    let Ok(key) = ObjectKey::new(path) else { return Ok(()) };
    if !sizes {
        found.push(ObjectInfo { key, size: 0, modified: None, version: None });
        return Ok(());
    }
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => {
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let modified =
                u64::try_from(stat.st_mtime).ok().map(|secs| UNIX_EPOCH + Duration::from_secs(secs));
            found.push(ObjectInfo { key, size, modified, version: None });
            Ok(())
        }
        // Deleted since the directory was read.
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn is_empty_folder(folder: &OwnedFd) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(folder)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn list_subfolders(fd: &OwnedFd) -> io::Result<HashSet<String>> {
    let mut names = HashSet::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        // Counting what is not a folder does no harm.
        if entry.file_type() != FileType::RegularFile {
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
    }
    Ok(names)
}

/// Makes a directory and its parents, durably, readable by the owner only.
pub(super) fn create_path(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        create_path(parent)?;
    }
    match rustix::fs::mkdir(path, PRIVATE_DIR) {
        // Another process was faster, and may not have synced the name yet.
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::fsync(rustix::fs::open(parent, flags, Mode::empty())?)?)
}

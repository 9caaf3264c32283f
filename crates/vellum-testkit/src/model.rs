//! A simple filesystem in memory, with which real ones are compared operation by operation.
//!
//! It models the guarantees of POSIX and the behaviour of Linux: names, attributes, extended attributes, content, and
//! error numbers. Times are ticks, one for each change: only their order is guaranteed. Deliberately absent:
//! permissions and access control lists.

mod names;
mod render;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::FileKind;
use vellum_types::limits::XATTR_VALUE_MAX;

pub use render::RenderedEntry;

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Errno>;

/// The number of a file of the model, independent of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelFileId(pub u64);

/// The root.
pub const ROOT: ModelFileId = ModelFileId(1);

/// A time: the number of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ModelTime(pub u64);

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Its kind.
    pub kind: FileKind,
    /// The lowest twelve mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Modification time.
    pub mtime: ModelTime,
    /// Change time.
    pub ctime: ModelTime,
    /// Birth time.
    pub btime: ModelTime,
    /// The target of a symlink.
    pub target: Vec<u8>,
    /// The content of a file.
    pub content: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The entries of a directory.
    pub entries: BTreeMap<Vec<u8>, ModelFileId>,
    /// The directory that contains a directory; None for the root and for a directory without a name.
    pub parent: Option<ModelFileId>,
    /// How often it is open.
    pub open: u32,
}

/// A file to be created.
#[derive(Debug, Clone, Default)]
pub struct NewModelFile {
    /// Its mode, before the umask.
    pub mode: u32,
    /// Device number.
    pub rdev: u64,
    /// The target of a symlink.
    pub target: Vec<u8>,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Mode bits that are removed.
    pub umask: u32,
}

/// Attributes to be set.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelAttributes {
    /// Mode bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<usize>,
    /// Whether the modification time is set to now.
    pub mtime: bool,
}

/// The filesystem. A copy shares files with the original until they change.
#[derive(Debug, Clone)]
pub struct ModelFilesystem {
    files: BTreeMap<ModelFileId, Arc<ModelFile>>,
    next: u64,
    tick: u64,
}

impl Default for ModelFilesystem {
    fn default() -> Self {
        let root = ModelFile { mode: 0o755, ..ModelFile::new(FileKind::Dir, ModelTime(0)) };
        Self { files: BTreeMap::from([(ROOT, Arc::new(root))]), next: ROOT.0 + 1, tick: 0 }
    }
}

impl ModelFile {
    fn new(kind: FileKind, time: ModelTime) -> Self {
        Self {
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            mtime: time,
            ctime: time,
            btime: time,
            target: Vec::new(),
            content: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            parent: None,
            open: 0,
        }
    }

    /// The size of the content, or of a symlink's target.
    #[must_use]
    pub fn size(&self) -> usize {
        self.content.len() + self.target.len()
    }

    fn clear_set_ids(&mut self) {
        // Without permission for the group to execute, set-gid means mandatory locking and stays, as in
        // Linux.
        self.mode &= if self.mode & 0o010 == 0 { !0o4000 } else { !0o6000 };
    }
}

/// Flags of `setxattr(2)`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelXattrFlags {
    /// The attribute must not exist.
    pub create: bool,
    /// The attribute must exist.
    pub replace: bool,
}

impl ModelFilesystem {
    /// A file.
    pub fn file(&self, id: ModelFileId) -> Result<&ModelFile> {
        self.files.get(&id).map(|file| &**file).ok_or(Errno::STALE)
    }

    /// All files, including those without names.
    pub fn files(&self) -> impl Iterator<Item = (ModelFileId, &ModelFile)> {
        self.files.iter().map(|(id, file)| (*id, &**file))
    }

    /// The number of links of a file.
    #[must_use]
    pub fn count_links(&self, id: ModelFileId) -> usize {
        let named = |file: &Arc<ModelFile>| file.entries.values().filter(|named| **named == id).count();
        match self.files.get(&id) {
            Some(file) if file.kind == FileKind::Dir => {
                let is_dir =
                    |id: &&ModelFileId| self.files.get(id).is_some_and(|file| file.kind == FileKind::Dir);
                // A directory that was removed while it was open has no links.
                let gone = id != ROOT && file.parent.is_none();
                // Its name in the parent and its own `.` are links, and so is the `..` of each subdirectory.
                if gone { 0 } else { 2 + file.entries.values().filter(is_dir).count() }
            }
            // Counted from the entries each time. A counter could be wrong in the same way as that of the
            // filesystem that is compared.
            _ => self.files.values().map(named).sum(),
        }
    }

    fn file_mut(&mut self, id: ModelFileId) -> Result<&mut ModelFile> {
        self.files.get_mut(&id).map(Arc::make_mut).ok_or(Errno::STALE)
    }

    fn next_tick(&mut self) -> ModelTime {
        self.tick += 1;
        ModelTime(self.tick)
    }

    /// Counts an opening.
    pub fn open(&mut self, id: ModelFileId) -> Result<()> {
        self.file_mut(id)?.open += 1;
        Ok(())
    }

    /// Counts a close; a file without names is removed at its last close.
    pub fn close(&mut self, id: ModelFileId) -> Result<()> {
        self.file_mut(id)?.open -= 1;
        // An orphan exists until its last descriptor is closed.
        self.remove_unreferenced(id);
        Ok(())
    }

    /// Closes everything: files without names are removed.
    pub fn close_all_files(&mut self) {
        let open: Vec<_> = self.files.iter().filter(|(_, file)| file.open > 0).map(|(id, _)| *id).collect();
        for id in open {
            if let Ok(file) = self.file_mut(id) {
                file.open = 0;
            }
            self.remove_unreferenced(id);
        }
    }

    fn remove_unreferenced(&mut self, id: ModelFileId) {
        if self.count_links(id) == 0 && self.files.get(&id).is_some_and(|file| file.open == 0) {
            self.files.remove(&id);
        }
    }

    /// Sets attributes.
    pub fn setattr(&mut self, id: ModelFileId, set: &ModelAttributes) -> Result<()> {
        let file = self.file(id)?;
        // The errors are checked before anything changes, as the kernel does: a refused call leaves no new
        // times.
        match file.kind {
            FileKind::Dir if set.size.is_some() => return Err(Errno::ISDIR),
            FileKind::File => {}
            _ if set.size.is_some() => return Err(Errno::INVAL),
            // Linux changes no modes of symlinks.
            FileKind::Symlink if set.mode.is_some() => return Err(Errno::OPNOTSUPP),
            _ => {}
        }
        let time = self.next_tick();
        let file = self.file_mut(id)?;
        file.ctime = time;
        if set.mtime || set.size.is_some() {
            file.mtime = time;
        }
        file.content.resize(set.size.unwrap_or(file.content.len()), 0);
        file.mode = set.mode.map_or(file.mode, |mode| mode & 0o7777);
        if set.uid.is_some() || set.gid.is_some() {
            (file.uid, file.gid) = (set.uid.unwrap_or(file.uid), set.gid.unwrap_or(file.gid));
            // Linux does so for root as well, and for directories never.
            if file.kind != FileKind::Dir {
                file.clear_set_ids();
            }
        }
        Ok(())
    }

    /// Writes content.
    pub fn write(&mut self, id: ModelFileId, offset: usize, data: &[u8]) -> Result<()> {
        match self.file(id)?.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        let time = self.next_tick();
        let file = self.file_mut(id)?;
        let end = offset + data.len();
        // What lies between the old end and the offset is a hole, which reads as zeros.
        if end > file.content.len() {
            file.content.resize(end, 0);
        }
        if let Some(range) = file.content.get_mut(offset..end) {
            range.copy_from_slice(data);
        }
        (file.mtime, file.ctime) = (time, time);
        Ok(())
    }

    /// Sets an extended attribute of a user; it may not exist (`create`), or has to exist (`replace`).
    pub fn setxattr(
        &mut self,
        id: ModelFileId,
        name: &[u8],
        value: &[u8],
        flags: ModelXattrFlags,
    ) -> Result<()> {
        let file = self.file(id)?;
        // The kernel allows attributes in `user.` on files and directories only (EPERM).
        if !matches!(file.kind, FileKind::File | FileKind::Dir) {
            return Err(Errno::PERM);
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        match file.xattrs.contains_key(name) {
            true if flags.create => return Err(Errno::EXIST),
            false if flags.replace => return Err(Errno::NODATA),
            _ => {}
        }
        let time = self.next_tick();
        let file = self.file_mut(id)?;
        file.xattrs.insert(name.into(), value.into());
        file.ctime = time;
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn removexattr(&mut self, id: ModelFileId, name: &[u8]) -> Result<()> {
        if !self.file(id)?.xattrs.contains_key(name) {
            return Err(Errno::NODATA);
        }
        let time = self.next_tick();
        let file = self.file_mut(id)?;
        file.xattrs.remove(name);
        file.ctime = time;
        Ok(())
    }
}

//! The traits of the crate `vfs`, so that code which takes any filesystem takes a worktree or a snapshot. With the feature
//! `vfs`.
//!
//! Paths of that crate begin with a slash, and are resolved from the directory of the handle.

use std::fmt;
use std::io::{Seek, SeekFrom};
use std::time::SystemTime;

use ::vfs::error::VfsErrorKind;
use ::vfs::{FileSystem, SeekAndRead, SeekAndWrite, VfsError, VfsFileType, VfsMetadata, VfsResult};

use crate::dir::Dir;
use crate::error::Error;
use crate::options::OpenOptions;
use crate::tree::Tree;

/// Names of a directory.
type VfsNames = Box<dyn Iterator<Item = String> + Send>;

/// A directory of a live worktree as a filesystem of the crate `vfs`.
///
/// ```
/// use std::io::Write;
/// use vellum_library::Volume;
/// use vellum_library::vfs::VfsDir;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let work = Volume::create(dir.path())?.volume.create_worktree("work", None)?;
/// let root = vfs::VfsPath::new(VfsDir(work.root().clone()));
/// root.join("notes")?.create_dir()?;
/// root.join("notes/today")?.create_file()?.write_all(b"hello")?;
/// assert_eq!(root.join("notes/today")?.read_to_string()?, "hello");
/// # Ok(())
/// # }
/// ```
pub struct VfsDir(pub Dir);

/// A snapshot, a view or anything else that can be read, as a filesystem of the crate `vfs`. What would change it is not
/// supported.
pub struct VfsTree<T>(pub T);

impl fmt::Debug for VfsDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VfsDir")
    }
}

impl<T> fmt::Debug for VfsTree<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VfsTree")
    }
}

fn to_vfs_error(error: Error) -> VfsError {
    // The crate turns what it has a word of its own for, as for a missing file, into that word.
    std::io::Error::from(error).into()
}

fn list_names(tree: &impl Tree, path: &str) -> VfsResult<VfsNames> {
    let entries = tree.read_dir(path).map_err(to_vfs_error)?;
    let names: Option<Vec<_>> = entries.into_iter().map(|entry| entry.name.into_string().ok()).collect();
    // A name that is left out would be taken for one that is not there.
    let names = names.ok_or_else(|| {
        VfsErrorKind::Other("a name in this directory is not UTF-8, which vfs needs".into())
    })?;
    Ok(Box::new(names.into_iter()))
}

fn open_to_read(tree: &impl Tree, path: &str) -> VfsResult<Box<dyn SeekAndRead + Send>> {
    let file = tree.open(path).map_err(to_vfs_error)?;
    Ok(Box::new(file))
}

fn read_vfs_metadata(tree: &impl Tree, path: &str) -> VfsResult<VfsMetadata> {
    let found = tree.stat(path).map_err(to_vfs_error)?;
    let file_type = if found.is_dir() { VfsFileType::Directory } else { VfsFileType::File };
    Ok(VfsMetadata {
        file_type,
        // The trait has it so for directories, whose size means nothing in a volume either.
        len: if found.is_dir() { 0 } else { found.size() },
        created: Some(found.created()),
        modified: Some(found.modified()),
        accessed: Some(found.accessed()),
    })
}

impl<T: Tree + Send + Sync + 'static> FileSystem for VfsTree<T> {
    fn read_dir(&self, path: &str) -> VfsResult<VfsNames> {
        list_names(&self.0, path)
    }

    fn create_dir(&self, _path: &str) -> VfsResult<()> {
        // A snapshot does not change. Errors instead of no effect: whoever copies into it must learn it at once.
        Err(VfsErrorKind::NotSupported.into())
    }

    fn open_file(&self, path: &str) -> VfsResult<Box<dyn SeekAndRead + Send>> {
        open_to_read(&self.0, path)
    }

    fn create_file(&self, _path: &str) -> VfsResult<Box<dyn SeekAndWrite + Send>> {
        Err(VfsErrorKind::NotSupported.into())
    }

    fn append_file(&self, _path: &str) -> VfsResult<Box<dyn SeekAndWrite + Send>> {
        Err(VfsErrorKind::NotSupported.into())
    }

    fn metadata(&self, path: &str) -> VfsResult<VfsMetadata> {
        read_vfs_metadata(&self.0, path)
    }

    fn exists(&self, path: &str) -> VfsResult<bool> {
        self.0.exists(path).map_err(to_vfs_error)
    }

    fn remove_file(&self, _path: &str) -> VfsResult<()> {
        Err(VfsErrorKind::NotSupported.into())
    }

    fn remove_dir(&self, _path: &str) -> VfsResult<()> {
        Err(VfsErrorKind::NotSupported.into())
    }
}

impl VfsDir {
    fn open_to_write(&self, path: &str, options: OpenOptions) -> VfsResult<Box<dyn SeekAndWrite + Send>> {
        let mut file = self.0.open_with(path, options).map_err(to_vfs_error)?;
        // Where the next write goes, as callers may ask.
        file.seek(SeekFrom::End(0))?;
        Ok(Box::new(file))
    }

    fn is_dir(&self, path: &str) -> VfsResult<bool> {
        // Not through a symlink, which is what `remove` would take away.
        Ok(self.0.lstat(path).map_err(to_vfs_error)?.is_dir())
    }

    fn remove_kind(&self, path: &str, is_dir: bool) -> VfsResult<()> {
        // `remove` takes both kinds, and the trait promises that each call refuses the other.
        if self.is_dir(path)? != is_dir {
            let expected = if is_dir { "it is not a directory" } else { "it is a directory" };
            return Err(VfsErrorKind::Other(expected.into()).into());
        }
        self.0.remove(path).map_err(to_vfs_error)
    }

    fn rename(&self, from: &str, to: &str) -> VfsResult<()> {
        self.0.rename(from, to).map_err(to_vfs_error)
    }
}

impl FileSystem for VfsDir {
    fn read_dir(&self, path: &str) -> VfsResult<VfsNames> {
        list_names(&self.0, path)
    }

    fn create_dir(&self, path: &str) -> VfsResult<()> {
        match self.0.mkdir(path) {
            Err(error) if error.io_kind() == std::io::ErrorKind::AlreadyExists => {
                let kind =
                    // Callers who make all parents tell the two apart: a directory that is there is what they want.
                    if self.is_dir(path)? { VfsErrorKind::DirectoryExists } else { VfsErrorKind::FileExists };
                Err(kind.into())
            }
            made => made.map_err(to_vfs_error),
        }
    }

    fn open_file(&self, path: &str) -> VfsResult<Box<dyn SeekAndRead + Send>> {
        open_to_read(&self.0, path)
    }

    fn create_file(&self, path: &str) -> VfsResult<Box<dyn SeekAndWrite + Send>> {
        self.open_to_write(path, OpenOptions::new().write(true).create(true).truncate(true))
    }

    fn append_file(&self, path: &str) -> VfsResult<Box<dyn SeekAndWrite + Send>> {
        self.open_to_write(path, OpenOptions::new().append(true))
    }

    fn metadata(&self, path: &str) -> VfsResult<VfsMetadata> {
        read_vfs_metadata(&self.0, path)
    }

    fn set_modification_time(&self, path: &str, time: SystemTime) -> VfsResult<()> {
        self.0.set_times(path, None, Some(time)).map_err(to_vfs_error)
    }

    fn set_access_time(&self, path: &str, time: SystemTime) -> VfsResult<()> {
        self.0.set_times(path, Some(time), None).map_err(to_vfs_error)
    }

    fn exists(&self, path: &str) -> VfsResult<bool> {
        self.0.exists(path).map_err(to_vfs_error)
    }

    fn remove_file(&self, path: &str) -> VfsResult<()> {
        self.remove_kind(path, false)
    }

    fn remove_dir(&self, path: &str) -> VfsResult<()> {
        self.remove_kind(path, true)
    }

    fn copy_file(&self, from: &str, to: &str) -> VfsResult<()> {
        self.0.copy(from, to).map(drop).map_err(to_vfs_error)
    }

    fn move_file(&self, from: &str, to: &str) -> VfsResult<()> {
        self.rename(from, to)
    }

    fn move_dir(&self, from: &str, to: &str) -> VfsResult<()> {
        self.rename(from, to)
    }
}

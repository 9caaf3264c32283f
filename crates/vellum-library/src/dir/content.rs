//! Opening, writing and copying files, and copying whole trees.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::history::view::LiveView;
use vellum_fs::{AttributeChanges, FsError, InodeAttributes, LiveFilesystem, Result as FsResult};
use vellum_types::{Dentry, FileKind, Ino};

use super::{Dir, caller};
use crate::error::{Error, Result};
use crate::file::File;
use crate::options::OpenOptions;
use crate::paths::ResolvedPath;
use crate::source::ReadSource;
use crate::tree::{Tree, path_bytes, sealed::RootedTree};

/// Permissions of files without a name.
const TEMP_MODE: u32 = 0o600;
/// How many times the lookup is repeated for a file that others create and remove meanwhile.
const TRIES: usize = 100;

impl Dir {
    /// Opens a file with options, and creates it if they request that.
    pub fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let path = path_bytes(&path);
        self.open_or_create(path, options).map_err(Error::for_action("open", path))
    }

    /// Opens a file for reading and writing. Truncates it, or creates it if it does not exist.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
    }

    /// Replaces the content of a file. Creates it if it does not exist.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path_bytes(&path);
        let write = || {
            // Not as one step: a reader can see the file empty or cut. Who needs it whole writes a temporary file and
            // renames it.
            let options = OpenOptions::new().write(true).create(true).truncate(true);
            // The options are known to allow writing, so that the check of each write is left out.
            let file = self.open_or_create(path, options)?;
            let mut left = content.as_ref();
            let mut at = 0;
            while !left.is_empty() {
                let count = file.write_unchecked(left, at)?;
                left = left.get(count..).unwrap_or_default();
                at += count as u64;
            }
            Ok(())
        };
        write().map_err(Error::for_action("write", path))
    }

    /// Creates a file without a name, for reading and writing. It is deleted when it is closed, unless it gets a name
    /// ([`File::persist`]): others see it complete or not at all.
    pub fn temp_file(&self, dir: impl AsRef<Path>) -> Result<File> {
        let path = path_bytes(&dir);
        let make = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            let dir = self.reader().resolve_path(path, true)?;
            let ino = self.filesystem().names().tmpfile(dir.ino, TEMP_MODE, caller())?.ino;
            // Held in the same epoch: nothing else keeps a file without a name, and a restore in between would remove
            // it.
            self.hold_file(ino, OpenOptions::new().read(true).write(true))
        };
        make().map_err(Error::for_action("make a file in", path))
    }

    /// Copies a file with its permissions, and replaces the content of the destination. Content is shared, not
    /// copied. Returns the length.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let from = path_bytes(&from);
        let to = path_bytes(&to);
        let copy = || {
            let source = self.open_or_create(from, OpenOptions::new().read(true))?;
            let attr = source.attributes()?;
            if attr.kind != FileKind::File {
                return Err(Errno::INVAL.into());
            }
            // Without truncating: the target may be the source under another name, which is not known before both are
            // open.
            let options = OpenOptions::new().write(true).create(true).mode(attr.mode);
            let target = self.open_or_create(to, options)?;
            // Truncating the target would empty the source.
            if target.ino() == source.ino() {
                return Ok(attr.size);
            }
            target.change_file(|fs| {
                // The target's epoch is checked by `change_file`. The source was opened earlier: a restore between
                // the two makes its inode number another file's.
                source.check_epoch()?;
                fs.content().truncate(target.ino(), 0)?;
                let copied = copy_file_content(fs, source.ino(), target.ino())?;
                // The target may have existed, with other permissions.
                let set = AttributeChanges { mode: Some(attr.mode), ..AttributeChanges::default() };
                fs.attributes().setattr(target.ino(), &set, caller())?;
                Ok(copied)
            })
        };
        copy().map_err(Error::for_action("copy", from))
    }

    /// Copies a file, or a directory with its content, from any tree of the same worktree: a snapshot, a view, this
    /// directory. Permissions, owners, times, extended attributes and links within the copy are preserved. Content is
    /// shared, not copied. The copy appears at once, at a path that must be free.
    pub fn copy_from<T: Tree>(&self, tree: &T, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.copy_with(tree, path_bytes(&from), path_bytes(&to), LiveFilesystem::copy_tree)
    }

    /// Like [`Self::copy_from`], but the path may exist: the old entry (a directory with its content) is removed in
    /// the same step in which the copy appears. If it fails, the old entry is unchanged.
    pub fn replace_from<T: Tree>(
        &self,
        tree: &T,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        self.copy_with(tree, path_bytes(&from), path_bytes(&to), LiveFilesystem::copy_tree_replacing)
    }

    fn copy_with<T: Tree>(
        &self,
        tree: &T,
        from: &[u8],
        to: &[u8],
        copy: impl FnOnce(&LiveFilesystem, &LiveView, Ino, Ino, &[u8]) -> FsResult<InodeAttributes>,
    ) -> Result<()> {
        let copy = || {
            let _entered = self.filesystem().epochs().enter_epoch();
            // A tree that changes while it is copied would give a mixture; also, the copy may lie below its own source.
            let reader = tree.reader().freeze_view()?;
            let ReadSource::View(seen) = &reader.source else { return Err(Errno::XDEV.into()) };
            if !Arc::ptr_eq(seen.view.filesystem(), self.filesystem()) {
                return Err(Errno::XDEV.into());
            }
            let found = reader.resolve_path(from, false)?;
            let place = self.split_name(to, Errno::EXIST)?;
            copy(self.filesystem(), &seen.view, found.ino, place.dir, place.name).map(drop)
        };
        copy().map_err(Error::for_action("copy", from))
    }

    fn open_or_create(&self, path: &[u8], options: OpenOptions) -> FsResult<File> {
        options.validate()?;
        for _ in 0..TRIES {
            match self.try_open_once(path, options).and_then(File::finish_open) {
                // Another thread made it, or removed it.
                Err(FsError::Posix(Errno::EXIST)) if !options.create_new => {}
                Err(FsError::Posix(Errno::STALE)) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN.into())
    }

    // The guard ends with this function, before the rest of the opening: that may drop the file again, and dropping
    // waits for a restore which in turn waits for guards.
    fn try_open_once(&self, path: &[u8], options: OpenOptions) -> FsResult<File> {
        let _entered = self.filesystem().epochs().enter_epoch();
        if options.create_new {
            let place = self.split_name(path, Errno::EXIST)?;
            // As in Linux: no file can be made at a path that ends in a slash.
            if place.is_dir {
                return Err(Errno::ISDIR.into());
            }
            return self.create_file(place.dir, place.name, options);
        }
        match self.reader().resolve_or_free(path)? {
            ResolvedPath::There(at) => File::hold_open(&self.reader().source, at, options),
            ResolvedPath::Free(dir, name) if options.create => self.create_file(dir, &name, options),
            ResolvedPath::Free(..) => Err(Errno::NOENT.into()),
        }
    }

    fn create_file(&self, dir: Ino, name: &[u8], options: OpenOptions) -> FsResult<File> {
        let node = self.filesystem().names().create(dir, name, options.mode, caller())?;
        self.hold_file(node.ino, options)
    }

    fn hold_file(&self, ino: Ino, options: OpenOptions) -> FsResult<File> {
        File::hold_open(&self.reader().source, Dentry { ino, kind: FileKind::File }, options)
    }
}

fn copy_file_content(fs: &LiveFilesystem, source: Ino, target: Ino) -> FsResult<u64> {
    let mut at = 0;
    loop {
        match fs.content().copy_range(source, at, target, at, u64::MAX - at)? {
            0 => return Ok(at),
            count => at += count,
        }
    }
}

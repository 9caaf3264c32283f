//! Opening, writing and copying files, and copying whole trees.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::view::LiveView;
use vellum_fs::{AttributeChanges, FsError, InodeAttributes, LiveFilesystem, Result as FsResult};
use vellum_types::{Dentry, FileKind, Ino};

use super::{Dir, caller};
use crate::error::{Error, Result};
use crate::file::File;
use crate::options::OpenOptions;
use crate::paths::ResolvedPath;
use crate::source::ReadSource;
use crate::tree::{Tree, bytes, sealed::RootedTree};

/// Permissions of files without a name.
const TEMP_MODE: u32 = 0o600;
/// How often a file that others make and remove meanwhile is looked for.
const TRIES: usize = 100;

impl Dir {
    /// Opens a file in some way, and makes it if the options say so.
    pub fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let path = bytes(&path);
        self.open_or_make(path, options).map_err(Error::at("open", path))
    }

    /// Opens a file to read and write it, empty: it is made if it is not there.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
    }

    /// Lets a file hold this and nothing else: it is made if it is not there.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = bytes(&path);
        let write = || {
            let options = OpenOptions::new().write(true).create(true).truncate(true);
            let file = self.open_or_make(path, options)?;
            let mut left = content.as_ref();
            let mut at = 0;
            while !left.is_empty() {
                let count = file.put(left, at)?;
                left = left.get(count..).unwrap_or_default();
                at += count as u64;
            }
            Ok(())
        };
        write().map_err(Error::at("write", path))
    }

    /// A file without a name, to read and write. It goes when it is closed, unless it got a name
    /// ([`File::persist`]): so that others see it whole or not at all.
    pub fn temp_file(&self, dir: impl AsRef<Path>) -> Result<File> {
        let path = bytes(&dir);
        let make = || {
            let _entered = self.fs().enter();
            let dir = self.reader().resolve(path, true)?;
            let ino = self.fs().tmpfile(dir.ino, TEMP_MODE, caller())?.ino;
            self.hold(ino, OpenOptions::new().read(true).write(true))
        };
        make().map_err(Error::at("make a file in", path))
    }

    /// Copies a file with its permissions; what the other one held goes. Content is shared, not copied. Gives the
    /// length.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (bytes(&from), bytes(&to));
        let copy = || {
            let source = self.open_or_make(from, OpenOptions::new().read(true))?;
            let attr = source.attr()?;
            if attr.kind != FileKind::File {
                return Err(Errno::INVAL.into());
            }
            let options = OpenOptions::new().write(true).create(true).mode(attr.mode);
            let target = self.open_or_make(to, options)?;
            if target.ino() == source.ino() {
                return Ok(attr.size);
            }
            target.change(|fs| {
                source.check_epoch()?;
                fs.truncate(target.ino(), 0)?;
                let copied = copy_content(fs, source.ino(), target.ino())?;
                // It may have been there, with others.
                let set = AttributeChanges { mode: Some(attr.mode), ..AttributeChanges::default() };
                fs.setattr(target.ino(), &set, caller())?;
                Ok(copied)
            })
        };
        copy().map_err(Error::at("copy", from))
    }

    /// Copies a file, or a directory with all in it, from any tree of the same worktree: a snapshot, a view, this
    /// directory. Everything comes back: permissions, owners, times, extended attributes, links among what is copied.
    /// Content is shared, not copied. It appears at once, at a path that must be free.
    pub fn copy_from<T: Tree>(&self, tree: &T, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (bytes(&from), bytes(&to));
        self.copy_by(tree, (from, to), LiveFilesystem::copy_tree).map_err(Error::at("copy", from))
    }

    /// As [`Self::copy_from`], to a path that may be taken: what it names goes in the moment in which the copy appears, a
    /// directory with all in it. What fails leaves what was there.
    pub fn replace_from<T: Tree>(
        &self,
        tree: &T,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        let (from, to) = (bytes(&from), bytes(&to));
        self.copy_by(tree, (from, to), LiveFilesystem::replace_tree).map_err(Error::at("copy", from))
    }

    fn copy_by<T: Tree>(
        &self,
        tree: &T,
        (from, to): (&[u8], &[u8]),
        copy: impl FnOnce(&LiveFilesystem, &LiveView, Ino, Ino, &[u8]) -> FsResult<InodeAttributes>,
    ) -> FsResult<()> {
        let _entered = self.fs().enter();
        let reader = tree.reader().frozen()?;
        let ReadSource::View(seen) = &reader.source else { return Err(Errno::XDEV.into()) };
        if !Arc::ptr_eq(seen.view.fs(), self.fs()) {
            return Err(Errno::XDEV.into());
        }
        let found = reader.resolve(from, false)?;
        let place = self.named(to, Errno::EXIST)?;
        copy(self.fs(), &seen.view, found.ino, place.dir, place.name).map(drop)
    }

    fn open_or_make(&self, path: &[u8], options: OpenOptions) -> FsResult<File> {
        options.check()?;
        for _ in 0..TRIES {
            match self.try_open(path, options).and_then(File::opened) {
                // Somebody else made it, or removed it.
                Err(FsError::Posix(Errno::EXIST)) if !options.create_new => {}
                Err(FsError::Posix(Errno::STALE)) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN.into())
    }

    fn try_open(&self, path: &[u8], options: OpenOptions) -> FsResult<File> {
        let _entered = self.fs().enter();
        if options.create_new {
            let place = self.named(path, Errno::EXIST)?;
            if place.is_dir {
                return Err(Errno::ISDIR.into());
            }
            return self.make_file(place.dir, place.name, options);
        }
        match self.reader().find_or_free(path)? {
            ResolvedPath::There(at) => File::hold(&self.reader().source, at, options),
            ResolvedPath::Free(dir, name) if options.create => self.make_file(dir, &name, options),
            ResolvedPath::Free(..) => Err(Errno::NOENT.into()),
        }
    }

    fn make_file(&self, dir: Ino, name: &[u8], options: OpenOptions) -> FsResult<File> {
        let node = self.fs().create(dir, name, options.mode, caller())?;
        self.hold(node.ino, options)
    }

    fn hold(&self, ino: Ino, options: OpenOptions) -> FsResult<File> {
        File::hold(&self.reader().source, Dentry { ino, kind: FileKind::File }, options)
    }
}

fn copy_content(fs: &LiveFilesystem, source: Ino, target: Ino) -> FsResult<u64> {
    let mut at = 0;
    loop {
        match fs.copy_range(source, at, target, at, u64::MAX - at)? {
            0 => return Ok(at),
            count => at += count,
        }
    }
}

//! Names in the model: creating, linking, removing, renaming.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::FileKind;
use vellum_types::limits::NAME_MAX;

use super::{ModelFile, ModelFileId, ModelFilesystem, ModelTime, NewModelFile, ROOT, Result};

/// A reserved name: in the root it is refused for all types, below for directories.
const TAKEN: &[u8] = b".vellum";

/// A directory and a name in it.
pub type ModelPlace<'a> = (ModelFileId, &'a [u8]);

impl ModelFilesystem {
    /// The file under a name in a directory.
    pub fn lookup(&self, (dir, name): ModelPlace<'_>) -> Result<ModelFileId> {
        check_name(name)?;
        self.get_dir(dir)?.entries.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Creates a file.
    pub fn create_entry(
        &mut self,
        place: ModelPlace<'_>,
        kind: FileKind,
        new: &NewModelFile,
    ) -> Result<ModelFileId> {
        check_name(place.1)?;
        check_name_allowed(place, kind)?;
        self.check_absent(place)?;
        let id = self.create_file(place.0, kind, new);
        let time = self.files.get(&id).map_or(ModelTime(0), |file| file.ctime);
        self.insert_name(place, id, time);
        Ok(id)
    }

    /// Creates a file without a name, and opens it.
    pub fn tmpfile(&mut self, dir: ModelFileId, new: &NewModelFile) -> Result<ModelFileId> {
        self.check_linked_dir(dir)?;
        let id = self.create_file(dir, FileKind::File, new);
        // Without a name and without an opening it would be removed at once.
        self.open(id)?;
        Ok(id)
    }

    /// Links a file to another name.
    pub fn link(&mut self, id: ModelFileId, place: ModelPlace<'_>) -> Result<()> {
        check_name(place.1)?;
        let kind = self.file(id)?.kind;
        if kind == FileKind::Dir {
            return Err(Errno::PERM);
        }
        check_name_allowed(place, kind)?;
        self.check_absent(place)?;
        let time = self.next_tick();
        self.file_mut(id)?.ctime = time;
        self.insert_name(place, id, time);
        Ok(())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&mut self, place: ModelPlace<'_>) -> Result<()> {
        let id = self.lookup(place)?;
        if self.is_dir(id) {
            // POSIX has `EPERM` here, and Linux has this.
            return Err(Errno::ISDIR);
        }
        self.remove_name(place, id)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, place: ModelPlace<'_>) -> Result<()> {
        let id = self.lookup(place)?;
        if !self.get_dir(id)?.entries.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.remove_name(place, id)
    }

    /// Renames; `exchange` and `noreplace` are the flags of `renameat2(2)`.
    pub fn rename(
        &mut self,
        from: ModelPlace<'_>,
        to: ModelPlace<'_>,
        noreplace: bool,
        exchange: bool,
    ) -> Result<()> {
        if noreplace && exchange {
            return Err(Errno::INVAL);
        }
        check_name(from.1)?;
        check_name(to.1)?;
        let moved = self.lookup(from)?;
        let target = match self.lookup(to) {
            Err(Errno::NOENT) => None,
            found => Some(found?),
        };
        match target {
            // Before both are looked at as names of one file: Linux refuses such a target, too.
            Some(_) if noreplace => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            // POSIX: if both are names of one file, nothing happens.
            Some(target) if target == moved => return Ok(()),
            _ => {}
        }
        // The checks are in the order of the kernel's, because the error of the first one that fails is
        // compared.
        if self.makes_cycle(moved, from.0, to.0) {
            return Err(Errno::INVAL);
        }
        // The source is inside of the target. Linux says that the target is not empty, unless the two are exchanged.
        if target.is_some_and(|target| self.makes_cycle(target, to.0, from.0)) {
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        match target {
            Some(target) if exchange => self.exchange_names(from, moved, to, target),
            target => self.replace_target(from, moved, to, target),
        }
    }

    fn replace_target(
        &mut self,
        from: ModelPlace<'_>,
        moved: ModelFileId,
        to: ModelPlace<'_>,
        target: Option<ModelFileId>,
    ) -> Result<()> {
        match target.map(|target| (self.is_dir(moved), self.is_dir(target))) {
            Some((true, false)) => return Err(Errno::NOTDIR),
            Some((false, true)) => return Err(Errno::ISDIR),
            _ => {}
        }
        check_name_allowed(to, self.file(moved)?.kind)?;
        if let Some(target) = target
            && !self.file(target)?.entries.is_empty()
        {
            return Err(Errno::NOTEMPTY);
        }
        // A directory that was removed while it was open takes no new entries.
        self.check_linked_dir(to.0)?;
        // All changes of one call have one time.
        let time = self.next_tick();
        if let Some(target) = target {
            self.detach_name(to, target, time);
        }
        self.file_mut(from.0)?.entries.remove(from.1);
        self.touch_dir(from.0, time);
        self.file_mut(moved)?.ctime = time;
        self.insert_name(to, moved, time);
        Ok(())
    }

    fn exchange_names(
        &mut self,
        from: ModelPlace<'_>,
        moved: ModelFileId,
        to: ModelPlace<'_>,
        target: ModelFileId,
    ) -> Result<()> {
        check_name_allowed(to, self.file(moved)?.kind)?;
        check_name_allowed(from, self.file(target)?.kind)?;
        let time = self.next_tick();
        // Nothing is removed: each name stands for the other file from now on.
        for (place, id) in [(to, moved), (from, target)] {
            self.file_mut(id)?.ctime = time;
            self.insert_name(place, id, time);
        }
        Ok(())
    }

    /// Whether a directory would be moved into itself.
    fn makes_cycle(&self, moved: ModelFileId, from: ModelFileId, to: ModelFileId) -> bool {
        // Within one directory nothing gets another ancestor.
        from != to && self.is_dir(moved) && self.is_within(to, moved)
    }

    fn is_within(&self, dir: ModelFileId, ancestor: ModelFileId) -> bool {
        let parent = |id: &ModelFileId| self.files.get(id).and_then(|file| file.parent);
        std::iter::successors(Some(dir), parent).any(|id| id == ancestor)
    }

    fn is_dir(&self, id: ModelFileId) -> bool {
        self.files.get(&id).is_some_and(|file| file.kind == FileKind::Dir)
    }

    fn get_dir(&self, id: ModelFileId) -> Result<&ModelFile> {
        Some(self.file(id)?).filter(|file| file.kind == FileKind::Dir).ok_or(Errno::NOTDIR)
    }

    fn check_linked_dir(&self, id: ModelFileId) -> Result<()> {
        self.get_dir(id)?;
        if self.count_links(id) == 0 { Err(Errno::NOENT) } else { Ok(()) }
    }

    fn check_absent(&self, place: ModelPlace<'_>) -> Result<()> {
        match self.lookup(place) {
            Ok(_) => Err(Errno::EXIST),
            // Looking up in a removed directory finds nothing, and only creating in it is an error of its
            // own.
            Err(Errno::NOENT) => self.check_linked_dir(place.0),
            Err(error) => Err(error),
        }
    }

    fn create_file(&mut self, dir: ModelFileId, kind: FileKind, new: &NewModelFile) -> ModelFileId {
        let time = self.next_tick();
        let parent = self.files.get(&dir).map(|parent| (parent.mode & 0o2000 != 0, parent.gid));
        let mode = match kind {
            // Linux shows all symlinks with this mode.
            FileKind::Symlink => 0o777,
            // `mkdir(2)` takes no set-id bits.
            FileKind::Dir => new.mode & 0o1777 & !new.umask,
            _ => new.mode & !new.umask,
        };
        let mut file = ModelFile { mode, uid: new.uid, gid: new.gid, ..ModelFile::new(kind, time) };
        // A set-gid directory passes its group on to everything that is created in it, and the bit to
        // directories.
        if let Some((true, gid)) = parent {
            file.gid = gid;
            file.mode |= if kind == FileKind::Dir { 0o2000 } else { 0 };
        }
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            // Of other kinds `mknod` ignores the number.
            file.rdev = new.rdev;
        }
        if kind == FileKind::Symlink {
            file.target.clone_from(&new.target);
        }
        let id = ModelFileId(self.next);
        // Never given twice: whoever still holds the number of a removed file must not find another one.
        self.next += 1;
        self.files.insert(id, Arc::new(file));
        id
    }

    fn insert_name(&mut self, (dir, name): ModelPlace<'_>, id: ModelFileId, time: ModelTime) {
        let is_dir = self.is_dir(id);
        if let Some(file) = self.file_mut(id).ok().filter(|_| is_dir) {
            file.parent = Some(dir);
        }
        if let Ok(dir) = self.file_mut(dir) {
            dir.entries.insert(name.into(), id);
        }
        self.touch_dir(dir, time);
    }

    fn remove_name(&mut self, place: ModelPlace<'_>, id: ModelFileId) -> Result<()> {
        let time = self.next_tick();
        self.detach_name(place, id, time);
        Ok(())
    }

    fn detach_name(&mut self, (dir, name): ModelPlace<'_>, id: ModelFileId, time: ModelTime) {
        if let Ok(dir) = self.file_mut(dir) {
            dir.entries.remove(name);
        }
        if let Ok(file) = self.file_mut(id) {
            // Only directories have a parent, and those have one name. Files may have others.
            (file.parent, file.ctime) = (None, time);
        }
        self.touch_dir(dir, time);
        // Last, since it counts the names that are left.
        self.remove_unreferenced(id);
    }

    fn touch_dir(&mut self, dir: ModelFileId, time: ModelTime) {
        if let Ok(dir) = self.file_mut(dir) {
            (dir.mtime, dir.ctime) = (time, time);
        }
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::INVAL),
        name if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        name if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

fn check_name_allowed((dir, name): ModelPlace<'_>, kind: FileKind) -> Result<()> {
    if name == TAKEN && (dir == ROOT || kind == FileKind::Dir) { Err(Errno::PERM) } else { Ok(()) }
}

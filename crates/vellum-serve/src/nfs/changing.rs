//! What changes a live worktree. Whoever comes in may change everything; what is made belongs to the owner.

use vellum_library::{AttributeChanges, EntryPlace, Metadata, NodeKind, TimeChange};
use vellum_types::UnixTime;

use super::attributes::shown_time;
use super::protocol::NfsStatus;
use super::request::{FileCreation, NamedPlace};
use super::tree::{Answered, NfsTree};
use super::xdr::XdrWriter;

/// The bits of a mode that can be set.
const MODE_BITS: u32 = 0o7777;
/// Permissions of a file for which none were asked.
const FILE_MODE: u32 = 0o644;
/// Permissions of a directory for which none were asked.
const DIR_MODE: u32 = 0o755;
/// How safe what was written is: not yet.
const UNSTABLE: u32 = 0;
/// It survives a power cut, with all that was changed before.
const FILE_SYNC: u32 = 2;

impl NfsTree {
    pub(super) fn set_attributes(
        &self,
        object: &[u8],
        changes: AttributeChanges,
        guard: Option<UnixTime>,
        out: &mut XdrWriter,
    ) -> Answered {
        self.check_writable()?;
        let found = self.hold(object)?;
        // The client has seen the time as it was shown.
        if guard.is_some_and(|guard| guard != shown_time(found.attributes().ctime)) {
            return Err(NfsStatus::NotSync);
        }
        self.put_changed(out, &self.change(&found, changes)?);
        Ok(Vec::new())
    }

    pub(super) fn write(
        &self,
        file: &[u8],
        offset: u64,
        data: &[u8],
        is_stable: bool,
        out: &mut XdrWriter,
    ) -> Answered {
        self.check_writable()?;
        let found = self.hold(file)?;
        let mut done = 0;
        while let Some(left) = data.get(done..).filter(|left| !left.is_empty()) {
            let at = offset.checked_add(done as u64).ok_or(NfsStatus::FBig)?;
            match self.inodes.write(found.ino(), at, left)? {
                // At the largest size that a file can have.
                0 => return Err(NfsStatus::FBig),
                count => done += count,
            }
        }
        if is_stable {
            self.inodes.sync()?;
        }
        self.put_changed(out, &self.inodes.stat(found.ino())?);
        out.put_u32(u32::try_from(done).map_err(|_| NfsStatus::ServerFault)?);
        out.put_u32(if is_stable { FILE_SYNC } else { UNSTABLE });
        out.put_fixed(&self.verifier);
        Ok(Vec::new())
    }

    /// Makes everything safe that was changed before, not only of this file.
    pub(super) fn commit(&self, file: &[u8], out: &mut XdrWriter) -> Answered {
        let found = self.hold(file)?;
        // Of a tree that cannot be written everything is safe.
        if self.can_write() {
            self.inodes.sync()?;
        }
        self.put_changed(out, &found);
        out.put_fixed(&self.verifier);
        Ok(Vec::new())
    }

    pub(super) fn create(&self, place: NamedPlace<'_>, how: FileCreation, out: &mut XdrWriter) -> Answered {
        self.check_writable()?;
        let at = self.hold_place(place)?;
        let made = match how {
            FileCreation::Guarded(changes) => self.create_file(at, changes)?,
            FileCreation::Unchecked(changes) => match self.create_file(at, changes) {
                Err(NfsStatus::Exist) => self.open_existing(at, changes)?,
                made => made?,
            },
            FileCreation::Exclusive(verifier) => self.create_once(at, verifier)?,
        };
        self.put_made(out, &made, at.dir);
        Ok(Vec::new())
    }

    pub(super) fn make_dir(
        &self,
        place: NamedPlace<'_>,
        changes: AttributeChanges,
        out: &mut XdrWriter,
    ) -> Answered {
        self.check_writable()?;
        let at = self.hold_place(place)?;
        let made = self.inodes.create_dir(at, mode_of(changes, DIR_MODE), self.owner)?;
        self.put_made(out, &self.change_rest(made, changes)?, at.dir);
        Ok(Vec::new())
    }

    pub(super) fn make_symlink(
        &self,
        place: NamedPlace<'_>,
        changes: AttributeChanges,
        target: &[u8],
        out: &mut XdrWriter,
    ) -> Answered {
        self.check_writable()?;
        let at = self.hold_place(place)?;
        let made = self.inodes.create_symlink(at, target, self.owner)?;
        self.put_made(out, &self.change_rest(made, changes)?, at.dir);
        Ok(Vec::new())
    }

    pub(super) fn make_node(
        &self,
        place: NamedPlace<'_>,
        node: Option<NodeKind>,
        changes: AttributeChanges,
        out: &mut XdrWriter,
    ) -> Answered {
        self.check_writable()?;
        let at = self.hold_place(place)?;
        let node = node.ok_or(NfsStatus::BadType)?;
        let made = self.inodes.create_node(at, node, mode_of(changes, FILE_MODE), self.owner)?;
        self.put_made(out, &self.change_rest(made, changes)?, at.dir);
        Ok(Vec::new())
    }

    pub(super) fn remove(&self, place: NamedPlace<'_>, out: &mut XdrWriter) -> Answered {
        self.check_writable()?;
        let at = self.hold_place(place)?;
        self.inodes.unlink(at, self.owner.uid)?;
        self.put_changed_dir(out, at.dir);
        Ok(Vec::new())
    }

    pub(super) fn remove_dir(&self, place: NamedPlace<'_>, out: &mut XdrWriter) -> Answered {
        self.check_writable()?;
        let at = self.hold_place(place)?;
        self.inodes.remove_dir(at, self.owner.uid)?;
        self.put_changed_dir(out, at.dir);
        Ok(Vec::new())
    }

    pub(super) fn rename(&self, from: NamedPlace<'_>, to: NamedPlace<'_>, out: &mut XdrWriter) -> Answered {
        self.check_writable()?;
        let old = self.hold_place(from)?;
        let new = self.hold_place(to)?;
        self.inodes.rename(old, new, self.owner.uid)?;
        self.put_changed_dir(out, old.dir);
        self.put_changed_dir(out, new.dir);
        Ok(Vec::new())
    }

    pub(super) fn link(&self, file: &[u8], place: NamedPlace<'_>, out: &mut XdrWriter) -> Answered {
        self.check_writable()?;
        let found = self.hold(file)?;
        let at = self.hold_place(place)?;
        let linked = self.inodes.link(found.ino(), at)?;
        self.put_known(out, &linked);
        self.put_changed_dir(out, at.dir);
        Ok(Vec::new())
    }

    fn create_file(&self, at: EntryPlace<'_>, changes: AttributeChanges) -> Result<Metadata, NfsStatus> {
        let made = self.inodes.create_file(at, mode_of(changes, FILE_MODE), self.owner)?;
        self.change_rest(made, changes)
    }

    /// A file that is there already. As open(2) does, only its size is changed.
    fn open_existing(&self, at: EntryPlace<'_>, changes: AttributeChanges) -> Result<Metadata, NfsStatus> {
        let found = self.inodes.lookup(at.dir, at.name)?;
        match changes.size {
            // A directory, or what cannot be opened as a file.
            _ if !found.is_file() => Err(NfsStatus::Exist),
            None => Ok(found),
            size @ Some(_) => self.change(&found, AttributeChanges { size, ..AttributeChanges::default() }),
        }
    }

    /// A file that is made once, however often the request arrives: its times hold the number of the request until the client
    /// sets them, as servers have always done it.
    fn create_once(&self, at: EntryPlace<'_>, verifier: [u8; 8]) -> Result<Metadata, NfsStatus> {
        let [accessed, modified] = [0, 4].map(|at| {
            let word =
                verifier.get(at..at + 4).and_then(<[u8]>::first_chunk).copied().map(u32::from_be_bytes);
            UnixTime { secs: i64::from(word.unwrap_or(0)), nanos: 0 }
        });
        match self.inodes.create_file(at, FILE_MODE, self.owner).map_err(NfsStatus::from) {
            Ok(made) => {
                let marks = AttributeChanges {
                    atime: Some(TimeChange::At(accessed)),
                    mtime: Some(TimeChange::At(modified)),
                    ..AttributeChanges::default()
                };
                self.change(&made, marks)
            }
            Err(NfsStatus::Exist) => {
                let found = self.inodes.lookup(at.dir, at.name)?;
                let attr = found.attributes();
                let is_same = found.is_file() && attr.atime == accessed && attr.mtime == modified;
                if is_same && attr.size == 0 { Ok(found) } else { Err(NfsStatus::Exist) }
            }
            Err(status) => Err(status),
        }
    }

    /// Sets what making did not set.
    fn change_rest(&self, made: Metadata, changes: AttributeChanges) -> Result<Metadata, NfsStatus> {
        // The size of what is no file was asked for by mistake.
        let size = changes.size.filter(|size| made.is_file() && *size > 0);
        let rest = AttributeChanges { mode: None, size, ..changes };
        if rest == AttributeChanges::default() {
            return Ok(made);
        }
        self.change(&made, rest)
    }

    fn change(&self, found: &Metadata, changes: AttributeChanges) -> Result<Metadata, NfsStatus> {
        let changes = AttributeChanges { mode: changes.mode.map(|mode| mode & MODE_BITS), ..changes };
        Ok(self.inodes.set_attributes(found.ino(), &changes, self.owner)?)
    }
}

fn mode_of(changes: AttributeChanges, otherwise: u32) -> u32 {
    changes.mode.map_or(otherwise, |mode| mode & MODE_BITS)
}

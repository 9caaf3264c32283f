//! The tree that is served: what each request is answered.

use vellum_library::{EntryOwner, EntryPlace, Metadata, TreeInodes, Volume};

use super::attributes::{TreeNumber, put_attributes};
use super::handle::{HandleKey, HeldInode};
use super::listing::ListingTable;
use super::protocol::NfsStatus;
use super::request::{NamedPlace, NfsRequest};
use super::xdr::XdrWriter;
use crate::error::{Result, ServeError};
use crate::served_tree::{NamedTree, ServedTree};

/// What of a request is answered: nothing, or content that ends the answer.
pub(super) type Answered = std::result::Result<Vec<u8>, NfsStatus>;

/// A tree, for all clients.
pub struct NfsTree {
    pub(super) inodes: TreeInodes,
    pub(super) handles: HandleKey,
    pub(super) listings: ListingTable,
    /// Bytes of the content, of a snapshot.
    pub(super) content_bytes: u64,
    /// Another one for each start: what was written before and was not made safe has to be written again.
    pub(super) verifier: [u8; 8],
    pub(super) owner: EntryOwner,
    can_write: bool,
    number: TreeNumber,
}

impl NfsTree {
    /// A tree of a volume; new entries belong to `owner`.
    pub fn new(volume: &Volume, named: &NamedTree, can_write: bool, owner: EntryOwner) -> Result<Self> {
        let mut verifier = [0; 8];
        let random = getrandom::fill(&mut verifier).map_err(std::io::Error::other);
        random.map_err(ServeError::for_action("get random numbers"))?;
        let name = match &named.tree {
            ServedTree::Snapshot(snapshot) => format!("snapshot {}", snapshot.id()),
            ServedTree::Live(_) => format!("worktree {}", named.worktree),
        };
        let handles = HandleKey::new(volume, &name);
        let statistics = match &named.tree {
            ServedTree::Snapshot(snapshot) => snapshot.info().statistics,
            ServedTree::Live(_) => None,
        };
        Ok(Self {
            inodes: named.tree.inodes(),
            listings: ListingTable::new(volume.derive_key(&format!("listings of NFS for {name}"))),
            content_bytes: statistics.map_or(0, |counted| counted.bytes),
            verifier,
            owner,
            can_write,
            number: TreeNumber(handles.tree_number()),
            handles,
        })
    }

    /// Writes what follows the status of a success, and returns the content behind it.
    pub fn answer(&self, request: &NfsRequest<'_>, out: &mut XdrWriter) -> Answered {
        match *request {
            NfsRequest::Null => Ok(Vec::new()),
            NfsRequest::GetAttr { object } => self.answer_attributes(object, out),
            NfsRequest::SetAttr { object, changes, guard } => {
                self.set_attributes(object, changes, guard, out)
            }
            NfsRequest::Lookup { place } => self.look_up(place, out),
            NfsRequest::Access { object, wanted } => self.answer_access(object, wanted, out),
            NfsRequest::ReadLink { object } => self.read_link(object, out),
            NfsRequest::Read { file, offset, count } => self.read(file, offset, count, out),
            NfsRequest::Write { file, offset, is_stable, data } => {
                self.write(file, offset, data, is_stable, out)
            }
            NfsRequest::Create { place, how } => self.create(place, how, out),
            NfsRequest::MkDir { place, changes } => self.make_dir(place, changes, out),
            NfsRequest::Symlink { place, changes, target } => self.make_symlink(place, changes, target, out),
            NfsRequest::MkNod { place, node, changes } => self.make_node(place, node, changes, out),
            NfsRequest::Remove { place } => self.remove(place, out),
            NfsRequest::RmDir { place } => self.remove_dir(place, out),
            NfsRequest::Rename { from, to } => self.rename(from, to, out),
            NfsRequest::Link { file, place } => self.link(file, place, out),
            NfsRequest::ReadDir { dir, cookie, count } => self.list(dir, cookie, count, out),
            NfsRequest::ReadDirPlus { dir, cookie, names, count } => {
                self.list_with_attributes(dir, cookie, names, count, out)
            }
            NfsRequest::FsStat { object } => self.answer_space(object, out),
            NfsRequest::FsInfo { object } => self.answer_limits(object, out),
            NfsRequest::PathConf { object } => self.answer_names(object, out),
            NfsRequest::Commit { file } => self.commit(file, out),
        }
    }

    /// The handle of what a path leads to that begins at the root; symlinks are not followed.
    pub fn find_path(&self, path: &[u8]) -> std::result::Result<Vec<u8>, NfsStatus> {
        let mut at = self.inodes.stat(TreeInodes::ROOT)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = self.inodes.lookup(at.ino(), name)?;
        }
        if at.is_dir() { Ok(self.handle_of(&at)) } else { Err(NfsStatus::NotDir) }
    }

    /// Whether anything may be changed.
    pub(super) fn can_write(&self) -> bool {
        self.can_write
    }

    /// Fails if nothing may be changed.
    pub(super) fn check_writable(&self) -> std::result::Result<(), NfsStatus> {
        if self.can_write { Ok(()) } else { Err(NfsStatus::RoFs) }
    }

    /// The inode that a client holds.
    pub(super) fn hold(&self, handle: &[u8]) -> std::result::Result<Metadata, NfsStatus> {
        let held = self.handles.open(handle)?;
        let found = self.inodes.stat(held.ino)?;
        // Another inode has the number by now.
        if HeldInode::of(&found) == held { Ok(found) } else { Err(NfsStatus::Stale) }
    }

    /// The same of a directory.
    pub(super) fn hold_dir(&self, handle: &[u8]) -> std::result::Result<Metadata, NfsStatus> {
        let found = self.hold(handle)?;
        if found.is_dir() { Ok(found) } else { Err(NfsStatus::NotDir) }
    }

    /// A name in a directory that a client holds.
    pub(super) fn hold_place<'a>(
        &self,
        place: NamedPlace<'a>,
    ) -> std::result::Result<EntryPlace<'a>, NfsStatus> {
        Ok(EntryPlace { dir: self.hold_dir(place.dir)?.ino(), name: place.name })
    }

    pub(super) fn handle_of(&self, found: &Metadata) -> Vec<u8> {
        self.handles.seal(HeldInode::of(found)).to_vec()
    }

    /// Attributes that are told (`post_op_attr`).
    pub(super) fn put_known(&self, out: &mut XdrWriter, found: &Metadata) {
        out.put_bool(true);
        self.put_plain(out, found);
    }

    /// Attributes that are always there (`fattr3`).
    pub(super) fn put_plain(&self, out: &mut XdrWriter, found: &Metadata) {
        // What cannot be counted is as long as it seems.
        let stored = self.inodes.stored_bytes(found).unwrap_or(found.size());
        put_attributes(out, found, stored, self.number);
    }

    /// Attributes after a change, and none before it (`wcc_data`): who asks for them only saves asking again.
    pub(super) fn put_changed(&self, out: &mut XdrWriter, found: &Metadata) {
        out.put_bool(false);
        self.put_known(out, found);
    }

    /// The same of a directory that was changed; it may be gone by now.
    pub(super) fn put_changed_dir(&self, out: &mut XdrWriter, dir: u64) {
        out.put_bool(false);
        match self.inodes.stat(dir) {
            Ok(found) => self.put_known(out, &found),
            Err(_) => out.put_bool(false),
        }
    }

    /// A handle and attributes of what was made.
    pub(super) fn put_made(&self, out: &mut XdrWriter, found: &Metadata, dir: u64) {
        out.put_bool(true);
        out.put_opaque(&self.handle_of(found));
        self.put_known(out, found);
        self.put_changed_dir(out, dir);
    }
}

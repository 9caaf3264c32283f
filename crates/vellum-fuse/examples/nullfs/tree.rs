//! Names, attributes and content of the null filesystem, in memory, and the answers to requests.
//!
//! Invariant: a node that has no name and that the kernel has forgotten is freed; numbers are not used again.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::FileType;
use rustix::io::Errno;
use vellum_fs::{AttributeChanges, FilesystemStatistics, TimeChange};
use vellum_fuse::wire::{
    EntryAnswer, FuseAnswer, FuseOperation, FuseRequest, ListingAnswer, NameInAnswer, NodeAttributes,
    RequestHeader, SmallAnswer,
};
use vellum_host::clock::current_time;
use vellum_types::UnixTime;

type Result<T> = std::result::Result<T, Errno>;

/// The root's number.
const ROOT: u64 = 1;

/// How long the kernel may cache attributes and names: as long as those of Vellum.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// The nodes of the filesystem.
pub struct NullTree(Mutex<Nodes>);

struct Nodes(Vec<Option<Node>>);

struct Node {
    attr: NodeAttributes,
    parent: u64,
    /// The names, if it is a directory.
    names: Names,
    /// The content of a file, or the target of a symlink.
    content: Vec<u8>,
    /// Answers that named the node and that the kernel has not forgotten.
    known: u64,
}

/// The names of a directory; the slot of a name is its position in a listing.
#[derive(Default)]
struct Names {
    slots: Vec<Option<(Box<[u8]>, u64)>>,
    by_name: HashMap<Box<[u8]>, usize>,
}

/// A node to be created.
struct NewNode<'a> {
    name: &'a [u8],
    mode: u32,
    device: (u32, u32),
    content: &'a [u8],
}

impl NullTree {
    /// An empty root directory.
    pub fn new() -> Self {
        let mode = FileType::Directory.as_raw_mode() | 0o755;
        let root = Node::new(ROOT, ROOT, new_attributes(mode, (0, 0)));
        Self(Mutex::new(Nodes(vec![None, Some(root)])))
    }

    /// Answers a request.
    pub fn answer_request(&self, request: &FuseRequest<'_>, operation: FuseOperation<'_>) -> FuseAnswer {
        use FuseOperation as Do;
        let mut nodes = self.0.lock();
        let head = &request.header;
        let node = head.node;
        match operation {
            Do::Lookup { name } => FuseAnswer::from_result(nodes.lookup(node, name), SmallAnswer::for_entry),
            Do::Getattr => FuseAnswer::from_result(nodes.node_entry(node), SmallAnswer::for_attributes),
            Do::Statx => FuseAnswer::from_result(nodes.node_entry(node), SmallAnswer::for_statx),
            Do::Setattr(changes) => {
                FuseAnswer::from_result(nodes.set_attributes(node, &changes), SmallAnswer::for_attributes)
            }
            Do::Readlink => FuseAnswer::from_bytes_result(nodes.get_node(node).map(|it| it.content.clone())),
            Do::Read { offset, len, .. } => FuseAnswer::from_bytes_result(nodes.read(node, offset, len)),
            Do::Write { offset, data, .. } => {
                FuseAnswer::from_result(nodes.write(node, offset, data), |&len| {
                    SmallAnswer::for_byte_count(len)
                })
            }
            Do::Readdir { offset, room } => {
                FuseAnswer::from_bytes_result(nodes.list_names(node, offset, (room, false)))
            }
            Do::Readdirplus { offset, room } => {
                FuseAnswer::from_bytes_result(nodes.list_names(node, offset, (room, true)))
            }
            Do::Statfs => FuseAnswer::Small(SmallAnswer::for_statfs(&STATFS)),
            Do::Getxattr { .. } => FuseAnswer::Failed(Errno::NODATA),
            Do::Listxattr { room: 0 } => FuseAnswer::Small(SmallAnswer::for_byte_count(0)),
            Do::Listxattr { .. } => FuseAnswer::Bytes(Vec::new()),
            Do::Forget { times } => {
                nodes.forget_node(node, times);
                FuseAnswer::None
            }
            Do::BatchForget(forgets) => {
                forgets.iter_nodes().for_each(|(node, times)| nodes.forget_node(node, times));
                FuseAnswer::None
            }
            Do::Release { .. } | Do::Destroy | Do::Fsync { .. } | Do::Fsyncdir { .. } => FuseAnswer::Done,
            _ => nodes.change_names(head, operation),
        }
    }
}

/// A capacity of which half is free.
const STATFS: FilesystemStatistics = FilesystemStatistics {
    block_size: 4096,
    blocks: 1 << 24,
    blocks_free: 1 << 23,
    blocks_available: 1 << 23,
    files: 1 << 22,
    files_free: 1 << 21,
    name_max: 255,
};

impl Nodes {
    /// Answers requests that create or remove names.
    fn change_names(&mut self, head: &RequestHeader, operation: FuseOperation<'_>) -> FuseAnswer {
        use FuseOperation as Do;
        let new = |name, mode| NewNode { name, mode, device: (0, 0), content: &[] };
        let made = |done: Result<EntryAnswer>| FuseAnswer::from_result(done, SmallAnswer::for_entry);
        match operation {
            Do::Mknod { name, mode, device, umask } => {
                let device = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
                made(self.create_node(head, &NewNode { device, ..new(name, mode & !umask) }))
            }
            Do::Mkdir { name, mode, umask } => {
                let mode = FileType::Directory.as_raw_mode() | mode & PERMISSIONS & !umask;
                made(self.create_node(head, &new(name, mode)))
            }
            Do::Symlink { name, target } => {
                let mode = FileType::Symlink.as_raw_mode() | 0o777;
                made(self.create_node(head, &NewNode { content: target, ..new(name, mode) }))
            }
            Do::Link { node, name } => made(self.link(node, head.node, name)),
            Do::Unlink { name } | Do::Rmdir { name } => {
                FuseAnswer::from_unit_result(self.remove(head.node, name))
            }
            Do::Rename { name, to_dir, to_name, flags } => {
                FuseAnswer::from_unit_result(self.rename((head.node, name), (to_dir, to_name), flags))
            }
            _ => FuseAnswer::Failed(Errno::NOSYS),
        }
    }

    fn get_node(&self, node: u64) -> Result<&Node> {
        let found = usize::try_from(node).ok().and_then(|node| self.0.get(node));
        found.and_then(Option::as_ref).ok_or(Errno::STALE)
    }

    fn get_node_mut(&mut self, node: u64) -> Result<&mut Node> {
        let found = usize::try_from(node).ok().and_then(|node| self.0.get_mut(node));
        found.and_then(Option::as_mut).ok_or(Errno::STALE)
    }

    fn node_entry(&self, node: u64) -> Result<EntryAnswer> {
        Ok(self.get_node(node)?.to_entry())
    }

    /// Names a node to the kernel, and counts that.
    fn count_lookup(&mut self, node: u64) -> Result<EntryAnswer> {
        let node = self.get_node_mut(node)?;
        node.known += 1;
        Ok(node.to_entry())
    }

    /// Looks up a name. The kernel may also cache that the name does not exist.
    fn lookup(&mut self, dir: u64, name: &[u8]) -> Result<EntryAnswer> {
        match self.get_node(dir)?.names.find_node(name) {
            Some(node) => self.count_lookup(node),
            None => Ok(EntryAnswer { attr: new_attributes(0, (0, 0)), generation: 0, timeout: LONG }),
        }
    }

    fn create_node(&mut self, head: &RequestHeader, new: &NewNode<'_>) -> Result<EntryAnswer> {
        if self.get_node(head.node)?.names.find_node(new.name).is_some() {
            return Err(Errno::EXIST);
        }
        let number = self.0.len() as u64;
        let attr = NodeAttributes { uid: head.uid, gid: head.gid, ..new_attributes(new.mode, new.device) };
        let mut node = Node::new(number, head.node, attr);
        node.attr.size = new.content.len() as u64;
        node.content = new.content.to_vec();
        let is_dir = node.is_dir();
        self.0.push(Some(node));
        let dir = self.get_node_mut(head.node)?;
        dir.names.add_name(new.name, number);
        dir.attr.nlink += u32::from(is_dir);
        dir.update_change_time();
        self.count_lookup(number)
    }

    fn link(&mut self, node: u64, dir: u64, name: &[u8]) -> Result<EntryAnswer> {
        if self.get_node(dir)?.names.find_node(name).is_some() {
            return Err(Errno::EXIST);
        }
        self.get_node_mut(node)?.attr.nlink += 1;
        let dir = self.get_node_mut(dir)?;
        dir.names.add_name(name, node);
        dir.update_change_time();
        self.count_lookup(node)
    }

    fn remove(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        let number = self.get_node(dir)?.names.find_node(name).ok_or(Errno::NOENT)?;
        let node = self.get_node_mut(number)?;
        let is_dir = node.is_dir();
        if is_dir && !node.names.by_name.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        node.attr.nlink = if is_dir { 0 } else { node.attr.nlink - 1 };
        let dir = self.get_node_mut(dir)?;
        dir.names.remove_name(name);
        dir.attr.nlink -= u32::from(is_dir);
        dir.update_change_time();
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        use rustix::fs::RenameFlags;
        let is_noreplace = flags == RenameFlags::NOREPLACE.bits();
        if flags != 0 && !is_noreplace {
            return Err(Errno::INVAL);
        }
        let number = self.get_node(from.0)?.names.find_node(from.1).ok_or(Errno::NOENT)?;
        match self.get_node(to.0)?.names.find_node(to.1) {
            Some(_) if is_noreplace => return Err(Errno::EXIST),
            Some(other) if other == number => return Ok(()),
            Some(_) => self.remove(to.0, to.1)?,
            None => {}
        }
        let is_dir = self.get_node(number)?.is_dir();
        for (dir, is_new) in [(from.0, false), (to.0, true)] {
            let dir = self.get_node_mut(dir)?;
            if is_new {
                dir.names.add_name(to.1, number);
                dir.attr.nlink += u32::from(is_dir);
            } else {
                dir.names.remove_name(from.1);
                dir.attr.nlink -= u32::from(is_dir);
            }
            dir.update_change_time();
        }
        self.get_node_mut(number)?.parent = to.0;
        Ok(())
    }

    fn set_attributes(&mut self, node: u64, changes: &AttributeChanges) -> Result<EntryAnswer> {
        let node = self.get_node_mut(node)?;
        let time = |change| match change {
            TimeChange::At(time) => time,
            TimeChange::Now => current_time(),
        };
        let attr = &mut node.attr;
        attr.mode = changes.mode.map_or(attr.mode, |mode| attr.mode & !PERMISSIONS | mode & PERMISSIONS);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        attr.atime = changes.atime.map_or(attr.atime, time);
        attr.mtime = changes.mtime.map_or(attr.mtime, time);
        attr.ctime = changes.ctime.unwrap_or_else(current_time);
        if let Some(size) = changes.size {
            node.content.resize(usize::try_from(size).map_err(|_| Errno::FBIG)?, 0);
            attr.size = size;
            attr.mtime = current_time();
        }
        Ok(node.to_entry())
    }

    fn read(&self, node: u64, offset: u64, len: u32) -> Result<Vec<u8>> {
        let content = &self.get_node(node)?.content;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let end = start.saturating_add(len as usize).min(content.len());
        Ok(content[start..end].to_vec())
    }

    fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Result<u32> {
        let node = self.get_node_mut(node)?;
        let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        let end = start.checked_add(data.len()).ok_or(Errno::FBIG)?;
        if node.content.len() == start {
            node.content.extend_from_slice(data);
        } else {
            let len = node.content.len().max(end);
            node.content.resize(len, 0);
            node.content[start..end].copy_from_slice(data);
        }
        node.attr.size = node.content.len() as u64;
        node.update_change_time();
        u32::try_from(data.len()).map_err(|_| Errno::IO)
    }

    /// Lists names. With `is_plus`, each with its entry, by which the kernel knows the node.
    fn list_names(&mut self, node: u64, offset: u64, (room, is_plus): (u32, bool)) -> Result<Vec<u8>> {
        let mut listing = ListingAnswer::new(room as usize);
        let dir = self.get_node(node)?;
        let own = [(&b"."[..], node), (&b".."[..], dir.parent)].map(Some);
        let names = dir.names.slots.iter().map(|slot| slot.as_ref().map(|(name, node)| (&name[..], *node)));
        let mut given = Vec::new();
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (slot, named) in own.into_iter().chain(names).enumerate().skip(skipped) {
            let Some((name, number)) = named else { continue };
            let entry = self.node_entry(number)?;
            let listed = NameInAnswer { name, node: number, mode: entry.attr.mode, next: slot as u64 + 1 };
            // The kernel does not count `.` and `..` as lookups.
            let is_own = slot < 2;
            let fits = match (is_plus, is_own) {
                (true, true) => listing.add_name_with_entry(listed, &NO_ENTRY),
                (true, false) => listing.add_name_with_entry(listed, &entry),
                (false, _) => listing.add_name(listed),
            };
            if !fits {
                break;
            }
            given.extend((is_plus && !is_own).then_some(number));
        }
        for node in given {
            self.count_lookup(node)?;
        }
        Ok(listing.into_bytes())
    }

    fn forget_node(&mut self, number: u64, times: u64) {
        let Ok(node) = self.get_node_mut(number) else { return };
        node.known = node.known.saturating_sub(times);
        if node.known == 0 && node.attr.nlink == 0 {
            self.0[number as usize] = None;
        }
    }
}

/// An entry without a node: the kernel counts no lookup for it.
const NO_ENTRY: EntryAnswer = EntryAnswer { attr: NO_ATTRIBUTES, generation: 0, timeout: Duration::ZERO };

const NO_ATTRIBUTES: NodeAttributes = NodeAttributes {
    ino: 0,
    size: 0,
    blocks: 0,
    atime: EPOCH,
    mtime: EPOCH,
    ctime: EPOCH,
    btime: EPOCH,
    mode: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    device: (0, 0),
    block_size: 4096,
};

const EPOCH: UnixTime = UnixTime { secs: 0, nanos: 0 };

/// Attributes of a new node.
fn new_attributes(mode: u32, device: (u32, u32)) -> NodeAttributes {
    let now = current_time();
    let times = NodeAttributes { atime: now, mtime: now, ctime: now, btime: now, ..NO_ATTRIBUTES };
    NodeAttributes { mode, device, ..times }
}

impl Node {
    fn new(number: u64, parent: u64, attr: NodeAttributes) -> Self {
        let mut node = Self { attr, parent, names: Names::default(), content: Vec::new(), known: 0 };
        node.attr.ino = number;
        node.attr.nlink = if node.is_dir() { 2 } else { 1 };
        node
    }

    fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.attr.mode) == FileType::Directory
    }

    fn to_entry(&self) -> EntryAnswer {
        let attr = NodeAttributes { blocks: self.attr.size.div_ceil(512), ..self.attr };
        EntryAnswer { attr, generation: 1, timeout: LONG }
    }

    /// Sets the times of a change.
    fn update_change_time(&mut self) {
        let now = current_time();
        self.attr.mtime = now;
        self.attr.ctime = now;
    }
}

impl Names {
    fn find_node(&self, name: &[u8]) -> Option<u64> {
        let slot = *self.by_name.get(name)?;
        self.slots.get(slot)?.as_ref().map(|(_, node)| *node)
    }

    fn add_name(&mut self, name: &[u8], node: u64) {
        self.by_name.insert(name.into(), self.slots.len());
        self.slots.push(Some((name.into(), node)));
    }

    fn remove_name(&mut self, name: &[u8]) {
        if let Some(slot) = self.by_name.remove(name) {
            self.slots[slot] = None;
        }
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
    }
}

//! The requests: each is served and answered.
//!
//! Not here: `open`, `opendir`, `flush` (opening and closing need nothing of us: the kernel keeps and writes back its
//! pages by itself, and remembers that we do not want to know) and with them `create` (it makes a node, and opens that),
//! `access` (the kernel decides), locks (one kernel serves all who lock).

use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::opcode;
use vellum_types::Ino;

use super::modify::{FileRange, MknodRequest, ModifiableName};
use super::reading::ListingRange;
use super::seeking::StaleCache;
use super::{AdapterCall, FuseAdapter, InodeOwner, LONG, MountedState, format_chain, request_caller};
use crate::connection::{DeferredReply, RequestService};
use crate::node::NodePlace;
use crate::tally::RequestKind;
use crate::wire::{EntryAnswer, FuseAnswer, FuseOperation, FuseRequest, SmallAnswer, WriteFlags};

impl RequestService for FuseAdapter {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        use FuseOperation as Do;
        let call = AdapterCall { head: &request.header, what: &operation };
        let node = request.header.node;
        match operation {
            Do::Lookup { name } => self.answer_lookup(call, name),
            Do::Getattr => FuseAnswer::from_result(
                self.serve_request(RequestKind::Getattr, call, || self.getattr(node)),
                SmallAnswer::for_attributes,
            ),
            Do::Statx => FuseAnswer::from_result(
                self.serve_request(RequestKind::Statx, call, || self.getattr(node)),
                SmallAnswer::for_statx,
            ),
            Do::Readlink => {
                FuseAnswer::from_bytes_result(
                    self.serve_request(RequestKind::Readlink, call, || self.readlink(node)),
                )
            }
            Do::Read { offset, len, direct } => self.answer_read(call, offset, len, direct),
            Do::Lseek { offset, whence } => self.answer_seek(call, offset, whence, later),
            Do::Getxattr { name, room } => build_xattr_answer(
                room,
                self.serve_request(RequestKind::Getxattr, call, || self.getxattr(node, name)),
            ),
            Do::Listxattr { room } => {
                let names = || self.listxattr(node).map(Arc::from);
                build_xattr_answer(room, self.serve_request(RequestKind::Listxattr, call, names))
            }
            Do::Statfs => FuseAnswer::from_result(
                self.serve_request(RequestKind::Statfs, call, || self.statfs()),
                SmallAnswer::for_statfs,
            ),
            Do::Readdir { offset, room } => self.answer_readdir(call, ListingRange { offset, room }, later),
            Do::Readdirplus { offset, room } => {
                self.answer_readdirplus(call, ListingRange { offset, room }, later)
            }
            Do::Forget { times } => {
                self.forget_node(node, times);
                FuseAnswer::None
            }
            Do::BatchForget(forgets) => {
                forgets.iter_nodes().for_each(|(node, times)| self.forget_node(node, times));
                FuseAnswer::None
            }
            // What was made without a name is open, and so it is closed. The kernel says by itself when it has
            // forgotten it.
            Do::Release | Do::Destroy => FuseAnswer::Done,
            Do::Unknown => FuseAnswer::Failed(Errno::NOSYS),
            // There was one already.
            Do::Init(_) => FuseAnswer::Failed(Errno::IO),
            Do::Ioctl { command, input, room } => self.answer_ioctl(call, command, room, input),
            _ => self.answer_change(call, later),
        }
    }

    fn is_content_cached(&self, node: u64, offset: u64, len: u32) -> bool {
        match self.inode_owner(node) {
            Ok(InodeOwner::Live(fs, ino)) => fs.is_content_cached(ino, offset, len as usize),
            _ => false,
        }
    }
}

impl FuseAdapter {
    /// Requests that change something, or make it durable.
    fn answer_change(&self, call: AdapterCall<'_>, later: DeferredReply<'_>) -> FuseAnswer {
        use FuseOperation as Do;
        let head = call.head;
        let node = call.head.node;
        match *call.what {
            Do::Setattr(changes) => {
                let set = || self.setattr(node, &changes, request_caller(head, 0));
                FuseAnswer::from_result(
                    self.serve_request(RequestKind::Setattr, call, set),
                    SmallAnswer::for_attributes,
                )
            }
            Do::Write { offset, flags, data } => {
                let at = FileRange { node, offset };
                // Before it is written, which takes them away.
                let had_set_ids = flags.should_clear_set_ids() && self.has_set_ids(node);
                let done = self.serve_request(RequestKind::Write, call, || self.write(at, data, flags));
                let stale = self
                    .find_stale_pages(at, data.len(), flags)
                    // The kernel does not look at the mode again by itself: a program would go on to run as its owner.
                    .or_else(|| had_set_ids.then_some(StaleCache::Attributes(node)));
                self.answer_after_invalidation(
                    FuseAnswer::from_result(done, |&len| SmallAnswer::for_byte_count(len)),
                    stale,
                    later,
                )
            }
            Do::Fsync { data_only } => {
                FuseAnswer::from_unit_result(
                    self.serve_request(RequestKind::Fsync, call, || self.fsync(node, data_only)),
                )
            }
            Do::Fsyncdir { data_only } => {
                FuseAnswer::from_unit_result(
                    self.serve_request(RequestKind::Fsyncdir, call, || self.fsync(node, data_only)),
                )
            }
            Do::Setxattr { name, value, flags, drops_set_gid } => {
                let set = || self.setxattr(node, name, value, flags, drops_set_gid);
                FuseAnswer::from_unit_result(self.serve_request(RequestKind::Setxattr, call, set))
            }
            Do::Removexattr { name } => {
                FuseAnswer::from_unit_result(
                    self.serve_request(RequestKind::Removexattr, call, || self.removexattr(node, name)),
                )
            }
            Do::Fallocate { offset, len, mode } => {
                // As for writing; but of who asks Linux says no more than who it is.
                let stale = self.has_set_ids(node).then_some(StaleCache::Attributes(node));
                let allocate =
                    || self.fallocate(FileRange { node, offset }, len, mode, request_caller(head, 0));
                let done =
                    FuseAnswer::from_unit_result(self.serve_request(RequestKind::Fallocate, call, allocate));
                self.answer_after_invalidation(done, stale, later)
            }
            Do::CopyFileRange { offset, to, to_offset, len, wide } => {
                let from = FileRange { node, offset };
                let to = FileRange { node: to, offset: to_offset };
                let len = if wide { len } else { len.min(NARROW_COPY_MAX) };
                let copied =
                    self.serve_request(RequestKind::CopyFileRange, call, || self.copy_range(from, to, len));
                FuseAnswer::from_result(copied, |&copied| match u32::try_from(copied) {
                    Ok(copied) if !wide => SmallAnswer::for_byte_count(copied),
                    _ => SmallAnswer::for_offset(copied),
                })
            }
            _ => self.answer_names(call),
        }
    }

    /// The pages that the kernel must forget after a write. Call this when the write is done: a read that began during the
    /// write may have returned the old bytes, and is recorded before it reads.
    fn find_stale_pages(&self, at: FileRange, len: usize, flags: WriteFlags) -> Option<StaleCache> {
        let FileRange { node, offset } = at;
        // The kernel itself does not drop the pages that were read during an asynchronous direct write.
        (flags.is_direct_write() && !flags.is_write_back() && self.paged.contains_node(node))
            .then(|| StaleCache::Pages(node, offset..offset.saturating_add(len as u64)))
    }

    /// Answers when the kernel has forgotten what is stale.
    fn answer_after_invalidation(
        &self,
        answer: FuseAnswer,
        stale: Option<StaleCache>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let Some(stale) = stale.filter(|_| !matches!(answer, FuseAnswer::Failed(_))) else { return answer };
        let unanswered = later.into_pending();
        self.seeking.enqueue_invalidation(stale, move || unanswered.send_answer(answer));
        FuseAnswer::Later
    }

    /// Operations of a file's own kind: none but to ask for its flags, of which there are none, and to set none.
    fn answer_ioctl(&self, call: AdapterCall<'_>, command: u32, room: u32, input: &[u8]) -> FuseAnswer {
        let is_set =
            |words: usize| input.get(..4 * words).is_some_and(|input| input.iter().any(|byte| *byte != 0));
        let words = match command {
            GET_FLAGS => 1,
            GET_XFLAGS => XFLAGS_WORDS,
            SET_FLAGS | SET_XFLAGS if is_set(1) => return FuseAnswer::Failed(Errno::OPNOTSUPP),
            SET_FLAGS | SET_XFLAGS => 0,
            _ => return FuseAnswer::Failed(Errno::NOTTY),
        };
        if 4 * words > room as usize {
            return FuseAnswer::Failed(Errno::INVAL);
        }
        // Whether it is there.
        match self.getattr(call.head.node) {
            Ok(_) => FuseAnswer::Small(SmallAnswer::for_ioctl(words)),
            Err(error) => FuseAnswer::Failed(error.errno()),
        }
    }

    /// Requests that make names, or take them away.
    fn answer_names(&self, call: AdapterCall<'_>) -> FuseAnswer {
        use FuseOperation as Do;
        let head = call.head;
        let dir = call.head.node;
        let at = |name| ModifiableName { dir, name };
        let made = |op, make: &dyn Fn() -> vellum_fs::Result<EntryAnswer>| {
            FuseAnswer::from_result(self.serve_request(op, call, make), |entry| {
                SmallAnswer::for_entry(&EntryAnswer {
                    patience: entry.patience.min(self.cache_timeout(dir)),
                    ..*entry
                })
            })
        };
        match *call.what {
            Do::Mknod { name, mode, device, umask } => {
                let new = MknodRequest { mode, device };
                made(RequestKind::Mknod, &|| self.mknod(at(name), new, request_caller(head, umask)))
            }
            Do::Mkdir { name, mode, umask } => {
                made(RequestKind::Mkdir, &|| self.mkdir(at(name), mode, request_caller(head, umask)))
            }
            Do::Symlink { name, target } => {
                made(RequestKind::Symlink, &|| self.symlink(at(name), target, request_caller(head, 0)))
            }
            Do::Link { node, name } => made(RequestKind::Link, &|| self.link(node, at(name))),
            Do::Tmpfile { mode, umask } => {
                let make = || self.tmpfile(dir, mode, request_caller(head, umask));
                FuseAnswer::from_result(
                    self.serve_request(RequestKind::Tmpfile, call, make),
                    SmallAnswer::for_created_file,
                )
            }
            Do::Unlink { name } => {
                FuseAnswer::from_unit_result(
                    self.serve_request(RequestKind::Unlink, call, || self.unlink(at(name))),
                )
            }
            Do::Rmdir { name } => {
                FuseAnswer::from_unit_result(
                    self.serve_request(RequestKind::Rmdir, call, || self.rmdir(at(name))),
                )
            }
            Do::Rename { name, to_dir, to_name, flags } => {
                let to = ModifiableName { dir: to_dir, name: to_name };
                FuseAnswer::from_unit_result(self.serve_request(RequestKind::Rename, call, || {
                    self.rename(at(name), to, flags, request_caller(head, 0))
                }))
            }
            // All others were answered.
            _ => FuseAnswer::Failed(Errno::NOSYS),
        }
    }

    fn answer_lookup(&self, call: AdapterCall<'_>, name: &[u8]) -> FuseAnswer {
        let head = call.head;
        let found = self.serve_request(RequestKind::Lookup, call, || self.lookup(head.node, name));
        // That a name does not exist may be remembered, too.
        let found = match found {
            Err(Errno::NOENT) => self.negative_entry(head.node, name).ok_or(Errno::NOENT),
            found => found,
        };
        FuseAnswer::from_result(found, SmallAnswer::for_entry)
    }

    /// The kernel has forgotten so many answers that named a node.
    pub(super) fn forget_node(&self, node: u64, times: u64) {
        self.removed.remove_node(node);
        self.paged.remove_node(node);
        match (&self.main, NodePlace::from_node(node)) {
            (MountedState::Live(fs), NodePlace::Main(epoch, ino)) => {
                match (fs.defer_inode_release(epoch, ino, times), &self.orphans) {
                    (Ok(true), Some(orphans)) => orphans.request_removal(),
                    (Ok(_), _) => {}
                    // It goes when the worktree is mounted the next time.
                    (Err(error), _) => {
                        (self.report)(&format!(
                            "a file without a name cannot be removed: {}",
                            format_chain(&error)
                        ));
                    }
                }
            }
            (_, NodePlace::Virtual(number)) => self.virt.forget_file(number),
            _ => {}
        }
    }

    /// What answers that a name does not exist, for the kernel to remember; none where it may soon exist without its
    /// knowing.
    fn negative_entry(&self, dir: u64, name: &[u8]) -> Option<EntryAnswer> {
        if dir == Ino::ROOT.0 && !self.missed.record_name(name) {
            return None;
        }
        let nothing = vellum_types::InodeAttr::new(vellum_types::FileKind::File, 0);
        let attr = crate::attr::to_node_attributes(0, &nothing, 0);
        match self.inode_owner(dir) {
            Ok(InodeOwner::Live(..)) if self.is_past_node(dir) => None,
            Ok(InodeOwner::Live(..) | InodeOwner::Frozen(..)) => {
                Some(EntryAnswer { attr, generation: 0, patience: LONG })
            }
            Ok(InodeOwner::Past(..) | InodeOwner::Virtual(_) | InodeOwner::Removed(_)) | Err(_) => None,
        }
    }
}

/// Flags of a file, in one word (`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`).
const GET_FLAGS: u32 = opcode::read::<usize>(b'f', 1);
const SET_FLAGS: u32 = opcode::write::<usize>(b'f', 2);

/// Flags of a file with what else XFS keeps (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`): the first word are the flags.
const XFLAGS_WORDS: usize = 7;
const GET_XFLAGS: u32 = opcode::read::<[u32; XFLAGS_WORDS]>(b'X', 31);
const SET_XFLAGS: u32 = opcode::write::<[u32; XFLAGS_WORDS]>(b'X', 32);

/// Bytes copied at most where the answer counts them in 32 bits; whoever wants more asks again.
const NARROW_COPY_MAX: u64 = 1 << 31;

/// The value, or with no room for it (`room` 0) its length.
fn build_xattr_answer(room: u32, done: Result<Arc<[u8]>, Errno>) -> FuseAnswer {
    let value = match done {
        Ok(value) => value,
        Err(error) => return FuseAnswer::Failed(error),
    };
    match u32::try_from(value.len()) {
        Ok(len) if room == 0 => FuseAnswer::Small(SmallAnswer::for_byte_count(len)),
        Ok(len) if len <= room => FuseAnswer::Shared(value),
        Ok(_) => FuseAnswer::Failed(Errno::RANGE),
        Err(_) => FuseAnswer::Failed(Errno::TOOBIG),
    }
}

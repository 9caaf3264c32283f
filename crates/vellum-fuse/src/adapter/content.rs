//! Content of files and symlinks: reading, writing, seeking, copying, and making it durable.

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use vellum_fs::{AllocateMode, FsError, Result, SeekTarget, StateReader, StoredWriteTarget};
use vellum_store::FetchPolicy;

use super::seeking::{SeekFinding, SeekGoal, StaleCache, UncertainSeek, build_seek_answer};
use super::{FuseAdapter, InodeOwner, MountedState, request_caller};
use crate::metrics::ServedRequest;
use crate::transport::{DeferredReply, MAX_WRITE};
use crate::wire::{FuseAnswer, SmallAnswer, StoredChunks, WriteFlags};

/// The `whence` of `lseek` that searches for data (`SEEK_DATA`). The kernel sends only this one and `SEEK_HOLE`.
const SEEK_DATA: u32 = 3;

/// Bytes that are copied at most if the answer counts them in 32 bits. The caller asks again for the rest.
const NARROW_COPY_MAX: u64 = 1 << 31;

/// A position in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FilePosition {
    pub node: u64,
    pub offset: u64,
}

/// What a program writes.
#[derive(Debug, Clone, Copy)]
pub(super) enum WrittenContent<'a> {
    /// The bytes.
    Bytes(&'a [u8]),
    /// Chunks that a client has put into the store.
    Stored(StoredChunks<'a>),
}

impl WrittenContent<'_> {
    fn count_bytes(self) -> u64 {
        match self {
            Self::Bytes(data) => data.len() as u64,
            Self::Stored(chunks) => chunks.count_bytes(),
        }
    }
}

/// Limits a requested length to what one answer can carry.
pub(super) fn limit_read_len(len: u32) -> usize {
    usize::try_from(len).map_or(MAX_WRITE, |len| len.min(MAX_WRITE))
}

impl FuseAdapter {
    pub(super) fn answer_readlink(&self, call: ServedRequest<'_>) -> FuseAnswer {
        FuseAnswer::from_bytes_result(self.serve_request(call, || match self.inode_owner(call.head.node)? {
            InodeOwner::Live(fs, ino) => fs.readlink(ino),
            InodeOwner::Past(view, ino) => view.readlink(ino),
            InodeOwner::Frozen(tree, ino) => tree.readlink(ino),
            InodeOwner::Virtual(number) => self.virt.readlink(number),
            InodeOwner::Removed(_) => Err(Errno::INVAL.into()),
        }))
    }

    pub(super) fn answer_read(
        &self,
        call: ServedRequest<'_>,
        offset: u64,
        len: u32,
        direct: bool,
    ) -> FuseAnswer {
        let node = call.head.node;
        let len = limit_read_len(len);
        if !direct && self.posture.has_kernel_caches() && matches!(self.main, MountedState::Live(_)) {
            // Recorded before it is read: a direct write that begins after this read must drop the pages that this read
            // fills.
            self.cached_files.record_node(node);
        }
        let thread = call.head.pid;
        let done = self.serve_request(call, || {
            let _policy = self.choose_fetch_policy(node, thread).map(FetchPolicy::enter);
            self.read_node(node, offset, len)
        });
        if let Ok(bytes) = &done {
            self.metrics.count_read_bytes(bytes.len());
            if let Some(readers) = &self.readers {
                readers.note_read(thread, node, bytes.len() as u64);
            }
        }
        FuseAnswer::from_bytes_result(done)
    }

    /// What a read of a node may do that a thread requested; None if nothing is ever fetched.
    fn choose_fetch_policy(&self, node: u64, thread: u32) -> Option<FetchPolicy> {
        let readers = self.readers.as_ref()?;
        if self.policies.is_never_fetched(node, || self.find_live_path(node)) {
            return Some(FetchPolicy::Refuse);
        }
        Some(readers.choose_policy(thread))
    }

    fn read_node(&self, node: u64, offset: u64, len: usize) -> Result<Vec<u8>> {
        match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => {
                let epoch = fs.epochs().current_epoch();
                let read = fs.read(ino, offset, len);
                // If the worktree was restored meanwhile, these bytes may belong to the new state.
                // Then the bytes are dropped. The node belongs to a past state now, from which it is read again.
                if fs.epochs().current_epoch() == epoch { read } else { self.read_node(node, offset, len) }
            }
            InodeOwner::Past(view, ino) => view.read(ino, offset, len),
            InodeOwner::Frozen(tree, ino) => tree.read(ino, offset, len),
            InodeOwner::Virtual(number) => self.virt.read_file(number, offset, len),
            // Only directories are kept after their removal.
            InodeOwner::Removed(_) => Err(Errno::ISDIR.into()),
        }
    }

    pub(super) fn answer_write(
        &self,
        call: ServedRequest<'_>,
        offset: u64,
        flags: WriteFlags,
        content: WrittenContent<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let node = call.head.node;
        // Looked at before the write, which clears them.
        let had_set_ids = flags.should_clear_set_ids() && self.has_set_ids(node);
        let answer = self.answer_small(
            call,
            || self.write(FilePosition { node, offset }, content, flags),
            |&len| SmallAnswer::for_byte_count(len),
        );
        // The kernel does not drop pages that were read during an asynchronous direct write, so they may hold the old
        // bytes. Such a read was recorded before it read, so this is checked after the write.
        let has_stale_pages =
            flags.is_direct_write() && !flags.is_write_back() && self.cached_files.contains_node(node);
        let stale = if has_stale_pages {
            Some(StaleCache::Pages(node, offset..offset.saturating_add(content.count_bytes())))
        } else {
            // The kernel does not ask for the mode again after a write: it would still execute the file with the rights
            // of its owner.
            had_set_ids.then_some(StaleCache::Attributes(node))
        };
        self.answer_after_invalidation(answer, stale, later)
    }

    fn write(&self, at: FilePosition, content: WrittenContent<'_>, flags: WriteFlags) -> Result<u32> {
        let written = match content {
            WrittenContent::Bytes(data) => self.write_bytes(at, data, flags)?,
            WrittenContent::Stored(chunks) => self.write_stored(at, chunks, flags)?,
        };
        self.metrics.count_written_bytes(written);
        // A write has at most `MAX_WRITE` bytes, so this does not fail.
        u32::try_from(written).map_err(|_| Errno::IO.into())
    }

    fn write_stored(&self, at: FilePosition, chunks: StoredChunks<'_>, flags: WriteFlags) -> Result<usize> {
        let (fs, ino) = self.live_inode(at.node)?;
        let is_append = flags.is_append() && !flags.is_write_back() && self.posture.decides_append_offset();
        let offset = (!is_append).then_some(at.offset);
        let target = StoredWriteTarget { ino, offset, kill_suid: flags.should_clear_set_ids() };
        let chunks: Vec<_> = chunks.iter_chunks().collect();
        fs.content().write_stored(target, &chunks)
    }

    fn write_bytes(&self, at: FilePosition, data: &[u8], flags: WriteFlags) -> Result<usize> {
        let (fs, ino) = self.live_inode(at.node)?;
        if flags.is_write_back() && self.posture.keeps_times_in_kernel() {
            // The program wrote these bytes earlier; the kernel sends the time of that by itself. If writing back
            // fails, a program that closes the file learns only whether space ran out, so an exceeded quota is reported
            // as that.
            fs.content().write_back(ino, at.offset, data).map_err(|error| match error {
                FsError::Posix(Errno::DQUOT) => FsError::Posix(Errno::NOSPC),
                error => error,
            })
        } else if flags.is_append() && !flags.is_write_back() && self.posture.decides_append_offset() {
            fs.content().append_to_file(ino, data, flags.should_clear_set_ids())
        } else {
            fs.content().write(ino, at.offset, data, flags.should_clear_set_ids())
        }
    }

    /// Searches for data or a hole. In a live file of which the kernel may have changed pages, the answer is sent
    /// later, when these were written back.
    pub(super) fn answer_lseek(
        &self,
        call: ServedRequest<'_>,
        offset: u64,
        whence: u32,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let node = call.head.node;
        let seek = if whence == SEEK_DATA { SeekTarget::Data } else { SeekTarget::Hole };
        let Ok(InodeOwner::Live(fs, ino)) = self.inode_owner(node) else {
            return build_seek_answer(self.serve_request(call, || self.seek_node(node, offset, seek)));
        };
        if !self.posture.has_kernel_caches() {
            // The kernel has no changed pages that could fill a hole.
            return build_seek_answer(self.serve_request(call, || fs.seek_data_or_hole(ino, offset, seek)));
        }
        let goal = SeekGoal { offset, seek };
        let find = |at, seek| fs.seek_data_or_hole(ino, at, seek);
        match self.serve_request(call, || goal.search_content(&find)) {
            Err(error) => FuseAnswer::Failed(error),
            Ok(SeekFinding { found, doubt: None }) => build_seek_answer(found),
            Ok(finding) => {
                let fs = fs.clone();
                let pending = later.into_pending();
                let find = move |at, seek| fs.seek_data_or_hole(ino, at, seek);
                let done = move |done| pending.send_answer(build_seek_answer(done));
                self.seek_worker.enqueue_seek(UncertainSeek::new(node, goal, finding, find, done));
                FuseAnswer::Later
            }
        }
    }

    fn seek_node(&self, node: u64, offset: u64, seek: SeekTarget) -> Result<u64> {
        match self.inode_owner(node)? {
            // The kernel may have changed pages of a file that is or was live. Without these, it is not known where the
            // holes of the file are.
            InodeOwner::Live(..) | InodeOwner::Past(..) => Err(Errno::STALE.into()),
            InodeOwner::Frozen(tree, ino) => tree.seek_data_or_hole(ino, offset, seek),
            InodeOwner::Virtual(_) | InodeOwner::Removed(_) => Err(Errno::INVAL.into()),
        }
    }

    /// Makes everything durable, whichever file is meant: what survives is always all changes up to some moment. The root
    /// directory is meant by who wants that, since the kernel sends no `syncfs` to a FUSE filesystem.
    pub(super) fn answer_fsync(&self, call: ServedRequest<'_>) -> FuseAnswer {
        self.answer_unit(call, || match self.inode_owner(call.head.node)? {
            InodeOwner::Live(fs, _) => fs.content().sync_all(),
            // What a past state or a snapshot has is durable. Virtual and removed directories have nothing to make
            // durable.
            InodeOwner::Past(..)
            | InodeOwner::Frozen(..)
            | InodeOwner::Virtual(_)
            | InodeOwner::Removed(_) => Ok(()),
        })
    }

    pub(super) fn answer_fallocate(
        &self,
        call: ServedRequest<'_>,
        offset: u64,
        len: u64,
        mode: u32,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let node = call.head.node;
        // As after a write, the kernel does not ask for the mode again.
        let stale = self.has_set_ids(node).then_some(StaleCache::Attributes(node));
        let answer = self.answer_unit(call, || {
            let (fs, ino) = self.live_inode(node)?;
            let mode = FallocateFlags::from_bits_retain(mode);
            let known = FallocateFlags::KEEP_SIZE
                | FallocateFlags::PUNCH_HOLE
                | FallocateFlags::ZERO_RANGE
                | FallocateFlags::COLLAPSE_RANGE
                | FallocateFlags::INSERT_RANGE;
            // A later kernel may know further modes. `fallocate` fails with `EOPNOTSUPP` for those that a filesystem
            // does not know.
            if !known.contains(mode) {
                return Err(Errno::OPNOTSUPP.into());
            }
            // The request does not state whether the caller may keep set-id bits; only root is known to.
            let caller = request_caller(call.head, 0);
            let mode = AllocateMode {
                keep_size: mode.contains(FallocateFlags::KEEP_SIZE),
                punch_hole: mode.contains(FallocateFlags::PUNCH_HOLE),
                zero_range: mode.contains(FallocateFlags::ZERO_RANGE),
                collapse_range: mode.contains(FallocateFlags::COLLAPSE_RANGE),
                insert_range: mode.contains(FallocateFlags::INSERT_RANGE),
                drops_set_ids_for: (caller.uid != 0).then_some(caller),
            };
            fs.content().fallocate(ino, mode, offset, len)
        });
        self.answer_after_invalidation(answer, stale, later)
    }

    /// Copies within the live worktree; stored content is shared. Fails with `EXDEV` for other sources, so that the
    /// program copies the bytes by itself.
    pub(super) fn answer_copy_range(
        &self,
        call: ServedRequest<'_>,
        offset: u64,
        to: FilePosition,
        len: u64,
        wide: bool,
    ) -> FuseAnswer {
        let len = if wide { len } else { len.min(NARROW_COPY_MAX) };
        let copy = || {
            let (fs, to_ino) = self.live_inode(to.node)?;
            // Snapshots and virtual files belong to another filesystem in this respect: sharing content needs both
            // inodes in one worktree.
            let InodeOwner::Live(_, from_ino) = self.inode_owner(call.head.node)? else {
                return Err(Errno::XDEV.into());
            };
            fs.content().copy_range(from_ino, offset, to_ino, to.offset, len)
        };
        self.answer_small(call, copy, |&copied| match u32::try_from(copied) {
            // The older request is answered with 32 bits.
            Ok(copied) if !wide => SmallAnswer::for_byte_count(copied),
            Ok(_) | Err(_) => SmallAnswer::for_offset(copied),
        })
    }
}
